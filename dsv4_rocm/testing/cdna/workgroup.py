"""One workgroup in flight: its register file, LDS, scratch, and what its waves have touched since the last barrier."""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING

import numpy as np

from dsv4_rocm.testing.cdna.assembly import Instruction
from dsv4_rocm.testing.cdna.formats import M32, U32, Array
from dsv4_rocm.testing.cdna.lds import Lds
from dsv4_rocm.testing.cdna.memory import Arena
from dsv4_rocm.testing.cdna.races import GlobalRaces
from dsv4_rocm.testing.cdna.scratch import Scratch
from dsv4_rocm.testing.cdna.traffic import Traffic
from dsv4_rocm.testing.cdna.waves import Group, Rows

if TYPE_CHECKING:
    from dsv4_rocm.testing.cdna.checks import Checks


class Transfers:
    """Loads to LDS that vmcnt has not been waited for, wave by wave, in issue order with every other counted access."""

    def __init__(self, lds: Lds, waves: int) -> None:
        self.lds = lds
        self.queues: list[deque[tuple[Array, int] | None]] = [deque() for _ in range(waves)]
        self.started: dict[int, tuple[Array, int]] = {}

    def start(self, address: Array, nbytes: int, lanes: Array) -> None:
        self.lds.begin_transfer(address, nbytes)
        for wave in np.unique(lanes >> 6):
            self.started[int(wave)] = (address[lanes >> 6 == wave], nbytes)

    def issued(self, w: Group) -> None:
        """A counted access of all waves of a group has been issued."""
        for wave in range(w.first, w.first + w.count):
            self.queues[wave].append(self.started.pop(wave, None))

    def waited(self, w: Group, limit: int) -> None:
        for wave in range(w.first, w.first + w.count):
            queue = self.queues[wave]
            while len(queue) > limit:
                done = queue.popleft()
                if done:
                    self.lds.end_transfer(*done)


class Workgroup:
    """State shared by the waves of a workgroup. It is reused for the next one by `reset`."""

    def __init__(
        self, registers: int, waves: int, arena: Arena, lds_size: int, scratch_size: int, checks: Checks
    ) -> None:
        self.waves, self.arena, self.checks = waves, arena, checks
        self.lds_size, self.scratch_size = lds_size, scratch_size
        self.values = np.zeros((registers, 64 * waves), U32)
        self.undefined = np.zeros_like(self.values) if checks.uninitialised else None
        self.lane_ids = np.arange(64 * waves)
        self.conflicts: dict[int, float] = {}
        self.traffic: Traffic | None = None
        self._rows: dict[tuple[int, int], Rows] = {}
        self._poison: dict[tuple[int, int], Rows] = {}
        self.reset()

    def reset(self) -> None:
        checks = self.checks
        self.values[:] = 0
        if self.undefined is not None:
            self.undefined[:] = M32
        self.lds = Lds(self.lds_size, self.waves, checks.races, checks.uninitialised)
        self.scratch = Scratch(self.scratch_size, 64 * self.waves, checks.uninitialised)
        self.transfers = Transfers(self.lds, self.waves)
        self.globals = GlobalRaces() if checks.races and self.waves > 1 else None

    def rows(self, first: int, count: int) -> Rows:
        key = (first, count)
        if key not in self._rows:
            self._rows[key] = Rows(self.values[:, 64 * first : 64 * (first + count)])
        return self._rows[key]

    def poison_rows(self, first: int, count: int) -> Rows | None:
        if self.undefined is None:
            return None
        key = (first, count)
        if key not in self._poison:
            self._poison[key] = Rows(self.undefined[:, 64 * first : 64 * (first + count)])
        return self._poison[key]

    def global_access(self, kind: str, ins: Instruction, offset: Array, nbytes: int, lanes: Array) -> None:
        if self.globals is not None:
            self.globals.note(kind, ins, offset, nbytes, lanes)
        if self.traffic is not None:
            self.traffic.note(kind, offset, nbytes, lanes)

    def barrier(self) -> None:
        """All waves have arrived: an interval between barriers ends."""
        self.lds.barrier()
        if self.globals is not None:
            self.globals.barrier()
