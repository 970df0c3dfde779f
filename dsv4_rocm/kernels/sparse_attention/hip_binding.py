"""sparse_attention in HIP C++ (`csrc/sparse_attention`): which kernel, how many workgroups, and its arguments."""

import ctypes
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from dsv4_rocm import arch
from dsv4_rocm.arch import Fp8Encoding, GpuArch
from dsv4_rocm.cache.addressing import PagedCache, TokenBatch
from dsv4_rocm.cache.layout import CacheLayout, Encoding, TileOrder
from dsv4_rocm.kernels.hip_runtime import HipKernel
from dsv4_rocm.model_spec import HEAD_DIM

VARIANT = "sparse_attention"
THREADS, COMBINE_THREADS = 512, 256
MOST_ROWS = 64  # query rows of a workgroup; a row is a head of a token
ROWS = (16, 32, MOST_ROWS)
TILE_KEYS = 32
FEWEST_TILES = 3  # of a split: below, its partial result is more than twice the bytes of its keys
COMBINED_HEADS = 4
SPLIT_BYTES = 1.5  # what splits may add for one token, as a share of the bytes that must move

_POINTERS = "query sink positions request window window_table entries entries_table selected frequencies out parts"
_STRIDES = "query_stride window_stride entries_stride"
_COUNTS = "window_columns entries_columns selected_stride top_k entry_tokens requests tokens heads group_tokens"
_COUNTS += " request_groups heads_reciprocal splits_reciprocal fewest_tiles"


class Params(ctypes.Structure):
    """`sparse_attention::Params` of csrc/sparse_attention/params.hpp."""

    _fields_ = (
        *((name, ctypes.c_void_p) for name in _POINTERS.split()),
        *((name, ctypes.c_int64) for name in _STRIDES.split()),
        *((name, ctypes.c_int32) for name in _COUNTS.split()),
        ("scale", ctypes.c_float),
    )


class CombineParams(ctypes.Structure):
    """`sparse_attention::CombineParams` of csrc/sparse_attention/params.hpp."""

    _fields_ = (
        *((name, ctypes.c_void_p) for name in ("partial", "parts", "sink", "positions", "frequencies", "out")),
        *((name, ctypes.c_int32) for name in ("splits", "tokens", "heads")),
    )


@dataclass(frozen=True, slots=True)
class Plan:
    """How a batch is spread over workgroups.

    Attributes:
        rows: query rows of a workgroup, 16, 32 or 64.
        group_tokens: tokens whose heads share a workgroup and so each key it reads.
        head_blocks: workgroups for the heads of a token.
        splits: parts of the keys.
    """

    rows: int
    group_tokens: int
    head_blocks: int
    splits: int


