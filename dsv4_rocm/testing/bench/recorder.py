"""An emulated GPU that keeps every launch: what the compiler made of the kernel, its grid, and the counts of a run."""

import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from typing import Any

from dsv4_rocm import arch
from dsv4_rocm.arch import GpuArch
from dsv4_rocm.testing.cdna.cost import SIMDS, Stats
from dsv4_rocm.testing.cdna.device import Device
from dsv4_rocm.testing.cdna.kernel_info import KernelInfo

REGISTERS_PER_SIMD, WAVES_PER_SIMD, REGISTER_GRANULE = 512, 8, 8
AMD = ("gfx942", "gfx950")


@dataclass(frozen=True, slots=True)
class Launched:
    """One launch on an emulated GPU.

    Attributes:
        info: the kernel's name and resources.
        text: its assembly.
        grid: workgroups.
        waves: of a workgroup.
        lds_bytes: of a workgroup.
        values: arguments and constants of a Triton kernel by name, empty for others.
        stats: counts, all zero where the device only records.
        executed: how often waves executed each instruction of the text, empty where the device only records.
        has_dot: whether its source multiplies matrices (Triton only).
    """

    info: KernelInfo
    text: str
    grid: tuple[int, int, int]
    waves: int
    lds_bytes: int
    values: dict[str, Any]
    stats: Stats
    executed: tuple[int, ...] = ()
    has_dot: bool = False

    @property
    def name(self) -> str:
        return self.info.name

    @property
    def registers(self) -> int:
        """Vector registers and accumulation registers of a lane; they share one file."""
        return self.info.resources["vgpr_count"]

    @property
    def code_bytes(self) -> int | None:
        found = re.findall(r"codeLenInByte = (\d+)", self.text)
        return int(found[0]) if found else None

    def occupancy(self, on: GpuArch) -> int:
        """Waves of a SIMD that registers and LDS allow."""
        granules = -(-max(self.registers, 1) // REGISTER_GRANULE) * REGISTER_GRANULE
        by_lds = on.shared_bytes // max(self.lds_bytes, 1) * self.waves // SIMDS
        return max(0, min(WAVES_PER_SIMD, REGISTERS_PER_SIMD // granules, by_lds))

    def count(self, pattern: str) -> int:
        """Instructions that a pattern finds."""
        return len(re.findall(pattern, self.text))


class Recorder(Device):
    """A device that remembers its launches, and runs them unless told to record only."""

    def __init__(self, name: str, *, run: bool = True) -> None:
        super().__init__(name, traffic=True)
        self.launched: list[Launched] = []
        self._run, self._values = run, dict[str, Any]()

    def __enter__(self) -> "Recorder":
        super().__enter__()
        self._stack.enter_context(_triton_launches(self._before, self._after))
        return self

    def _before(self, values: dict[str, Any]) -> None:
        self._values = values

    def _after(self, kernel: Any) -> None:
        self.launched[-1] = replace(self.launched[-1], has_dot="tt.dot" in kernel.asm["ttir"])

    def launch_text(
        self,
        text: str,
        info: KernelInfo,
        grid: tuple[int, int, int],
        block: tuple[int, int, int],
        args: Sequence[Any],
        lds_bytes: int,
        kinds: Sequence[str] = (),
    ) -> Stats:
        stats, executed = Stats(), tuple[int, ...]()
        if self._run:
            stats = super().launch_text(text, info, grid, block, args, lds_bytes, kinds)
            executed = tuple(self.last.counts) if self.last else ()
        values, self._values = self._values, {}
        self.launched.append(Launched(info, text, grid, -(-block[0] // 64), lds_bytes, values, stats, executed))
        return stats


@contextmanager
def _triton_launches(before: Callable[[dict[str, Any]], None], after: Callable[[Any], None]) -> Iterator[None]:
    """Hear the arguments of every Triton launch by name before it happens, and its compiled kernel afterwards."""
    from triton.runtime import JITFunction

    original = JITFunction.run

    def run(self: Any, *args: Any, grid: Any, warmup: bool, **options: Any) -> Any:
        before(dict(zip(self.arg_names, args, strict=False)) | options)
        kernel = original(self, *args, grid=grid, warmup=warmup, **options)
        after(kernel)
        return kernel

    JITFunction.run = run
    try:
        yield
    finally:
        JITFunction.run = original


def launches(name: str, function: Callable[..., Any], *, run: bool = True, on: GpuArch | None = None) -> list[Launched]:
    """Call a launcher (without arguments) on an emulated architecture.

    Args:
        name: "gfx942" or "gfx950".
        function: what to call.
        run: execute the kernels; otherwise they are compiled and nothing is computed.
        on: facts that plans are made for, where they differ from the architecture's (a chip with fewer CUs).

    Raises:
        Finding: a kernel does something the hardware would punish.
    """
    with ExitStack() as stack:
        stack.enter_context(arch.override(on or name))
        recorder = stack.enter_context(Recorder(name, run=run))
        function()
    return recorder.launched
