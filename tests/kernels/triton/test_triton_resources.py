"""What the compilers make of every kernel as its launcher launches it: budgets, matrix instructions, width of loads."""

import os
from collections import defaultdict

import pytest
import triton

from dsv4_rocm.kernels.triton_common import amd_compiler
from dsv4_rocm.testing.bench import budgets
from dsv4_rocm.testing.bench.cases import ARCHES, CASES, Case, compile_case, serving
from dsv4_rocm.testing.bench.cuda_builds import CUDA
from dsv4_rocm.testing.bench.main_loop import main_loop
from dsv4_rocm.testing.bench.recorder import AMD

BUDGETS = budgets.load()
MATRIX = {"gfx": r"\bv_mfma", "sm": r"wgmma\.mma_async|mma\.sync|tcgen05\.mma"}
COMPILED = [
    pytest.param(case, name, marks=[] if case.quick else [pytest.mark.slow], id=f"{case.op}-{case.name}-{name}")
    for case in CASES
    for name in ARCHES
]
# A turn of 16 keys has 1,024 pieces of 16 bytes for 256 lanes: what is left for narrow loads are scales and ids.
BYTE_LOADS = {"sparse_attention": 8, "indexer_select": 0}


@pytest.mark.parametrize(("case", "name"), COMPILED)
def test_shipped_configuration(case: Case, name: str) -> None:
    """In budget; and no kernel that multiplies matrices lost its matrix instructions.

    Triton 3.9 was seen to compile 64 heads for sm100 to an empty kernel without an error.
    """
    for implementation in serving(case.op, name, case.encodings):
        for kernel in compile_case(case, implementation, name):
            found = budgets.figures(kernel)
            assert not budgets.exceeded(BUDGETS, f"{case.op} {case.group}", kernel.name, name, found)
            if kernel.has_dot:
                assert kernel.count(MATRIX[name.rstrip("0123456789")]) >= 4, kernel.name


@pytest.mark.parametrize("name", AMD)
@pytest.mark.parametrize("op", BYTE_LOADS)
def test_keys_come_in_wide_loads(op: str, name: str) -> None:
    """Single bytes in the loop over keys are scales at most: a lost hint of alignment makes every key byte one."""
    case = next(case for case in CASES if case.op == op and case.quick)
    for implementation in serving(op, name):
        kernel = next(kernel for kernel in compile_case(case, implementation, name) if kernel.count(MATRIX["gfx"]))
        loop = main_loop(kernel.text, kernel.name, name)
        assert loop is not None
        assert loop.mfma_clocks > 0
        assert loop.wide_loads >= 1
        assert loop.byte_loads <= BYTE_LOADS[op]


@pytest.mark.parametrize("name", AMD)
@pytest.mark.parametrize("op", ["qnorm_rope_insert", "indexer_query", "inv_rope_quant"])
def test_memory_bound_ops_load_16_bytes_a_lane(op: str, name: str) -> None:
    case = next(case for case in CASES if case.op == op)
    for implementation in serving(op, name):
        for kernel in compile_case(case, implementation, name):
            assert kernel.count(r"(global|buffer)_load_dwordx4")
            assert kernel.count(r"(global|buffer)_load_(ubyte|ushort)") == 0


@pytest.mark.parametrize("name", AMD)
def test_c128a_compressor_stays_small(name: str) -> None:
    """At most 96 registers and 4 KiB: all rows in registers would be 512 and 114 KB."""
    case = next(case for case in CASES if case.group == "c128a")
    for implementation in serving(case.op, name, case.encodings):
        largest = max(compile_case(case, implementation, name), key=lambda kernel: kernel.code_bytes)
        assert largest.registers <= 96
        assert largest.code_bytes <= 4096


def test_budgets_hold_the_rules() -> None:
    """No spill and no scratch anywhere, at most 32 KiB of code, and nothing that no kernel needs any more."""
    for name in ARCHES:
        every = BUDGETS[budgets.EVERY][name]
        assert every == ({"stack": 0} if name in CUDA else {"spills": 0, "scratch": 0, "code": 32 * 1024})
    kernels = defaultdict(set)
    for case in CASES:
        kernels[f"{case.op} {case.group}"].update(ARCHES)
    assert set(BUDGETS) - {budgets.EVERY} == set(kernels)


def test_exceeded_budgets_are_named() -> None:
    limits = {budgets.EVERY: {"gfx942": {"spills": 0, "code": 100}}, "op a": {"k": {"gfx942": {"registers": 64}}}}
    fits = {"registers": 64, "spills": 0, "code": 100}
    assert budgets.exceeded(limits, "op a", "k", "gfx942", fits) == []
    over = budgets.exceeded(limits, "op a", "k", "gfx942", fits | {"registers": 65, "spills": 1})
    assert over == ["op a: k on gfx942: spills 1, budget 0", "op a: k on gfx942: registers 65, budget 64"]
    assert "no budget" in budgets.exceeded(limits, "op a", "other", "gfx942", fits)[0]


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
