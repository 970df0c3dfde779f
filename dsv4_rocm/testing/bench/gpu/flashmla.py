"""FlashMLA's sparse decode on the same caches, where `VLLM_FLASHMLA_SO` names a library that has it."""

import os
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor

from dsv4_rocm.cache.addressing import PagedCache
from dsv4_rocm.model_spec import HEAD_DIM
from dsv4_rocm.testing.bench.arguments import Arguments

VARIABLE = "VLLM_FLASHMLA_SO"
NAMESPACE, OPERATION = "_flashmla_C", "sparse_decode_fwd"
HEADS = (64, 128)  # what its kernels are built for


def load() -> Callable[..., Any] | None:
    """The operation of the named library, or None where the variable is not set.

    Raises:
        OSError: the file is not there or cannot be loaded.
        AttributeError: it has no sparse decode.
    """
    path = os.environ.get(VARIABLE)
    if not path:
        return None
    torch.ops.load_library(path)
    operation: Callable[..., Any] = getattr(getattr(torch.ops, NAMESPACE), OPERATION)
    return operation


@dataclass(frozen=True, slots=True)
class SparseDecode:
    """FlashMLA's operation as an implementation of our op.

    Attributes:
        operation: from `load`.
    """

    operation: Callable[..., Any]

    def __call__(self, **arguments: Any) -> Tensor:
        return self.prepared(arguments)()

    def prepared(self, arguments: Arguments) -> Callable[[], Tensor]:
        """A call on arguments of our op whose index lists are made already."""
        return partial(prepare(arguments), self.operation)


def prepare(arguments: Arguments) -> Callable[[Callable[..., Any]], Tensor]:
    """A call of an operation like FlashMLA's on arguments of our op, index lists made beforehand.

    Every token is a request of one query; the window is the cache, the entries are the extra cache. Indices count rows
    over all blocks. The library plans its work on the first call and hands the plan back for the next ones.
    """
    window, entries, selected = arguments["window"], arguments["entries"], arguments["selected"]
    batch = arguments["batch"]
    near = _window_rows(window, batch.positions, batch.request)
    far = None if entries is None else _rows(entries, batch.request, selected.long())[:, None]
    query = arguments["query"][:, None]
    plan: list[Tensor | None] = [None, None]

    def call(operation: Callable[..., Any]) -> Tensor:
        extra = None if entries is None else _paged(entries)
        sink, scale = arguments["sink"], arguments["scale"]
        out, _, *made = operation(
            query, _paged(window), near[:, None], None, sink, *plan, extra, far, None, HEAD_DIM, scale
        )
        plan[:] = made
        result: Tensor = out[:, 0]
        return result

    return call


def _window_rows(window: PagedCache, positions: Tensor, request: Tensor) -> Tensor:
    seen = window.layout.window or 0
    rows = positions[:, None] - torch.arange(seen - 1, -1, -1, device=positions.device)
    return torch.where(rows >= 0, _rows(window, request, rows.clamp(min=0)), -1)


def _rows(cache: PagedCache, request: Tensor, rows: Tensor) -> Tensor:
    """Row numbers over all blocks, int32 like `rows` [tokens, k]."""
    per_page = cache.layout.rows_per_page
    blocks = cache.block_table[request].long().gather(1, rows // per_page)
    return (blocks * per_page + rows % per_page).int()


def _paged(cache: PagedCache) -> Tensor:
    layout = cache.layout
    shape = (cache.pages.shape[0], layout.rows_per_page, 1, layout.row_bytes)
    return cache.pages.as_strided(shape, (cache.pages.stride(0), layout.row_bytes, layout.row_bytes, 1))
