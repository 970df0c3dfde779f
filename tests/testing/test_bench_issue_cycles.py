"""Issue cycles of the sparse decode: two ways of counting agree, ours are below their bars, the baseline is real."""

import pytest
import torch

from dsv4_rocm.kernels.selection import implementations
from dsv4_rocm.model_spec import LayerKind
from dsv4_rocm.testing.bench import issue_cycles, upstream
from dsv4_rocm.testing.bench.arguments import FLASH_TP1, attention
from dsv4_rocm.testing.bench.main_loop import main_loop
from dsv4_rocm.testing.bench.recorder import AMD, launches

# Vector ALU and transcendental clocks of a CU for a key of 64 heads, and of a HIP workgroup without any key.
FIXED = {"gfx942": 5_000, "gfx950": 4_000}
BARS = {"triton": {"gfx942": 95, "gfx950": 120}, "hip": {"gfx942": 45, "gfx950": 32}}

# A loop with a seldom taken block: 2 + 1 vector instructions always, 3 more behind the branch, then one loop of less.
ASSEMBLY = """
kernel:
	s_mov_b32 s0, 0
.Lhead:
	v_add_f32_e32 v0, v1, v2
	v_add_f32_e32 v0, v1, v2
	v_mfma_f32_16x16x16_bf16 v[4:7], v[8:9], v[10:11], v[4:7]
	s_cbranch_scc0 .Lskip
	v_exp_f32_e32 v0, v0
	v_add_f32_e32 v0, v1, v2
	v_add_f32_e32 v0, v1, v2
.Lskip:
	global_load_dwordx4 v[20:23], v[2:3], off
	global_load_ubyte v24, v[2:3], off
	v_add_f32_e32 v0, v1, v2
	s_cbranch_scc1 .Lhead
.Lother:
	v_add_f32_e32 v0, v1, v2
	s_cbranch_scc1 .Lother
	s_endpgm
"""


def test_the_loop_with_matrix_work_is_found() -> None:
    loop = main_loop(ASSEMBLY, "kernel", "gfx942")
    assert loop is not None
    assert loop.head == 1
    assert loop.vector_clocks == (3 * 4, 3 * 4 + 16 + 2 * 4)
    assert loop.mfma_clocks == 16
    assert (loop.wide_loads, loop.byte_loads) == (1, 1)


def test_code_without_a_loop() -> None:
    assert main_loop("kernel:\n\tv_add_f32_e32 v0, v1, v2\n\ts_endpgm\n", "kernel", "gfx942") is None


@pytest.mark.parametrize("arch", AMD)
def test_cycles_per_key(arch: str) -> None:
    """Counted while running, and from the loop in the machine code; the latter brackets the former."""
    for record in issue_cycles.ours(arch):
        assert record.valu_cycles_per_key_64heads <= BARS[record.impl][arch]
        assert record.valu_cycles_per_key_static is not None
        low, high = record.valu_cycles_per_key_static
        if record.impl == "triton":  # the HIP kernel has a loop for each of three kinds of wave
            assert low <= record.valu_cycles_per_key_64heads <= high
        assert record.impl != "hip" or record.valu_cycles_fixed <= FIXED[arch]
        assert record.sgpr_spills == record.vgpr_spills == record.scratch_bytes == 0


SOURCE = """
import somewhere
LIMIT = 4
OTHER = 5

def helper(x):
    assert x.is_cuda
    return x + LIMIT

def launch(x):
    return helper(x) * 2

def unrelated():
    return OTHER
"""


def test_only_what_is_needed_is_taken_from_a_source() -> None:
    found = upstream.needed_source(SOURCE, "launch")
    assert "is_cuda" not in found
    assert "OTHER" not in found
    names: dict = {}
    exec(found, names)
    assert names["launch"](1) == 10
    with pytest.raises(ValueError, match="has no missing"):
        upstream.needed_source(SOURCE, "missing")


@pytest.mark.slow
@pytest.mark.parametrize("arch", AMD)
def test_baseline_is_right_and_dearer(arch: str) -> None:
    """vLLM's own kernel gives the attention of the reference on our caches, so that its counts mean something."""
    arguments, on = attention(FLASH_TP1, LayerKind.C4A, entries=64), issue_cycles.one_cu(arch)
    reference = implementations("sparse_attention")[-1].load()(
        **{k: v for k, v in arguments.items() if k != "frequencies"}
    )
    got: list[torch.Tensor] = []
    with upstream.decode_launcher(on) as launcher:
        launches(arch, lambda: got.append(upstream.decode(launcher, arguments, on)), on=on)
    error = (got[0].float() - reference.float()).square().mean().sqrt() / reference.float().square().mean().sqrt()
    # Weights and result in bf16, each within half a step of 2^-8: their sum, as a worst case.
    assert error <= 2 * 2.0**-8
    (theirs,) = issue_cycles.baseline(arch)
    (ours,) = (record for record in issue_cycles.ours(arch) if record.impl == "triton")
    assert theirs.valu_cycles_per_key_64heads > 2 * ours.valu_cycles_per_key_64heads
