"""What a kernel moves is counted once per workgroup; what it asks for, once per wave and instruction."""

import torch
import triton
import triton.language as tl

from dsv4_rocm.testing import cdna

WIDTH = 1024


@triton.jit
def add_shifted(x_ptr, y_ptr, LAPS: tl.constexpr, WIDTH: tl.constexpr):
    column = tl.arange(0, WIDTH)
    total = tl.zeros((WIDTH,), tl.float32)
    for _ in range(LAPS):
        total += tl.load(x_ptr + column)
        tl.debug_barrier()
    tl.store(y_ptr + tl.program_id(0) * WIDTH + column, total)


def test_rereads_are_hits_and_requests(gfx_arch: str) -> None:
    """Two workgroups read the same row three times each and write a row each."""
    x, y = torch.ones(WIDTH), torch.empty(2, WIDTH)
    with cdna.Device(gfx_arch, traffic=True) as device:
        add_shifted[(2,)](x, y, LAPS=3, WIDTH=WIDTH, num_warps=4)
    assert torch.equal(y, torch.full((2, WIDTH), 3.0))
    row = WIDTH * 4
    assert device.stats.moved_bytes == 2 * (row + row)
    loads = device.stats.by_opcode.get("global_load_dwordx4", 0) + device.stats.by_opcode.get("buffer_load_dwordx4", 0)
    assert device.stats.requested_bytes == loads * 64 * 16 + 2 * row
    assert loads >= 2 * 4


def test_traffic_is_off_by_default(gfx_arch: str) -> None:
    x, y = torch.ones(WIDTH), torch.empty(1, WIDTH)
    with cdna.Device(gfx_arch) as device:
        add_shifted[(1,)](x, y, LAPS=1, WIDTH=WIDTH, num_warps=4)
    assert device.stats.moved_bytes == device.stats.requested_bytes == 0
