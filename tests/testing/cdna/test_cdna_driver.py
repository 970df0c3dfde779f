"""The Triton driver: autotuning, views, several devices, and that nothing stays behind."""

import subprocess
import sys

import pytest
import torch
import triton
import triton.language as tl
from triton.compiler.compiler import CompiledKernel
from triton.runtime import driver
from triton.runtime.errors import OutOfResources

from dsv4_rocm.testing import cdna


@triton.jit
def add_kernel(x_ptr, y_ptr, o_ptr, n, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(o_ptr + i, tl.load(x_ptr + i, i < n) + tl.load(y_ptr + i, i < n), i < n)


@triton.jit
def dot_kernel(a_ptr, b_ptr, c_ptr, K, M: tl.constexpr, N: tl.constexpr, BK: tl.constexpr):
    m, n, k = tl.arange(0, M), tl.arange(0, N), tl.arange(0, BK)
    acc = tl.zeros((M, N), tl.float32)
    for k0 in range(0, K, BK):
        a = tl.load(a_ptr + m[:, None] * K + k0 + k[None, :])
        b = tl.load(b_ptr + n[None, :] * K + k0 + k[:, None])
        acc = tl.dot(a, b, acc)
    tl.store(c_ptr + m[:, None] * N + n[None, :], acc)


def tuned():
    """A fresh autotuner each time: Triton keeps its choices on the object."""

    @triton.autotune(
        [triton.Config({"BLOCK": 256}, num_warps=2), triton.Config({"BLOCK": 512, "waves_per_eu": 2}, num_warps=4)],
        key=["n"],
    )
    @triton.jit
    def scale_kernel(x_ptr, o_ptr, n, s, BLOCK: tl.constexpr):
        i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
        tl.store(o_ptr + i, tl.load(x_ptr + i, i < n) * s, i < n)

    return scale_kernel


def test_autotuned_kernel_on_a_view(gfx_device):
    x, out = torch.randn(10, 1000)[3:5], torch.zeros(2, 1000)
    with triton.knobs.autotuning.scope():  # vLLM, once imported, has Triton keep choices on disk
        triton.knobs.autotuning.cache = False
        kernel = tuned()
    kernel[lambda meta: (triton.cdiv(2000, meta["BLOCK"]),)](x, out, 2000, 2.5)
    assert torch.equal(out, x * 2.5)
    assert len(gfx_device.launches) == 3  # every configuration once, then the chosen one


def test_out_of_bounds_is_found_through_the_driver(gfx_device):
    x, y = torch.randn(3000), torch.randn(3000)
    with pytest.raises(cdna.Finding, match="bounds"):
        add_kernel[(4,)](x[:10], y[:10], torch.empty(10), 4000, BLOCK=1024)


def test_lds_limit(gfx_device):
    """399 KB of LDS: Triton compiles it without a word, the device refuses it as hardware would."""
    a, c = torch.randn(256, 1024).bfloat16(), torch.zeros(256, 256)
    with pytest.raises(OutOfResources, match=r"Hardware limit: (65536|163840)"):
        dot_kernel[(1,)](a, a, c, 1024, M=256, N=256, BK=128, num_warps=8, num_stages=3)


def test_two_devices_in_one_process():
    x, y, o = torch.randn(100), torch.randn(100), torch.zeros(100)
    with cdna.device("gfx942") as outer:
        with cdna.device("gfx950") as inner:
            add_kernel[(1,)](x, y, o, 100, BLOCK=128)
            assert triton.runtime.driver.active.get_current_target().arch == "gfx950"
        add_kernel[(1,)](x, y, o, 100, BLOCK=128)
        assert triton.runtime.driver.active.get_current_target().arch == "gfx942"
    assert (len(outer.launches), len(inner.launches)) == (1, 1)
    assert torch.equal(o, x + y)


def test_nothing_stays_behind():
    before = driver._active, CompiledKernel._init_handles
    caches = dict(add_kernel.device_caches)
    with cdna.device("gfx942") as dev:
        add_kernel[(1,)](torch.ones(8), torch.ones(8), torch.zeros(8), 8, BLOCK=64)
        assert dev.launches
    with pytest.raises(ZeroDivisionError), cdna.device("gfx950"):
        raise ZeroDivisionError
    assert (driver._active, CompiledKernel._init_handles) == before
    assert dict(add_kernel.device_caches) == caches


def test_a_program_is_decoded_once(gfx_device):
    x, y = torch.randn(100), torch.randn(100)
    seen = []
    for _ in range(2):
        out = torch.zeros(100)
        add_kernel[(1,)](x, y, out, 100, BLOCK=128)
        seen.append((gfx_device.last.program, out))
    assert seen[0][0] is seen[1][0]
    assert torch.equal(seen[0][1], seen[1][1])


def test_statistics(gfx_device):
    x, y, o = torch.randn(2048), torch.randn(2048), torch.zeros(2048)
    add_kernel[(2,)](x, y, o, 2048, BLOCK=1024)
    stats = gfx_device.stats
    assert stats.memory_bytes == 3 * 2048 * 4
    assert stats.by_opcode["s_endpgm"] == 2 * 4
    assert stats.instructions == sum(stats.by_opcode.values())
    assert stats.issue_clocks == stats.valu_clocks + stats.trans_clocks + stats.mfma_clocks
    assert stats.lds_bytes == 0


def test_import_is_light():
    code = "import sys; import dsv4_rocm.testing.cdna; print(*sorted({m.partition('.')[0] for m in sys.modules}))"
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.split()
    assert "numpy" in found
    assert not {"torch", "triton", "yaml", "rocm", "ziglang", "pytest"} & set(found)


def test_production_does_not_import_it():
    code = "import sys; import dsv4_rocm; print(*[m for m in sys.modules if m.startswith('dsv4_rocm')])"
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.split()
    assert not [m for m in found if "testing" in m]
