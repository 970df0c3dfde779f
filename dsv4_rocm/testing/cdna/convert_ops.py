"""Conversions from and to fp8, bf8 and fp4, plain and with a scale operand."""

from __future__ import annotations

import re

import numpy as np

from dsv4_rocm.testing.cdna import sources
from dsv4_rocm.testing.cdna.assembly import Instruction, Run
from dsv4_rocm.testing.cdna.formats import F16, F32, F64, M32, U16, U32, Array, bf16_round, exponent_field, small_float
from dsv4_rocm.testing.cdna.sources import Source, broadcast
from dsv4_rocm.testing.cdna.vector_table import half_bits
from dsv4_rocm.testing.cdna.waves import Group

_UNPACK = re.compile(r"^v_cvt_(pk_)?f32_(fp8|bf8)$")
_PACK = re.compile(r"^v_cvt_pk_(fp8|bf8)_f32$")
_UNPACK_SCALED = re.compile(r"^v_cvt_scalef32_pk_(f32|f16|bf16)_(fp8|bf8|fp4)$")
_PACK_SCALED = re.compile(r"^v_cvt_scalef32_pk_(fp8|bf8|fp4)_(f32|bf16|f16)$")


def _unpack(ins: Instruction, packed: bool, kind: str, arch: str) -> Run:
    fmt, d, source = small_float(kind, arch), ins.parsed[0].reg, sources.bits(ins.parsed[1])
    selection = ins.mods.get("src0_sel", "DWORD")
    if packed:
        shift = 16 if selection == "WORD_1" or ins.mods.get("op_sel", [0])[0] else 0

        def pair(w: Group) -> None:
            x = broadcast(w, source(w)) >> U32(shift)
            first, second = fmt.decode(x & U32(255)), fmt.decode((x >> U32(8)) & U32(255))
            w.put(d, first.view(U32))
            w.put(d + 1, second.view(U32))

        return pair
    shift = sources.SDWA[selection][0] if selection.startswith("BYTE") else 8 * ins.mods.get("byte_sel", 0)
    return lambda w: w.put(d, fmt.decode((broadcast(w, source(w)) >> U32(shift)) & U32(255)).view(U32))


def _pack(ins: Instruction, kind: str, arch: str) -> Run:
    fmt, d = small_float(kind, arch), ins.parsed[0].reg
    a, b = sources.floats(ins.parsed[1]), sources.floats(ins.parsed[2])
    high = ins.mods.get("op_sel", [0, 0, 0])[-1]

    def run(w: Group) -> None:
        first = fmt.encode(broadcast(w, a(w), F32), w.fp8_saturate)
        second = fmt.encode(broadcast(w, b(w), F32), w.fp8_saturate)
        both, old = first | (second << U32(8)), w.R[d]
        w.put(d, (old & U32(0xFFFF)) | (both << U32(16)) if high else (old & U32(0xFFFF0000)) | both)

    return run


def _scale(w: Group, source: Source) -> Array:
    """The power of two a scale operand stands for: only its exponent counts."""
    return np.exp2(exponent_field(broadcast(w, source(w))).astype(F64) - 127)


def _unpack_scaled(ins: Instruction, to: str, kind: str) -> Run:
    fmt, d = small_float(kind, "gfx950"), ins.parsed[0].reg
    source, scale = sources.bits(ins.parsed[1]), sources.bits(ins.parsed[2])
    select = ins.mods.get("op_sel", [0, 0, 0])
    bits = 4 if kind == "fp4" else 8
    shift = U32(8 * (select[0] + 2 * select[1]) if kind == "fp4" else 16 * select[0])
    mask = U32((1 << bits) - 1)

    def run(w: Group) -> None:
        x, factor = broadcast(w, source(w)) >> shift, _scale(w, scale)
        first = (fmt.decode(x & mask) * factor).astype(F32)
        second = (fmt.decode((x >> U32(bits)) & mask) * factor).astype(F32)
        if to == "f32":
            w.put(d, first.view(U32))
            w.put(d + 1, second.view(U32))
        elif to == "bf16":
            w.put(d, bf16_round(first) | (bf16_round(second) << U32(16)))
        else:
            w.put(d, half_bits(first) | (half_bits(second) << U32(16)))

    return run


def _pair_of(ins: Instruction, kind: str) -> tuple[list[Source], Source]:
    """The two fp32 values to convert, and the scale operand."""
    if kind == "f32":
        return [sources.floats(o) for o in ins.parsed[1:3]], sources.bits(ins.parsed[3])
    raw = sources.bits(ins.parsed[1])
    if kind == "bf16":
        halves: list[Source] = [
            lambda w: (raw(w) << U32(16)).view(F32),
            lambda w: (raw(w) & U32(0xFFFF0000)).view(F32),
        ]
    else:
        halves = [
            lambda w: (raw(w) & U32(0xFFFF)).astype(U16).view(F16).astype(F32),
            lambda w: (raw(w) >> U32(16)).astype(U16).view(F16).astype(F32),
        ]
    return halves, sources.bits(ins.parsed[2])


def _pack_scaled(ins: Instruction, kind: str, source_kind: str) -> Run:
    fmt, d = small_float(kind, "gfx950"), ins.parsed[0].reg
    (a, b), scale = _pair_of(ins, source_kind)
    select = ins.mods.get("op_sel", [0, 0, 0, 0])
    four = kind == "fp4"
    bits = 4 if four else 8
    shift = 8 * (select[-2] + 2 * select[-1]) if four else 16 * select[-1]
    keep = U32(~(((1 << (2 * bits)) - 1) << shift) & M32)

    def run(w: Group) -> None:
        factor, saturate = _scale(w, scale), four or w.fp8_saturate
        first = fmt.encode(broadcast(w, a(w), F32) / factor, saturate)
        second = fmt.encode(broadcast(w, b(w), F32) / factor, saturate)
        w.put(d, (w.R[d] & keep) | ((first | (second << U32(bits))) << U32(shift)))

    return run


def compile_special(ins: Instruction, name: str, arch: str) -> Run | None:
    """The function of an instruction of this module, None for any other."""
    if match := _UNPACK.match(name):
        return _unpack(ins, bool(match[1]), match[2], arch)
    if match := _PACK.match(name):
        return _pack(ins, match[1], arch)
    if match := _UNPACK_SCALED.match(name):
        return _unpack_scaled(ins, match[1], match[2])
    if match := _PACK_SCALED.match(name):
        return _pack_scaled(ins, match[1], match[2])
    return None
