"""VALU instructions of the tables in every encoding (VOP1/2/3, SDWA, DPP), compares and selects."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import numpy as np

from dsv4_rocm.testing.cdna import convert_ops, cross_lane_ops, packed_ops, sources, wide_ops
from dsv4_rocm.testing.cdna.assembly import Instruction, Run
from dsv4_rocm.testing.cdna.effects import base_name
from dsv4_rocm.testing.cdna.errors import EmulationError
from dsv4_rocm.testing.cdna.formats import F32, I32, I64, M32, U32, Array, fma32
from dsv4_rocm.testing.cdna.half_table import HALF_OPS
from dsv4_rocm.testing.cdna.lanes import dpp_lanes, dpp_source
from dsv4_rocm.testing.cdna.operands import EXEC, VCC, Operand
from dsv4_rocm.testing.cdna.sources import Source
from dsv4_rocm.testing.cdna.vector_table import OPS, VectorOp
from dsv4_rocm.testing.cdna.waves import Group

COMPARES: dict[str, Callable[[Any, Any], Any]] = {
    "eq": np.equal,
    "ne": np.not_equal,
    "lt": np.less,
    "le": np.less_equal,
    "gt": np.greater,
    "ge": np.greater_equal,
    "lg": lambda a, b: (a < b) | (a > b),
    "o": lambda a, b: ~(np.isnan(a) | np.isnan(b)),
    "u": lambda a, b: np.isnan(a) | np.isnan(b),
    "neq": np.not_equal,
    "nlt": lambda a, b: ~(a < b),
    "nle": lambda a, b: ~(a <= b),
    "ngt": lambda a, b: ~(a > b),
    "nge": lambda a, b: ~(a >= b),
    "nlg": lambda a, b: ~((a < b) | (a > b)),
    "t": lambda a, b: np.ones(1, bool),
    "f": lambda a, b: np.zeros(1, bool),
}
_COMPARE = re.compile(r"^v_cmp(x?)_(\w+?)_(f32|f16|f64|i32|u32|i16|u16|i64|u64)$")
_SCALE = {"mul:2": 2.0, "mul:4": 4.0, "div:2": 0.5}


def source_of(o: Operand, kind: str, high: int = 0) -> Source:
    """The getter a table letter names."""
    if kind == "u":
        return sources.bits(o)
    if kind == "f":
        return sources.floats(o)
    if kind == "i":
        return sources.signed(o)
    if kind in "ab":
        return sources.amount(o, kind == "b")
    return sources.half(o, high) if kind == "h" else sources.half_float(o, high)


def _selected(o: Operand, kind: str, selection: str | None) -> Source:
    raw = sources.sdwa(o, selection, kind in "hx")
    if kind == "f":
        return lambda w: raw(w).view(F32)
    if kind == "i":
        return lambda w: raw(w).view(I32)
    if kind in "ab":
        return (lambda w: (raw(w) & U32(31)).view(I32)) if kind == "b" else (lambda w: raw(w) & U32(31))
    if kind == "x":
        return lambda w: sources.as_half(raw(w))
    return (lambda w: raw(w) & U32(0xFFFF)) if kind == "h" else raw


def getters(ins: Instruction, op: VectorOp, operands: list[Operand], encoding: str) -> list[Source]:
    if encoding == "sdwa":
        return [
            _selected(o, k, ins.mods.get(f"src{n}_sel"))
            for n, (o, k) in enumerate(zip(operands, op.kinds, strict=True))
        ]
    select = ins.mods.get("op_sel", [])
    return [
        source_of(o, k, select[n] if k in "hx" and n < len(select) else 0)
        for n, (o, k) in enumerate(zip(operands, op.kinds, strict=True))
    ]


def _row(kind: str) -> Callable[[Group], list[Any]]:
    return {"f": lambda w: w.RF, "i": lambda w: w.RI}.get(kind, lambda w: w.R)


def _into_row(d: int, kind: str, function: Callable[[Group], Any]) -> Run:
    rows = _row(kind)

    def run(w: Group) -> None:
        value = function(w)
        if w.mask is True:
            rows(w)[d][...] = value
        else:
            np.copyto(rows(w)[d], value, where=w.mask)

    return run


def _ufunc(d: int, kind: str, function: Any, gs: list[Source]) -> Run:
    """A ufunc straight into the destination row."""
    if len(gs) == 1:
        (g,) = gs
        if kind == "f":
            return lambda w: function(g(w), out=w.RF[d], where=w.mask)
        return lambda w: function(g(w), out=w.R[d], where=w.mask)
    a, b = gs
    if kind == "f":
        return lambda w: function(a(w), b(w), out=w.RF[d], where=w.mask)
    if kind == "i":
        return lambda w: function(a(w), b(w), out=w.RI[d], where=w.mask)
    return lambda w: function(a(w), b(w), out=w.R[d], where=w.mask)


def _sdwa_result(ins: Instruction, d: int, function: Callable[[Group], Any]) -> Run:
    shift, mask = sources.SDWA[ins.mods["dst_sel"]]
    unused = ins.mods.get("dst_unused", "UNUSED_PAD")
    keep = U32(~(mask << shift) & M32)
    if unused == "UNUSED_SEXT":
        raise EmulationError("SDWA with dst_unused:UNUSED_SEXT is not modelled")

    def run(w: Group) -> None:
        value = np.asarray(function(w))
        placed = (value.view(U32) & U32(mask)) << U32(shift)
        w.put(d, placed | (w.R[d] & keep) if unused == "UNUSED_PRESERVE" else placed)

    return run


def _dpp(ins: Instruction, d: int, op: VectorOp, gs: list[Source], first: Operand) -> Run:
    source, exists = dpp_source(ins.mods)
    allowed = dpp_lanes(ins.mods)
    zero_fill = "bound_ctrl" in ins.mods
    reg, view = first.reg, {"f": F32, "i": I32}.get(op.kinds[0], U32)
    modified = sources.bits(Operand("v", reg, negate=first.negate, absolute=first.absolute))
    rest = gs[1:]

    def run(w: Group) -> None:
        index = w.lane_index(source)
        moved = modified(w)[index]
        valid = np.tile(exists, w.count) & w.mask_array[index]
        if zero_fill:
            moved = np.where(valid, moved, U32(0))
        others = [g(w) for g in rest]
        args = [moved.view(view), *others]
        value = np.broadcast_to(np.asarray(op.function(*(args[::-1] if op.swap else args))), w.lanes).view(U32)
        write = np.tile(allowed, w.count) & w.mask_array
        np.copyto(w.R[d], value, where=write if zero_fill else write & valid)

    return run


def _clamped(name: str, op: VectorOp) -> VectorOp:
    if name in ("v_add_u32", "v_sub_u32"):
        sign = 1 if name == "v_add_u32" else -1

        def saturate(a: Any, b: Any) -> Array:
            return np.clip(np.asarray(a).astype(I64) + sign * np.asarray(b).astype(I64), 0, M32).astype(U32)

        return VectorOp(op.kinds, op.out, saturate)
    if op.out == "f":
        return VectorOp(op.kinds, "f", lambda *a: np.clip(np.nan_to_num(op.function(*a), nan=0.0), 0, 1), op.swap)
    raise EmulationError("clamp is not modelled on this instruction")


def _scaled(ins: Instruction, op: VectorOp) -> VectorOp:
    factor = F32(_SCALE[next(f"{k}:{ins.mods[k]}" for k in ("mul", "div") if k in ins.mods)])
    if op.out != "f":
        raise EmulationError("an output modifier is not modelled on this instruction")
    return VectorOp(op.kinds, "f", lambda *a: op.function(*a) * factor, op.swap)


def _plain(ins: Instruction, name: str, encoding: str) -> Run:
    op = HALF_OPS.get(name) or OPS.get(name)
    if op is None:
        raise EmulationError("unknown VALU instruction")
    d, operands = ins.parsed[0].reg, ins.parsed[1 : 1 + len(op.kinds)]
    if ins.flag("clamp"):
        op = _clamped(name, op)
    if "mul" in ins.mods or "div" in ins.mods:
        op = _scaled(ins, op)
    gs = getters(ins, op, operands, encoding)
    if "dpp" in encoding:
        return _dpp(ins, d, op, gs, operands[0])
    if op.swap:
        gs = gs[::-1]
    function = op.function
    if op.lanes:
        a, b = gs
        return _into_row(d, op.out, lambda w: function(a(w), b(w), w.lane_ids & 63))
    if encoding == "sdwa" and ins.mods.get("dst_sel", "DWORD") != "DWORD":
        return _sdwa_result(ins, d, lambda w: function(*[g(w) for g in gs]))
    if isinstance(function, np.ufunc) and len(gs) <= 2:
        return _ufunc(d, op.out, function, gs)
    if len(gs) == 1:
        (g,) = gs
        return _into_row(d, op.out, lambda w: function(g(w)))
    if len(gs) == 2:
        a, b = gs
        return _into_row(d, op.out, lambda w: function(a(w), b(w)))
    a, b, c = gs
    return _into_row(d, op.out, lambda w: function(a(w), b(w), c(w)))


def _as_signed64(source: Source) -> Source:
    return lambda w: np.asarray(source(w)).view(I64)


def _as_signed16(source: Source) -> Source:
    return lambda w: (((source(w) & U32(0xFFFF)) ^ U32(0x8000)) - U32(0x8000)).view(I32)


def _compare_sources(ins: Instruction, kind: str, encoding: str) -> list[Source]:
    pair = ins.parsed[-2:]
    letter = {"f32": "f", "i32": "i", "u32": "u", "f16": "x", "u16": "h", "i16": "h"}.get(kind)
    if kind == "f64":
        return [sources.doubles(o) for o in pair]
    if letter is None:
        wide = [sources.pair(o) for o in pair]
        return wide if kind == "u64" else [_as_signed64(g) for g in wide]
    found = getters(ins, VectorOp(letter * 2, "u", np.equal), pair, encoding)
    if kind == "i16":
        return [_as_signed16(g) for g in found]
    return found


def _compare(ins: Instruction, exclusive: str, condition: str, kind: str, encoding: str) -> Run:
    a, b = _compare_sources(ins, kind, encoding)
    test, d = COMPARES[condition], ins.parsed[0].reg

    def run(w: Group) -> None:
        found = test(a(w), b(w))
        if found.shape != (w.lanes,):
            found = np.broadcast_to(found, w.lanes)
        lanes = found if w.mask is True else found & w.mask
        w.set_lane_mask(d, lanes)
        if exclusive:
            w.set_lane_mask(EXEC, lanes)

    return run


def _class_bits(x: Array) -> Array:
    bits = x.view(U32)
    negative, exponent, mantissa = bits >> U32(31) != 0, (bits >> U32(23)) & U32(255), bits & U32(0x7FFFFF)
    nan = (exponent == 255) & (mantissa != 0)
    quiet = mantissa >> U32(22) == 1
    classes = (
        (nan & ~quiet, 0, 0),
        (nan & quiet, 1, 1),
        ((exponent == 255) & (mantissa == 0), 2, 9),
        ((exponent > 0) & (exponent < 255), 3, 8),
        ((exponent == 0) & (mantissa != 0), 4, 7),
        ((exponent == 0) & (mantissa == 0), 5, 6),
    )
    out = np.zeros(len(x), U32)
    for where, below, above in classes:
        out |= np.where(where, np.where(negative, U32(1 << below), U32(1 << above)), U32(0))
    return out


def _compare_class(ins: Instruction) -> Run:
    d, a, b = ins.parsed[0].reg, sources.bits(ins.parsed[-2]), sources.bits(ins.parsed[-1])

    def run(w: Group) -> None:
        found = (_class_bits(sources.broadcast(w, a(w))) & b(w)) != 0
        w.set_lane_mask(d, found if w.mask is True else found & w.mask)

    return run


def _select(ins: Instruction, encoding: str) -> Run:
    a, b = getters(ins, VectorOp("uu", "u", np.where), ins.parsed[1:3], encoding)
    d, chooser = ins.parsed[0].reg, ins.parsed[3].reg if len(ins.parsed) > 3 else VCC
    if encoding == "sdwa" and ins.mods.get("dst_sel", "DWORD") != "DWORD":
        return _sdwa_result(ins, d, lambda w: np.where(w.lane_mask(chooser), b(w), a(w)))
    return _into_row(d, "u", lambda w: np.where(w.lane_mask(chooser), b(w), a(w)))


def _multiply_accumulate(ins: Instruction) -> Run:
    d, a, b = ins.parsed[0].reg, sources.floats(ins.parsed[1]), sources.floats(ins.parsed[2])
    return _into_row(d, "f", lambda w: fma32(a(w), b(w), w.RF[d]))


def compile_vector(ins: Instruction, arch: str) -> Run:
    """The function that runs a VALU instruction (everything `v_` but the matrix instructions)."""
    name, encoding = base_name(ins)
    match = _COMPARE.match(name)
    if match and match[2] != "class":
        return _compare(ins, match[1], match[2], match[3], encoding)
    if name == "v_cmp_class_f32":
        return _compare_class(ins)
    if name == "v_cndmask_b32":
        return _select(ins, encoding)
    if name in ("v_fmac_f32", "v_mac_f32") and "dpp" not in encoding:
        return _multiply_accumulate(ins)
    for family in (cross_lane_ops, wide_ops, packed_ops):
        found: Run | None = family.compile_special(ins, name)
        if found:
            return found
    return convert_ops.compile_special(ins, name, arch) or _plain(ins, name, encoding)
