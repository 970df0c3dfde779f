"""An emulated device: launches code objects and assembly, and Triton kernels while it is entered."""

from __future__ import annotations

import contextlib
import importlib.util
from collections.abc import Sequence
from types import TracebackType
from typing import Any

from dsv4_rocm.testing.cdna import executor, program
from dsv4_rocm.testing.cdna.arguments import Buffers, pack
from dsv4_rocm.testing.cdna.checks import Checks
from dsv4_rocm.testing.cdna.code_object import CodeObject
from dsv4_rocm.testing.cdna.cost import Stats
from dsv4_rocm.testing.cdna.kernel_info import KernelInfo, from_assembly
from dsv4_rocm.testing.cdna.memory import Arena

Size = int | Sequence[int]


def three(size: Size) -> tuple[int, int, int]:
    """A grid or block size with its missing dimensions as 1."""
    values = (size,) if isinstance(size, int) else tuple(size)
    x, y, z = (*values, 1, 1, 1)[:3]
    return x, y, z


class Device:
    """A gfx942 or gfx950 made of numpy.

    As a context manager it is Triton's active device, and `kernel[grid](cpu tensors...)` runs on it; the driver that
    was active before comes back at the end. Devices nest.

    Attributes:
        stats: statistics of the last launch.
        launches: (kernel name, statistics) of every launch so far.
    """

    def __init__(
        self,
        arch: str,
        *,
        checks: str | Checks = "all",
        schedule: str = "lockstep",
        max_steps: int = executor.MAX_STEPS,
        triton: bool = True,
        traffic: bool = False,
    ) -> None:
        if arch not in program.ARCHES:
            raise ValueError(f"arch must be one of {', '.join(program.ARCHES)}, got {arch!r}")
        executor.Schedule(schedule)
        self.arch, self.schedule, self.max_steps = arch, schedule, max_steps
        self.checks = Checks.of(checks) if isinstance(checks, str) else checks
        self.stats = Stats()
        self.launches: list[tuple[str, Stats]] = []
        self.last: executor.Launch | None = None
        self._undefined: dict[int, Any] = {}
        self._with_triton = triton
        self.traffic = traffic
        self._stack = contextlib.ExitStack()

    def __enter__(self) -> Device:
        if self._with_triton and importlib.util.find_spec("triton"):
            from dsv4_rocm.testing.cdna.triton_driver import active

            self._stack.enter_context(active(self))
        _entered.append(self)
        self._stack.callback(_entered.pop)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stack.close()

    def uninitialised(self, *tensors: Any) -> None:
        """In the next launch the contents of these tensors or arrays are undefined until the kernel writes them."""
        self._undefined.update({id(t): t for t in tensors})

    def launch(
        self,
        code: bytes | str | CodeObject,
        name: str | None,
        grid: Size,
        block: Size,
        args: Sequence[Any],
        lds: int = 0,
    ) -> Stats:
        """Run a kernel.

        Args:
            code: a code object (bytes, or loaded) or assembly text with its metadata.
            name: kernel name; None takes the only one.
            grid: workgroups in x, y, z.
            block: threads of a workgroup in x, y, z.
            args: CPU tensors, numpy arrays, numbers or raw bytes in the order of the kernel's signature. Tensors and
                arrays are updated in place.
            lds: dynamic LDS bytes on top of what the kernel declares.

        Returns:
            Statistics of the launch, also in `stats`.

        Raises:
            Finding: the kernel did something hardware would punish.
            EmulationError: the kernel cannot be run (unknown instruction, too much LDS, endless loop).
        """
        text, info = self._prepare(code, name)
        return self.launch_text(text, info, three(grid), three(block), args, info.lds_bytes + lds)

    def _prepare(self, code: bytes | str | CodeObject, name: str | None) -> tuple[str, KernelInfo]:
        if isinstance(code, str):
            return code, from_assembly(code, name)
        loaded = CodeObject(code) if isinstance(code, bytes) else code
        kernel = loaded.name(name)
        return loaded.assembly(kernel), loaded.info(kernel)

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
        """`launch` for assembly whose metadata has been read; `kinds` are Triton's types of the arguments."""
        code = program.load(text, info.name, self.arch, self.checks)
        arena = Arena()
        buffers = Buffers(arena)
        kernarg = pack(info, args, buffers, grid, block, kinds, frozenset(self._undefined))
        self._undefined.clear()
        launch = executor.Launch(
            code, arena, grid, block, kernarg, lds_bytes, self.checks, self.schedule, self.max_steps, self.traffic
        )
        self.last = launch
        self.stats = executor.run(launch)
        buffers.write_back()
        self.launches.append((info.name, self.stats))
        return self.stats


_entered: list[Device] = []


def entered() -> Device | None:
    """The innermost device that is entered."""
    return _entered[-1] if _entered else None


def device(
    arch: str,
    *,
    checks: str | Checks = "all",
    schedule: str = "lockstep",
    max_steps: int = executor.MAX_STEPS,
    triton: bool = True,
) -> Device:
    """An emulated device: `with device("gfx942") as dev: kernel[grid](cpu tensors...)`, or `dev.launch(...)`.

    Args:
        arch: "gfx942" or "gfx950".
        checks: "all", "none" or a comma-separated choice of waits, barriers, hazards, races, uninitialised.
        schedule: "lockstep" (waves at one place run together), or one wave after another between barriers in
            "forward", "reverse" or "random:SEED" order. Race-free kernels give the same bits under each.
        max_steps: wave instructions after which a launch counts as an endless loop.
        triton: whether entering the device makes it Triton's active one.
    """
    return Device(arch, checks=checks, schedule=schedule, max_steps=max_steps, triton=triton)
