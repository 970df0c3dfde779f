"""Global memory traffic of a launch: what each workgroup touches, once, and what its instructions ask for."""

from __future__ import annotations

import numpy as np

from dsv4_rocm.testing.cdna.formats import Array

DWORD = 4


class Traffic:
    """Counts dwords. No cache but one per workgroup is assumed, and that one holds everything the workgroup touched.

    Scalar loads are left out: arguments and a few values that are the same for a whole wave.

    Attributes:
        moved: bytes read and bytes written, each dword once per workgroup and direction.
        requested: bytes that instructions asked for, each dword once per wave and instruction: all reads are misses.
    """

    def __init__(self, arena_bytes: int) -> None:
        self._read = np.zeros(arena_bytes // DWORD + 1, bool)
        self._written = np.zeros_like(self._read)
        self.moved = self.requested = 0

    def note(self, kind: str, offset: Array, nbytes: int, lanes: Array) -> None:
        first, words = offset >> 2, max(nbytes // DWORD, 1)
        self.requested += len(np.unique(first * 64 + (lanes >> 6))) * words * DWORD
        for word in range(words):
            if kind != "write":
                self._read[first + word] = True
            if kind != "read":
                self._written[first + word] = True

    def end_workgroup(self) -> None:
        for marks in (self._read, self._written):
            self.moved += int(np.count_nonzero(marks)) * DWORD
            marks[:] = False
