"""Launches of HIP kernels: what reaches the HIP runtime (a stand-in compiled here), the emulator, and every error."""

import contextlib
import ctypes
import platform
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from dsv4_rocm import arch
from dsv4_rocm.cache.specs import SERVED
from dsv4_rocm.kernels import hip_runtime, selection
from dsv4_rocm.kernels.hip_runtime import HipKernel
from dsv4_rocm.testing import cdna
from dsv4_rocm_hip import compiler, hip_api, manifest
from dsv4_rocm_hip.variants import Variant

pytest.importorskip("ziglang", reason="compiles HIP: pip install -r .ci/requirements.txt")
pytest.importorskip("rocm.llvm", reason="disassembles code objects: pip install -r .ci/requirements.txt")
SOURCE = """
#include <dsv4/device.hpp>
struct Params { float* out; const float* x; const float* bias; int count; float factor; };
DSV4_KERNEL(256, 1) scale(Params p) {
  const int i = __builtin_amdgcn_workgroup_id_x() * 256 + dsv4::thread();
  if (i < p.count) p.out[i] = p.x[i] * p.factor + (p.bias ? p.bias[i] : 0.0f);
}
"""


class Params(ctypes.Structure):
    _fields_ = (
        ("out", ctypes.c_void_p),
        ("x", ctypes.c_void_p),
        ("bias", ctypes.c_void_p),
        ("count", ctypes.c_int32),
        ("factor", ctypes.c_float),
    )


class Calls(ctypes.Structure):
    """`calls` of hip_stub.c."""

    _fields_ = (
        ("grid", ctypes.c_uint * 3),
        ("block", ctypes.c_uint * 3),
        ("lds", ctypes.c_uint),
        ("function", ctypes.c_void_p),
        ("stream", ctypes.c_void_p),
        ("params", ctypes.c_ubyte * 64),
        ("loads", ctypes.c_int),
        ("launches", ctypes.c_int),
        ("params_bytes", ctypes.c_int),
        ("fail", ctypes.c_int),
        ("kernel", ctypes.c_char * 32),
    )


class OnGpu(torch.Tensor):
    """A CPU tensor that says it lies on the second GPU."""

    device = torch.device("cuda", 1)


SCALE = HipKernel("scale", "scale", Params)


@pytest.fixture(scope="module")
def objects(tmp_path_factory):
    path = tmp_path_factory.mktemp("scale") / "scale.hip"
    path.write_text(SOURCE)
    return {name: compiler.compile_hip(path, name) for name in compiler.ARCHES}


@pytest.fixture(autouse=True)
def shipped(objects, monkeypatch):
    """`scale` is what is shipped; nothing is cached from test to test."""
    entries = {("scale", name): manifest.Entry("scale", name, (), "", "", "") for name in objects}
    monkeypatch.setattr(manifest, "shipped", lambda: entries)
    monkeypatch.setattr(manifest, "load", lambda name, arch: objects[arch])
    for function in (hip_runtime._function, hip_runtime._assembly):
        function.cache_clear()
    yield
    for function in (hip_runtime._function, hip_runtime._assembly):
        function.cache_clear()


@pytest.fixture(scope="module")
def stub(tmp_path_factory):
    folder = tmp_path_factory.mktemp("stub")
    source, part, library = Path(__file__).with_name("hip_stub.c"), folder / "stub.o", folder / "libstub.so"
    zig = [sys.executable, "-m", "ziglang"]
    target = f"--target={platform.machine()}-unknown-linux-gnu"
    steps = [["clang", target, "-c", "-O1", "-fPIC", "-ffreestanding", "-fno-stack-protector", source, "-o", part]]
    steps += [["ld.lld", "-shared", part, "-o", library]]
    for step in steps:
        subprocess.run([*zig, *step], check=True)
    return library


@pytest.fixture
def gpu(stub, monkeypatch):
    """Two GPUs as torch would show them, a stream in use, and the stand-in as the HIP runtime: its calls."""
    library = ctypes.CDLL(str(stub))
    calls = Calls.in_dll(library, "calls")
    ctypes.memset(ctypes.byref(calls), 0, ctypes.sizeof(calls))
    calls.params_bytes = ctypes.sizeof(Params)
    here = []
    monkeypatch.setattr(hip_api, "runtime", lambda: hip_api.HipRuntime(library))

    @contextlib.contextmanager
    def device(wanted):
        here.append(wanted.index)
        yield
        here.pop()

    fake = SimpleNamespace(
        device=device,
        current_device=lambda: here[-1],
        current_stream=lambda: SimpleNamespace(cuda_stream=0x5000 + here[-1]),
        get_device_properties=lambda index: SimpleNamespace(gcnArchName="gfx942:sramecc+:xnack-"),
    )
    monkeypatch.setattr(torch, "cuda", fake)
    return calls


def tensors(count, kind=torch.Tensor):
    x = torch.arange(count, dtype=torch.float32)
    return {"out": torch.full((count,), float("nan")).as_subclass(kind), "x": x.as_subclass(kind)}


def test_what_reaches_the_runtime(gpu):
    values = tensors(300, OnGpu)
    for factor in (2.5, 3.5):
        SCALE.launch((2, 3, 4), 256, lds=1024, bias=None, count=300, factor=factor, **values)
    assert (list(gpu.grid), list(gpu.block), gpu.lds, gpu.kernel) == ([2, 3, 4], [256, 1, 1], 1024, b"scale")
    assert gpu.stream == 0x5001, "the current stream of the tensors' device"
    assert (gpu.loads, gpu.launches, gpu.function) == (1, 2, 0x1001), "loaded once, launched twice"
    params = Params.from_buffer_copy(gpu.params)
    assert (params.out, params.x) == (values["out"].data_ptr(), values["x"].data_ptr())
    assert (params.bias, params.count, params.factor) == (None, 300, 3.5)


