"""A Triton runtime driver that runs compiled AMD kernels on an emulated device instead of a GPU."""

from __future__ import annotations

import itertools
import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from dsv4_rocm.testing.cdna.kernel_info import from_assembly
from dsv4_rocm.testing.cdna.program import LDS_LIMIT

if TYPE_CHECKING:
    from dsv4_rocm.testing.cdna.device import Device

# Kernels cache their compiled code by device number: numbers of our own keep emulated and real devices apart.
_numbers = itertools.count(10_000)
_COMPUTE_UNITS = {"gfx942": 304, "gfx950": 256}
_MAX_THREADS = 1024


class _Utils:
    def __init__(self, device: Device) -> None:
        self.device = device
        self.pending = ""  # assembly of the kernel Triton is about to load

    def get_device_properties(self, number: int) -> dict[str, Any]:
        arch = self.device.arch
        return {
            "max_shared_mem": LDS_LIMIT[arch],
            "multiprocessor_count": _COMPUTE_UNITS[arch],
            "arch": arch,
            "warpSize": 64,
            "sm_clock_rate": 2100000,
            "mem_clock_rate": 1300000,
            "mem_bus_width": 8192,
            "max_num_regs": 131072,
            "cooperativeLaunch": 1,
        }

    def load_binary(self, name: str, kernel: bytes, shared: int, number: int) -> tuple[Any, Any, int, int, int]:
        info = from_assembly(self.pending, name)
        resources = info.resources
        handle = (self.pending, info)
        return object(), handle, resources["vgpr_count"], resources["vgpr_spill_count"], _MAX_THREADS

    def unload_module(self, module: Any) -> None:
        pass


class _Launcher:
    """What Triton calls to launch a kernel."""

    def __init__(self, device: Device, source: Any, metadata: Any) -> None:
        self.device, self.metadata = device, metadata
        self.kinds = list(source.signature.values())

    def __call__(
        self,
        x: int,
        y: int,
        z: int,
        stream: int,
        function: Any,
        packed: Any,
        data: Any,
        enter: Any,
        leave: Any,
        *args: Any,
    ) -> None:
        text, info = function
        if len(args) == 1 and isinstance(args[0], tuple) and len(self.kinds) != 1:
            args = args[0]
        pairs = [(a, k) for a, k in zip(args, self.kinds, strict=True) if k != "constexpr"]
        self.device.launch_text(
            text,
            info,
            (x, y, z),
            (64 * self.metadata.num_warps, 1, 1),
            [a for a, _ in pairs],
            self.metadata.shared,
            ["" if k.startswith("*") else k for _, k in pairs],
        )


class EmulatorDriver:
    """Triton's view of an emulated device; the interface is that of triton.backends.driver.DriverBase."""

    def __init__(self, device: Device) -> None:
        self.device = device
        self.number = next(_numbers)
        self.utils = _Utils(device)
        self.loaded: list[Any] = []
        self.kernels: list[weakref.ref[Any]] = []

    def launcher_cls(self, source: Any, metadata: Any) -> _Launcher:
        self.loaded.append(getattr(source, "fn", None))
        return _Launcher(self.device, source, metadata)

    @classmethod
    def is_active(cls) -> bool:
        return False

    def map_python_to_cpp_type(self, ty: str) -> str:
        return ty

    def get_current_target(self) -> Any:
        from triton.backends.compiler import GPUTarget

        return GPUTarget("hip", self.device.arch, 64)

    def get_current_device(self) -> int:
        return self.number

    def set_current_device(self, number: int) -> None:
        pass

    def get_current_stream(self, number: int = 0) -> int:
        return 0

    def get_active_torch_device(self) -> Any:
        import torch

        return torch.device("cpu")

    def get_device_interface(self) -> Any:
        import torch

        return torch.cpu

    def get_benchmarker(self) -> Any:
        def once(function: Any, quantiles: Any = None, **_: Any) -> Any:
            # nothing is timed: every configuration runs (and is checked) once and the first one wins
            function()
            return [1.0] * len(quantiles) if quantiles else 1.0

        return once

    def get_empty_cache_for_benchmark(self) -> Any:
        import torch

        return torch.empty(1)

    def clear_cache(self, cache: Any) -> None:
        pass

    def forget(self) -> None:
        """Drop what kernels keep about this device."""
        for reference in self.kernels:
            kernel = reference()
            if kernel is not None:
                kernel.module = None  # or its finaliser would ask for a driver that may not exist
        for function in self.loaded:
            getattr(function, "device_caches", {}).pop(self.number, None)


@contextmanager
def active(device: Device) -> Iterator[EmulatorDriver]:
    """Make `device` Triton's active device; everything is put back on the way out."""
    from triton.compiler.compiler import CompiledKernel
    from triton.runtime import driver as triton_runtime

    ours = EmulatorDriver(device)
    before = triton_runtime._active
    load_handles = CompiledKernel._init_handles

    def init_handles(self: Any) -> Any:
        # Triton hands the driver machine code only; the emulator runs the assembly beside it
        now = triton_runtime.active
        if isinstance(now, EmulatorDriver):
            now.utils.pending = self.asm["amdgcn"]
            now.kernels.append(weakref.ref(self))
        return load_handles(self)

    triton_runtime.set_active(ours)
    CompiledKernel._init_handles = init_handles
    try:
        yield ours
    finally:
        CompiledKernel._init_handles = load_handles
        ours.forget()
        triton_runtime._active = before
