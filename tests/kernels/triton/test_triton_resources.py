"""What the compilers make of every kernel as its launcher launches it: registers, spills, shared memory, code."""

import os

import pytest
import torch
import triton

from dsv4_rocm import arch
from dsv4_rocm.cache.layout import Encoding, entries_layout, index_layout, state_layout, swa_layout
from dsv4_rocm.kernels.compress_insert.triton_kernel import compress_insert
from dsv4_rocm.kernels.indexer_query.op import IndexQuery
from dsv4_rocm.kernels.indexer_query.triton_kernel import indexer_query
from dsv4_rocm.kernels.indexer_select.triton_kernel import indexer_select
from dsv4_rocm.kernels.inv_rope_quant.triton_kernel import inv_rope_quant
from dsv4_rocm.kernels.qnorm_rope_insert.triton_kernel import qnorm_rope_insert
from dsv4_rocm.kernels.sparse_attention.triton_kernel import sparse_attention
from dsv4_rocm.kernels.triton_common import amd_compiler
from dsv4_rocm.model_spec import LayerKind

AMD = ["gfx942", "gfx950"]
ARCHES = [*AMD, "sm90", "sm100"]
FREQUENCIES = torch.ones(32)
MAX_CODE = 32 * 1024


def check(name: str, built: list) -> None:
    """The rules for every kernel."""
    for kernel in built:
        print(  # noqa: T201
            f"FIGURES {kernel.name} {name} registers {kernel.registers} spills {kernel.spills} scratch {kernel.scratch}"
            f" shared {kernel.shared} code {kernel.code}"
        )
        assert kernel.spills == kernel.scratch == 0, kernel.name
        assert kernel.shared <= arch.get(name).shared_bytes
        if name in AMD:
            assert kernel.code <= MAX_CODE


@pytest.mark.parametrize("name", ARCHES)
@pytest.mark.parametrize("kind", ["c4a", "c128a", "index", "mxfp4"])
def test_compress_insert(build, make_cache, make_batch, kind: str, name: str) -> None:
    layer = LayerKind.C128A if kind == "c128a" else LayerKind.C4A
    index = kind in ("index", "mxfp4")
    layout = (
        index_layout(Encoding.MXFP4 if kind == "mxfp4" else Encoding.FP8)
        if index
        else entries_layout(layer, Encoding.FP8)
    )
    batch = make_batch((0, 16))
    state, entries = make_cache(state_layout(layer, Encoding.FP8, index), tokens=16), make_cache(layout, tokens=16)
    width = layer.overlap * layout.channels
    x, ape, weight = torch.zeros(16, width), torch.zeros(layer.ratio, width), torch.ones(layout.channels).bfloat16()
    built = build(
        name,
        lambda: compress_insert(x, x, ape, weight, 1e-6, FREQUENCIES, batch, state.at(batch), entries.at(batch)),
    )
    assert len(built) == 2
    check(name, built)
    if kind == "c128a" and name in AMD:
        close = built[1]
        assert close.registers <= 96
        assert close.code <= 4096


@pytest.mark.parametrize("name", ARCHES)
def test_memory_bound_ops(build, make_cache, make_batch, name: str) -> None:
    """16-byte accesses: no single byte, and no bf16 value, is loaded or stored alone by the query programs."""
    batch = make_batch((0, 4))
    window = make_cache(swa_layout(Encoding.FP8), tokens=64).at(batch)
    query, key, weights = torch.zeros(4, 64, 512).bfloat16(), torch.zeros(4, 512).bfloat16(), torch.zeros(4, 64)
    index = index_layout(Encoding.FP8)

    def launch() -> None:
        qnorm_rope_insert(query, key, batch.positions, FREQUENCIES, 1e-6, window)
        inv_rope_quant(query, batch.positions, FREQUENCIES, 8)
        indexer_query(query[..., :128].contiguous(), weights, batch.positions, FREQUENCIES, index)

    built = build(name, launch)
    assert len(built) == 3
    check(name, built)
    if name in AMD:
        assert all(kernel.count(r"(global|buffer)_load_dwordx4") for kernel in built)
        assert all(kernel.count(r"(global|buffer)_load_(ubyte|ushort)") == 0 for kernel in built[1:])


@pytest.mark.parametrize("name", ARCHES)
@pytest.mark.parametrize("ranges", [[(2000, 1), (300, 1)], [(2000, 4)]], ids=["decode", "drafts"])
def test_indexer_select(build, make_cache, make_batch, ranges: list[tuple[int, int]], name: str) -> None:
    batch = make_batch(*ranges)
    index = make_cache(index_layout(Encoding.FP8), requests=len(ranges), tokens=2048).at(batch)
    tokens = batch.num_tokens
    query = IndexQuery(torch.zeros(tokens, 64, 128, dtype=torch.uint8), torch.zeros(tokens, 64))
    built = build(name, lambda: indexer_select(query, batch, index, 512))
    assert len(built) == 2
    check(name, built)
    assert built[0].count(r"v_mfma\w+fp8|v_mfma\w+f8|wgmma\.mma_async|mma\.sync|tcgen05\.mma") >= 4


KINDS = {"c4a": LayerKind.C4A, "c128a": LayerKind.C128A, "swa": LayerKind.SWA}
FAST = {("c4a", 64, 1, name) for name in AMD} | {("c128a", 64, 4, name) for name in AMD}
ATTENTION = [
    pytest.param(kind, heads, splits, name, marks=[] if (kind, heads, splits, name) in FAST else [pytest.mark.slow])
    for kind in KINDS
    for heads in (8, 16, 32, 64)
    for splits in (1, 4)
    for name in ARCHES
]


@pytest.mark.parametrize(("kind", "heads", "splits", "name"), ATTENTION)
def test_sparse_attention(build, make_cache, make_batch, kind: str, heads: int, splits: int, name: str) -> None:
    """Matrix instructions exist, and key bytes come 16 at a time: what is left are scales, ids and the rotary part."""
    layer, batch = KINDS[kind], make_batch((300, 2))
    window, entries, selected = make_cache(swa_layout(Encoding.FP8), tokens=320).at(batch), None, None
    if layer is not LayerKind.SWA:
        entries = make_cache(entries_layout(layer, Encoding.FP8), tokens=320).at(batch)
    if layer is LayerKind.C4A:
        selected = torch.zeros(2, 512, dtype=torch.int32)
    query = torch.zeros(2, heads, 512).bfloat16()
    built = build(
        name,
        lambda: sparse_attention(query, torch.zeros(heads), 512**-0.5, batch, window, entries, selected, splits=splits),
    )
    assert len(built) == 1 + (splits > 1)
    check(name, built)
    assert built[0].count(r"v_mfma|wgmma\.mma_async|mma\.sync|tcgen05\.mma") >= 16
    if name in AMD:
        assert built[0].count(r"(global|buffer)_load_ubyte") <= 16
        assert built[0].count(r"(global|buffer)_load_dwordx4") >= 12


def test_compiler_settings_come_back(monkeypatch: pytest.MonkeyPatch) -> None:
    """A launch must not leave a setting behind: the environment variable still counts after it."""
    amd = triton.knobs.amd
    before = dict(vars(amd)), dict(os.environ)
    with amd_compiler(async_copy=False, buffer_ops=False):
        assert amd.use_async_copy is False
        assert amd.use_buffer_ops is False
    assert (dict(vars(amd)), dict(os.environ)) == before
    monkeypatch.setenv("TRITON_HIP_USE_ASYNC_COPY", "0")
    assert amd.use_async_copy is False
