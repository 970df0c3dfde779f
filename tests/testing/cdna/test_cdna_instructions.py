"""Single instructions: everything compilers emit decodes, and what no kernel here covers is computed by hand."""

from pathlib import Path

import numpy as np
import pytest

from dsv4_rocm.testing import cdna
from dsv4_rocm.testing.cdna import mfma, program
from dsv4_rocm.testing.cdna.assembly import Instruction, parse_line
from dsv4_rocm.testing.cdna.effects import annotate
from dsv4_rocm.testing.cdna.formats import BITS
from dsv4_rocm.testing.cdna.program import ARCHES

SAMPLES = [line.split(" ", 1) for line in (Path(__file__).parent / "instruction_samples.txt").read_text().splitlines()]
TEXT = """
\t.text
kernel:
\ts_load_dwordx4 s[4:7], s[0:1], 0x0
\tv_lshlrev_b32_e32 v1, 2, v0
\ts_waitcnt lgkmcnt(0)
\tglobal_load_dword v2, v1, s[4:5]
\ts_waitcnt vmcnt(0)
{body}
\ts_nop 15
\tglobal_store_dword v1, v4, s[6:7]
\ts_endpgm
.Lfunc_end0:
\t.section .rodata
\t.amdhsa_kernel kernel
\t.amdhsa_user_sgpr_kernarg_segment_ptr 1
\t.amdhsa_user_sgpr_count 2
\t.end_amdhsa_kernel
\t.amdgpu_metadata
---
amdhsa.kernels:
  - .args:
      - .offset: 0
        .size: 8
        .value_kind: global_buffer
      - .offset: 8
        .size: 8
        .value_kind: global_buffer
    .group_segment_fixed_size: 1024
    .kernarg_segment_size: 16
    .name: kernel
...
"""
LANE = np.arange(64, dtype=np.uint32)


def evaluate(arch, body, source=None, threads=64, **options):
    """v4 of every lane after `body`, which finds the lane's source value in v2 and its byte offset in v1."""
    source = (np.arange(threads) * 0x01010101 + 0x10203040).astype(np.uint32) if source is None else source
    out = np.full(threads, 0xDEADBEEF, np.uint32)
    lines = "\n".join("\t" + line.strip() for line in body.strip().splitlines())
    cdna.device(arch, **options).launch(TEXT.format(body=lines), "kernel", 1, threads, [source, out])
    return source, out


@pytest.mark.parametrize(("arches", "text"), SAMPLES, ids=[text.split()[0] for _, text in SAMPLES])
def test_instruction_decodes(arches, text):
    for arch in ARCHES if arches == "both" else [arches]:
        ins = parse_line(text, 0)
        program.decode(ins, arch)
        assert not ins.problem
        assert ins.family != "unknown"


def test_samples_cover_the_instruction_families():
    families = set()
    for _, text in SAMPLES:
        ins = parse_line(text, 0)
        annotate(ins)
        families.add(ins.family)
    assert families == {"salu", "smem", "branch", "wait", "valu", "mfma", "lds", "global", "buffer", "scratch", "cache"}
    assert len({text.split()[0] for _, text in SAMPLES}) >= 298


def test_vector_skip(gfx_arch):
    body = "v_mov_b32_e32 v4, 7\ns_mov_b32 s8, {}\ns_setvskip s8, 2\nv_mov_b32_e32 v4, 9\ns_setvskip 0, 0"
    assert (evaluate(gfx_arch, body.format(4))[1] == 7).all()
    assert (evaluate(gfx_arch, body.format(3))[1] == 9).all()


