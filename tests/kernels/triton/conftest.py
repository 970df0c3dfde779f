"""Every kernel runs on both emulated AMD architectures, and compiles for those and for CUDA ones."""

import os
import re
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
import triton
from triton.backends.compiler import GPUTarget
from triton.backends.driver import DriverBase
from triton.runtime import JITFunction
from triton.runtime import driver as triton_runtime

from dsv4_rocm import arch
from dsv4_rocm.cache.layout import CacheLayout
from dsv4_rocm.testing import cdna
from dsv4_rocm.testing.cdna.kernel_info import from_assembly
from dsv4_rocm.testing.cdna.program import ARCHES

# Triton 3.9 warns once a process unless this is chosen; fused is what ships today.
os.environ.setdefault("TRITON_DEFAULT_FP_FUSION", "1")


@pytest.fixture(params=ARCHES)
def gpu(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[cdna.Device]:
    """An entered emulated device, every check on; what launchers allocate is full of NaN."""
    empty = torch.empty

    def poisoned(*args: Any, **options: Any) -> torch.Tensor:
        memory = empty(*args, **options)
        memory.untyped_storage().fill_(0xFF)
        return memory

    monkeypatch.setattr(torch, "empty", poisoned)
    with arch.override(request.param), cdna.device(request.param) as device:
        yield device


@pytest.fixture
def sparse_cache(make_cache) -> Callable[[CacheLayout, list[tuple[int, int]]], Any]:
    """A cache whose blocks cover only some positions (first, end) of each request; the rest of the table is block 0."""

    def build(layout: CacheLayout, spans: list[tuple[int, int]]) -> Any:
        page = layout.tokens_per_page
        needed = [range(max(first, 0) // page, -(-end // page)) for first, end in spans]
        cache = make_cache(layout, 1, max(sum(map(len, needed)), 1) * page)
        table = torch.zeros(len(spans), max(columns.stop for columns in needed), dtype=torch.int32)
        blocks = iter(cache.table[0].tolist())
        for request, columns in enumerate(needed):
            for column in columns:
                table[request, column] = next(blocks)
        cache.table = table
        return cache

    return build


@dataclass(frozen=True, slots=True)
class Built:
    """What a compiler made of one kernel.

    Attributes:
        name: the kernel's.
        registers: vector registers (VGPR with AGPR, or the registers of a CUDA thread).
        spills: spilled vector and scalar registers, or bytes of stack on CUDA.
        scratch: bytes of private memory.
        shared: bytes of LDS or shared memory.
        code: bytes of machine code.
        text: assembly or PTX.
    """

    name: str
    registers: int
    spills: int
    scratch: int
    shared: int
    code: int
    text: str

    def count(self, pattern: str) -> int:
        return len(re.findall(pattern, self.text))


class _Target(DriverBase):
    """A driver that can only say what it compiles for."""

    def __init__(self, name: str) -> None:
        nvidia = name.startswith("sm")
        self.target = GPUTarget("cuda", int(name[2:]), 32) if nvidia else GPUTarget("hip", name, 64)

    @classmethod
    def is_active(cls) -> bool:
        return False

    def map_python_to_cpp_type(self, ty: str) -> str:
        return ty

    def get_current_target(self) -> GPUTarget:
        return self.target

    def get_current_device(self) -> str:
        return str(self.target)

    def get_current_stream(self, _: object) -> int:
        return 0

    def get_active_torch_device(self) -> torch.device:
        return torch.device("cpu")

    def get_benchmarker(self) -> None:
        return None


def _amd(kernel: Any) -> Built:
    text = kernel.asm["amdgcn"]
    resources = from_assembly(text, kernel.metadata.name).resources
    return Built(
        name=kernel.metadata.name,
        registers=resources["vgpr_count"],
        spills=resources["vgpr_spill_count"] + resources["sgpr_spill_count"],
        scratch=resources["private_segment_fixed_size"],
        shared=kernel.metadata.shared,
        code=int(re.findall(r"codeLenInByte = (\d+)", text)[0]),
        text=text,
    )


def _nvidia(kernel: Any) -> Built:
    tool = Path(triton.__file__).parent / "backends/nvidia/bin/cuobjdump"
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(kernel.asm["cubin"])
        file.flush()
        usage = subprocess.run([tool, "-res-usage", file.name], capture_output=True, text=True, check=True).stdout
    registers, stack = (int(re.findall(rf"{field}:(\d+)", usage)[-1]) for field in ("REG", "STACK"))
    text = kernel.asm["ptx"]
    return Built(kernel.metadata.name, registers, stack, stack, kernel.metadata.shared, len(kernel.asm["cubin"]), text)


@pytest.fixture
def build(monkeypatch: pytest.MonkeyPatch) -> Callable[..., list[Built]]:
    """Call a launcher for an architecture without running anything: its kernels, compiled as it would compile them."""

    def run(name: str, launch: Callable[[], Any]) -> list[Built]:
        built: list[Built] = []
        original = JITFunction.run

        def compile_only(self: Any, *args: Any, grid: Any, warmup: bool, **options: Any) -> Any:
            kernel = original(self, *args, grid=grid, warmup=True, **options)
            built.append((_nvidia if name.startswith("sm") else _amd)(kernel))
            return kernel

        with monkeypatch.context() as patch, arch.override(name):
            patch.setattr(JITFunction, "run", compile_only)
            patch.setattr(triton_runtime, "_active", _Target(name))
            launch()
        return built

    return run
