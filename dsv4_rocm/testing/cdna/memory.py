"""Byte stores seen at several widths, and the global memory of a launch with its bounds."""

from __future__ import annotations

from typing import Any

import numpy as np

from dsv4_rocm.testing.cdna.errors import Finding
from dsv4_rocm.testing.cdna.formats import I64, U8, U16, U32, U64, Array

# 16-byte accesses move as complex128: numpy copies it bit for bit and gathers it in one step
WIDTHS: dict[int, Any] = {1: U8, 2: U16, 4: U32, 8: U64, 16: np.complex128}
ONES = {width: np.frombuffer(b"\x01" * 16, dtype)[0] for width, dtype in WIDTHS.items()}
_WORDS = [np.arange(n, dtype=I64) for n in range(5)]


def views(data: Array) -> dict[int, Array]:
    """The bytes of `data` (uint8, start aligned) as arrays of every access width; a partial last unit is left out."""
    return {width: data[: len(data) // width * width].view(dtype) for width, dtype in WIDTHS.items()}


def zeros(size: int) -> Array:
    """`size` zero bytes, aligned for every width."""
    return np.zeros(-(-size // 16) * 2, U64).view(U8)[:size]


def plan(address: Array, nbytes: int) -> tuple[int, Array]:
    """How to touch `nbytes` at each address: (unit width, index array [n] or [n, units])."""
    low = int(np.bitwise_or.reduce(address)) if len(address) else 0
    if low & (nbytes - 1) == 0 and nbytes != 12:
        return nbytes, address >> (nbytes.bit_length() - 1)
    if nbytes >= 4 and low & 3 == 0:
        return 4, (address >> 2)[:, None] + _WORDS[nbytes // 4]
    return 1, address[:, None] + np.arange(nbytes)


def as_words(values: Array, nbytes: int) -> Array:
    """What `views[width][index]` gave, as uint32 [n] (up to 4 bytes) or uint32 [n, words]."""
    if values.ndim == 1:
        if nbytes <= 4:
            return values.astype(U32) if nbytes < 4 else values
        return values.view(U32).reshape(-1, nbytes // 4)
    if values.dtype == U32:
        return values
    flat = np.zeros((len(values), max(4, nbytes)), U8)
    flat[:, :nbytes] = values
    words = flat.view(U32)
    return words[:, 0] if nbytes <= 4 else words


def from_words(words: Array, nbytes: int, width: int) -> Array:
    """Register rows (uint32 [n] or [n, words], contiguous) as units of `width` for a store of `nbytes`."""
    if nbytes < 4:
        narrow = words.astype(WIDTHS[nbytes]) if width == nbytes else words.view(U8).reshape(len(words), 4)[:, :nbytes]
        return narrow
    if width == nbytes:
        return words if nbytes == 4 else words.view(WIDTHS[width]).reshape(-1)
    if width == 4:
        return words
    return words.view(U8).reshape(len(words), nbytes)


class Arena:
    """Global memory: buffers at virtual addresses with guard gaps; only bytes of a buffer may be touched."""

    BASE = 0x7F0000000000
    GAP = 4096

    def __init__(self, size: int = 1 << 20) -> None:
        self.top = self.GAP
        self._allocate(zeros(size))
        self.end = np.zeros(size // 4, I64)  # per dword: end of the buffer it lies in, 0 outside
        self.undefined: Array | None = None  # per byte, only once a buffer was declared uninitialised

    def _allocate(self, data: Array) -> None:
        self.data = data
        self.views = views(data)

    def add(self, nbytes: int, data: Array | None = None, phase: int = 0) -> int:
        """Place a buffer; `phase` is its address modulo 256 (a multiple of 4). Returns the virtual address."""
        offset = -(-self.top // 256) * 256 + phase
        need = offset + nbytes + 2 * self.GAP
        if need > len(self.data):
            self._grow(-(-max(need, 2 * len(self.data)) // 16) * 16)
        if data is not None:
            self.data[offset : offset + nbytes] = data
        self.end[offset // 4 : -(-(offset + nbytes) // 4)] = offset + nbytes
        self.top = offset + nbytes + self.GAP
        return self.BASE + offset

    def _grow(self, size: int) -> None:
        old, old_end, old_mark = self.data, self.end, self.undefined
        self._allocate(zeros(size))
        self.data[: len(old)] = old
        self.end = np.zeros(size // 4, I64)
        self.end[: len(old_end)] = old_end
        if old_mark is not None:
            self.undefined = np.zeros(size, bool)
            self.undefined[: len(old_mark)] = old_mark

    def mark_undefined(self, address: int, nbytes: int) -> None:
        if self.undefined is None:
            self.undefined = np.zeros(len(self.data), bool)
        self.undefined[address - self.BASE : address - self.BASE + nbytes] = True

    def bytes_at(self, address: int, nbytes: int) -> Array:
        start = address - self.BASE
        return self.data[start : start + nbytes]

    def offsets(self, address: Array, nbytes: int, what: str, lanes: Array | None = None) -> Array:
        """Offsets into `data` of valid accesses; raises a "bounds" or "alignment" finding."""
        offset: Array = (address - U64(self.BASE)).view(I64)
        try:
            bad = self.end[(offset.view(U64) >> U64(2)).view(I64)] < offset + nbytes
        except IndexError:
            bad = (offset < 0) | (offset + nbytes > len(self.data))
        if bad.any():
            k = int(np.flatnonzero(bad)[0])
            lane = int(lanes[k]) if lanes is not None else k
            raise Finding(
                "bounds", f"global {what} of {nbytes} bytes at {int(address[k]):#x} is outside every buffer", lane
            )
        unit = min(nbytes, 4)
        if unit > 1 and int(np.bitwise_or.reduce(offset)) & (unit - 1):
            k = int(np.flatnonzero(offset & (unit - 1))[0])
            lane = int(lanes[k]) if lanes is not None else k
            raise Finding(
                "alignment", f"global {what} of {nbytes} bytes at {int(address[k]):#x} is not {unit}-byte aligned", lane
            )
        return offset

    def load(self, offset: Array, nbytes: int) -> Array:
        """uint32 [n] or [n, words] from checked offsets."""
        width, index = plan(offset, nbytes)
        return as_words(self.views[width][index], nbytes)

    def store(self, offset: Array, words: Array, nbytes: int) -> None:
        width, index = plan(offset, nbytes)
        self.views[width][index] = from_words(words, nbytes, width)
        if self.undefined is not None:
            self.undefined[offset[:, None] + np.arange(nbytes)] = False

    def undefined_bits(self, offset: Array, nbytes: int) -> Array | None:
        """Undefined bits of a load as uint32 [n] or [n, words], or None where every byte is defined."""
        if self.undefined is None:
            return None
        marks = self.undefined[offset[:, None] + np.arange(nbytes)]
        return as_words(marks.astype(U8) * U8(255), nbytes) if marks.any() else None

    def scalars(self, address: int, count: int) -> list[int]:
        """`count` dwords for a scalar load."""
        offset = self.offsets(np.array([address], U64), 4 * count, "scalar load")
        start = int(offset[0]) >> 2
        found: list[int] = self.views[4][start : start + count].tolist()
        return found