def test_indexed_registers(gfx_arch):
    """Sources and destination move by M0[7:0] while the mode is on, and not after it."""
    body = """
    v_mov_b32_e32 v8, 100
    v_mov_b32_e32 v9, 101
    v_mov_b32_e32 v10, 102
    s_mov_b32 s8, {}
    s_set_gpr_idx_on s8, gpr_idx(SRC0)
    v_mov_b32_e32 v4, v8
    s_set_gpr_idx_off
    """
    for index in range(3):
        assert (evaluate(gfx_arch, body.format(index))[1] == 100 + index).all()
    written = """
    v_mov_b32_e32 v3, 5
    s_mov_b32 s8, 1
    s_set_gpr_idx_on s8, gpr_idx(DST)
    v_mov_b32_e32 v3, v2
    s_set_gpr_idx_off
    v_mov_b32_e32 v3, 6
    """
    source, out = evaluate(gfx_arch, written)
    assert np.array_equal(out, source)


def test_bit_field_masks(gfx_arch):
    body = "s_bfm_b32 s8, 5, 9\nv_mov_b32_e32 v4, s8"
    assert (evaluate(gfx_arch, body)[1] == 0x1F << 9).all()
    assert np.array_equal(
        evaluate(gfx_arch, "v_and_b32_e32 v3, 15, v0\nv_bfm_b32 v4, v3, 4")[1], ((1 << (LANE & 15)) - 1) << 4
    )


RESOURCE = (
    "s_mov_b32 s8, s4\ns_mov_b32 s9, {word1}\ns_or_b32 s9, s9, s5\ns_mov_b32 s10, {records}\ns_mov_b32 s11, 0x27000\n"
)


def test_buffer_by_index(gfx_arch):
    """A structured buffer of 8-byte elements: index and offset address it, records bound it, beyond them it is zero."""
    resource = RESOURCE.format(word1=hex(8 << 16), records=20)
    source, out = evaluate(
        gfx_arch, resource + "s_nop 4\nbuffer_load_dword v4, v0, s[8:11], 0 idxen offset:4\ns_waitcnt vmcnt(0)"
    )
    wanted = np.where(LANE < 20, source[(2 * LANE + 1) % 64], 0)
    assert np.array_equal(out, wanted)
    both = """v_mov_b32_e32 v6, v0
    v_mov_b32_e32 v7, 4
    buffer_load_dword v4, v[6:7], s[8:11], 0 idxen offen
    s_waitcnt vmcnt(0)"""
    assert np.array_equal(evaluate(gfx_arch, resource + both)[1], wanted)


def test_raw_buffer_range(gfx_arch):
    resource = RESOURCE.format(word1=0, records=40)
    source, out = evaluate(gfx_arch, resource + "buffer_load_dword v4, v1, s[8:11], 0 offen\ns_waitcnt vmcnt(0)")
    assert np.array_equal(out, np.where(LANE < 10, source, 0))


def test_compare_and_swap_of_64_bits(gfx_arch):
    source = np.zeros(64, np.uint32)
    body = """
    v_mov_b32_e32 v3, 0
    v_mov_b32_e32 v8, v0
    v_mov_b32_e32 v9, 0
    v_mov_b32_e32 v10, 0
    v_mov_b32_e32 v11, 0
    global_atomic_cmpswap_x2 v[6:7], v3, v[8:11], s[4:5] sc0
    s_waitcnt vmcnt(0)
    v_mov_b32_e32 v4, v6
    """
    out = evaluate(gfx_arch, body, source)[1]
    # lane 0 swaps 0 for 0, so lane 1 swaps 0 for 1, and every later lane sees 1
    assert out.tolist() == [0, 0] + [1] * 62
    assert source[0] == 1


