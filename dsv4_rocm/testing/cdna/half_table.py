"""The 16-bit VALU instructions as a table; also the halves of packed 16-bit instructions."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from dsv4_rocm.testing.cdna.formats import F16, F32, F64, I32, U16, U32, Array
from dsv4_rocm.testing.cdna.vector_table import VectorOp, to_integer

LOW = U32(0xFFFF)


def _sign16(x: Any) -> Array:
    return np.asarray(((x & LOW) ^ U32(0x8000)) - U32(0x8000)).view(I32)


def _bits(x: Any) -> Array:
    return np.asarray(x, F16).view(U16).astype(U32)


def _cut(function: Callable[..., Any]) -> Callable[..., Any]:
    return lambda *a: function(*a) & LOW


def _signed(function: Callable[..., Any]) -> Callable[..., Any]:
    return lambda *a: np.asarray(function(*[_sign16(x) for x in a])).view(U32) & LOW


def _float(function: Callable[..., Any]) -> Callable[..., Any]:
    return lambda *a: _bits(function(*a))


def _fma16(a: Any, b: Any, c: Any) -> Any:
    return a.astype(F64) * b.astype(F64) + c.astype(F64)


HALF_OPS: dict[str, VectorOp] = {
    "v_add_u16": VectorOp("hh", "u", _cut(lambda a, b: a + b)),
    "v_sub_u16": VectorOp("hh", "u", _cut(lambda a, b: a - b)),
    "v_subrev_u16": VectorOp("hh", "u", _cut(lambda a, b: b - a)),
    "v_mul_lo_u16": VectorOp("hh", "u", _cut(lambda a, b: a * b)),
    "v_mad_u16": VectorOp("hhh", "u", _cut(lambda a, b, c: a * b + c)),
    "v_lshlrev_b16": VectorOp("hh", "u", _cut(lambda a, b: b << (a & U32(15)))),
    "v_lshrrev_b16": VectorOp("hh", "u", lambda a, b: b >> (a & U32(15))),
    "v_ashrrev_i16": VectorOp("hh", "u", lambda a, b: (_sign16(b) >> (a & U32(15)).view(I32)).view(U32) & LOW),
    "v_max_u16": VectorOp("hh", "u", np.maximum),
    "v_min_u16": VectorOp("hh", "u", np.minimum),
    "v_max_i16": VectorOp("hh", "u", _signed(np.maximum)),
    "v_min_i16": VectorOp("hh", "u", _signed(np.minimum)),
    "v_add_f16": VectorOp("xx", "u", _float(lambda a, b: a + b)),
    "v_sub_f16": VectorOp("xx", "u", _float(lambda a, b: a - b)),
    "v_subrev_f16": VectorOp("xx", "u", _float(lambda a, b: b - a)),
    "v_mul_f16": VectorOp("xx", "u", _float(lambda a, b: a * b)),
    "v_max_f16": VectorOp("xx", "u", _float(np.fmax)),
    "v_min_f16": VectorOp("xx", "u", _float(np.fmin)),
    "v_fma_f16": VectorOp("xxx", "u", _float(_fma16)),
    "v_rcp_f16": VectorOp("x", "u", _float(lambda a: 1.0 / a.astype(F64))),
    "v_sqrt_f16": VectorOp("x", "u", _float(np.sqrt)),
    "v_exp_f16": VectorOp("x", "u", _float(lambda a: np.exp2(a.astype(F64)))),
    "v_log_f16": VectorOp("x", "u", _float(lambda a: np.log2(a.astype(F64)))),
    "v_cvt_f32_f16": VectorOp("x", "f", lambda a: a.astype(F32)),
    "v_cvt_f32_bf16": VectorOp("h", "u", lambda a: a << U32(16)),
    "v_cvt_f16_u16": VectorOp("h", "u", _float(lambda a: a.astype(F16))),
    "v_cvt_f16_i16": VectorOp("h", "u", _float(lambda a: _sign16(a).astype(F16))),
    "v_cvt_u16_f16": VectorOp("x", "u", lambda a: to_integer(a, 0, 0xFFFF, U32)),
    "v_cvt_i16_f16": VectorOp("x", "u", lambda a: to_integer(a, -0x8000, 0x7FFF, I32).view(U32) & LOW),
    "v_mov_b16": VectorOp("h", "u", lambda a: a),
}
HALF_OPS["v_mad_legacy_u16"] = HALF_OPS["v_mad_u16"]
