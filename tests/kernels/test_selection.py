"""choose: first that can serve, every reason when none can, and no fallback from a forced one."""

from pathlib import Path

import pytest

from dsv4_rocm.arch import GFX942, HOST
from dsv4_rocm.cache.layout import Encoding
from dsv4_rocm.cache.specs import SERVED, CacheEncodings
from dsv4_rocm.kernels import selection
from dsv4_rocm.kernels.selection import (
    Implementation,
    always,
    choose,
    implementations,
    needs_gpu_and_byte_caches,
    needs_gpu_and_byte_index,
    needs_gpu_and_fp8_rows,
    render_table,
    table,
)
from dsv4_rocm.kernels.support import with_table

FAST = Implementation("fast", "math:sqrt", lambda arch, _: None if arch is GFX942 else "needs gfx942")
SLOW = Implementation("reference", "math:sqrt", always)


@pytest.fixture
def two(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(selection, "implementations", lambda op: (FAST, SLOW))


@pytest.mark.usefixtures("two")
def test_the_first_that_can_serve_is_chosen() -> None:
    assert choose("sparse_attention", GFX942, SERVED).chosen is FAST
    choice = choose("sparse_attention", HOST, SERVED)
    assert choice.chosen is SLOW
    assert choice.rejected == {"fast": "needs gfx942"}
    assert render_table([choice]) == "  sparse_attention   reference  (not fast: needs gfx942)"


@pytest.mark.usefixtures("two")
def test_a_forced_implementation_never_falls_back(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DSV4_ROCM_IMPL_SPARSE_ATTENTION", "fast")
    with pytest.raises(ValueError, match="no implementation of sparse_attention can serve host: fast: needs gfx942"):
        choose("sparse_attention", HOST, SERVED)
    assert choose("sparse_attention", GFX942, SERVED).chosen is FAST


def test_a_library_kernel_that_a_pool_outgrows_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    short = Implementation("aiter", "math:sqrt", always, library="aiter deepgemm_fp8_paged_mqa_logits")
    monkeypatch.setattr(selection, "implementations", lambda op: (short, SLOW))
    choice = choose("indexer_select", GFX942, SERVED)
    assert choice.chosen is SLOW
    assert "right only for pools up to 2147483648 bytes (ROCm/aiter#4774" in choice.rejected["aiter"]


@pytest.mark.usefixtures("two")
def test_an_unknown_name_lists_the_known(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DSV4_ROCM_IMPL_SPARSE_ATTENTION", "fsat")
    with pytest.raises(ValueError, match=r"IMPL_SPARSE_ATTENTION=fsat names no .*; known: fast, reference"):
        choose("sparse_attention", HOST, SERVED)


def test_every_op_has_a_reference_that_loads() -> None:
    for choice in table(HOST, SERVED):
        assert choice.chosen.name == "reference"
        assert choice.chosen.load().__name__ == choice.op
        assert implementations(choice.op)[-1].name == "reference"


def test_kernels_say_which_rows_they_need() -> None:
    mixed, wide = CacheEncodings(Encoding.FP8, Encoding.MXFP4), CacheEncodings(Encoding.BF16, Encoding.BF16)
    for needs in (needs_gpu_and_fp8_rows, needs_gpu_and_byte_index, needs_gpu_and_byte_caches):
        assert needs(HOST, SERVED) == "needs an AMD or NVIDIA GPU, not host"
        assert needs(GFX942, SERVED) is None
        assert needs(GFX942, mixed) is None
    assert needs_gpu_and_fp8_rows(GFX942, wide) == "needs fp8 key rows, not bf16"
    assert needs_gpu_and_byte_index(GFX942, wide) == "needs fp8 or mxfp4 index rows, not bf16"
    assert needs_gpu_and_byte_caches(GFX942, CacheEncodings(Encoding.FP8, Encoding.BF16)) == (
        "needs fp8 or mxfp4 index rows, not bf16"
    )


def test_support_table_of_the_docs_is_up_to_date():
    page = (Path(__file__).resolve().parents[2] / "docs/kernels.md").read_text(encoding="utf-8")
    assert with_table(page) == page, "run make docs"


def test_support_table_without_its_markers_is_refused():
    with pytest.raises(ValueError, match="must hold <!-- support"):
        with_table("# The kernels")
