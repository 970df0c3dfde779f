"""How the GPU is found (F-01), and the facts of each architecture."""

import ctypes
import dataclasses
import subprocess
import sys
import types

import pytest

from dsv4_rocm import arch
from dsv4_rocm.arch import Fp8Encoding, MatrixCore, Vendor

CPU_NODE = "cpu_cores_count 64\nsimd_count 0\ngfx_target_version 0\n"


def gpu_node(version):
    return f"cpu_cores_count 0\nsimd_count 1216\nsimd_per_cu 4\ngfx_target_version {version}\nvendor_id 4098\n"


@pytest.fixture
def kfd(tmp_path, monkeypatch):
    """Make a KFD tree of these `properties` files and point the probe at it; nothing else answers."""
    arch._probe.cache_clear()
    monkeypatch.setattr(arch, "_pinned", None)  # vLLM's platform pins it when another test imports vLLM
    monkeypatch.setitem(sys.modules, "amdsmi", None)
    monkeypatch.setattr(ctypes, "CDLL", no_library)

    def make(*nodes):
        for number, text in enumerate(nodes):
            node = tmp_path / "nodes" / str(number)
            node.mkdir(parents=True)
            (node / "properties").write_text(text)
        monkeypatch.setenv("DSV4_ROCM_KFD_ROOT", str(tmp_path))
        return tmp_path

    yield make
    arch._probe.cache_clear()


def no_library(name):
    raise OSError(f"{name}: cannot open shared object file")


@pytest.mark.parametrize(
    ("version", "name"),
    [
        (90402, "gfx942"),
        (90500, "gfx950"),
        (90400, "gfx940"),
        (90401, "gfx941"),
        (90010, "gfx90a"),
        (110501, "gfx1151"),
    ],
)
def test_gfx_name(version, name):
    assert arch.gfx_name(version) == name


@pytest.mark.parametrize(("version", "expected"), [(90402, arch.GFX942), (90500, arch.GFX950)])
def test_kfd_tree(kfd, version, expected):
    root = kfd(CPU_NODE, gpu_node(version), gpu_node(version))
    found = arch.detect()
    assert (found.arch, found.device_count) == (expected, 2)
    assert str(root) in found.source


def test_cpu_nodes_are_ignored(kfd):
    kfd(CPU_NODE, CPU_NODE)
    found = arch.detect()
    assert found.arch is arch.HOST
    assert any("CPU nodes only" in reason for reason in found.rejected)


def test_no_kfd_tree(kfd, monkeypatch, tmp_path):
    kfd()
    found = arch.detect()
    assert (found.arch, found.device_count, found.source) == (arch.HOST, 0, "no GPU")
    assert any("does not exist" in reason for reason in found.rejected)


@pytest.mark.parametrize("version", [90010, 110000, 90400, 90401])
def test_unsupported_gpu_is_named(kfd, version):
    kfd(CPU_NODE, gpu_node(version))
    found = arch.detect()
    assert found.arch is None
    assert arch.current() is arch.HOST
    (reason,) = found.rejected
    assert f"{arch.gfx_name(version)} is not supported" in reason
    assert "gfx942" in reason


def test_mixed_machine_takes_the_larger_group(kfd):
    kfd(gpu_node(90402), gpu_node(90500), gpu_node(90500), gpu_node(90010))
    found = arch.detect()
    assert (found.arch, found.device_count) == (arch.GFX950, 2)
    assert any("gfx942 stands beside gfx950" in reason for reason in found.rejected)
    assert any("gfx90a is not supported" in reason for reason in found.rejected)


def test_node_hidden_from_the_container(kfd):
    root = kfd(CPU_NODE, gpu_node(90402), gpu_node(90402))
    (root / "nodes" / "1" / "properties").unlink()
    found = arch.detect()
    assert (found.arch, found.device_count) == (arch.GFX942, 1)
    assert any(reason.startswith("kfd: node 1") for reason in found.rejected)


def test_properties_that_make_no_sense(kfd):
    kfd("gfx_target_version banana\n", "\n\nnothing", gpu_node(90500))
    found = arch.detect()
    assert (found.arch, found.device_count) == (arch.GFX950, 1)
    assert any("banana" in reason for reason in found.rejected)


