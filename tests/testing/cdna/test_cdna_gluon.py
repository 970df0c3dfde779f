"""A Gluon kernel with explicit layouts: matrix layout, swizzled LDS, buffer loads."""

import pytest
import torch
from triton.experimental import gluon
from triton.experimental.gluon import language as gl

from dsv4_rocm.testing import cdna


@gluon.jit
def dot_kernel(
    a_ptr, b_ptr, c_ptr, K, V: gl.constexpr, IK: gl.constexpr, M: gl.constexpr, N: gl.constexpr, BK: gl.constexpr
):
    mfma: gl.constexpr = gl.amd.AMDMFMALayout(
        version=V, instr_shape=[16, 16, IK], transposed=True, warps_per_cta=[2, 2]
    )
    left: gl.constexpr = gl.DotOperandLayout(0, mfma, 8)
    right: gl.constexpr = gl.DotOperandLayout(1, mfma, 8)
    blocked: gl.constexpr = gl.BlockedLayout([1, 8], [8, 8], [4, 1], [1, 0])
    m = gl.arange(0, M, layout=gl.SliceLayout(1, blocked))
    k = gl.arange(0, BK, layout=gl.SliceLayout(0, blocked))
    shared: gl.constexpr = gl.SwizzledSharedLayout(8, 1, 8, order=[1, 0])
    a_lds = gl.allocate_shared_memory(a_ptr.dtype.element_ty, [M, BK], shared)
    b_lds = gl.allocate_shared_memory(b_ptr.dtype.element_ty, [N, BK], shared)
    acc = gl.zeros([M, N], gl.float32, layout=mfma)
    for k0 in range(0, K, BK):
        offset = m[:, None] * K + k0 + k[None, :]
        a = gl.amd.cdna3.buffer_load(a_ptr, offset)
        b = gl.amd.cdna3.buffer_load(b_ptr, offset)
        a_lds.store(a)
        b_lds.store(b)
        acc = gl.amd.cdna3.mfma(a_lds.load(left), b_lds.permute([1, 0]).load(right), acc)
    row = gl.arange(0, M, layout=gl.SliceLayout(1, mfma))
    column = gl.arange(0, N, layout=gl.SliceLayout(0, mfma))
    gl.amd.cdna3.buffer_store(acc, c_ptr, row[:, None] * N + column[None, :])


@pytest.mark.parametrize(("version", "depth"), [(3, 16), (4, 32)], ids=["cdna3", "cdna4"])
def test_gluon_dot(compile_kernel, version, depth):
    arch = {3: "gfx942", 4: "gfx950"}[version]
    signature = {"a_ptr": "*bf16", "b_ptr": "*bf16", "c_ptr": "*fp32", "K": "i32"}
    kernel = compile_kernel(
        dot_kernel, arch, signature, {"V": version, "IK": depth, "M": 64, "N": 64, "BK": 64}, num_warps=4
    )
    torch.manual_seed(0)
    a, b = torch.randn(64, 128).bfloat16(), torch.randn(64, 128).bfloat16()
    c = torch.full((64, 64), float("nan"))
    dev = cdna.device(arch)
    kernel.run(dev, (1, 1, 1), [a, b, c, 128])
    bound = (a.double().abs() @ b.double().abs().T) * 128 * 2.0**-24
    assert ((c.double() - a.double() @ b.double().T).abs() <= bound).all()
    assert any(op.startswith(f"v_mfma_f32_16x16x{depth}_bf16") for op in dev.stats.by_opcode)
