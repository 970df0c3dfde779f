"""Every kind of finding: a good kernel passes, the same kernel with one instruction taken out or changed does not."""

import re

import numpy as np
import pytest
import torch

from dsv4_rocm.testing import cdna
from dsv4_rocm.testing.cdna import executor, races
from dsv4_rocm.testing.cdna.lds import bank_conflicts

HEADER = """
\t.text
kernel:
{body}
\ts_endpgm
.Lfunc_end0:
\t.section .rodata
\t.amdhsa_kernel kernel
\t.amdhsa_user_sgpr_kernarg_segment_ptr 1
\t.amdhsa_user_sgpr_count 2
\t.amdhsa_system_sgpr_workgroup_id_x 1
\t.amdhsa_private_segment_fixed_size {scratch}
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
    .group_segment_fixed_size: {lds}
    .kernarg_segment_size: 16
    .name: kernel
...
"""


def assembly(body, lds=0, scratch=0):
    return HEADER.format(
        body="\n".join("\t" + line.strip() for line in body.strip().splitlines()), lds=lds, scratch=scratch
    )


def without(body, pattern, nth=0):
    """The body with the nth line that matches taken out."""
    lines = body.strip().splitlines()
    places = [k for k, line in enumerate(lines) if re.search(pattern, line)]
    del lines[places[nth]]
    return "\n".join(lines)


def run(arch, body, threads=256, lds=4096, scratch=0, checks="all", source=None, out=None, **options):
    source = torch.arange(threads, dtype=torch.int32) if source is None else source
    out = torch.full((threads,), -1, dtype=torch.int32) if out is None else out
    dev = cdna.device(arch, checks=checks, **options)
    dev.launch(assembly(body, lds, scratch), "kernel", 1, threads, [source, out])
    return source, out


def finds(arch, kind, body, text="", **options):
    with pytest.raises(cdna.Finding, match=text) as caught:
        run(arch, body, **options)
    assert caught.value.kind == kind, str(caught.value)
    return str(caught.value)


# out[i] = source[i + 64 modulo 256] through LDS: every wave reads what its neighbour wrote
EXCHANGE = """
s_load_dwordx4 s[4:7], s[0:1], 0x0
v_lshlrev_b32_e32 v1, 2, v0
v_add_u32_e32 v2, 0x100, v1
v_and_b32_e32 v2, 0x3ff, v2
s_waitcnt lgkmcnt(0)
global_load_dword v3, v1, s[4:5]
s_waitcnt vmcnt(0)
ds_write_b32 v1, v3
s_waitcnt lgkmcnt(0)
s_barrier
ds_read_b32 v4, v2
s_waitcnt lgkmcnt(0)
global_store_dword v1, v4, s[6:7]
"""


def test_good_exchange(gfx_arch):
    source, out = run(gfx_arch, EXCHANGE)
    assert torch.equal(out, source.roll(-64))


WAITS = {
    "scalar-load": (0, r"s4.*lgkmcnt.*s_load_dwordx4"),
    "global-load": (1, r"v3.*vmcnt.*global_load_dword"),
    "lds-write-at-barrier": (2, r"s_barrier while an LDS write has not been waited for"),
    "lds-read": (3, r"v4.*lgkmcnt.*ds_read_b32"),
}


@pytest.mark.parametrize(("nth", "text"), WAITS.values(), ids=WAITS)
def test_missing_wait(gfx_arch, nth, text):
    finds(gfx_arch, "wait", without(EXCHANGE, "s_waitcnt", nth), text)


def test_barrier_check_can_be_left_out(gfx_arch):
    """Hand-scheduled kernels may carry an LDS write over a barrier that does not publish it."""
    body = without(EXCHANGE, "s_waitcnt", 2)
    run(gfx_arch, body, checks="waits,hazards,races,uninitialised")
    with pytest.raises(ValueError, match="checks must be all, none or some of waits, barriers"):
        cdna.device(gfx_arch, checks="wait")


