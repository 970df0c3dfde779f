"""HIP kernels compiled without ROCm, loaded as code objects, and run."""

from pathlib import Path

import pytest
import torch

from dsv4_rocm.testing import cdna
from dsv4_rocm_hip.compiler import compile_hip

pytest.importorskip("ziglang", reason="compiles HIP: pip install -r .ci/requirements.txt")
pytest.importorskip("rocm.llvm", reason="disassembles code objects: pip install -r .ci/requirements.txt")
SOURCES = Path(__file__).parent / "hip_sources"
FP8 = {"gfx942": torch.float8_e4m3fnuz, "gfx950": torch.float8_e4m3fn}


@pytest.fixture(scope="module")
def tiles():
    return {arch: compile_hip(SOURCES / "tiles.hip", arch, include=[SOURCES / "include"]) for arch in FP8}


def test_fp8_tile(gfx_arch, tiles):
    torch.manual_seed(0)
    a, b = (torch.randn(16, 128).to(FP8[gfx_arch]) for _ in range(2))
    d = torch.full((16, 16), float("nan"))
    cdna.device(gfx_arch).launch(tiles[gfx_arch], "fp8_tile", 1, 64, [a, b, d, 128])
    bound = (a.double().abs() @ b.double().abs().T) * 4 * 2.0**-24  # four accumulations
    assert ((d.double() - a.double() @ b.double().T).abs() <= bound).all()


def test_scaled_tile(tiles):
    torch.manual_seed(0)
    a, b = (torch.randn(16, 128).to(torch.float8_e4m3fn) for _ in range(2))
    sa, sb = (torch.randint(120, 130, (16, 4), dtype=torch.uint8) for _ in range(2))
    d = torch.full((16, 16), float("nan"))
    cdna.device("gfx950").launch(tiles["gfx950"], "scaled_tile", 1, 64, [a, b, sa, sb, d])
    left, right = (x.double() * torch.exp2(s.double() - 127).repeat_interleave(32, 1) for x, s in ((a, sa), (b, sb)))
    assert ((d.double() - left @ right.T).abs() <= (left.abs() @ right.abs().T) * 2.0**-23).all()


@pytest.mark.parametrize("threads", [256, 200])  # 200: the last wave has 8 lanes
def test_softmax_rows(gfx_arch, tiles, threads):
    torch.manual_seed(0)
    x, o = torch.randn(3, 1000), torch.full((3, 1000), float("nan"))
    dev = cdna.device(gfx_arch)
    dev.launch(tiles[gfx_arch], "softmax_rows", 3, threads, [x, o, 1000])
    torch.testing.assert_close(o, x.softmax(1), rtol=2e-6, atol=1e-9)
    assert dev.stats.by_opcode["s_barrier"] == 3 * 4 * 3  # rows, waves, barriers of the source


def test_argument_count_is_checked(tiles):
    with pytest.raises(cdna.EmulationError, match="fp8_tile takes 4 arguments, got 5"):
        cdna.device("gfx942").launch(tiles["gfx942"], "fp8_tile", 1, 64, [0, 0, 0, 0, 0])


def test_unknown_kernel_is_named(tiles):
    with pytest.raises(cdna.EmulationError, match="'nope' is not in the code object; it has fp8_tile"):
        cdna.device("gfx942").launch(tiles["gfx942"], "nope", 1, 64, [])
