"""The command line on a freshly built code object."""

from pathlib import Path

import numpy as np
import pytest

from dsv4_rocm.testing.cdna.__main__ import main
from dsv4_rocm_hip.compiler import compile_hip

pytest.importorskip("ziglang", reason="compiles HIP: pip install -r .ci/requirements.txt")
pytest.importorskip("rocm.llvm", reason="disassembles code objects: pip install -r .ci/requirements.txt")
pytest.importorskip("yaml", reason="reads the run file: pip install -r .ci/requirements.txt")
SOURCES = Path(__file__).parent / "hip_sources"


@pytest.fixture(scope="module")
def code_object(tmp_path_factory):
    path = tmp_path_factory.mktemp("co") / "tiles.co"
    path.write_bytes(compile_hip(SOURCES / "tiles.hip", "gfx942", include=[SOURCES / "include"]))
    return path


RUN = """
kernel: softmax_rows
grid: [2]
block: 256
args:
  - {array: float32, shape: [2, 300], fill: random, seed: 3, save: x.npy}
  - {array: float32, shape: [2, 300], fill: uninitialised, save: out.npy}
  - %s
"""


def test_run(code_object, tmp_path, capsys):
    (tmp_path / "run.yaml").write_text(RUN % 300)
    assert main(["run", str(code_object), "--args", str(tmp_path / "run.yaml")]) == 0
    x, out = np.load(tmp_path / "x.npy").astype(float), np.load(tmp_path / "out.npy")
    wanted = np.exp(x - x.max(1, keepdims=True))
    np.testing.assert_allclose(out, wanted / wanted.sum(1, keepdims=True), rtol=2e-6)
    printed = capsys.readouterr().out
    assert "vgpr_count" in printed
    assert "valu_clocks" in printed


def test_findings_reach_the_user(code_object, tmp_path, capsys):
    (tmp_path / "run.yaml").write_text(RUN % 301)
    assert main(["run", str(code_object), "--args", str(tmp_path / "run.yaml")]) == 1
    assert "[bounds]" in capsys.readouterr().err


def test_disasm(code_object, capsys):
    assert main(["disasm", str(code_object), "--kernel", "fp8_tile"]) == 0
    printed = capsys.readouterr().out
    assert "fp8_tile:" in printed
    assert "v_mfma_f32_16x16x32_fp8_fp8" in printed
    assert main(["disasm", str(code_object)]) == 1
    assert "it has fp8_tile, softmax_rows" in capsys.readouterr().err


def test_cost(code_object, capsys):
    assert main(["cost", str(code_object)]) == 0
    printed = capsys.readouterr().out
    assert "fp8_tile (gfx942)" in printed
    assert "mfma" in printed
    assert "issue clocks" in printed


def test_not_a_code_object(tmp_path, capsys):
    (tmp_path / "x").write_bytes(b"nothing of the kind")
    assert main(["cost", str(tmp_path / "x")]) == 1
    assert "not an AMDGPU code object" in capsys.readouterr().err