def test_wait_for_an_older_load_only(gfx_arch):
    body = EXCHANGE.replace("s_waitcnt vmcnt(0)", "global_load_dword v5, v1, s[4:5]\ns_waitcnt vmcnt({})")
    source, out = run(gfx_arch, body.format(1))
    assert torch.equal(out, source.roll(-64))
    finds(gfx_arch, "wait", body.format(2), "v3")


def test_overwriting_a_pending_result(gfx_arch):
    body = EXCHANGE.replace(
        "s_waitcnt lgkmcnt(0)\nglobal_store", "v_mov_b32_e32 v4, 0\ns_waitcnt lgkmcnt(0)\nglobal_store"
    )
    finds(gfx_arch, "wait", body, "v4")


def test_missing_barrier_is_a_race(gfx_arch):
    message = finds(gfx_arch, "race", without(EXCHANGE, "s_barrier"), "LDS byte")
    assert "ds_write_b32" in message
    assert "ds_read_b32" in message


def test_lds_race_of_two_writers(gfx_arch):
    body = EXCHANGE.replace("ds_write_b32 v1, v3", "v_and_b32_e32 v6, 0xff, v1\nds_write_b32 v6, {}").replace(
        "ds_read_b32 v4, v2", "ds_read_b32 v4, v6"
    )
    finds(gfx_arch, "race", body.format("v3"), "LDS byte")
    run(gfx_arch, body.format("v6"))  # the same value from every wave is no race


def test_global_race(gfx_arch):
    """Waves exchange through global memory: with a barrier, and without."""
    good = """
    s_load_dwordx4 s[4:7], s[0:1], 0x0
    v_lshlrev_b32_e32 v1, 2, v0
    v_add_u32_e32 v2, 0x100, v1
    v_and_b32_e32 v2, 0x3ff, v2
    s_waitcnt lgkmcnt(0)
    global_store_dword v1, v0, s[6:7]
    s_waitcnt vmcnt(0)
    s_barrier
    global_load_dword v3, v2, s[6:7]
    s_waitcnt vmcnt(0)
    s_barrier
    global_store_dword v1, v3, s[6:7]
    """
    _, out = run(gfx_arch, good)
    assert torch.equal(out, torch.arange(256, dtype=torch.int32).roll(-64))
    for nth in (0, 1):
        finds(gfx_arch, "race", without(good, "s_barrier", nth), "global memory")


