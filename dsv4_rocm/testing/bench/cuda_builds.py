"""What Triton and ptxas make of a launcher's kernels for CUDA architectures, on a machine without a GPU."""

import re
import subprocess
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dsv4_rocm import arch
from dsv4_rocm.arch import GpuArch

CUDA = ("sm90", "sm100")


@dataclass(frozen=True, slots=True)
class CudaKernel:
    """One compiled kernel.

    Attributes:
        name: the kernel's.
        registers: of a thread.
        stack_bytes: of a thread; spilled registers lie there.
        shared_bytes: of a block.
        text: PTX.
        has_dot: whether its source multiplies matrices.
    """

    name: str
    registers: int
    stack_bytes: int
    shared_bytes: int
    text: str
    has_dot: bool

    def count(self, pattern: str) -> int:
        """Instructions that a pattern finds."""
        return len(re.findall(pattern, self.text))


def _compiled(kernel: Any) -> CudaKernel:
    import triton

    tool = Path(triton.__file__).parent / "backends/nvidia/bin/cuobjdump"
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(kernel.asm["cubin"])
        file.flush()
        usage = subprocess.run([tool, "-res-usage", file.name], capture_output=True, text=True, check=True).stdout
    registers, stack = (int(re.findall(rf"{field}:(\d+)", usage)[-1]) for field in ("REG", "STACK"))
    asm, metadata = kernel.asm, kernel.metadata
    return CudaKernel(metadata.name, registers, stack, metadata.shared, asm["ptx"], "tt.dot" in asm["ttir"])


def cuda_builds(name: str, function: Callable[[], Any], on: GpuArch | None = None) -> list[CudaKernel]:
    """Call a launcher for a CUDA architecture without running anything: its kernels as it would compile them.

    Args:
        name: "sm90", "sm100" or another CUDA architecture of `dsv4_rocm.arch`.
        function: calls the launcher, on CPU tensors.
        on: facts that plans are made for, where they differ from the architecture's.
    """
    from triton.runtime import JITFunction
    from triton.runtime import driver as triton_runtime

    built: list[CudaKernel] = []
    original, active = JITFunction.run, triton_runtime._active

    def compile_only(self: Any, *args: Any, grid: Any, warmup: bool, **options: Any) -> Any:
        kernel = original(self, *args, grid=grid, warmup=True, **options)
        built.append(_compiled(kernel))
        return kernel

    JITFunction.run = compile_only
    triton_runtime._active = _target(name)
    try:
        with arch.override(on or name):
            function()
    finally:
        JITFunction.run, triton_runtime._active = original, active
    return built


def _target(name: str) -> Any:
    """A driver that can only say what it compiles for."""
    import torch
    from triton.backends.compiler import GPUTarget
    from triton.backends.driver import DriverBase

    target = GPUTarget("cuda", int(name.removeprefix("sm")), 32)

    class Target(DriverBase):
        def __init__(self) -> None: ...

        @classmethod
        def is_active(cls) -> bool:
            return False

        def map_python_to_cpp_type(self, ty: str) -> str:
            return ty

        def get_current_target(self) -> GPUTarget:
            return target

        def get_current_device(self) -> str:
            return name

        def get_current_stream(self, _: object) -> int:
            return 0

        def get_active_torch_device(self) -> torch.device:
            return torch.device("cpu")

        def get_benchmarker(self) -> None:
            return None

    return Target()
