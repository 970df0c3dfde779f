"""Every kernel runs on both emulated AMD architectures."""

import os
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch

from dsv4_rocm import arch
from dsv4_rocm.cache.layout import CacheLayout
from dsv4_rocm.testing import cdna
from dsv4_rocm.testing.bench.cuda_builds import cuda_builds
from dsv4_rocm.testing.bench.recorder import AMD, launches
from dsv4_rocm.testing.cdna.program import ARCHES

# Triton 3.9 warns once a process unless this is chosen; fused is what ships today.
os.environ.setdefault("TRITON_DEFAULT_FP_FUSION", "1")


@pytest.fixture(params=ARCHES)
def gpu(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[cdna.Device]:
    """An entered emulated device, every check on; what launchers allocate is full of NaN."""
    empty = torch.empty

    def poisoned(*args: Any, **options: Any) -> torch.Tensor:
        memory = empty(*args, **options)
        memory.untyped_storage().fill_(0xFF)
        return memory

    monkeypatch.setattr(torch, "empty", poisoned)
    with arch.override(request.param), cdna.device(request.param) as device:
        yield device


@pytest.fixture
def sparse_cache(make_cache) -> Callable[[CacheLayout, list[tuple[int, int]]], Any]:
    """A cache whose blocks cover only some positions (first, end) of each request; the rest of the table is block 0."""

    def build(layout: CacheLayout, spans: list[tuple[int, int]]) -> Any:
        page = layout.tokens_per_page
        needed = [range(max(first, 0) // page, -(-end // page)) for first, end in spans]
        cache = make_cache(layout, 1, max(sum(map(len, needed)), 1) * page)
        table = torch.zeros(len(spans), max(columns.stop for columns in needed), dtype=torch.int32)
        blocks = iter(cache.table[0].tolist())
        for request, columns in enumerate(needed):
            for column in columns:
                table[request, column] = next(blocks)
        cache.table = table
        return cache

    return build


@pytest.fixture
def build() -> Callable[[str, Callable[[], Any]], list[Any]]:
    """Call a launcher for an architecture without running anything: its kernels, as it would have them compiled."""

    def compiled(name: str, launch: Callable[[], Any]) -> list[Any]:
        return list(launches(name, launch, run=False) if name in AMD else cuda_builds(name, launch))

    return compiled