# name: (instructions, the nop that matters, what is said); the tile lies in v[8:11]
HAZARDS = {
    "mfma-result-read": (
        """v_mfma_f32_16x16x4_f32 v[8:11], v2, v2, 0
        s_nop 15
        v_add_f32_e32 v4, v8, v8""",
        "s_nop",
        "matrix result is used",
    ),
    "mfma-result-stored": (
        """v_mfma_f32_16x16x4_f32 v[8:11], v2, v2, 0
        s_nop 15
        global_store_dword v1, v8, s[6:7]
        v_mov_b32_e32 v4, 0""",
        "s_nop",
        "matrix result is used",
    ),
    "mfma-result-as-operand": (
        """v_mfma_f32_32x32x2_f32 v[16:31], v2, v2, 0
        s_nop 15
        s_nop 7
        v_mfma_f32_16x16x4_f32 v[8:11], v16, v2, 0
        s_nop 15
        v_mov_b32_e32 v4, v8""",
        "s_nop",
        "read as a matrix operand",
    ),
    "valu-result-to-mfma": (
        """v_add_f32_e32 v6, v2, v2
        s_nop 1
        v_mfma_f32_16x16x4_f32 v[8:11], v6, v2, 0
        s_nop 15
        v_mov_b32_e32 v4, v8""",
        "s_nop 1$",
        "VALU result is read by a matrix instruction",
    ),
    "valu-result-through-dpp": (
        """v_add_f32_e32 v6, v2, v2
        s_nop 1
        v_mov_b32_dpp v4, v6 quad_perm:[1,0,3,2] row_mask:0xf bank_mask:0xf bound_ctrl:1""",
        "s_nop",
        "through DPP",
    ),
    "lane-mask-to-select": (
        """v_cmp_gt_f32_e32 vcc, v2, v1
        s_nop 1
        v_cndmask_b32_e32 v4, v2, v1, vcc""",
        "s_nop",
        "SGPR written by the VALU is read by the VALU",
    ),
    "lane-number": (
        """v_readfirstlane_b32 s8, v1
        s_nop 3
        v_readlane_b32 s9, v2, s8
        v_mov_b32_e32 v4, 0""",
        "s_nop",
        "lane number",
    ),
    "sgpr-to-memory": (
        """v_readfirstlane_b32 s8, v1
        s_nop 4
        scratch_store_dword off, v2, s8
        v_mov_b32_e32 v4, 0""",
        "s_nop",
        "read by a memory instruction",
    ),
    "transcendental": (
        """v_exp_f32_e32 v6, v2
        s_nop 0
        v_add_f32_e32 v4, v6, v6""",
        "s_nop",
        "transcendental",
    ),
    "vcc-to-div-fmas": (
        """v_cmp_gt_f32_e32 vcc, v2, v1
        s_nop 3
        v_div_fmas_f32 v4, v2, v2, v2""",
        "s_nop",
        "div_fmas",
    ),
    "wide-store-data": (
        """v_mov_b32_e32 v8, 0
        v_mov_b32_e32 v9, 0
        v_mov_b32_e32 v10, 0
        v_mov_b32_e32 v11, 0
        v_lshlrev_b32_e32 v12, 2, v1
        global_store_dwordx4 v12, v[8:11], s[6:7]
        s_nop 1
        v_mov_b32_e32 v8, 1
        v_mov_b32_e32 v4, 0""",
        "s_nop",
        "store of more than 8 bytes",
    ),
}
AROUND = """
s_load_dwordx4 s[4:7], s[0:1], 0x0
v_lshlrev_b32_e32 v1, 2, v0
v_cvt_f32_u32_e32 v2, v0
s_nop 4
s_waitcnt lgkmcnt(0)
{}
s_nop 15
v_lshlrev_b32_e32 v3, 2, v0
global_store_dword v3, v4, s[6:7]
"""


@pytest.mark.parametrize(("body", "nop", "text"), HAZARDS.values(), ids=HAZARDS)
def test_hazard_left_to_s_nop(gfx_arch, body, nop, text):
    options = {"threads": 64, "scratch": 256, "out": torch.zeros(4096, dtype=torch.int32)}
    run(gfx_arch, AROUND.format(body), **options)
    finds(gfx_arch, "hazard", AROUND.format(without(body, nop)), text, **options)
    run(gfx_arch, AROUND.format(without(body, nop)), checks="waits,races,uninitialised", **options)


def test_nop_one_short_is_still_a_hazard(gfx_arch):
    """fp32 16x16x4 takes eight passes: its result may be used after ten wait states."""
    body = "v_mfma_f32_16x16x4_f32 v[8:11], v2, v2, 0\ns_nop {}\nv_add_f32_e32 v4, v8, v8"
    run(gfx_arch, AROUND.format(body.format(9)), threads=64)
    finds(gfx_arch, "hazard", AROUND.format(body.format(8)), "10 wait states needed, 9 given", threads=64)


def test_uninitialised_register(gfx_arch):
    body = without(EXCHANGE, "ds_read_b32")
    message = finds(gfx_arch, "uninitialised", body, "v4 reaches a store")
    assert "global_store_dword" in message


def test_uninitialised_lds(gfx_arch):
    body = without(EXCHANGE, "ds_write_b32")
    finds(gfx_arch, "uninitialised", body, "v4 reaches a store")


