"""The LDS of a workgroup: bounds, alignment, which bytes were written, and races between barriers."""

from __future__ import annotations

import numpy as np

from dsv4_rocm.testing.cdna.assembly import Instruction
from dsv4_rocm.testing.cdna.errors import Finding
from dsv4_rocm.testing.cdna.formats import I64, U8, U32, U64, Array
from dsv4_rocm.testing.cdna.memory import ONES, as_words, from_words, plan, views, zeros

Access = tuple[Instruction, Array, int, Array]  # instruction, addresses, bytes, waves


class Lds:
    """One workgroup's LDS. `waves` 1 or `races` False turns the race check off, `track` False the uninitialised one."""

    def __init__(self, size: int, waves: int, races: bool, track: bool) -> None:
        self.size, self.waves = size, waves
        self.data = zeros(size)
        self.views = views(self.data)
        self.track = track
        self.all_defined = not track
        self.defined = zeros(size) if track else self.data
        self.defined_views = views(self.defined)
        self.races = races and waves > 1 and size > 0
        self.pitch = -(-size // 16) * 16
        # two waves may write the same value to a byte (compilers replicate data); different values are a race
        self.written = zeros(self.pitch if self.races else 0)
        self.clash = zeros(self.pitch if self.races else 0)
        self.written_views, self.clash_views = views(self.written), views(self.clash)
        self.dirty = self.atomics = False
        self.log: list[Access] = []
        rows = waves if self.races else 0
        # one row of bytes a wave; rows are padded so that every width divides them
        self.touched = {kind: zeros(rows * self.pitch) for kind in ("read", "write", "atomic")}
        self.touched_views = {kind: views(data) for kind, data in self.touched.items()}
        self.inflight: Array | None = None  # bytes of a load-to-LDS that was not waited for

    def _fail(self, address: Array, nbytes: int, what: str, lanes: Array) -> Finding:
        bad = np.flatnonzero((address < 0) | (address + nbytes > self.size))
        k = int(bad[0]) if len(bad) else 0
        text = f"LDS {what} of {nbytes} bytes at {int(address[k]):#x} is outside the {self.size} bytes of the workgroup"
        return Finding("bounds", text, int(lanes[k]))

    def _aligned(self, address: Array, nbytes: int, what: str, lanes: Array) -> None:
        unit = min(nbytes, 4)
        if unit > 1 and int(np.bitwise_or.reduce(address)) & (unit - 1):
            k = int(np.flatnonzero(address & (unit - 1))[0])
            text = f"LDS {what} of {nbytes} bytes at {int(address[k]):#x} is not {unit}-byte aligned"
            raise Finding("alignment", text, int(lanes[k]))

    def _touch(self, kind: str, ins: Instruction, address: Array, nbytes: int, waves: Array) -> None:
        width, index = plan(address, nbytes)
        rows = waves * (self.pitch // width)
        self.touched_views[kind][width][index + (rows if index.ndim == 1 else rows[:, None])] = ONES[width]
        self.dirty = True
        self.atomics = self.atomics or kind == "atomic"
        self.log.append((ins, address, nbytes, waves))

    def _compare(self, width: int, index: Array, units: Array) -> None:
        """Note bytes written since the last barrier that hold something else than `units`.

        Called before and after a store: before, for what other instructions wrote; after, for other lanes of its own.
        """
        old = self.views[width][index]
        word = U64 if width >= 8 else old.dtype
        differ = old.view(word) != np.ascontiguousarray(units).view(word)
        if differ.any():
            if width == 16:
                differ = differ.reshape(-1, 2).any(1)
            place = index[differ]
            self.clash_views[width][place] = self.written_views[width][place]
        self.written_views[width][index] = ONES[width]

    def load(self, ins: Instruction, address: Array, nbytes: int, lanes: Array) -> tuple[Array, Array | None]:
        """Values (uint32 [n] or [n, words]) and their undefined bits (None: all defined)."""
        if not len(address):
            return np.zeros((0, max(1, nbytes // 4)), U32).squeeze(-1 if nbytes <= 4 else ()), None
        self._aligned(address, nbytes, "read", lanes)
        width, index = plan(address, nbytes)
        try:
            found = self.views[width][index]
        except IndexError:
            raise self._fail(address, nbytes, "read", lanes) from None
        if self.inflight is not None and self.inflight[address[:, None] + np.arange(nbytes)].any():
            raise Finding("wait", "LDS bytes are read whose load-to-LDS has not been waited for")
        if self.races:
            self._touch("read", ins, address, nbytes, lanes >> 6)
        bits = None
        if not self.all_defined:
            marks = self.defined_views[width][index]
            if not (marks.view(U8) == 1).all():
                bits = ~as_words((marks.view(U8) * U8(255)).view(marks.dtype), nbytes)
        return as_words(found, nbytes), bits

    def store(
        self, ins: Instruction, address: Array, words: Array, nbytes: int, lanes: Array, undefined: Array | None = None
    ) -> None:
        """Write register rows; `undefined` marks bits (like `words`) that carry no defined value."""
        if not len(address):
            return
        self._aligned(address, nbytes, "write", lanes)
        width, index = plan(address, nbytes)
        units = from_words(words, nbytes, width)
        try:
            if self.races:
                self._compare(width, index, units)
            self.views[width][index] = units
        except IndexError:
            raise self._fail(address, nbytes, "write", lanes) from None
        if self.races:
            self._compare(width, index, units)
            self._touch("write", ins, address, nbytes, lanes >> 6)
        if undefined is not None:
            marks = undefined.reshape(len(address), -1).view(U8)[:, :nbytes] == 0
            self.defined[address[:, None] + np.arange(nbytes)] = marks
            self.all_defined = False
        elif not self.all_defined:
            self.defined_views[width][index] = ONES[width]

    def atomic(self, ins: Instruction, address: Array, lanes: Array) -> None:
        """Bounds, alignment and race bookkeeping of a 4-byte atomic; the caller reads and writes `views[4]`."""
        if not len(address):
            return
        self._aligned(address, 4, "atomic", lanes)
        if int(address.max()) + 4 > self.size:
            raise self._fail(address, 4, "atomic", lanes)
        if not self.all_defined and not (self.defined_views[4][address >> 2] == ONES[4]).all():
            raise Finding("uninitialised", "LDS atomic on bytes nobody has written")
        if self.races:
            self._touch("atomic", ins, address, 4, lanes >> 6)

    def barrier(self) -> None:
        """End of an interval between barriers: look for races, then forget who touched what."""
        if not self.all_defined and self.size:
            self.all_defined = bool(self.defined.all())
        if not self.dirty:
            return
        conflict = self._conflicts()
        if conflict is not None:
            raise self._explain(conflict)
        for data in self.touched.values():
            data[:] = 0
        self.written[:] = 0
        self.clash[:] = 0
        self.log.clear()
        self.dirty = self.atomics = False

    def _conflicts(self) -> int | None:
        """First byte that two waves touched, one of them writing (atomics do not race with each other)."""
        size = self.waves * self.pitch
        rows = {kind: data[:size].view(U64).reshape(self.waves, -1) for kind, data in self.touched.items()}
        clash = self.clash.view(U64)
        bad = np.zeros(self.pitch // 8, U64)
        written, read, updated = np.zeros_like(bad), np.zeros_like(bad), np.zeros_like(bad)  # by earlier waves
        for write, load, atomic in zip(rows["write"], rows["read"], rows["atomic"], strict=True):
            bad |= write & (written & clash | read) | load & written
            if self.atomics:
                bad |= write & updated | atomic & (written | read) | load & updated
                updated |= atomic
            written |= write
            read |= load
        hit = np.flatnonzero(bad)
        return int(np.flatnonzero(bad.view(U8))[0]) if len(hit) else None

    def _explain(self, byte: int) -> Finding:
        seen: dict[int, str] = {}
        writer = None
        for ins, address, nbytes, waves in self.log:
            for k in np.flatnonzero((address <= byte) & (address + nbytes > byte)):
                wave = int(waves[k])
                if "write" in ins.op or wave not in seen:
                    seen[wave] = ins.where
                if writer is None and "read" not in ins.op:
                    writer = (wave, ins)
        text = "; ".join(f"wave {wave}: {where}" for wave, where in sorted(seen.items())[:4])
        return Finding("race", f"waves touch LDS byte {byte:#x} without a barrier between them: {text}")

    def begin_transfer(self, address: Array, nbytes: int) -> None:
        """Mark bytes as in flight: a load-to-LDS delivers them only once it has been waited for."""
        if self.inflight is None:
            self.inflight = np.zeros(self.size, bool)
        self.inflight[address[:, None] + np.arange(nbytes)] = True

    def end_transfer(self, address: Array, nbytes: int) -> None:
        if self.inflight is not None:
            self.inflight[address[:, None] + np.arange(nbytes)] = False


def bank_conflicts(address: Array, nbytes: int) -> float:
    """Passes an LDS access of one wave needs over the conflict-free count: 64 banks of 4 bytes, same dword is free."""
    words = np.unique((address.astype(I64)[:, None] >> 2) + np.arange(max(1, nbytes // 4)))
    ideal = max(1, -(-len(words) // 64))
    return float(np.bincount(words & 63, minlength=64).max()) / ideal
