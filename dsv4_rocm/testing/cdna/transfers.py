"""Moving words between vector registers and memories: delivery of loads, collection of store data."""

from __future__ import annotations

import numpy as np

from dsv4_rocm.testing.cdna.formats import U32, Array
from dsv4_rocm.testing.cdna.waves import Group, Rows

# loads: name -> (bytes, extension: 0 zero, 1 sign, 2 into the low half, 3 into the high half)
LOADS = {
    "ubyte": (1, 0),
    "sbyte": (1, 1),
    "ushort": (2, 0),
    "sshort": (2, 1),
    "dword": (4, 0),
    "dwordx2": (8, 0),
    "dwordx3": (12, 0),
    "dwordx4": (16, 0),
    "short_d16": (2, 2),
    "short_d16_hi": (2, 3),
    "ubyte_d16": (1, 2),
    "ubyte_d16_hi": (1, 3),
}
STORES = {
    "byte": 1,
    "short": 2,
    "dword": 4,
    "dwordx2": 8,
    "dwordx3": 12,
    "dwordx4": 16,
    "short_d16_hi": 2,
    "byte_d16_hi": 1,
}


def _put_rows(w: Group, rows: Rows, d: int, words: Array, nbytes: int, extension: int) -> None:
    whole = w.mask is True and len(words) == w.lanes
    lanes = slice(None) if whole else w.active
    if nbytes > 4:
        count = nbytes // 4
        if whole:
            rows.plane[d : d + count] = words.T
        else:
            for k in range(count):
                rows.bits[d + k][lanes] = words[:, k]
        return
    if extension == 1:
        top = U32(1 << (8 * nbytes - 1))
        words = (words ^ top) - top
    elif extension == 2:
        words = (rows.bits[d][lanes] & U32(0xFFFF0000)) | words
    elif extension == 3:
        words = (rows.bits[d][lanes] & U32(0xFFFF)) | (words << U32(16))
    rows.bits[d][lanes] = words


def deliver(w: Group, d: int, words: Array, undefined: Array | None, nbytes: int, extension: int = 0) -> bool:
    """Write loaded words (one entry an active lane) to registers. True where undefined bits came with them."""
    _put_rows(w, w.values, d, words, nbytes, extension)
    if undefined is None or w.poison is None:
        return False
    _put_rows(w, w.poison, d, undefined, nbytes, extension)
    w.undef.update(range(d, d + max(1, nbytes // 4)))
    return True


def collect(w: Group, rows: Rows, s: int, nbytes: int, high: bool = False) -> Array:
    """Store data of the active lanes: uint32 [n] or contiguous [n, words]."""
    count = max(1, nbytes // 4)
    if count == 1:
        row: Array = rows.bits[s] if w.mask is True else rows.bits[s][w.active]
        return row >> U32(16) if high else row
    block = rows.plane[s : s + count]
    return np.ascontiguousarray((block if w.mask is True else block[:, w.active]).T)


def undefined_data(w: Group, s: int, nbytes: int, high: bool = False) -> Array | None:
    """Undefined bits of store data, None where all are defined."""
    if w.poison is None or w.undef.isdisjoint(range(s, s + max(1, nbytes // 4))):
        return None
    bits = collect(w, w.poison, s, nbytes, high)
    if nbytes < 4:
        bits = bits & U32((1 << (8 * nbytes)) - 1)
    return bits if bits.any() else None
