"""ROCm and CUDA platforms without their hardware: every vLLM branch of the vendor, tensors on the host."""

import enum
import functools
import sys
import types
from typing import Any, NoReturn

from dsv4_rocm import arch
from dsv4_rocm.arch import GpuArch, Vendor

SIMULATED = ("gfx942", "gfx950", "sm90", "sm100", "sm103", "sm120")
DEVICE_COUNT = 8
MEMORY_BYTES = {
    "gfx942": 256 << 30,
    "gfx950": 288 << 30,
    "sm90": 141 << 30,
    "sm100": 180 << 30,
    "sm103": 270 << 30,
    "sm120": 94 << 30,
}
_PCI_DEVICE = {"gfx942": "0x74a5", "gfx950": "0x75a3"}  # MI325X, MI355X


def simulate(name: str) -> GpuArch:
    """Make vLLM in this process take the platform of an architecture that is not there.

    Call it in a process of its own, before anything of vLLM is imported. Configurations, models on the meta device and
    the KV plan can be made; nothing can be computed.

    Args:
        name: one of `SIMULATED`, or `host` for no simulation.

    Raises:
        ValueError: no such simulation.
        RuntimeError: vLLM is imported already.
    """
    simulated = arch.get(name)
    if simulated is arch.HOST:
        return simulated
    if name not in SIMULATED:
        raise ValueError(f"no simulation of {name}; there are {', '.join(SIMULATED)}")
    if "vllm" in sys.modules:
        raise RuntimeError("vLLM is imported already; simulate() comes first, in a process of its own")
    from dsv4_rocm_platform import register

    arch.pin(simulated)
    _stub_extensions()
    kind = "Rocm" if simulated.vendor is Vendor.AMD else "Cuda"
    if simulated.vendor is Vendor.AMD:
        sys.modules["amdsmi"] = fake_amdsmi(simulated)
    register.CLASSES[Vendor.HOST] = f"{__name__}.Simulated{kind}Platform"  # what a CPU build of vLLM asks for
    return simulated


def __getattr__(name: str) -> Any:
    """The platform classes, made when vLLM asks for them: their bases can only be imported in a simulation."""
    if name == "SimulatedRocmPlatform":
        return _rocm_class()
    if name == "SimulatedCudaPlatform":
        return _cuda_class()
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def fake_amdsmi(simulated: GpuArch) -> types.ModuleType:
    """A module `amdsmi` with the names that vLLM's ROCm platform imports and one kind of GPU in it."""
    module = types.ModuleType("amdsmi")

    class AmdSmiMemoryType(enum.Enum):
        VRAM = 0

    class AmdSmiLinkType(enum.Enum):
        AMDSMI_LINK_TYPE_XGMI = 2

    info = {
        "target_graphics_version": simulated.name,
        "device_id": _PCI_DEVICE[simulated.name],
        "market_name": f"simulated {simulated.products[0]}",
    }
    contents: dict[str, Any] = {
        "AmdSmiException": type("AmdSmiException", (Exception,), {}),
        "AmdSmiMemoryType": AmdSmiMemoryType,
        "AmdSmiLinkType": AmdSmiLinkType,
        "amdsmi_init": lambda *_: None,
        "amdsmi_shut_down": lambda: None,
        "amdsmi_get_processor_handles": lambda: list(range(DEVICE_COUNT)),
        "amdsmi_get_gpu_asic_info": lambda handle: info,
        "amdsmi_get_gpu_device_uuid": lambda handle: f"simulated-{handle}",
        "amdsmi_get_gpu_memory_total": lambda handle, kind: MEMORY_BYTES[simulated.name],
        "amdsmi_topo_get_link_type": lambda one, other: {"hops": 1, "type": 2},
        "amdsmi_topo_get_numa_node_number": lambda handle: 0,
    }
    vars(module).update(contents)
    return module


