"""tl.dot_scaled in every format pair: native on gfx950, emulated by Triton on gfx942."""

import pytest
import torch
import triton
import triton.language as tl


@triton.jit
def scaled_dot_kernel(
    a_ptr,
    sa_ptr,
    b_ptr,
    sb_ptr,
    c_ptr,
    M: tl.constexpr,
    N: tl.constexpr,
    K: tl.constexpr,
    A_FORMAT: tl.constexpr,
    B_FORMAT: tl.constexpr,
    A_PACK: tl.constexpr,
    B_PACK: tl.constexpr,
):
    """One tile; a [M, K / A_PACK], b [N, K / B_PACK], scales [M | N, K / 32] e8m0 bytes."""
    m, n = tl.arange(0, M), tl.arange(0, N)
    a = tl.load(a_ptr + m[:, None] * (K // A_PACK) + tl.arange(0, K // A_PACK)[None, :])
    b = tl.load(b_ptr + n[None, :] * (K // B_PACK) + tl.arange(0, K // B_PACK)[:, None])
    group = tl.arange(0, K // 32)
    sa = tl.load(sa_ptr + m[:, None] * (K // 32) + group[None, :])
    sb = tl.load(sb_ptr + n[:, None] * (K // 32) + group[None, :])
    tl.store(c_ptr + m[:, None] * N + n[None, :], tl.dot_scaled(a, sa, A_FORMAT, b, sb, B_FORMAT))


E2M1 = torch.tensor([0, 0.5, 1, 1.5, 2, 3, 4, 6, -0.0, -0.5, -1, -1.5, -2, -3, -4, -6])
PAIRS = [("e4m3", "e4m3"), ("e2m1", "e2m1"), ("e4m3", "e2m1"), ("e2m1", "e4m3"), ("bf16", "e2m1"), ("e5m2", "e4m3")]


def operand(name, rows, depth):
    """(stored tensor, values, elements a byte)."""
    if name == "e2m1":
        code = torch.randint(0, 16, (rows, depth))
        return (code[:, ::2] | (code[:, 1::2] << 4)).to(torch.uint8), E2M1[code], 2
    dtype = {"e4m3": torch.float8_e4m3fn, "e5m2": torch.float8_e5m2, "bf16": torch.bfloat16}[name]
    x = torch.randn(rows, depth).to(dtype)
    return x, x.float(), 1


def check(dev, left, right, size, depth=256, **options):
    torch.manual_seed(0)
    (a, a_value, a_pack), (b, b_value, b_pack) = operand(left, size, depth), operand(right, size, depth)
    sa, sb = (torch.randint(124, 131, (size, depth // 32), dtype=torch.uint8) for _ in range(2))
    if left == "bf16":
        sa.fill_(127)  # 16-bit operands take no scale: Triton ignores one
    c = torch.full((size, size), float("nan"))
    shape = {"M": size, "N": size, "K": depth, "A_FORMAT": left, "B_FORMAT": right, "A_PACK": a_pack, "B_PACK": b_pack}
    scaled_dot_kernel[(1,)](a, sa, b, sb, c, **shape, **options)
    wide = [
        value.double() * torch.exp2(scale.double() - 127).repeat_interleave(32, 1)
        for value, scale in ((a_value, sa), (b_value, sb))
    ]
    bound = (wide[0].abs() @ wide[1].abs().T) * depth * 2.0**-24
    assert ((c.double() - wide[0] @ wide[1].T).abs() <= bound).all()


@pytest.mark.parametrize(("left", "right"), PAIRS)
def test_scaled_dot(gfx_device, left, right):
    check(gfx_device, left, right, 32)
    native = any("mfma_scale" in op for op in gfx_device.stats.by_opcode)
    assert native == (gfx_device.arch == "gfx950" and left != "bf16")


@pytest.mark.parametrize(("left", "right"), PAIRS)
def test_scaled_dot_of_16_rows_a_tile(gfx_device, left, right):
    check(gfx_device, left, right, 32, matrix_instr_nonkdim=16)


@pytest.mark.slow
@pytest.mark.parametrize(("left", "right"), PAIRS)
def test_scaled_dot_of_many_tiles(gfx_device, left, right):
    check(gfx_device, left, right, 128, num_warps=4)
