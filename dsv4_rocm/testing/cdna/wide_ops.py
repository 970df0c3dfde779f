"""VALU instructions on 64-bit values, with carries, and the steps of a division."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from dsv4_rocm.testing.cdna import sources
from dsv4_rocm.testing.cdna.assembly import Instruction, Run
from dsv4_rocm.testing.cdna.formats import F32, F64, I32, I64, M32, U32, U64, Array, exponent_field, fma32
from dsv4_rocm.testing.cdna.operands import VCC
from dsv4_rocm.testing.cdna.vector_table import to_integer
from dsv4_rocm.testing.cdna.waves import Group

F64_TO_F64: dict[str, Callable[..., Any]] = {
    "v_add_f64": lambda a, b: a + b,
    "v_mul_f64": lambda a, b: a * b,
    "v_fma_f64": lambda a, b, c: a * b + c,
    "v_max_f64": np.fmax,
    "v_min_f64": np.fmin,
    "v_rcp_f64": lambda a: 1 / a,
    "v_rsq_f64": lambda a: 1 / np.sqrt(a),
    "v_sqrt_f64": np.sqrt,
    "v_floor_f64": np.floor,
    "v_ceil_f64": np.ceil,
    "v_trunc_f64": np.trunc,
    "v_rndne_f64": np.rint,
    "v_fract_f64": lambda a: a - np.floor(a),
    "v_frexp_mant_f64": lambda a: np.frexp(a)[0],
}
F32_TO_F64: dict[str, Callable[[Array], Any]] = {
    "v_cvt_f64_f32": lambda a: a.view(F32),
    "v_cvt_f64_i32": lambda a: a.view(I32),
    "v_cvt_f64_u32": lambda a: a,
}
F64_TO_F32: dict[str, Callable[[Array], Array]] = {
    "v_cvt_f32_f64": lambda a: a.astype(F32).view(U32),
    "v_cvt_i32_f64": lambda a: to_integer(a, -(2**31), 2**31 - 1, U32),
    "v_cvt_u32_f64": lambda a: to_integer(a, 0, M32, U32),
    "v_frexp_exp_i32_f64": lambda a: np.where(np.isfinite(a), np.frexp(a)[1], 0).astype(I32).view(U32),
}


def _wide_integer(ins: Instruction, name: str) -> Run | None:
    d, p = ins.parsed[0].reg, ins.parsed
    if name == "v_lshl_add_u64":
        a, n, b = sources.pair(p[1]), sources.bits(p[2]), sources.pair(p[3])
        return lambda w: w.put_wide(d, (a(w) << (n(w).astype(U64) & U64(7))) + b(w))
    if name in ("v_lshlrev_b64", "v_lshrrev_b64", "v_ashrrev_i64"):
        n, a = sources.bits(p[1]), sources.pair(p[2])
        if name == "v_lshlrev_b64":
            return lambda w: w.put_wide(d, a(w) << (n(w).astype(U64) & U64(63)))
        if name == "v_lshrrev_b64":
            return lambda w: w.put_wide(d, a(w) >> (n(w).astype(U64) & U64(63)))
        return lambda w: w.put_wide(d, (np.asarray(a(w)).view(I64) >> (n(w).astype(I64) & I64(63))).view(U64))
    if name == "v_mad_u64_u32":
        x, y, c = sources.bits(p[2]), sources.bits(p[3]), sources.pair(p[4])
        return lambda w: w.put_wide(d, x(w).astype(U64) * y(w).astype(U64) + c(w))
    if name == "v_mad_i64_i32":
        i, j, c = sources.signed(p[2]), sources.signed(p[3]), sources.pair(p[4])
        return lambda w: w.put_wide(d, np.asarray(i(w).astype(I64) * j(w).astype(I64)).view(U64) + c(w))
    return None


def _double(ins: Instruction, name: str) -> Run | None:
    d = ins.parsed[0].reg
    if name in F64_TO_F64:
        function, gs = F64_TO_F64[name], [sources.doubles(o) for o in ins.parsed[1:]]
        return lambda w: w.put_wide(d, np.asarray(function(*[g(w) for g in gs]), F64).view(U64))
    if name == "v_ldexp_f64":
        a, n = sources.doubles(ins.parsed[1]), sources.signed(ins.parsed[2])
        return lambda w: w.put_wide(d, np.asarray(np.ldexp(a(w), np.clip(n(w), -3000, 3000)), F64).view(U64))
    if name in F32_TO_F64:
        widen, g = F32_TO_F64[name], sources.bits(ins.parsed[1])
        return lambda w: w.put_wide(d, np.asarray(widen(np.asarray(g(w))), F64).view(U64))
    if name in F64_TO_F32:
        narrow, x = F64_TO_F32[name], sources.doubles(ins.parsed[1])
        return lambda w: w.put(d, narrow(np.array(np.broadcast_to(x(w), w.lanes))))
    return None


def _carry(ins: Instruction, name: str) -> Run:
    d, carry_out = ins.parsed[0].reg, ins.parsed[1].reg
    a, b = sources.bits(ins.parsed[2]), sources.bits(ins.parsed[3])
    carry_in = ins.parsed[4].reg if len(ins.parsed) > 4 else None
    reverse, add = name.startswith(("v_subrev", "v_subbrev")), name.startswith("v_add")

    def run(w: Group) -> None:
        x, y = sources.broadcast(w, a(w), I64), sources.broadcast(w, b(w), I64)
        carry = w.lane_mask(carry_in).astype(I64) if carry_in is not None else I64(0)
        r = x + y + carry if add else (y - x if reverse else x - y) - carry
        out = (r >> 32) != 0
        w.put(d, (r & M32).astype(U32))
        w.set_lane_mask(carry_out, out if w.mask is True else out & w.mask)

    return run


def _divide_scale(ins: Instruction) -> Run:
    """v_div_scale_f32: scale numerator or denominator by 2^64 where the division would leave the normal range."""
    d, flag = ins.parsed[0].reg, ins.parsed[1].reg
    gs = [sources.bits(o) for o in ins.parsed[2:5]]

    def run(w: Group) -> None:
        s0, den, num = (sources.broadcast(w, g(w)).view(F32) for g in gs)
        exponent_den, exponent_num = exponent_field(den), exponent_field(num)
        apart = exponent_num - exponent_den
        usual = (exponent_den > 0) & (exponent_den < 252) & (exponent_num > 23) & (apart < 96) & (apart > -125)
        if usual.all():
            w.put(d, s0.view(U32))
            w.set_lane_mask(flag, np.zeros(w.lanes, bool))
            return
        tiny_inverse = np.abs(1.0 / den.astype(F64)) < 2.0**-126
        quotient = num.astype(F64) / den.astype(F64)
        tiny = (np.abs(quotient) < 2.0**-126) & (quotient != 0)
        is_den, is_num = s0.view(U32) == den.view(U32), s0.view(U32) == num.view(U32)
        up, down = np.ldexp(s0, 64), np.ldexp(s0, -64)
        cases: list[tuple[Any, Any, bool]] = [
            ((den == 0) | (num == 0), np.full(w.lanes, np.nan, F32), False),
            (apart >= 96, np.where(is_den, up, s0), True),
            ((exponent_den == 0) & (den != 0), up, False),
            (tiny_inverse & tiny, np.where(is_den, up, s0), True),
            (tiny_inverse, down, False),
            (tiny, np.where(is_num, up, s0), True),
            (exponent_num <= 23, up, False),
        ]
        conditions = [c for c, _, _ in cases]
        value = np.select(conditions, [v for _, v, _ in cases], s0).astype(F32)
        scaled = np.select(conditions, [f for _, _, f in cases], False).astype(bool)
        w.put(d, value.view(U32))
        w.set_lane_mask(flag, scaled if w.mask is True else scaled & w.mask)

    return run


def _divide_fmas(ins: Instruction) -> Run:
    d, gs = ins.parsed[0].reg, [sources.bits(o) for o in ins.parsed[1:4]]

    def run(w: Group) -> None:
        a, b, c = (sources.broadcast(w, g(w)).view(F32) for g in gs)
        r = fma32(a, b, c)
        scaled = w.lane_mask(VCC)
        if scaled.any():
            r = np.where(scaled, np.ldexp(r, np.where(exponent_field(c) > 127, 64, -64)), r).astype(F32)
        w.put(d, r.view(U32))

    return run


def compile_special(ins: Instruction, name: str) -> Run | None:
    """The function of an instruction of this module, None for any other."""
    if name in (
        "v_add_co_u32",
        "v_sub_co_u32",
        "v_subrev_co_u32",
        "v_addc_co_u32",
        "v_subb_co_u32",
        "v_subbrev_co_u32",
    ):
        return _carry(ins, name)
    if name == "v_div_scale_f32":
        return _divide_scale(ins)
    if name == "v_div_fmas_f32":
        return _divide_fmas(ins)
    return _wide_integer(ins, name) or _double(ins, name)
