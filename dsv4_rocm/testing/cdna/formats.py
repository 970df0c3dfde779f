"""Number formats of the matrix cores: fp8 (OCP and FNUZ), bf8, fp6, bf6, fp4, bf16."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]
U8, U16, U32, U64 = np.uint8, np.uint16, np.uint32, np.uint64
I32, I64, F16, F32, F64 = np.int32, np.int64, np.float16, np.float32, np.float64
M32, M64 = 0xFFFFFFFF, 0xFFFFFFFFFFFFFFFF


def _values(ebits: int, mbits: int, bias: int, kind: str) -> Array:
    count = 1 << (ebits + mbits)
    out = np.zeros(2 * count, F32)
    for code in range(count):
        exponent, mantissa = code >> mbits, code & ((1 << mbits) - 1)
        if exponent == 0:
            value = mantissa * 2.0 ** (1 - bias - mbits)
        else:
            value = (1 + mantissa / (1 << mbits)) * 2.0 ** (exponent - bias)
        if kind == "ieee" and exponent == (1 << ebits) - 1:
            value = np.inf if mantissa == 0 else np.nan
        if kind == "fn" and code == count - 1:
            value = np.nan
        out[code], out[code + count] = value, -value
    if kind == "fnuz":
        out[count] = np.nan
    return out


@dataclass(frozen=True)
class SmallFloat:
    """A float format of at most 8 bits. `kind`: "fn" (one NaN, no inf), "ieee", "fnuz" (0x80 is NaN) or "finite"."""

    ebits: int
    mbits: int
    bias: int
    kind: str
    values: Array = field(init=False, repr=False)
    middles: Array = field(init=False, repr=False)
    max_code: int = field(init=False)

    def __post_init__(self) -> None:
        values = _values(self.ebits, self.mbits, self.bias, self.kind)
        positive = values[: self.count].astype(F64)
        top = int(np.max(np.nonzero(np.isfinite(positive))[0]))
        finite = positive[: top + 1]
        step = finite[-1] - finite[-2]
        object.__setattr__(self, "values", values)
        object.__setattr__(self, "max_code", top)
        object.__setattr__(self, "middles", np.concatenate([(finite[1:] + finite[:-1]) / 2, [finite[-1] + step / 2]]))

    @property
    def count(self) -> int:
        """Number of codes without the sign bit."""
        return 1 << (self.ebits + self.mbits)

    @property
    def nan(self) -> int:
        return self.count if self.kind == "fnuz" else self.count - 1

    def decode(self, code: Array) -> Array:
        """Codes (any integer dtype) to fp32."""
        return self.values[code]

    def encode(self, x: Array, saturate: bool) -> Array:
        """fp32 to codes (uint32), nearest even; overflow saturates or becomes inf (NaN where there is no inf)."""
        x = x.astype(F64)
        magnitude = np.abs(x)
        low = np.searchsorted(self.middles, magnitude, "left")
        high = np.searchsorted(self.middles, magnitude, "right")
        code = np.where((low != high) & (low & 1 == 1), high, low)
        over = (code > self.max_code) | np.isinf(magnitude)
        infinity = ((1 << self.ebits) - 1) << self.mbits if self.kind == "ieee" else self.nan
        code = np.where(over, self.max_code if saturate else infinity, code)
        negative = np.signbit(x)
        signed = np.where(negative, code + self.count, code)
        if self.kind == "fnuz":
            signed = np.where(negative & (code == 0), 0, signed)
            if not saturate:
                signed = np.where(over, self.nan, signed)
        return np.where(np.isnan(x), self.nan, signed).astype(U32)


FP8_OCP, BF8_OCP = SmallFloat(4, 3, 7, "fn"), SmallFloat(5, 2, 15, "ieee")
FP8_FNUZ, BF8_FNUZ = SmallFloat(4, 3, 8, "fnuz"), SmallFloat(5, 2, 16, "fnuz")
FP6, BF6, FP4 = SmallFloat(2, 3, 1, "finite"), SmallFloat(3, 2, 3, "finite"), SmallFloat(2, 1, 1, "finite")
BITS = {"f32": 32, "xf32": 32, "bf16": 16, "f16": 16, "i8": 8, "fp8": 8, "bf8": 8, "fp6": 6, "bf6": 6, "fp4": 4}


def small_float(name: str, arch: str) -> SmallFloat:
    """The format `fp8|bf8|fp6|bf6|fp4` means on `arch`: 8-bit formats are FNUZ on gfx942 and OCP on gfx950."""
    if name in ("fp8", "bf8"):
        if arch == "gfx942":
            return FP8_FNUZ if name == "fp8" else BF8_FNUZ
        return FP8_OCP if name == "fp8" else BF8_OCP
    return {"fp6": FP6, "bf6": BF6, "fp4": FP4}[name]


def bf16_round(x: Array) -> Array:
    """fp32 to bf16 bits (uint32), nearest even, NaN kept quiet."""
    bits = x.view(U32)
    rounded = (bits + U32(0x7FFF) + ((bits >> U32(16)) & U32(1))) >> U32(16)
    nan = np.isnan(x)
    return np.where(nan, (bits >> U32(16)) | U32(0x40), rounded) if nan.any() else rounded


def fma32(a: Array, b: Array, c: Array) -> Array:
    """fp32 fused multiply-add through fp64 (the product is exact there; the sum is rounded twice)."""
    product = np.multiply(a, b, dtype=F64)
    result: Array = np.add(product, c, dtype=F64).astype(F32)
    return result


def exponent_field(x: Array) -> Array:
    """Biased exponent of fp32 bits, int64."""
    return ((x.view(U32) >> U32(23)) & U32(255)).astype(I64)