def test_dpp_moves(gfx_arch):
    move = "s_nop 1\nv_mov_b32_dpp v4, v2 {} row_mask:0xf bank_mask:0xf bound_ctrl:1"
    source, out = evaluate(gfx_arch, move.format("row_shr:1"))
    assert np.array_equal(out, np.where(LANE % 16 == 0, 0, source[(LANE - 1) % 64]))
    assert np.array_equal(evaluate(gfx_arch, move.format("row_mirror"))[1], source[LANE // 16 * 16 + 15 - LANE % 16])
    assert np.array_equal(evaluate(gfx_arch, move.format("quad_perm:[3,2,1,0]"))[1], source[LANE ^ 3])
    assert np.array_equal(evaluate(gfx_arch, move.format("row_newbcast:5"))[1], source[LANE // 16 * 16 + 5])


def test_swizzle_patterns(gfx_arch):
    body = "ds_swizzle_b32 v4, v2 offset:{}\ns_waitcnt lgkmcnt(0)"
    source, out = evaluate(gfx_arch, body.format("swizzle(SWAP,16)"))
    assert np.array_equal(out, source[LANE ^ 16])
    assert np.array_equal(evaluate(gfx_arch, body.format("swizzle(REVERSE,8)"))[1], source[LANE ^ 7])
    assert np.array_equal(
        evaluate(gfx_arch, body.format("swizzle(BROADCAST,4,2)"))[1], source[LANE.astype(int) & ~3 | 2]
    )


def test_permute(gfx_arch):
    for selector in (0x07060302, 0x05040100, 0x0C0D0100, 0x00010203, 0x0B0A0908):
        body = f"v_not_b32_e32 v3, v2\ns_mov_b32 s8, {selector:#x}\nv_perm_b32 v4, v3, v2, s8"
        source, out = evaluate(gfx_arch, body)
        low, high = source.view(np.uint8).reshape(-1, 4), (~source).view(np.uint8).reshape(-1, 4)
        sign = [np.where(x[:, k] >> 7, 255, 0) for x in (low, high) for k in (1, 3)]
        table = [*low.T, *high.T, *sign, np.zeros(64), np.full(64, 255), *[np.full(64, 255)] * 2]
        wanted = np.stack([table[(selector >> 8 * k) & 255] for k in range(4)], 1).astype(np.uint8)
        assert np.array_equal(out, wanted.view(np.uint32)[:, 0])


def test_partial_waves(gfx_arch):
    """A block of 100 threads: the second wave has 36 lanes, and the others touch nothing."""
    source, out = evaluate(gfx_arch, "v_add_u32_e32 v4, 1, v2", threads=100)
    assert np.array_equal(out, source + 1)


def test_waves_part_and_meet_again(gfx_arch):
    """Each wave takes its own way at a branch and comes back before the barrier."""
    body = """
    v_readfirstlane_b32 s8, v0
    v_mov_b32_e32 v4, 1
    s_nop 4
    s_cmp_lt_u32 s8, 64
    s_cbranch_scc1 .Lfirst
    s_cmp_lt_u32 s8, 128
    s_cbranch_scc1 .Lsecond
    v_mov_b32_e32 v4, 3
    s_branch .Ldone
    .Lfirst:
    v_mov_b32_e32 v4, 10
    s_branch .Ldone
    .Lsecond:
    v_mov_b32_e32 v4, 20
    .Ldone:
    s_barrier
    v_add_u32_e32 v4, s8, v4
    """.replace("    .L", ".L")
    _, out = evaluate(gfx_arch, body, threads=256)
    wave = np.arange(256) // 64
    assert np.array_equal(out, wave * 64 + np.array([10, 20, 3, 3])[wave])


# rows, depth, element type, elements a lane
OPERANDS = {
    "v_mfma_f32_16x16x4_f32": (16, 4, "f32", 1),
    "v_mfma_f32_32x32x2_f32": (32, 2, "f32", 1),
    "v_mfma_f32_16x16x8_xf32": (16, 8, "xf32", 2),
    "v_mfma_f32_32x32x4_xf32": (32, 4, "xf32", 2),
    "v_mfma_f32_16x16x16_bf16": (16, 16, "bf16", 4),
    "v_mfma_f32_16x16x16_f16": (16, 16, "f16", 4),
    "v_mfma_f32_32x32x8_bf16": (32, 8, "bf16", 4),
    "v_mfma_f32_16x16x32_bf16": (16, 32, "bf16", 8),
    "v_mfma_f32_32x32x16_f16": (32, 16, "f16", 8),
    "v_mfma_f32_16x16x32_fp8_fp8": (16, 32, "fp8", 8),
    "v_mfma_f32_32x32x16_fp8_bf8": (32, 16, "fp8", 8),
    "v_mfma_i32_16x16x32_i8": (16, 32, "i8", 8),
    "v_mfma_f32_16x16x128_f8f6f4 fp4": (16, 128, "fp4", 32),
    "v_mfma_f32_32x32x64_f8f6f4 fp6": (32, 64, "fp6", 32),
}


def _shape(name):
    op, _, kind = name.partition(" ")
    code = {"": 0, "fp6": 2, "fp4": 4}[kind]
    ins = Instruction(op, op, 0, [], {"cbsz": code, "blgp": code})
    return mfma.shape_of(ins)


@pytest.mark.parametrize("name", OPERANDS)
def test_matrix_operand_map(name):
    """Lane and element of every A[i, k]: lane i + dim * (k // n), element k % n, for the n of the table."""
    rows, depth, element, per = OPERANDS[name]
    shape = _shape(name)
    assert (shape.dim, shape.k, shape.a, shape.per_lane) == (rows, depth, element, per)
    place = np.zeros((64, per), int)  # what by_row makes of the numbers lane * per + element
    place[:] = np.arange(64)[:, None] * per + np.arange(per)
    found = mfma.by_row(place, shape, element)[0]
    i, k = np.meshgrid(np.arange(rows), np.arange(depth), indexing="ij")
    assert np.array_equal(found, (i + rows * (k // per)) * per + k % per)
    assert np.array_equal(mfma.element_k(shape, element)[k % per, k // per], k)


@pytest.mark.parametrize(
    ("name", "rows", "chunk"), [("v_mfma_f32_16x16x128_f8f6f4", 16, 64), ("v_mfma_f32_32x32x64_f8f6f4", 32, 32)]
)
def test_matrix_operand_map_of_8_bit_f8f6f4(name, rows, chunk):
    """8-bit operands hold 16 consecutive elements of each half of the depth."""
    shape = _shape(name)
    i, k = np.meshgrid(np.arange(rows), np.arange(shape.k), indexing="ij")
    lane, element = i + rows * (k % chunk // 16), k % 16 + 16 * (k // chunk)
    place = np.arange(64)[:, None] * 32 + np.arange(32)
    assert np.array_equal(mfma.by_row(place, shape, "fp8")[0], lane * 32 + element)


@pytest.mark.parametrize("name", ["v_mfma_f32_16x16x16_bf16", "v_mfma_f32_32x32x8_bf16"])
def test_matrix_result_map(name):
    """16x16: lane j + 16 (i / 4), register i % 4. 32x32: lane j + 32 (i / 4 % 2), register i % 4 + 4 (i / 8)."""
    shape = _shape(name)
    i, j = np.meshgrid(np.arange(shape.dim), np.arange(shape.dim), indexing="ij")
    lane = j + (16 * (i // 4) if shape.dim == 16 else 32 * (i // 4 % 2))
    register = i % 4 if shape.dim == 16 else i % 4 + 4 * (i // 8)
    number = i * shape.dim + j
    found = mfma.to_registers(number[None], shape)
    assert np.array_equal(found[register, lane], number)
    assert np.array_equal(mfma.output_row(shape)[register, lane], i)


def test_packed_codes_of_every_width():
    """Element e of a lane sits at bit e * width, low register first."""
    rng = np.random.default_rng(0)
    for element, count in (("bf16", 8), ("fp8", 32), ("fp6", 32), ("fp4", 32)):
        width = BITS[element]
        code = rng.integers(0, 1 << width, (64, count))
        bits = ((code[..., None] >> np.arange(width)) & 1).astype(np.uint8).reshape(64, -1)
        block = np.packbits(bits, axis=1, bitorder="little").view(np.uint32).T.copy()
        assert np.array_equal(mfma.codes(block, width, count), code), element
