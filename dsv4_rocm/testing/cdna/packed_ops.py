"""VOP3P instructions: packed fp32, packed 16-bit, mixed-precision fma, and the bitwise three-input table."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import numpy as np

from dsv4_rocm.testing.cdna import sources
from dsv4_rocm.testing.cdna.assembly import Instruction, Run
from dsv4_rocm.testing.cdna.formats import F16, F32, M32, U16, U32, Array, fma32
from dsv4_rocm.testing.cdna.half_table import HALF_OPS
from dsv4_rocm.testing.cdna.operands import Operand
from dsv4_rocm.testing.cdna.sources import Source
from dsv4_rocm.testing.cdna.waves import Group

_PACKED16 = re.compile(r"^v_pk_(add|mul|fma|max|min|sub|mul_lo|mad|lshlrev|lshrrev|ashrrev)_(f16|u16|i16|b16|bf16)$")
_PACKED32: dict[str, Callable[..., Any]] = {
    "v_pk_mul_f32": lambda a, b: a * b,
    "v_pk_add_f32": lambda a, b: a + b,
    "v_pk_fma_f32": fma32,
}
_SIGN = U32(0x80000000)


def _selectors(ins: Instruction, count: int) -> tuple[list[int], list[int], list[int], list[int]]:
    """op_sel, op_sel_hi, neg_lo, neg_hi with their defaults."""
    mods = ins.mods
    return (
        mods.get("op_sel", [0] * count),
        mods.get("op_sel_hi", [1] * count),
        mods.get("neg_lo", [0] * count),
        mods.get("neg_hi", [0] * count),
    )


def _word(o: Operand, high: int, negate: int) -> Source:
    """One dword of a register pair; a constant serves both."""
    if o.kind == "c":
        value = U32(o.value & M32)
        source: Source = lambda w: value  # noqa: E731
    else:
        source = sources.bits(Operand(o.kind, o.reg + high))
    return (lambda w: source(w) ^ _SIGN) if negate else source


def _packed_float(ins: Instruction, name: str) -> Run:
    d, count = ins.parsed[0].reg, len(ins.parsed) - 1
    select, select_high, negate, negate_high = _selectors(ins, count)
    low = [_word(o, select[k], negate[k]) for k, o in enumerate(ins.parsed[1:])]
    high = [_word(o, select_high[k], negate_high[k]) for k, o in enumerate(ins.parsed[1:])]
    function = _PACKED32[name]

    def run(w: Group) -> None:
        first = np.asarray(function(*[g(w).view(F32) for g in low]), F32)
        second = np.asarray(function(*[g(w).view(F32) for g in high]), F32)
        w.put(d, first.view(U32))
        w.put(d + 1, second.view(U32))

    return run


def _packed_move(ins: Instruction) -> Run:
    d = ins.parsed[0].reg
    select, _, _, _ = _selectors(ins, 2)
    low, high = _word(ins.parsed[1], select[0], 0), _word(ins.parsed[2], select[1], 0)

    def run(w: Group) -> None:
        first, second = np.array(low(w)), np.array(high(w))
        w.put(d, first)
        w.put(d + 1, second)

    return run


def _packed_half(ins: Instruction, operation: str, kind: str) -> Run:
    d, count = ins.parsed[0].reg, len(ins.parsed) - 1
    select, select_high, negate, negate_high = _selectors(ins, count)
    table = {
        "mul_lo": "v_mul_lo_u16",
        "mad": "v_mad_u16",
        "lshlrev": "v_lshlrev_b16",
        "lshrrev": "v_lshrrev_b16",
        "ashrrev": "v_ashrrev_i16",
    }
    op = HALF_OPS[
        table.get(operation, f"v_{operation}_{'u16' if kind == 'i16' and operation in ('add', 'sub') else kind}")
    ]

    def source(k: int, high: int, negated: int) -> Source:
        raw = sources.half(ins.parsed[1 + k], high)
        flipped: Source = (lambda w: raw(w) ^ U32(0x8000)) if negated else raw
        return (lambda w: sources.as_half(flipped(w))) if op.kinds[k] == "x" else flipped

    low = [source(k, select[k], negate[k]) for k in range(count)]
    high = [source(k, select_high[k], negate_high[k]) for k in range(count)]
    function = op.function

    def run(w: Group) -> None:
        w.put(d, function(*[g(w) for g in low]) | (function(*[g(w) for g in high]) << U32(16)))

    return run


def _mixed_fma(ins: Instruction) -> Run:
    d = ins.parsed[0].reg
    select = ins.mods.get("op_sel", [0, 0, 0])
    is_half = ins.mods.get("op_sel_hi", [0, 0, 0])

    def source(k: int) -> Source:
        o = ins.parsed[1 + k]
        if not is_half[k]:
            return sources.floats(o)
        raw = sources.half(o, select[k])
        return lambda w: np.asarray(raw(w)).astype(U16).view(F16).astype(F32)

    gs = [source(k) for k in range(3)]
    if ins.op.startswith("v_fma_mix_f32"):
        return lambda w: w.put(d, np.asarray(fma32(*[g(w) for g in gs])).view(U32))
    high = "mixhi" in ins.op

    def narrow(w: Group) -> None:
        bits = np.asarray(fma32(*[g(w) for g in gs])).astype(F16).view(U16).astype(U32)
        kept = w.R[d] & U32(0xFFFF if high else 0xFFFF0000)
        w.put(d, kept | (bits << U32(16) if high else bits))

    return narrow


def _three_input_table(ins: Instruction, name: str) -> Run:
    d, table = ins.parsed[0].reg, ins.mods.get("bitop3", 0)
    gs = [sources.bits(o) for o in ins.parsed[1:4]]
    narrow = name.endswith("16")

    def run(w: Group) -> None:
        a, b, c = (g(w) for g in gs)
        out: Any = U32(0)
        for k in range(8):
            if table >> k & 1:
                out = out | ((a if k & 4 else ~a) & (b if k & 2 else ~b) & (c if k & 1 else ~c))
        w.put(d, out & U32(0xFFFF) if narrow else out)

    return run


def _pack_halves(ins: Instruction) -> Run:
    d, select = ins.parsed[0].reg, ins.mods.get("op_sel", [0, 0])
    a, b = sources.half(ins.parsed[1], select[0]), sources.half(ins.parsed[2], select[1])
    return lambda w: w.put(d, a(w) | (b(w) << U32(16)))


def _accumulate_half(ins: Instruction) -> Run:
    d, a, b = ins.parsed[0].reg, sources.half_float(ins.parsed[1]), sources.half_float(ins.parsed[2])
    fma: Callable[..., Array] = HALF_OPS["v_fma_f16"].function
    return lambda w: w.put(d, fma(a(w), b(w), sources.as_half(w.R[d] & U32(0xFFFF))))


def compile_special(ins: Instruction, name: str) -> Run | None:
    """The function of an instruction of this module, None for any other."""
    if name in _PACKED32:
        return _packed_float(ins, name)
    if name == "v_pk_mov_b32":
        return _packed_move(ins)
    match = _PACKED16.match(name)
    if match:
        return _packed_half(ins, match[1], match[2])
    if name in ("v_fma_mix_f32", "v_fma_mixlo_f16", "v_fma_mixhi_f16"):
        return _mixed_fma(ins)
    if name in ("v_bitop3_b32", "v_bitop3_b16"):
        return _three_input_table(ins, name)
    if name == "v_pack_b32_f16":
        return _pack_halves(ins)
    if name == "v_fmac_f16":
        return _accumulate_half(ins)
    return None
