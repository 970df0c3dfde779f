"""State of neighbouring waves that stand at the same instruction: registers, EXEC, and what is undefined."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from dsv4_rocm.testing.cdna.errors import Finding
from dsv4_rocm.testing.cdna.formats import F32, I32, M32, M64, U8, U32, U64, Array
from dsv4_rocm.testing.cdna.operands import EXEC, SCC

if TYPE_CHECKING:
    from dsv4_rocm.testing.cdna.workgroup import Workgroup

# A scalar value is one int where all waves of the group agree, else one int a wave.
Scalar = int | list[int]
SGPRS = 129  # SGPR file with VCC, M0, EXEC at their encodings, and SCC
V_IDS, S_BASE = 512, 512  # ids of registers in sets: VGPRs and AGPRs 0..511, scalars from 512


def collapse(values: list[int]) -> Scalar:
    first = values[0]
    return first if values.count(first) == len(values) else values


def lanes_of(value: Scalar, count: int) -> Array:
    """64-bit masks to bool [64 * count]."""
    masks = np.array(value if isinstance(value, list) else [value] * count, U64)
    return np.unpackbits(masks.view(U8), bitorder="little").view(bool)


def masks_of(lanes: Array) -> Scalar:
    """bool [64 * count] to 64-bit masks."""
    return collapse(np.packbits(lanes, bitorder="little").view(U64).tolist())


class Rows:
    """Row views of one register plane (values, or undefined bits) for a range of waves."""

    def __init__(self, plane: Array) -> None:
        self.plane = plane
        self.bits = list(plane)
        self.floats = list(plane.view(F32))
        self.signed = list(plane.view(I32))


class Group:
    """Waves `first` .. `first + count` of a workgroup running in step.

    `R`, `RF`, `RI` are the rows of the vector registers as uint32, fp32 and int32; one row holds the lanes of all
    waves.
    """

    def __init__(self, wg: Workgroup, first: int, count: int) -> None:
        self.wg, self.first, self.count = wg, first, count
        self.lanes = 64 * count
        self.lane0 = 64 * first
        self.values = wg.rows(first, count)
        self.show(self.values)
        self.poison = wg.poison_rows(first, count)
        self.S: list[Any] = [0] * SGPRS
        self.SV: list[Any] = [None] * SGPRS
        self.masks: dict[int, Array] = {}
        self.ex: Scalar = M64
        self.mask: Any = True
        self._active: Array | None = None
        self.pc = 0
        self.fp8_saturate = False
        self.skip_vector = 0
        self.index_mode: Scalar = 0
        self.undef: set[int] = set()
        self.undef_bits: dict[int, int] = {}  # SGPR -> undefined bits, of any wave
        self.track: Scalar = 0  # scoreboard state
        self.lane_ids = wg.lane_ids[self.lane0 : self.lane0 + self.lanes]

    def show(self, rows: Rows) -> None:
        """Let `R`, `RF`, `RI` name this plane; instructions that only move data run on the undefined bits this way."""
        self.V, self.R, self.RF, self.RI = rows.plane, rows.bits, rows.floats, rows.signed

    # scalar registers

    def s32(self, reg: int) -> Scalar:
        value: Scalar | None = self.S[reg]
        if value is None:
            self._materialise(reg)
            value = self.S[reg]
            assert value is not None
        return value

    def s64(self, reg: int) -> Scalar:
        if reg == EXEC:
            return self.ex
        low, high = self.s32(reg), self.s32(reg + 1)
        if isinstance(low, int) and isinstance(high, int):
            return low | high << 32
        return self.each(lambda x, y: x | y << 32, low, high)

    def set32(self, reg: int, value: Scalar) -> None:
        if self.masks:
            self._forget_mask(reg)
        if reg in (EXEC, EXEC + 1):
            old = self.ex
            if reg == EXEC:
                self.set_exec(self.each(lambda v, e: e & ~M32 | v & M32, value, old))
            else:
                self.set_exec(self.each(lambda v, e: e & M32 | (v & M32) << 32, value, old))
            return
        self.S[reg] = value & M32 if isinstance(value, int) else [v & M32 for v in value]
        self.SV[reg] = None

    def set64(self, reg: int, value: Scalar) -> None:
        if reg == EXEC:
            self.set_exec(value)
        elif isinstance(value, int):
            self.set32(reg, value)
            self.set32(reg + 1, value >> 32)
        else:
            self.set32(reg, collapse([v & M32 for v in value]))
            self.set32(reg + 1, collapse([v >> 32 & M32 for v in value]))

    def set_scc(self, value: Scalar) -> None:
        self.S[SCC] = value
        self.SV[SCC] = None

    def _materialise(self, reg: int) -> None:
        if reg in (EXEC, EXEC + 1):
            self.S[EXEC] = self.each(lambda v: v & M32, self.ex)
            self.S[EXEC + 1] = self.each(lambda v: v >> 32, self.ex)
            return
        base = reg if reg in self.masks else reg - 1
        value = masks_of(self.masks[base])
        self.S[base] = self.each(lambda v: v & M32, value)
        self.S[base + 1] = self.each(lambda v: v >> 32, value)

    def _settle_scalars(self) -> None:
        """Make every scalar register an integer or a list of them."""
        for reg in (*self.masks, EXEC):
            if self.S[reg] is None:
                self._materialise(reg)

    def _forget_mask(self, reg: int) -> None:
        for base in (reg, reg - 1):
            if base in self.masks:
                if self.S[base] is None:
                    self._materialise(base)
                del self.masks[base]

    def row(self, reg: int) -> Any:
        """An SGPR as something numpy broadcasts over the lanes: a uint32 scalar, or one value a lane."""
        value = self.SV[reg]
        if value is None:
            scalar = self.s32(reg)
            value = U32(scalar) if isinstance(scalar, int) else np.repeat(np.array(scalar, U32), 64)
            if reg not in (EXEC, EXEC + 1):
                self.SV[reg] = value
        return value

    def lane_mask(self, reg: int) -> Array:
        """An SGPR pair as bool over the lanes."""
        found = self.masks.get(reg)
        if found is None:
            found = lanes_of(self.s64(reg), self.count)
            if reg != EXEC:
                self.masks[reg] = found
        return found

    def set_lane_mask(self, reg: int, lanes: Array) -> None:
        """Write bool over the lanes to an SGPR pair; the integers are made when someone asks for them."""
        if reg == EXEC:
            self.set_exec(masks_of(lanes))
            return
        if self.masks:
            self._forget_mask(reg)
            self._forget_mask(reg + 1)
        self.masks[reg] = lanes
        self.S[reg] = self.S[reg + 1] = self.SV[reg] = self.SV[reg + 1] = None

    def set_exec(self, value: Scalar) -> None:
        if isinstance(value, list):
            value = collapse(value)
        self.ex = value
        self.S[EXEC] = self.S[EXEC + 1] = None
        self.mask = True if value == M64 else lanes_of(value, self.count)
        self._active = None

    # lanes

    @property
    def active(self) -> Array:
        """Indices of the active lanes."""
        if self._active is None:
            self._active = np.arange(self.lanes) if self.mask is True else np.flatnonzero(self.mask)
        return self._active

    @property
    def mask_array(self) -> Array:
        return np.ones(self.lanes, bool) if self.mask is True else self.mask

    def put(self, reg: int, value: Any) -> None:
        """Write uint32 values (array or scalar) to the active lanes of a vector register."""
        if self.mask is True:
            self.R[reg][...] = value
        else:
            np.copyto(self.R[reg], value, where=self.mask)

    def put_wide(self, reg: int, value: Any) -> None:
        """Write uint64 values to a register pair."""
        wide = value if np.ndim(value) else np.full(self.lanes, value)
        self.put(reg, wide.astype(U32))
        self.put(reg + 1, (wide >> U64(32)).astype(U32))

    def lane_index(self, in_wave: Array) -> Array:
        """A lane map of one wave (int [64]) as indices over all lanes of the group."""
        return in_wave if self.count == 1 else (in_wave[None, :] + 64 * np.arange(self.count)[:, None]).reshape(-1)

    def require_defined(self, reg: int, nbytes: int, what: str, pick: Any = slice(None), high: bool = False) -> None:
        """Raise an "uninitialised" finding where store data of an active lane has undefined bits."""
        if self.poison is None or self.undef.isdisjoint(range(reg, reg + max(1, nbytes // 4))):
            return
        keep = U32(M32 if nbytes >= 4 else (1 << 8 * nbytes) - 1 << (16 if high else 0))
        for k in range(max(1, nbytes // 4)):
            bad = np.flatnonzero(self.poison.bits[reg + k][self.active][pick] & keep)
            if len(bad):
                lane = int(self.lane_ids[self.active][pick][bad[0]])
                raise Finding("uninitialised", f"an undefined value of v{reg + k} reaches {what}", lane)

    # scalar arithmetic

    def each(self, function: Callable[..., int], *args: Scalar) -> Scalar:
        """Apply a function of ints wave by wave; once where all waves agree."""
        for value in args:
            if not isinstance(value, int):
                return collapse([function(*a) for a in self._columns(args)])
        return function(*args)

    def each2(self, function: Callable[..., tuple[int, int]], *args: Scalar) -> tuple[Scalar, Scalar]:
        """`each` for functions that give (result, scc)."""
        for value in args:
            if not isinstance(value, int):
                pairs = [function(*a) for a in self._columns(args)]
                return collapse([p[0] for p in pairs]), collapse([p[1] for p in pairs])
        return function(*args)

    def _columns(self, args: Sequence[Scalar]) -> Any:
        return zip(*[a if isinstance(a, list) else [a] * self.count for a in args], strict=True)

    # dividing and joining groups

    def piece(self, first: int, count: int) -> Group:
        """The waves `first` .. `first + count` (counted in the workgroup) as a group of their own."""
        out = Group(self.wg, first, count)
        start = first - self.first

        def cut(value: Scalar) -> Scalar:
            return collapse(value[start : start + count]) if isinstance(value, list) else value

        self._settle_scalars()
        out.S = [v if v.__class__ is int else cut(v) for v in self.S]
        out.set_exec(cut(self.ex))
        out.index_mode = cut(self.index_mode)
        out.pc, out.fp8_saturate, out.skip_vector = self.pc, self.fp8_saturate, self.skip_vector
        out.undef, out.undef_bits, out.track = set(self.undef), dict(self.undef_bits), cut(self.track)
        return out

    def joined(self, other: Group) -> Group:
        """This group and the one right behind it, both at the same place, as one."""
        out = Group(self.wg, self.first, self.count + other.count)

        def join(a: Scalar, b: Scalar) -> Scalar:
            left = a if isinstance(a, list) else [a] * self.count
            return collapse(left + (b if isinstance(b, list) else [b] * other.count))

        self._settle_scalars()
        other._settle_scalars()
        pairs = zip(self.S, other.S, strict=True)
        out.S = [a if a.__class__ is int and a == b else join(a, b) for a, b in pairs]
        out.set_exec(join(self.ex, other.ex))
        out.index_mode = join(self.index_mode, other.index_mode)
        out.pc, out.fp8_saturate, out.skip_vector = self.pc, self.fp8_saturate, self.skip_vector
        out.undef = self.undef | other.undef
        out.undef_bits = {
            r: self.undef_bits.get(r, 0) | other.undef_bits.get(r, 0) for r in {*self.undef_bits, *other.undef_bits}
        }
        out.track = join(self.track, other.track)
        return out