@functools.cache
def _rocm_class() -> type:
    from dsv4_rocm_platform.rocm import Dsv4RocmPlatform

    class SimulatedRocmPlatform(Dsv4RocmPlatform):
        device_type = "cpu"
        dispatch_key = "CPU"
        dist_backend = "gloo"

        @classmethod
        def num_compute_units(cls, device_id: int = 0) -> int:
            return arch.current().compute_units or 0

    return SimulatedRocmPlatform


@functools.cache
def _cuda_class() -> type:
    from vllm.platforms.interface import DeviceCapability

    from dsv4_rocm_platform.cuda import Dsv4CudaPlatform

    class SimulatedCudaPlatform(Dsv4CudaPlatform):
        device_type = "cpu"
        dispatch_key = "CPU"
        dist_backend = "gloo"

        @classmethod
        def get_device_capability(cls, device_id: int = 0) -> Any:
            number = int(arch.current().name.removeprefix("sm"))
            return DeviceCapability(number // 10, number % 10)

        @classmethod
        def get_device_name(cls, device_id: int = 0) -> str:
            return f"simulated {arch.current().products[0]}"

        @classmethod
        def device_count(cls) -> int:
            return DEVICE_COUNT

        @classmethod
        def get_device_total_memory(cls, device_id: int = 0) -> int:
            return MEMORY_BYTES[arch.current().name]

        @classmethod
        def num_compute_units(cls, device_id: int = 0) -> int:
            return arch.current().compute_units or 0

        @classmethod
        def is_fully_connected(cls, physical_device_ids: list[int]) -> bool:
            return True

    return SimulatedCudaPlatform


class _NoStream:
    """Stands for torch.cuda.Stream and Event, which a CPU build of torch refuses to make."""

    def __init__(self, *_: Any, **__: Any) -> None: ...

    def __getattr__(self, name: str) -> Any:
        return lambda *_, **__: None


def _stub_extensions() -> None:
    # A CPU build of vLLM has one of these, for its CPU platform (which picks the file by instruction set).
    for name in ("vllm._C", "vllm._C_stable_libtorch", "vllm._rocm_C"):
        sys.modules[name] = types.ModuleType(name)
    for name in ("vllm.vllm_flash_attn", "vllm.vllm_flash_attn.flash_attn_interface"):
        sys.modules[name] = _refusing_module(name)
    import torch

    for attribute in ("Stream", "Event"):
        setattr(torch.cuda, attribute, _NoStream)
    # vLLM's quantized layers ask these at import.
    names = ("scaled_mm_supports_fp8", "scaled_mm_supports_block_fp8", "group_gemm_supported", "scaled_mm_supports_fp4")
    make: Any = torch.library.Library  # untyped in torch
    for name in names:
        library = make("_C", "FRAGMENT")
        _LIBRARIES.append(library)
        library.define(f"cutlass_{name}(int cuda_device_capability) -> bool")
        library.impl(f"cutlass_{name}", lambda capability: False, "CompositeExplicitAutograd")
    # vLLM's activations look these up when they are made.
    library = make("_C", "FRAGMENT")
    _LIBRARIES.append(library)
    library.define("silu_and_mul(Tensor! out, Tensor input) -> ()")
    library.define("silu_and_mul_with_clamp(Tensor! out, Tensor input, float limit, float alpha, float beta) -> ()")
    for name in ("silu_and_mul", "silu_and_mul_with_clamp"):
        library.impl(name, lambda *_: None, "Meta")


_LIBRARIES: list[Any] = []  # a torch library ends with its object


def _refusing_module(name: str) -> types.ModuleType:
    """A package that can be imported and whose functions refuse to run."""
    module = types.ModuleType(name)
    module.__path__ = []

    def function(attribute: str) -> Any:
        if attribute.startswith("__"):
            raise AttributeError(attribute)

        def refuse(*_: Any, **__: Any) -> NoReturn:
            raise RuntimeError(f"{name}.{attribute} is not there in a simulation")

        return refuse

    vars(module)["__getattr__"] = function
    return module