def test_errors_of_the_runtime_are_named(gpu, objects):
    values = {"bias": None, "count": 300, "factor": 2.0, **tensors(300, OnGpu)}
    gpu.fail = 2
    wanted = r"hipModuleLaunchKernel failed for kernel scale of scale, grid \(2, 1, 1\).*hipErrorOutOfMemory \(2\)"
    with pytest.raises(hip_api.HipError, match=wanted):
        SCALE.launch((2, 1, 1), 256, **values)
    with pytest.raises(hip_api.HipError, match=r"hipModuleGetFunction .*no_such of scale on .*hipErrorNotFound"):
        HipKernel("scale", "no_such", Params).launch((2, 1, 1), 256, **values)
    hip_runtime._function.cache_clear()
    objects_before = dict(objects)
    objects["gfx942"] = b"not an object"
    try:
        with pytest.raises(hip_api.HipError, match=r"hipModuleLoadData .*gfx942.*hipErrorNoBinaryForGpu \(209\)"):
            SCALE.launch((2, 1, 1), 256, **values)
    finally:
        objects.update(objects_before)


def test_no_runtime_names_every_place(monkeypatch, tmp_path):
    monkeypatch.setenv("ROCM_PATH", str(tmp_path))
    hip_api.runtime.cache_clear()
    with pytest.raises(hip_api.HipError, match=rf"set ROCM_PATH to it. Tried libamdhip64.so .*{tmp_path}/lib"):
        hip_api.runtime()


def test_the_runtime_of_this_process_comes_first(monkeypatch, tmp_path):
    maps = tmp_path / "maps"
    monkeypatch.setattr(hip_api, "MAPS", maps)
    path = "/site-packages/torch/lib/libamdhip64.so.7"
    maps.write_text(
        f"7f-80 r-xp 00000000 08:01 12 /usr/lib/libc.so.6\n80-81 r-xp 00000000 08:01 13   {path}\n81-82 rw-p\n"
    )
    assert list(hip_api._candidates())[:2] == [path, "libamdhip64.so"]


@pytest.mark.parametrize("with_bias", [False, True])
def test_the_same_object_runs_emulated(gfx_arch, with_bias):
    values = tensors(300)
    bias = torch.linspace(0, 1, 300) if with_bias else None
    with cdna.device(gfx_arch) as device:
        SCALE.launch((2, 1, 1), 256, bias=bias, count=299, factor=2.0, **values)
    expected = values["x"] * 2 + (0 if bias is None else bias)
    torch.testing.assert_close(values["out"][:299], expected[:299], rtol=2.0**-23, atol=0)
    assert values["out"][299].isnan()
    assert device.launches[-1][0] == "scale"


def test_a_struct_of_another_size_is_refused(gfx_arch):
    class Shorter(ctypes.Structure):
        _fields_ = Params._fields_[:3]

    with (
        cdna.device(gfx_arch),
        pytest.raises(cdna.EmulationError, match="scale takes a struct of 32 bytes, got 24"),
    ):
        HipKernel("scale", "scale", Shorter).launch((1, 1, 1), 256, bias=None, **tensors(300))


def test_fields_and_devices_are_checked():
    values = tensors(300)
    with pytest.raises(ValueError, match=r"missing fields \['factor'\], unknown fields \['scale'\]"):
        SCALE.launch((1, 1, 1), 256, bias=None, count=300, scale=2.0, **values)
    values["x"] = values["x"].as_subclass(OnGpu)
    with pytest.raises(ValueError, match=r"must lie on one device.*cpu.*cuda"):
        SCALE.launch((1, 1, 1), 256, bias=None, count=300, factor=2.0, **values)
    with pytest.raises(ValueError, match="DSV4_ROCM_KERNELS=emulated:gfx942"):
        SCALE.launch((1, 1, 1), 256, bias=None, count=300, factor=2.0, **tensors(300))


def test_what_cannot_run_is_refused(monkeypatch):
    refuses = selection.needs_code_object("scale", lambda arch, encodings: None)
    assert refuses(arch.GFX942, SERVED) is None
    assert refuses(arch.SM90, SERVED) == "needs an AMD GPU, not sm90"
    assert refuses(arch.HOST, SERVED) == "needs an AMD GPU, not host"
    entries = dict(manifest.shipped())
    del entries["scale", "gfx942"]
    monkeypatch.setattr(manifest, "shipped", lambda: entries)
    monkeypatch.setattr(manifest, "VARIANTS", [Variant("scale", "scale")])
    assert refuses(arch.GFX942, SERVED) == "scale was built for gfx950, not for gfx942: run `make hip` in a checkout"
    assert "no variant other" in selection.needs_code_object("other", selection.always)(arch.GFX942, SERVED)
    also = selection.needs_code_object("scale", lambda arch, encodings: "needs fp8")
    assert also(arch.GFX950, SERVED) == "needs fp8"


def test_a_damaged_object_is_not_loaded(monkeypatch, tmp_path):
    monkeypatch.undo()
    entry = manifest.read()["topk", "gfx942"]
    path = tmp_path / "gfx942/topk.co"
    path.parent.mkdir()
    monkeypatch.setattr(manifest.Entry, "path", lambda self: path)
    for contents in (None, entry.name.encode()):
        if contents:
            path.write_bytes(contents)
        with pytest.raises(FileNotFoundError, match=r"topk.co is not what manifest.json says: run `make hip`"):
            manifest.load("topk", "gfx942")
