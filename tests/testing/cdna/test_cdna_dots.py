"""Dense dots of every input type, a masked copy and a softmax, against float64."""

import pytest
import torch
import triton
import triton.language as tl


@triton.jit
def add_kernel(x_ptr, y_ptr, o_ptr, n, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = i < n
    tl.store(o_ptr + i, tl.load(x_ptr + i, inside) + tl.load(y_ptr + i, inside), inside)


@triton.jit
def softmax_kernel(x_ptr, o_ptr, n, BLOCK: tl.constexpr):
    row = tl.program_id(0)
    i = tl.arange(0, BLOCK)
    v = tl.load(x_ptr + row * n + i, i < n, float("-inf"))
    v = tl.exp(v - tl.max(v, 0))
    tl.store(o_ptr + row * n + i, v / tl.sum(v, 0), i < n)


@triton.jit
def dot_kernel(a_ptr, b_ptr, c_ptr, K, M: tl.constexpr, N: tl.constexpr, BK: tl.constexpr):
    """c[M, N] = a[M, K] @ b[N, K]^T in one program."""
    m, n, k = tl.arange(0, M), tl.arange(0, N), tl.arange(0, BK)
    acc = tl.zeros((M, N), tl.float32)
    for k0 in range(0, K, BK):
        a = tl.load(a_ptr + m[:, None] * K + k0 + k[None, :])
        b = tl.load(b_ptr + n[None, :] * K + k0 + k[:, None])
        acc = tl.dot(a, b, acc)
    tl.store(c_ptr + m[:, None] * N + n[None, :], acc)


DTYPES = {
    "bf16": torch.bfloat16,
    "fp16": torch.float16,
    "e4m3-ocp": torch.float8_e4m3fn,
    "e4m3-fnuz": torch.float8_e4m3fnuz,
    "e5m2-ocp": torch.float8_e5m2,
    "fp32": torch.float32,
}


def test_masked_add_is_exact(gfx_device):
    x, y, o = torch.randn(3000), torch.randn(3000), torch.empty(3000)
    add_kernel[(3,)](x, y, o, 3000, BLOCK=1024)
    torch.testing.assert_close(o, x + y, rtol=0, atol=0)


def test_softmax(gfx_device):
    x, o = torch.randn(4, 777), torch.zeros(4, 777)
    softmax_kernel[(4,)](x, o, 777, BLOCK=1024)
    error = (o.double() - x.double().softmax(1)).abs().max()
    assert error <= 2 * (x.softmax(1).double() - x.double().softmax(1)).abs().max() + 2.0**-24


@pytest.mark.parametrize("tile", [16, 32, 64])  # one 16x16 tile, one 32x32 tile, several waves
@pytest.mark.parametrize("dtype", DTYPES.values(), ids=DTYPES)
def test_dot(gfx_device, dtype, tile):
    torch.manual_seed(0)
    depth = 128
    a, b = (torch.randn(tile, depth).to(dtype) for _ in range(2))
    c = torch.full((tile, tile), float("nan"))
    dot_kernel[(1,)](a, b, c, depth, M=tile, N=tile, BK=64)
    reference = a.double() @ b.double().T
    size = a.double().abs() @ b.double().abs().T
    # fp32 accumulation over the depth; gfx942 multiplies fp32 as xf32 (10 mantissa bits an operand)
    xf32 = any("xf32" in op for op in gfx_device.stats.by_opcode)
    bound = size * (depth * 2.0**-24 + (2 * 2.0**-10 if xf32 else 0))
    assert ((c.double() - reference).abs() <= bound).all()
    assert any("mfma" in op for op in gfx_device.stats.by_opcode)
