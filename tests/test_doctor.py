"""The doctor: broken is not absent, a pretended GPU is seen, the report is short (F-01, F-02)."""

import json
import os
import subprocess
import sys

import pytest

from dsv4_rocm import doctor
from dsv4_rocm.doctor import DoctorReport, OpChoice, Package

CLEAN = {name: value for name, value in os.environ.items() if not name.startswith(("DSV4_ROCM_", "VLLM_"))}
RUN = (
    "import sys; from dsv4_rocm import doctor; r = doctor.collect(); print(doctor.as_json(r)); print(doctor.render(r))"
)


def run(**extra):
    done = subprocess.run([sys.executable, "-c", RUN], env=CLEAN | extra, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    end = done.stdout.index("\n}\n") + 2
    return json.loads(done.stdout[:end]), done.stdout[end:].strip()


@pytest.fixture(scope="module")
def pretended(tmp_path_factory):
    """The report of a machine that seems to hold two MI325X, with a broken aiter and an unknown variable."""
    root = tmp_path_factory.mktemp("kfd")
    for number, version in enumerate((0, 90402, 90402)):
        node = root / "nodes" / str(number)
        (node / "mem_banks" / "0").mkdir(parents=True)
        (node / "properties").write_text(f"gfx_target_version {version}\n")
        kind, size = (0, 1 << 40) if version == 0 else (1, 256 << 30)
        (node / "mem_banks" / "0" / "properties").write_text(f"heap_type {kind}\nsize_in_bytes {size}\n")
    site = tmp_path_factory.mktemp("site")
    (site / "aiter").mkdir()
    (site / "aiter" / "__init__.py").write_text("raise OSError('libamdhip64.so.7: cannot open shared object file')\n")
    return run(DSV4_ROCM_KFD_ROOT=str(root), PYTHONPATH=str(site), DSV4_ROCM_KFDROOT="x")


def test_pretended_gpu_is_seen(pretended):
    report, _ = pretended
    assert (report["gpu"], report["devices"]) == ("gfx942", 2)
    assert report["memory"]["GPU 0"] == report["memory"]["GPU 1"] == 256 << 30
    assert "GPU 2" not in report["memory"]


def test_a_cpu_build_serves_on_the_host_and_says_so(pretended):
    report, _ = pretended
    assert report["platform"] == "dsv4_rocm_platform.host.Dsv4HostPlatform"
    assert "install vLLM for it" in report["platform_reason"]
    assert report["serving_arch"] == "host"


def test_broken_is_not_absent(pretended):
    verdicts = {package["name"]: package["verdict"] for package in pretended[0]["packages"]}
    assert verdicts["aiter"] == "broken: OSError: libamdhip64.so.7: cannot open shared object file"
    assert verdicts["amdsmi"] == "absent"
    assert verdicts["torch"] == verdicts["vllm"] == "ok"


def test_every_op_has_its_choice(pretended):
    from dsv4_rocm.kernels.selection import OPS

    report, _ = pretended
    assert [op["op"] for op in report["ops"]] == list(OPS)
    assert all(op["chosen"] for op in report["ops"])


def test_unknown_variable_is_reported(pretended):
    (warning,) = pretended[0]["warnings"]
    assert "DSV4_ROCM_KFDROOT" in warning
    assert "DSV4_ROCM_KFD_ROOT" in warning


def test_text_says_the_same_in_few_lines(pretended):
    _, text = pretended
    assert "2 x gfx942" in text
    assert "aiter (broken: OSError" in text
    assert "sparse_attention" in text
    assert len(text.splitlines()) <= 16


def test_machine_without_anything(monkeypatch):
    monkeypatch.setenv("DSV4_ROCM_KFD_ROOT", "/nonexistent")
    report = doctor.collect()
    assert report.gpu == "host"
    assert any("/nonexistent/nodes does not exist" in reason for reason in report.looked_at)
    assert doctor.render(report).startswith("GPU       host (no GPU)")


def test_forced_implementation_that_does_not_exist_is_shown(monkeypatch):
    monkeypatch.setenv("DSV4_ROCM_KFD_ROOT", "/nonexistent")
    monkeypatch.setenv("DSV4_ROCM_IMPL_SPARSE_ATTENTION", "magic")
    report = doctor.collect()
    (attention,) = [op for op in report.ops if op.op == "sparse_attention"]
    assert attention.chosen is None
    assert "DSV4_ROCM_IMPL_SPARSE_ATTENTION=magic" in attention.rejected["error"]
    assert "NONE" in doctor.render(report)


@pytest.mark.parametrize(
    ("source", "version", "verdict"),
    [
        ("raise KeyError('libamd_smi')", None, "broken: KeyError: 'libamd_smi'"),
        ("import no_such_dependency", None, "broken: ModuleNotFoundError: No module named 'no_such_dependency'"),
        ("raise SystemExit(3)", None, "broken: SystemExit: 3"),
        ("__version__ = '1.2'", "1.2", "ok"),
    ],
    ids=["key-error", "missing-dependency", "exits", "fine"],
)
def test_inspect_package(monkeypatch, tmp_path, source, version, verdict):
    (tmp_path / "amdsmi.py").write_text(source + "\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(sys.modules, "amdsmi", raising=False)
    assert doctor.inspect_package("amdsmi") == Package("amdsmi", version, verdict)
    monkeypatch.delitem(sys.modules, "amdsmi", raising=False)


def test_vllm_outside_the_window_is_said(monkeypatch):
    monkeypatch.setattr(doctor, "_version", lambda names: "0.40.1")
    monkeypatch.setattr(doctor.importlib, "import_module", lambda name: sys)
    assert doctor.inspect_package("vllm").verdict == "outside the tested window >=0.32,<0.34"


def test_render_names_the_reasons():
    ops = (OpChoice("sparse_attention", "triton", {"hip": "needs gfx950"}),)
    packages = (Package("vllm", "0.32.0", "ok"),)
    report = DoctorReport("gfx942", "kfd", 8, (), packages, "a.B", "8 x gfx942", "gfx942", ops, {"host": 1 << 30}, ())
    text = doctor.render(report)
    assert "triton  (not hip: needs gfx950)" in text
    assert json.loads(doctor.as_json(report))["ops"][0]["rejected"] == {"hip": "needs gfx950"}