def test_uninitialised_address(gfx_arch):
    finds(gfx_arch, "uninitialised", EXCHANGE.replace("v_lshlrev_b32_e32 v1, 2, v0", "v_mov_b32_e32 v1, v9"), "address")


def test_uninitialised_branch(gfx_arch):
    body = EXCHANGE.replace("s_barrier", "{}\ns_cbranch_scc1 .Lnext\n.Lnext:\ns_barrier")
    run(gfx_arch, body.format("s_cmp_eq_u32 s4, 0"))
    finds(gfx_arch, "uninitialised", body.format(""), "SCC decides a branch")
    finds(gfx_arch, "uninitialised", body.format("s_cmp_eq_u32 s20, 0"), "SCC decides a branch")


def test_uninitialised_bits_that_do_not_matter(gfx_arch):
    """Half of v5 is never written, and never looked at."""
    body = EXCHANGE.replace(
        "global_store_dword v1, v4",
        "v_mov_b32_sdwa v5, v4 dst_sel:WORD_0 dst_unused:UNUSED_PRESERVE src0_sel:WORD_0\ns_nop 0\n"
        "v_and_b32_e32 v4, {}, v5\nglobal_store_dword v1, v4",
    )
    source, out = run(gfx_arch, body.format("0xffff"))
    assert torch.equal(out, source.roll(-64))
    finds(gfx_arch, "uninitialised", body.format("0x1ffff"), "v4 reaches a store")


def test_uninitialised_scratch(gfx_arch):
    body = EXCHANGE.replace(
        "global_store_dword v1, v4",
        "scratch_store_dword off, v4, off\nscratch_load_dword v6, off, off\ns_waitcnt vmcnt(0)\n"
        "global_store_dword v1, v6",
    )
    run(gfx_arch, body, scratch=16)
    finds(gfx_arch, "uninitialised", without(body, "scratch_store"), "v6 reaches a store", scratch=16)


def test_uninitialised_tensor(gfx_arch):
    source, out = torch.arange(256, dtype=torch.int32), torch.zeros(256, dtype=torch.int32)
    dev = cdna.device(gfx_arch)
    dev.uninitialised(out)
    dev.launch(assembly(EXCHANGE, 4096), "kernel", 1, 256, [source, out])
    dev.uninitialised(source)
    with pytest.raises(cdna.Finding, match="reaches a store"):
        dev.launch(assembly(EXCHANGE, 4096), "kernel", 1, 256, [source, out])


def test_out_of_bounds(gfx_arch):
    short = torch.zeros(255, dtype=torch.int32)
    message = finds(gfx_arch, "bounds", EXCHANGE, "global store", out=short)
    assert "lane 63 of wave 3" in message
    finds(gfx_arch, "bounds", EXCHANGE, "global load", source=short)
    finds(gfx_arch, "bounds", EXCHANGE, "LDS write", lds=1020)
    body = EXCHANGE.replace("global_store", "scratch_store_dword off, v4, off offset:16\nglobal_store")
    finds(gfx_arch, "bounds", body, "scratch write", scratch=16)


def test_misaligned(gfx_arch):
    body = EXCHANGE.replace("v_lshlrev_b32_e32 v1, 2, v0", "v_lshlrev_b32_e32 v1, 2, v0\nv_add_u32_e32 v5, {}, v1")
    stores = body.replace("global_store_dword v1", "global_store_dword v5")
    run(gfx_arch, stores.format(4), out=torch.zeros(257, dtype=torch.int32))
    finds(gfx_arch, "alignment", stores.format(2), "global store", out=torch.zeros(257, dtype=torch.int32))
    finds(gfx_arch, "alignment", body.replace("ds_read_b32 v4, v2", "ds_read_b32 v4, v5").format(1), "LDS read")


