"""Source operands as functions of a group: raw bits, fp32, int32, 16-bit halves, 64-bit pairs, SDWA selections."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from dsv4_rocm.testing.cdna.errors import EmulationError
from dsv4_rocm.testing.cdna.formats import F16, F32, F64, I32, M32, U16, U32, U64, Array
from dsv4_rocm.testing.cdna.operands import HALF_OF_INLINE, Operand
from dsv4_rocm.testing.cdna.waves import Group

Source = Callable[[Group], Any]

SDWA = {
    "BYTE_0": (0, 0xFF),
    "BYTE_1": (8, 0xFF),
    "BYTE_2": (16, 0xFF),
    "BYTE_3": (24, 0xFF),
    "WORD_0": (0, 0xFFFF),
    "WORD_1": (16, 0xFFFF),
    "DWORD": (0, M32),
}
_SIGN = U32(0x80000000)


def _raw(o: Operand) -> Source:
    reg = o.reg
    if o.kind == "v":
        return lambda w: w.R[reg]
    if o.kind == "s":
        return lambda w: w.row(reg)
    if o.kind == "c":
        value = U32(o.value & M32)
        return lambda w: value
    raise EmulationError(f"{o.kind!r} cannot be a source here")


def bits(o: Operand) -> Source:
    """uint32 bits; float modifiers act on the sign bit."""
    source = _raw(o)
    if o.absolute:
        unsigned = source
        source = lambda w: unsigned(w) & U32(0x7FFFFFFF)  # noqa: E731
    if o.negate:
        positive = source
        return lambda w: positive(w) ^ _SIGN
    return source


def floats(o: Operand) -> Source:
    """fp32 values."""
    reg = o.reg
    if not (o.negate or o.absolute):
        if o.kind == "v":
            return lambda w: w.RF[reg]
        if o.kind == "c":
            value = U32(o.value & M32).view(F32)
            return lambda w: value
    source = bits(o)
    return lambda w: source(w).view(F32)


def signed(o: Operand) -> Source:
    """int32 values."""
    reg = o.reg
    if o.kind == "v":
        return lambda w: w.RI[reg]
    source = bits(o)
    return lambda w: source(w).view(I32)


def amount(o: Operand, signed_type: bool = False) -> Source:
    """Shift amounts modulo 32."""
    kind = I32 if signed_type else U32
    if o.kind == "c":
        value = kind(o.value & 31)
        return lambda w: value
    source = bits(o)
    if signed_type:
        return lambda w: (source(w) & U32(31)).view(I32)
    return lambda w: source(w) & U32(31)


def pair(o: Operand) -> Source:
    """uint64 values of a register pair."""
    reg = o.reg
    if o.kind == "v":
        return lambda w: w.R[reg].astype(U64) | (w.R[reg + 1].astype(U64) << U64(32))
    if o.kind == "s":

        def scalar(w: Group) -> Any:
            value = w.s64(reg)
            return U64(value) if isinstance(value, int) else np.repeat(np.array(value, U64), 64)

        return scalar
    value = U64(o.value & 0xFFFFFFFFFFFFFFFF)
    return lambda w: value


def doubles(o: Operand) -> Source:
    """fp64 values of a register pair; inline floats widen."""
    if o.kind == "c":
        value = U64(o.double_bits).view(F64)
        source: Source = lambda w: value  # noqa: E731
    else:
        raw = pair(o)
        source = lambda w: raw(w).view(F64)  # noqa: E731
    if o.absolute:
        unsigned = source
        source = lambda w: np.abs(unsigned(w))  # noqa: E731
    if o.negate:
        positive = source
        return lambda w: -positive(w)
    return source


def half(o: Operand, high: int = 0) -> Source:
    """A 16-bit half in the low bits of uint32."""
    if o.kind == "c":
        constant = HALF_OF_INLINE.get(o.value, o.value) if o.is_float else o.value
        value = U32(constant & 0xFFFF)
        source: Source = lambda w: value  # noqa: E731
    else:
        raw = _raw(o)
        source = (lambda w: raw(w) >> U32(16)) if high else (lambda w: raw(w) & U32(0xFFFF))
    if o.absolute:
        unsigned = source
        source = lambda w: unsigned(w) & U32(0x7FFF)  # noqa: E731
    if o.negate:
        positive = source
        return lambda w: positive(w) ^ U32(0x8000)
    return source


def half_float(o: Operand, high: int = 0) -> Source:
    """fp16 values of a 16-bit half."""
    source = half(o, high)
    return lambda w: as_half(source(w))


def as_half(x: Any) -> Array:
    return np.asarray(x).astype(U16).view(F16)


def sdwa(o: Operand, selection: str | None, sixteen: bool) -> Source:
    """The bytes an SDWA selection takes, sign-extended on request, as uint32 bits."""
    shift, mask = SDWA[selection or "DWORD"]
    raw = _raw(o)
    source: Source = raw if mask == M32 else (lambda w: (raw(w) >> U32(shift)) & U32(mask))
    if o.sign_extend and mask != M32:
        bit, unextended = U32((mask + 1) >> 1), source
        source = lambda w: (unextended(w) ^ bit) - bit  # noqa: E731
    top = U32(0x8000 if sixteen else 0x80000000)
    if o.absolute:
        unsigned = source
        source = lambda w: unsigned(w) & ~top  # noqa: E731
    if o.negate:
        positive = source
        return lambda w: positive(w) ^ top
    return source


def broadcast(w: Group, value: Any, dtype: Any = U32) -> Array:
    """A value over all lanes of the group as an array of its own kind."""
    out = value if np.ndim(value) else np.full(w.lanes, value)
    return out if out.dtype == dtype else out.astype(dtype)
