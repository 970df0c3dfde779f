"""Launches of HIP kernels: on the GPU that holds the tensors, or, for CPU tensors, on the emulated one."""

import ctypes
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from dsv4_rocm_hip import hip_api, manifest

if TYPE_CHECKING:
    from dsv4_rocm.testing.cdna.kernel_info import KernelInfo

Size = tuple[int, int, int]
Value = Tensor | int | float | None


@dataclass(frozen=True, slots=True)
class HipKernel:
    """A kernel that takes one struct by value.

    Attributes:
        variant: its code object (`dsv4_rocm_hip.variants`).
        name: the kernel's in it.
        params: the struct as C++ has it, field by field; pointers are `c_void_p`.
    """

    variant: str
    name: str
    params: type[ctypes.Structure]

    def launch(self, grid: Size, threads: int, *, lds: int = 0, **values: Value) -> None:
        """Enqueue on torch's current stream (nothing is waited for), or run on the emulated device.

        The first launch on a device loads the code object, so it must not be in a graph capture.

        Args:
            grid: workgroups.
            threads: of a workgroup.
            lds: dynamic LDS in bytes.
            **values: every field of the struct; tensors for the pointers, None is a null pointer.

        Raises:
            ValueError: fields are missing or unknown, or the tensors lie on several devices.
            FileNotFoundError: there is no code object for the architecture.
            HipError: the HIP runtime refused.
        """
        self._check(values)
        device = self._device(values)
        if device.type == "cpu":
            self._emulate(grid, threads, lds, values)
            return
        filled = self._fill(values, Tensor.data_ptr)
        with torch.cuda.device(device):
            function = _function(self.variant, self.name, torch.cuda.current_device())
            stream = torch.cuda.current_stream().cuda_stream
            hip_api.runtime().launch(function, grid, (threads, 1, 1), lds, stream, filled, self._about)

    @property
    def _about(self) -> str:
        return f"kernel {self.name} of {self.variant}"

    def _check(self, values: dict[str, Value]) -> None:
        wanted = {name for name, *_ in self.params._fields_}
        if wanted != set(values):
            missing, unknown = sorted(wanted - set(values)), sorted(set(values) - wanted)
            raise ValueError(f"{self._about}: missing fields {missing}, unknown fields {unknown}")

    def _device(self, values: dict[str, Value]) -> torch.device:
        devices = {name: value.device for name, value in values.items() if isinstance(value, Tensor)}
        if len(set(devices.values())) != 1:
            raise ValueError(f"{self._about}: the tensors must lie on one device, got {devices}")
        return next(iter(devices.values()))

    def _fill(self, values: dict[str, Value], address: Any) -> ctypes.Structure:
        fields = {name: address(value) if isinstance(value, Tensor) else value for name, value in values.items()}
        return self.params(**fields)

    def _emulate(self, grid: Size, threads: int, lds: int, values: dict[str, Value]) -> None:
        from dsv4_rocm.testing.cdna.device import entered

        device = entered()
        if device is None:
            raise ValueError(
                f"{self._about} got CPU tensors: move them to the GPU, or emulate one with "
                "DSV4_ROCM_KERNELS=emulated:gfx942 (or gfx950)"
            )
        text, info = _assembly(self.variant, self.name, device.arch)
        params = lambda address: bytes(self._fill(values, address))  # noqa: E731
        device.launch_text(text, info, grid, (threads, 1, 1), [params], info.lds_bytes + lds)


@cache
def _function(variant: str, name: str, device: int) -> ctypes.c_void_p:
    arch = torch.cuda.get_device_properties(device).gcnArchName.partition(":")[0]
    code = manifest.load(variant, arch)
    return hip_api.runtime().load(code, name, f"kernel {name} of {variant} on device {device} ({arch})")


@cache
def _assembly(variant: str, name: str, arch: str) -> "tuple[str, KernelInfo]":
    from dsv4_rocm.testing.cdna.code_object import CodeObject

    loaded = CodeObject(manifest.load(variant, arch))
    return loaded.assembly(loaded.name(name)), loaded.info(name)
