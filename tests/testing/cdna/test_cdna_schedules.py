"""Orders of the waves between barriers: race-free kernels do not care, order-dependent ones are caught."""

import pytest
import torch
import triton
import triton.language as tl

from dsv4_rocm.testing import cdna

SCHEDULES = ["lockstep", "forward", "reverse", "random:1", "random:2"]


@triton.jit
def matmul_softmax_kernel(a_ptr, b_ptr, o_ptr, N: tl.constexpr, K: tl.constexpr):
    m, n, k = tl.arange(0, N), tl.arange(0, N), tl.arange(0, K)
    s = tl.dot(tl.load(a_ptr + m[:, None] * K + k[None, :]), tl.load(b_ptr + n[None, :] * K + k[:, None]))
    p = tl.exp(s - tl.max(s, 1)[:, None])
    tl.store(o_ptr + m[:, None] * N + n[None, :], p / tl.sum(p, 1)[:, None])


@triton.jit
def ticket_kernel(counter_ptr, o_ptr):
    """Every workgroup of one wave takes a number: the order of the waves shows."""
    tl.store(o_ptr + tl.program_id(0), tl.atomic_add(counter_ptr, 1))


def outcome(arch, schedule):
    torch.manual_seed(0)
    a, b, o = torch.randn(64, 64).bfloat16(), torch.randn(64, 64).bfloat16(), torch.zeros(64, 64)
    with cdna.device(arch, schedule=schedule):
        matmul_softmax_kernel[(1,)](a, b, o, N=64, K=64, num_warps=4)
    return o


def test_race_free_kernel_gives_the_same_bits(gfx_arch):
    first = outcome(gfx_arch, "lockstep")
    assert torch.isfinite(first).all()
    for schedule in SCHEDULES:
        assert torch.equal(outcome(gfx_arch, schedule), first), schedule


TICKETS = """
\t.text
kernel:
\ts_load_dwordx4 s[4:7], s[0:1], 0x0
\tv_lshlrev_b32_e32 v1, 2, v0
\tv_mov_b32_e32 v2, 0
\tv_mov_b32_e32 v3, 1
\ts_waitcnt lgkmcnt(0)
\tglobal_atomic_add v4, v2, v3, s[4:5] sc0
\ts_waitcnt vmcnt(0)
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
    .group_segment_fixed_size: 0
    .kernarg_segment_size: 16
    .name: kernel
...
"""


def tickets(arch, schedule):
    counter, out = torch.zeros(1, dtype=torch.int32), torch.full((256,), -1, dtype=torch.int32)
    cdna.device(arch, schedule=schedule).launch(TICKETS, "kernel", 1, 256, [counter, out])
    assert counter.item() == 256
    assert torch.equal(out.sort()[0], torch.arange(256, dtype=torch.int32))
    return out


def test_order_dependent_kernel_is_caught(gfx_arch):
    forward = tickets(gfx_arch, "forward")
    assert torch.equal(forward, torch.arange(256, dtype=torch.int32))
    assert torch.equal(
        tickets(gfx_arch, "reverse"), torch.arange(256, dtype=torch.int32).view(4, 64).flip(0).reshape(-1)
    )
    assert torch.equal(tickets(gfx_arch, "random:3"), tickets(gfx_arch, "random:3"))
    assert len({tuple(tickets(gfx_arch, f"random:{seed}").tolist()) for seed in range(4)}) > 1


def test_schedule_is_checked():
    with pytest.raises(ValueError, match="schedule must be"):
        cdna.device("gfx942", schedule="sideways")