@pytest.mark.parametrize("error", [KeyError("libamd_smi.so"), OSError("no device"), SystemExit(1), AttributeError("x")])
def test_amdsmi_may_raise_anything(kfd, tmp_path, monkeypatch, error):
    kfd()
    package = tmp_path / "amdsmi.py"
    package.write_text(f"raise {error!r}\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(sys.modules, "amdsmi")
    found = arch.detect()
    assert found.arch is arch.HOST
    assert any(reason.startswith(f"amdsmi: {type(error).__name__}") for reason in found.rejected)


def test_amdsmi_is_the_second_source(kfd, monkeypatch):
    kfd()
    smi = types.SimpleNamespace(
        amdsmi_init=lambda: None,
        amdsmi_shut_down=lambda: None,
        amdsmi_get_processor_handles=lambda: [0, 1],
        amdsmi_get_gpu_asic_info=lambda handle: {"target_graphics_version": "gfx942"},
    )
    monkeypatch.setitem(sys.modules, "amdsmi", smi)
    found = arch.detect()
    assert (found.arch, found.source, found.device_count) == (arch.GFX942, "amdsmi", 2)


class FakeNvml:
    def __init__(self, capabilities, status=0):
        self.capabilities, self.status, self.closed = capabilities, status, False

    def nvmlInit_v2(self):
        return self.status

    def nvmlShutdown(self):
        self.closed = True

    def nvmlDeviceGetCount_v2(self, count):
        count._obj.value = len(self.capabilities)
        return 0

    def nvmlDeviceGetHandleByIndex_v2(self, index, handle):
        handle._obj.value = index + 1
        return 0

    def nvmlDeviceGetCudaComputeCapability(self, handle, major, minor):
        major._obj.value, minor._obj.value = self.capabilities[handle.value - 1]
        return 0


@pytest.mark.parametrize(
    ("capability", "expected"),
    [((9, 0), arch.SM90), ((10, 0), arch.SM100), ((10, 3), arch.SM103), ((12, 0), arch.SM120), ((8, 6), None)],
)
def test_nvml(kfd, monkeypatch, capability, expected):
    kfd()
    nvml = FakeNvml([capability] * 2)
    monkeypatch.setattr(ctypes, "CDLL", lambda name: nvml)
    found = arch.detect()
    assert (found.arch, found.source) == (expected, "nvml")
    assert nvml.closed


def test_nvml_that_does_not_start(kfd, monkeypatch):
    kfd()
    monkeypatch.setattr(ctypes, "CDLL", lambda name: FakeNvml([], status=9))
    found = arch.detect()
    assert found.arch is arch.HOST
    assert "nvml: nvmlInit failed with status 9" in found.rejected


def test_override_nests_and_ends(kfd):
    kfd(gpu_node(90402))
    with arch.override("gfx950") as outer:
        assert arch.current() is outer is arch.GFX950
        with arch.override(arch.SM90):
            assert arch.current() is arch.SM90
        assert arch.current() is arch.GFX950
    assert arch.current() is arch.GFX942


def test_a_pinned_process_still_sees_the_machine(kfd):
    kfd(gpu_node(90402))
    with arch.override("host"):
        assert arch.current() is arch.HOST
        assert arch.detect().arch is arch.GFX942


def test_unknown_name():
    with pytest.raises(ValueError, match=r"unknown architecture 'gfx90a'; known: gfx942, gfx950"):
        arch.get("gfx90a")


def test_facts():
    """Encoding, wave and local memory by the vendors' architecture manuals."""
    facts = {name: (a.fp8, a.wave_size, a.shared_bytes, a.matrix_core) for name, a in arch.ARCHS.items()}
    ocp, fnuz = Fp8Encoding.E4M3FN, Fp8Encoding.E4M3FNUZ
    assert facts == {
        "gfx942": (fnuz, 64, 65_536, MatrixCore.CDNA3_MFMA),
        "gfx950": (ocp, 64, 163_840, MatrixCore.CDNA4_MFMA),
        "sm90": (ocp, 32, 232_448, MatrixCore.WGMMA),
        "sm100": (ocp, 32, 232_448, MatrixCore.TCGEN05),
        "sm103": (ocp, 32, 232_448, MatrixCore.TCGEN05),
        "sm120": (ocp, 32, 101_376, MatrixCore.MMA_SYNC),
        "host": (ocp, 1, 0, MatrixCore.NONE),
    }
    assert {a.vendor for a in arch.ARCHS.values()} == set(Vendor)
    assert [name for name, a in arch.ARCHS.items() if a.multiplies_mxfp4] == ["gfx950", "sm100", "sm103"]


def test_facts_are_checked():
    with pytest.raises(ValueError, match="wave size"):
        dataclasses.replace(arch.GFX942, wave_size=48)


def test_import_is_light():
    code = "import sys, dsv4_rocm.arch; print({'torch', 'vllm', 'numpy'} & set(sys.modules) or 'light')"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True).stdout.strip() == "light"