def plan(
    gpu: GpuArch,
    tokens: int,
    heads: int,
    tokens_per_request: int | None,
    selected: bool,
    most_keys: int,
    row: CacheLayout,
) -> Plan:
    """The launch plan.

    Tokens of a request share keys where their heads fit a workgroup and the keys are neighbours (window, all entries).
    Selected entries are a set of each token: a common set would have to be made first, and rows that see a part of it
    waste matrix work; their workgroups are neighbours, so that keys in common come from L2.

    As many splits as fill the chip, as long as what they add (the query read again by each, bf16 partial results
    written and read once) stays within 1.5 / sqrt(tokens) of the bytes that must move.

    Args:
        gpu: for its compute units.
        tokens: of the batch.
        heads: of a token.
        tokens_per_request: of `TokenBatch`.
        selected: whether each token has a set of entries.
        most_keys: upper bound of the keys of a token.
        row: layout of a key.
    """
    group = 1
    if tokens_per_request is not None and not selected:
        fitting = [
            n for n in range(1, tokens_per_request + 1) if tokens_per_request % n == 0 and n * heads <= MOST_ROWS
        ]
        group = max(fitting, default=1)
    rows = min((rows for rows in ROWS if rows >= group * heads), default=MOST_ROWS)
    head_blocks = 1 if group > 1 else -(-heads // rows)
    result = 2 * group * heads * HEAD_DIM  # bytes of a group's queries, of its result, and of a split's
    needed = most_keys * row.row_bytes + 2 * result
    affordable = int((SPLIT_BYTES * tokens**-0.5 * needed + result) / (3 * result))
    fill = (gpu.compute_units or 1) // (tokens // group * head_blocks)
    splits = max(1, min(affordable, fill, most_keys // (FEWEST_TILES * TILE_KEYS)))
    return Plan(rows, group, head_blocks, splits)


def sparse_attention(
    query: Tensor,
    sink: Tensor,
    scale: float,
    batch: TokenBatch,
    window: PagedCache,
    entries: PagedCache | None,
    selected: Tensor | None,
    frequencies: Tensor | None = None,
    splits: int | None = None,
) -> Tensor:
    """See `op.SparseAttention`. fp8 rows only; queries take part as bf16, and so leaves the result.

    Args:
        query: [tokens, heads, 512].
        sink: fp32 [heads].
        scale: 512^(-1/2).
        batch: the tokens.
        window: the SWA cache.
        entries: the cache of entries, None for SWA layers.
        selected: int32 [tokens, k] or None.
        frequencies: fp32 [32] or None.
        splits: parts that the keys of a token are split into; None takes what `plan` computes.

    Raises:
        ValueError: rows are not fp8 or not aligned to 16 bytes, or an argument is not contiguous.
    """
    dtype, query = query.dtype, query.bfloat16()
    if selected is not None and selected.shape[1] == 0:
        entries, selected = None, None
    _check(query, window, entries, selected)
    tokens, heads, _ = query.shape
    out = torch.empty((tokens, heads, HEAD_DIM), dtype=query.dtype, device=query.device)
    if tokens == 0:
        return out.to(dtype)
    gpu = arch.current()
    most_keys = _most_keys(window, entries, selected)
    chosen = plan(gpu, tokens, heads, batch.tokens_per_request, selected is not None, most_keys, window.layout)
    if splits is not None:
        chosen = replace(chosen, splits=splits)
    foreign = gpu.fp8 is Fp8Encoding.E4M3FNUZ and any(cache.layout.foreign for cache in (window, entries) if cache)
    partial, parts = out, None
    if chosen.splits > 1:
        partial = torch.empty((chosen.splits, tokens, heads, HEAD_DIM), dtype=query.dtype, device=query.device)
        parts = torch.empty((chosen.splits, tokens, heads, 2), dtype=torch.float32, device=query.device)
    _attend(
        chosen, foreign, query, sink, scale, batch, window, entries, selected, frequencies, out=partial, parts=parts
    )
    if parts is not None:
        HipKernel(VARIANT, f"{VARIANT}_combine", CombineParams).launch(
            (tokens, -(-heads // COMBINED_HEADS), 1),
            COMBINE_THREADS,
            partial=partial,
            parts=parts,
            sink=sink,
            positions=batch.positions,
            frequencies=frequencies,
            out=out,
            splits=chosen.splits,
            tokens=tokens,
            heads=heads,
        )
    return out.to(dtype)


def _attend(
    chosen: Plan,
    foreign: bool,
    query: Tensor,
    sink: Tensor,
    scale: float,
    batch: TokenBatch,
    window: PagedCache,
    entries: PagedCache | None,
    selected: Tensor | None,
    frequencies: Tensor | None,
    out: Tensor,
    parts: Tensor | None,
) -> None:
    tokens, heads, _ = query.shape
    kernel = f"{VARIANT}_{chosen.rows}{'_sharing' * (chosen.group_tokens > 1)}{'_foreign' * foreign}"
    HipKernel(VARIANT, kernel, Params).launch(
        (tokens // chosen.group_tokens, chosen.head_blocks, chosen.splits),
        THREADS,
        query=query,
        sink=sink,
        positions=batch.positions,
        request=batch.request,
        window=window.pages,
        window_table=window.block_table,
        entries=entries.pages if entries else None,
        entries_table=entries.block_table if entries else None,
        selected=selected,
        frequencies=frequencies,
        out=out,
        parts=parts,
        query_stride=query.stride(0),
        window_stride=window.pages.stride(0),
        entries_stride=entries.pages.stride(0) if entries else 0,
        window_columns=window.block_table.stride(0),
        entries_columns=entries.block_table.stride(0) if entries else 0,
        selected_stride=0 if selected is None else selected.stride(0),
        top_k=0 if selected is None else selected.shape[1],
        entry_tokens=entries.layout.tokens_per_row if entries else 0,
        requests=window.block_table.shape[0],
        tokens=tokens,
        heads=heads,
        group_tokens=chosen.group_tokens,
        request_groups=(batch.tokens_per_request or 1) // chosen.group_tokens,
        heads_reciprocal=-(-(1 << 16) // heads),
        splits_reciprocal=-(-(1 << 16) // chosen.splits),
        fewest_tiles=FEWEST_TILES,
        scale=scale,
    )


def _most_keys(window: PagedCache, entries: PagedCache | None, selected: Tensor | None) -> int:
    """Upper bound of the keys of a token; the true number is on the device."""
    seen = window.layout.window or 0
    if entries is None:
        return seen
    if selected is not None:
        return seen + selected.shape[1]
    return seen + entries.block_table.shape[1] * entries.layout.rows_per_page


def _check(query: Tensor, window: PagedCache, entries: PagedCache | None, selected: Tensor | None) -> None:
    if query.stride()[1:] != (HEAD_DIM, 1) or query.stride(0) % 8:
        raise ValueError(f"sparse_attention: the heads of a token must be contiguous, got strides {query.stride()}")
    if selected is not None and selected.stride(1) != 1:
        raise ValueError(f"sparse_attention: ids of a token must be contiguous, got strides {selected.stride()}")
    for cache in (window, entries):
        if cache is None:
            continue
        layout, pages = cache.layout, cache.pages
        if layout.encoding is not Encoding.FP8 or layout.order is not TileOrder.FLAT or layout.rotated:
            raise ValueError(
                f"sparse_attention: the HIP kernel takes flat, unrotated fp8 rows, got {layout.order.value} "
                f"{layout.encoding.value} {layout.kind.value} rows"
            )
        if pages.stride(0) % 16 or pages.data_ptr() % 16:
            raise ValueError(
                f"sparse_attention: pages must lie at multiples of 16 bytes, got a stride of {pages.stride(0)}"
            )