def test_findings_name_lane_line_and_instruction(gfx_arch):
    body = '.file 1 "/src" "kernel.hip"\n.loc 1 7 0\n' + without(EXCHANGE, "s_waitcnt", 3)
    message = finds(gfx_arch, "wait", body)
    assert "kernel.hip:7" in message
    assert "`global_store_dword v1, v4, s[6:7]`" in message


def test_too_much_lds(gfx_arch):
    with pytest.raises(cdna.EmulationError, match="bytes of LDS asked for"):
        run(gfx_arch, EXCHANGE, lds=163841)


def test_endless_loop(gfx_arch):
    with pytest.raises(cdna.EmulationError, match="endless loop"):
        run(gfx_arch, ".Lagain:\ns_branch .Lagain", max_steps=10_000)


def test_unknown_instruction_says_what_to_do(gfx_arch):
    with pytest.raises(cdna.EmulationError, match=r"v_frobnicate_b32: unknown VALU.*vector_table.py") as caught:
        run(gfx_arch, EXCHANGE.replace("s_barrier", "v_frobnicate_b32 v1, v2"))
    assert "#9" in str(caught.value)


def test_lds_address_wraps_at_32_bits(gfx_arch):
    """Compilers fold a positive offset onto a negative base; base plus offset is taken modulo 2^32."""
    body = EXCHANGE.replace("ds_write_b32 v1, v3", "v_subrev_u32_e32 v5, 0x800, v1\nds_write_b32 v5, v3 offset:2048")
    source, out = run(gfx_arch, body)
    assert torch.equal(out, source.roll(-64))
    finds(gfx_arch, "bounds", body.replace("offset:2048", "offset:1024"), "LDS write")


TO_LDS = """
s_load_dwordx4 s[4:7], s[0:1], 0x0
v_lshlrev_b32_e32 v1, 2, v0
v_add_u32_e32 v2, 0x100, v1
v_readfirstlane_b32 s8, v1
v_and_b32_e32 v2, 0x3ff, v2
s_nop 4
s_mov_b32 m0, s8
s_waitcnt lgkmcnt(0)
global_load_lds_dword v1, s[4:5]
s_waitcnt vmcnt(0)
s_barrier
ds_read_b32 v4, v2
s_waitcnt lgkmcnt(0)
global_store_dword v1, v4, s[6:7]
"""


def test_load_to_lds(gfx_arch):
    """The bytes land when vmcnt has been waited for; M0 must be settled one state before."""
    source, out = run(gfx_arch, TO_LDS)
    assert torch.equal(out, source.roll(-64))
    finds(gfx_arch, "wait", without(TO_LDS, "vmcnt"), "load-to-LDS")
    finds(gfx_arch, "race", without(TO_LDS, "s_barrier"), "LDS byte")
    moved = without(TO_LDS, "s_mov_b32 m0").replace("global_load_lds", "s_mov_b32 m0, s8\nglobal_load_lds")
    finds(gfx_arch, "hazard", moved, "M0 is written")


def test_global_race_survives_compaction(gfx_arch, monkeypatch):
    """Old reads are folded to save memory, and still count."""
    monkeypatch.setattr(races, "COMPACT_AFTER", 2)
    loads = "\n".join("global_load_dword v3, v2, s[6:7]\ns_waitcnt vmcnt(0)" for _ in range(6))
    body = f"""
    s_load_dwordx4 s[4:7], s[0:1], 0x0
    v_lshlrev_b32_e32 v1, 2, v0
    v_add_u32_e32 v2, 0x100, v1
    v_and_b32_e32 v2, 0x3ff, v2
    s_waitcnt lgkmcnt(0)
    {loads}
    s_barrier
    global_store_dword v1, v3, s[6:7]
    """
    run(gfx_arch, body)
    finds(gfx_arch, "race", without(body, "s_barrier"), "global memory")


