"""The plain VALU instructions as a table: how to read the sources, the function, how to write the result."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from dsv4_rocm.testing.cdna.formats import (
    F16,
    F32,
    F64,
    I32,
    I64,
    M32,
    U16,
    U32,
    U64,
    Array,
    bf16_round,
    exponent_field,
    fma32,
)


@dataclass(frozen=True)
class VectorOp:
    """`kinds`: one letter a source: u bits, f fp32, i int32, a/b shift amount (uint32/int32), h 16-bit bits, x fp16.

    `out`: u, f or i for the destination row, h for a 16-bit result. A ufunc is run straight into the destination.
    """

    kinds: str
    out: str
    function: Callable[..., Any]
    swap: bool = False
    lanes: bool = False  # the function also takes the group's lane numbers


OPS: dict[str, VectorOp] = {}


def _op(
    names: str, kinds: str, out: str, function: Callable[..., Any], swap: bool = False, lanes: bool = False
) -> None:
    for name in names.split():
        OPS[name] = VectorOp(kinds, out, function, swap, lanes)


def _bfe(a: Any, offset: Any, count: Any, sign: bool) -> Array:
    offset, count = offset & U32(31), count & U32(31)
    value = (a >> offset) & ((U32(1) << count) - U32(1))
    if sign:
        top = np.where(count == 0, U32(0), U32(1) << ((count - U32(1)) & U32(31)))
        value = (value ^ top) - top
    return np.where(count == 0, U32(0), value).astype(U32)


def _sign24(a: Any) -> Any:
    return ((a & U32(0xFFFFFF)) ^ U32(0x800000)) - U32(0x800000)


def _u24(a: Any) -> Any:
    return a & U32(0xFFFFFF)


def _funnel(a: Any, b: Any, shift: Any) -> Array:
    wide = (np.asarray(a).astype(U64) << U64(32)) | b
    result: Array = (wide >> np.asarray(shift).astype(U64)).astype(U32)
    return result


def _perm_terms(selector: int) -> tuple[int, list[tuple[int, int, int]]]:
    """v_perm_b32 with a known selector as (constant, [(source, shift left by 8 * n, mask of the result)])."""
    constant, terms = 0, dict[tuple[int, int], int]()
    for k in range(4):
        pick = (selector >> (8 * k)) & 255
        if pick >= 13:
            constant |= 255 << (8 * k)
        elif 8 <= pick <= 11:
            raise KeyError(pick)
        elif pick < 8:
            place = (0 if pick >= 4 else 1, k - pick % 4)
            terms[place] = terms.get(place, 0) | 255 << (8 * k)
    return constant, [(source, move, mask) for (source, move), mask in terms.items()]


_PERM_CACHE: dict[int, Any] = {}


def permute(a: Any, b: Any, selector: Any) -> Any:
    """v_perm_b32: bytes 0-3 of the choice are b, 4-7 are a, 8-11 sign bits, 12 zero, above 255."""
    if not isinstance(selector, np.ndarray) or selector.ndim == 0:
        key = int(selector)
        try:
            constant, terms = _PERM_CACHE[key] if key in _PERM_CACHE else _PERM_CACHE.setdefault(key, _perm_terms(key))
        except KeyError:
            pass
        else:
            out: Any = None
            for source, move, mask in terms:
                x = b if source else a
                x = x << U32(8 * move) if move > 0 else x >> U32(-8 * move) if move < 0 else x
                x = x & U32(mask)
                out = x if out is None else out | x
            return U32(constant) if out is None else out | U32(constant) if constant else out
    return _permute_lanes(*np.broadcast_arrays(a, b, selector))


def _permute_lanes(a: Array, b: Array, selector: Array) -> Array:
    sign = [((x >> U32(bit)) & U32(1)) * U32(255) for x, bit in ((b, 15), (b, 31), (a, 15), (a, 31))]
    byte = [(x >> U32(8 * k)) & U32(255) for x in (b, a) for k in range(4)]
    table = np.stack([*byte, *sign, np.zeros_like(a), np.full_like(a, 255)])
    out, lane = np.zeros_like(a), np.arange(len(a))
    for k in range(4):
        pick = np.minimum((selector >> U32(8 * k)) & U32(255), 13).astype(I64)
        out |= table[pick, lane] << U32(8 * k)
    return out


def _reverse_bits(a: Any) -> Array:
    a = ((a >> U32(1)) & U32(0x55555555)) | ((a & U32(0x55555555)) << U32(1))
    a = ((a >> U32(2)) & U32(0x33333333)) | ((a & U32(0x33333333)) << U32(2))
    a = ((a >> U32(4)) & U32(0x0F0F0F0F)) | ((a & U32(0x0F0F0F0F)) << U32(4))
    return np.asarray(a, U32).byteswap()


def _high_product(a: Any, b: Any, wide: type) -> Array:
    result: Array = ((np.asarray(a).astype(wide) * np.asarray(b).astype(wide)) >> wide(32)).astype(I64).astype(U32)
    return result


def _first_bit_high(a: Any) -> Array:
    a = np.asarray(a)
    return np.where(a == 0, U32(M32), U32(32) - np.frexp(a.astype(F64))[1].astype(U32))


def _first_bit_low(a: Any) -> Array:
    a = np.asarray(a)
    lowest = a & (~a + U32(1))
    return np.where(a == 0, U32(M32), np.frexp(lowest.astype(F64))[1].astype(U32) - U32(1))


def _count_below(high: bool) -> Callable[..., Array]:
    def run(a: Any, b: Any, lane: Array) -> Array:
        bits = np.clip(lane - 32, 0, 32) if high else np.minimum(lane, 32)
        below = ((U64(1) << bits.astype(U64)) - U64(1)).astype(U32)
        result: Array = np.bitwise_count(a & below).astype(U32) + b
        return result

    return run


def to_integer(x: Any, low: int, high: int, dtype: Any) -> Array:
    """Float to integer: toward zero, clamped, NaN to 0."""
    x = np.asarray(x)
    clipped = np.where(np.isnan(x), 0.0, np.clip(np.trunc(x.astype(F64)), low, high))
    return clipped.astype(I64).astype(dtype)


def _through_double(function: Callable[[Any], Any]) -> Callable[[Any], Array]:
    return lambda a: np.asarray(function(np.asarray(a).astype(F64))).astype(F32)


def _frexp_exponent(a: Any) -> Array:
    return np.where(np.isfinite(a), np.frexp(a)[1], 0).astype(I32)


def _frexp_mantissa(a: Any) -> Array:
    return np.where(np.isfinite(a), np.frexp(a)[0], a).astype(F32)


def divide_fixup(q: Any, d: Any, n: Any) -> Array:
    """v_div_fixup_f32: the quotient q of n / d with every special case put right."""
    q, d, n = np.broadcast_arrays(q, d, n)
    exponent_d, exponent_n = exponent_field(d), exponent_field(n)
    negative = np.signbit(d) ^ np.signbit(n)
    usual = (exponent_d > 0) & (exponent_d < 255) & (exponent_n > 0) & (exponent_n < 255)
    if (usual & (exponent_n - exponent_d >= -150)).all():
        return np.where(negative, -np.abs(q), np.abs(q))
    zero = np.where(negative, F32(-0.0), F32(0.0))
    out = np.where(negative, -np.abs(q), np.abs(q))
    out = np.where((exponent_n - exponent_d < -150) | (exponent_d == 255) | np.isinf(d) | (n == 0), zero, out)
    out = np.where((d == 0) | np.isinf(n), np.where(negative, F32(-np.inf), F32(np.inf)), out)
    invalid = ((d == 0) & (n == 0)) | (np.isinf(d) & np.isinf(n)) | np.isnan(d) | np.isnan(n)
    return np.where(invalid, F32(np.nan), out).astype(F32)


def half_bits(x: Any) -> Array:
    """fp32 to fp16 bits in uint32."""
    return np.asarray(x).astype(F16).view(U16).astype(U32)


def _toward_zero(x: Any) -> Array:
    x = np.asarray(x)
    rounded = x.astype(F16)
    too_far = np.abs(rounded.astype(F32)) > np.abs(x)
    return np.where(too_far, rounded.view(U16) - U16(1), rounded.view(U16)).astype(U32)


def _median(a: Any, b: Any, c: Any, low: Callable[..., Any], high: Callable[..., Any]) -> Any:
    return high(low(a, b), low(high(a, b), c))


def _integers() -> None:
    _op("v_mov_b32 v_accvgpr_read_b32 v_accvgpr_write_b32 v_accvgpr_mov_b32", "u", "u", np.positive)
    _op("v_not_b32", "u", "u", np.invert)
    _op("v_add_u32 v_add_i32", "uu", "u", np.add)
    _op("v_sub_u32 v_sub_i32", "uu", "u", np.subtract)
    _op("v_subrev_u32", "uu", "u", np.subtract, swap=True)
    _op("v_and_b32", "uu", "u", np.bitwise_and)
    _op("v_or_b32", "uu", "u", np.bitwise_or)
    _op("v_xor_b32", "uu", "u", np.bitwise_xor)
    _op("v_xnor_b32", "uu", "u", lambda a, b: ~(a ^ b))
    _op("v_lshlrev_b32", "au", "u", np.left_shift, swap=True)
    _op("v_lshrrev_b32", "au", "u", np.right_shift, swap=True)
    _op("v_ashrrev_i32", "bi", "i", np.right_shift, swap=True)
    _op("v_add3_u32", "uuu", "u", lambda a, b, c: a + b + c)
    _op("v_lshl_add_u32", "uau", "u", lambda a, b, c: (a << b) + c)
    _op("v_add_lshl_u32", "uua", "u", lambda a, b, c: (a + b) << c)
    _op("v_lshl_or_b32", "uau", "u", lambda a, b, c: (a << b) | c)
    _op("v_and_or_b32", "uuu", "u", lambda a, b, c: (a & b) | c)
    _op("v_or3_b32", "uuu", "u", lambda a, b, c: a | b | c)
    _op("v_xad_u32", "uuu", "u", lambda a, b, c: (a ^ b) + c)
    _op("v_bfe_u32", "uuu", "u", lambda a, o, n: _bfe(a, o, n, False))
    _op("v_bfe_i32", "uuu", "u", lambda a, o, n: _bfe(a, o, n, True))
    _op("v_bfm_b32", "aa", "u", lambda a, b: ((U32(1) << a) - U32(1)) << b)
    _op("v_bfi_b32", "uuu", "u", lambda a, b, c: (a & b) | (~a & c))
    _op("v_alignbit_b32", "uua", "u", _funnel)
    _op("v_alignbyte_b32", "uuu", "u", lambda a, b, c: _funnel(a, b, (c & U32(3)) * U32(8)))
    _op("v_perm_b32", "uuu", "u", permute)
    _op("v_bfrev_b32", "u", "u", _reverse_bits)
    _op("v_ffbh_u32", "u", "u", _first_bit_high)
    _op("v_ffbl_b32", "u", "u", _first_bit_low)
    _op("v_mul_lo_u32", "uu", "u", np.multiply)
    _op("v_mul_hi_u32", "uu", "u", lambda a, b: _high_product(a, b, U64))
    _op("v_mul_hi_i32", "ii", "u", lambda a, b: _high_product(a, b, I64))
    _op("v_mul_u32_u24", "uu", "u", lambda a, b: _u24(a) * _u24(b))
    _op("v_mul_i32_i24", "uu", "u", lambda a, b: _sign24(a) * _sign24(b))
    _op("v_mad_u32_u24", "uuu", "u", lambda a, b, c: _u24(a) * _u24(b) + c)
    _op("v_mad_i32_i24", "uuu", "u", lambda a, b, c: _sign24(a) * _sign24(b) + c)
    for suffix, kind in (("u32", "u"), ("i32", "i")):
        _op(f"v_max_{suffix}", kind * 2, kind, np.maximum)
        _op(f"v_min_{suffix}", kind * 2, kind, np.minimum)
        _op(f"v_max3_{suffix}", kind * 3, kind, lambda a, b, c: np.maximum(np.maximum(a, b), c))
        _op(f"v_min3_{suffix}", kind * 3, kind, lambda a, b, c: np.minimum(np.minimum(a, b), c))
        _op(f"v_med3_{suffix}", kind * 3, kind, lambda a, b, c: _median(a, b, c, np.minimum, np.maximum))
    _op("v_bcnt_u32_b32", "uu", "u", lambda a, b: np.bitwise_count(a).astype(U32) + b)
    _op("v_mbcnt_lo_u32_b32", "uu", "u", _count_below(False), lanes=True)
    _op("v_mbcnt_hi_u32_b32", "uu", "u", _count_below(True), lanes=True)


def _floats() -> None:
    _op("v_add_f32", "ff", "f", np.add)
    _op("v_sub_f32", "ff", "f", np.subtract)
    _op("v_subrev_f32", "ff", "f", np.subtract, swap=True)
    _op("v_mul_f32", "ff", "f", np.multiply)
    _op("v_mul_legacy_f32", "ff", "f", lambda a, b: np.where((a == 0) | (b == 0), F32(0), a * b))
    _op("v_max_f32", "ff", "f", np.fmax)
    _op("v_min_f32", "ff", "f", np.fmin)
    _op("v_max3_f32 v_maximum3_f32", "fff", "f", lambda a, b, c: np.fmax(np.fmax(a, b), c))
    _op("v_min3_f32 v_minimum3_f32", "fff", "f", lambda a, b, c: np.fmin(np.fmin(a, b), c))
    _op("v_med3_f32", "fff", "f", lambda a, b, c: _median(a, b, c, np.fmin, np.fmax))
    _op("v_fma_f32 v_mad_f32 v_fmamk_f32 v_fmaak_f32 v_madmk_f32 v_madak_f32", "fff", "f", fma32)
    _op("v_exp_f32", "f", "f", _through_double(np.exp2))
    _op("v_log_f32", "f", "f", _through_double(np.log2))
    _op("v_rcp_f32 v_rcp_iflag_f32", "f", "f", _through_double(lambda a: 1.0 / a))
    _op("v_rsq_f32", "f", "f", _through_double(lambda a: 1.0 / np.sqrt(a)))
    _op("v_sqrt_f32", "f", "f", np.sqrt)
    _op("v_sin_f32", "f", "f", _through_double(lambda a: np.sin(a * 2 * np.pi)))
    _op("v_cos_f32", "f", "f", _through_double(lambda a: np.cos(a * 2 * np.pi)))
    _op("v_floor_f32", "f", "f", np.floor)
    _op("v_ceil_f32", "f", "f", np.ceil)
    _op("v_trunc_f32", "f", "f", np.trunc)
    _op("v_rndne_f32", "f", "f", np.rint)
    _op("v_fract_f32", "f", "f", lambda a: a - np.floor(a))
    _op("v_frexp_exp_i32_f32", "f", "i", _frexp_exponent)
    _op("v_frexp_mant_f32", "f", "f", _frexp_mantissa)
    _op("v_ldexp_f32", "fi", "f", lambda a, b: np.ldexp(a, np.clip(b, -400, 400)).astype(F32))
    _op("v_div_fixup_f32", "fff", "f", divide_fixup)
    _op("v_cvt_f32_u32", "u", "f", lambda a: np.asarray(a).astype(F32))
    _op("v_cvt_f32_i32", "i", "f", lambda a: np.asarray(a).astype(F32))
    _op("v_cvt_u32_f32", "f", "u", lambda a: to_integer(a, 0, M32, U32))
    _op("v_cvt_i32_f32", "f", "i", lambda a: to_integer(a, -(2**31), 2**31 - 1, I32))
    _op("v_cvt_f16_f32", "f", "u", half_bits)
    for k in range(4):
        _op(f"v_cvt_f32_ubyte{k}", "u", "f", lambda a, k=k: ((a >> U32(8 * k)) & U32(255)).astype(F32))
    _op("v_cvt_pk_bf16_f32", "ff", "u", lambda a, b: _bf16(a) | (_bf16(b) << U32(16)))
    _op("v_cvt_pkrtz_f16_f32", "ff", "u", lambda a, b: _toward_zero(a) | (_toward_zero(b) << U32(16)))
    _op("v_cvt_pk_f16_f32", "ff", "u", lambda a, b: half_bits(a) | (half_bits(b) << U32(16)))


def _bf16(x: Any) -> Array:
    return bf16_round(np.asarray(x))


_integers()
_floats()