def test_global_atomics_do_not_race_with_each_other(gfx_arch):
    body = """
    s_load_dwordx4 s[4:7], s[0:1], 0x0
    v_mov_b32_e32 v1, 0
    v_mov_b32_e32 v2, 1
    s_waitcnt lgkmcnt(0)
    global_atomic_add v1, v2, s[6:7]
    """
    _, out = run(gfx_arch, body, out=torch.zeros(256, dtype=torch.int32))
    assert out[0] == 256
    finds(gfx_arch, "race", body + "global_load_dword v3, v1, s[6:7]", "global memory")


def test_lds_atomics_do_not_race_with_each_other(gfx_arch):
    body = """
    s_load_dwordx4 s[4:7], s[0:1], 0x0
    v_mov_b32_e32 v1, 0
    v_mov_b32_e32 v2, 1
    v_lshlrev_b32_e32 v5, 2, v0
    ds_write_b32 v1, v1
    s_waitcnt lgkmcnt(0)
    s_barrier
    ds_add_u32 v1, v2
    s_waitcnt lgkmcnt(0)
    s_barrier
    ds_read_b32 v3, v1
    s_waitcnt lgkmcnt(0)
    global_store_dword v5, v3, s[6:7]
    """
    _, out = run(gfx_arch, body)
    assert (out == 256).all()
    for nth in (0, 1):
        finds(gfx_arch, "race", without(body, "s_barrier", nth), "LDS byte 0x0")


def test_waves_that_wait_for_each_other_make_progress(gfx_arch, monkeypatch):
    """Wave 0 spins on a flag that wave 1 sets: a race by the rules, and no deadlock where the check is off."""
    monkeypatch.setattr(executor, "PATIENCE", 50)
    body = """
    s_load_dwordx4 s[4:7], s[0:1], 0x0
    v_lshlrev_b32_e32 v1, 2, v0
    v_mov_b32_e32 v2, 0
    v_readfirstlane_b32 s8, v0
    s_waitcnt lgkmcnt(0)
    s_cmp_eq_u32 s8, 0
    s_cbranch_scc0 .Lset
    .Lspin:
    ds_read_b32 v3, v2
    s_waitcnt lgkmcnt(0)
    v_readfirstlane_b32 s9, v3
    s_cmp_eq_u32 s9, 0
    s_cbranch_scc1 .Lspin
    s_branch .Ldone
    .Lset:
    v_mov_b32_e32 v3, 7
    ds_write_b32 v2, v3
    .Ldone:
    global_store_dword v1, v3, s[6:7]
    """
    for schedule in ("lockstep", "forward", "reverse"):
        _, out = run(gfx_arch, body, threads=128, checks="none", schedule=schedule)
        assert (out == 7).all()


def test_thread_ids_of_a_flat_block(gfx_arch):
    """v0 packs ten bits a dimension."""
    source, out = torch.zeros(64, dtype=torch.int32), torch.zeros(64, dtype=torch.int32)
    body = """
    s_load_dwordx4 s[4:7], s[0:1], 0x0
    v_mbcnt_lo_u32_b32 v1, -1, 0
    v_mbcnt_hi_u32_b32 v1, -1, v1
    v_lshlrev_b32_e32 v1, 2, v1
    s_waitcnt lgkmcnt(0)
    global_store_dword v1, v0, s[6:7]
    """
    cdna.device(gfx_arch).launch(assembly(body), "kernel", 1, (8, 4, 2), [source, out])
    lane = torch.arange(64, dtype=torch.int32)
    assert torch.equal(out, lane % 8 | lane // 8 % 4 << 10 | lane // 32 << 20)


def test_bank_conflicts():
    lane = np.arange(64)
    assert bank_conflicts(lane * 4, 4) == 1  # one bank a lane
    assert bank_conflicts(lane * 0, 4) == 1  # a broadcast
    assert bank_conflicts(lane * 8, 4) == 2
    assert bank_conflicts(lane * 256, 4) == 64
