"""Matrix instructions: which register holds which element, and the product in fp64 rounded once."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

import numpy as np

from dsv4_rocm.testing.cdna.assembly import Instruction, Run
from dsv4_rocm.testing.cdna.errors import EmulationError
from dsv4_rocm.testing.cdna.formats import BITS, F16, F32, F64, I32, I64, M32, U8, U16, U32, Array, small_float
from dsv4_rocm.testing.cdna.waves import Group

_NAME = re.compile(r"v_mfma_(scale_)?(f32|i32|f64)_(\d+)x(\d+)x(\d+)(?:_(\d+)b)?_?(.*?)(?:_e64)?$")
_F8F6F4 = {0: "fp8", 1: "bf8", 2: "fp6", 3: "bf6", 4: "fp4"}
_ALIASES = {"bf16_1k": "bf16"}


@dataclass(frozen=True)
class Shape:
    """A matrix instruction: D[dim, dim] += A[dim, k] @ B[dim, k]^T with the element types of A and B."""

    dim: int
    k: int
    a: str
    b: str
    accumulator: str
    scaled: bool
    f8f6f4: bool

    @property
    def groups(self) -> int:
        """Lane groups; lane l holds row l % dim and the K elements of group l // dim."""
        return 64 // self.dim

    @property
    def per_lane(self) -> int:
        return self.k // self.groups

    def registers(self, element: str) -> int:
        return -(-self.per_lane * BITS[element] // 32)

    @property
    def outputs(self) -> int:
        """Registers of the result."""
        return self.dim * self.dim // 64

    def in_halves(self, element: str) -> bool:
        """8-bit operands of f8f6f4 hold two 16-element chunks, one in each half of K."""
        return self.f8f6f4 and BITS[element] == 8


def shape_of(ins: Instruction) -> Shape:
    """Read the shape out of a mnemonic and its cbsz / blgp; EmulationError where it is not modelled."""
    match = _NAME.match(ins.op)
    if not match:
        raise EmulationError("unknown matrix instruction")
    scaled, accumulator, rows, columns, k, blocks, kind = match.groups()
    if rows != columns or rows not in ("16", "32") or accumulator == "f64" or blocks not in (None, "1"):
        raise EmulationError("this matrix shape is not modelled (16x16 and 32x32, one block, no f64)")
    if kind == "f8f6f4":
        a, b = _F8F6F4[ins.mods.get("cbsz", 0)], _F8F6F4[ins.mods.get("blgp", 0)]
    elif match := re.match(r"^(fp8|bf8)_(fp8|bf8)$", kind):
        a, b = match[1], match[2]
    else:
        a = b = _ALIASES.get(kind, kind)
    if a not in BITS:
        raise EmulationError(f"matrix element type {a!r} is not modelled")
    return Shape(int(rows), int(k), a, b, accumulator, bool(scaled), kind == "f8f6f4")


def element_k(shape: Shape, element: str) -> Array:
    """K index held by (element e of a lane, lane group g): int [per_lane, groups]."""
    e, g = np.arange(shape.per_lane)[:, None], np.arange(shape.groups)[None, :]
    if shape.in_halves(element):
        result: Array = (e // 16) * (16 * shape.groups) + g * 16 + e % 16
        return result
    return g * shape.per_lane + e


def output_row(shape: Shape) -> Array:
    """Row of D in (register r, lane l): int [outputs, 64]; the column is l % dim."""
    r, lane = np.arange(shape.outputs)[:, None], np.arange(64)[None, :]
    if shape.dim == 16:
        return 4 * (lane // 16) + r
    result: Array = 8 * (r // 4) + 4 * (lane // 32) + r % 4
    return result


def codes(block: Array, bits: int, count: int) -> Array:
    """Register rows uint32 [n, lanes] to element codes [lanes, count] (a view where it can be)."""
    n, lanes = block.shape
    if bits == 32:
        return block.T
    if bits in (8, 16):
        unit = U16 if bits == 16 else U8
        return block.view(unit).reshape(n, lanes, 32 // bits).transpose(1, 0, 2).reshape(lanes, -1)
    raw = np.ascontiguousarray(block.T).view(U8).reshape(lanes, -1)
    if bits == 4:
        return np.stack([raw & 15, raw >> 4], 2).reshape(lanes, -1)[:, :count]
    flags = np.unpackbits(raw, axis=1, bitorder="little")[:, : count * bits].reshape(lanes, count, bits)
    result: Array = (flags * (1 << np.arange(bits, dtype=U8))).sum(2).astype(U8)
    return result


def decode(code: Array, element: str, arch: str) -> Array:
    """Element codes to fp64."""
    if element == "bf16":
        wide = code.astype(U32)
        wide <<= U32(16)
        return wide.view(F32).astype(F64)
    if element == "f32":
        return np.ascontiguousarray(code).view(F32).astype(F64)
    if element == "xf32":  # the hardware rounds its input to 10 mantissa bits; how is not documented
        return (code & U32(0xFFFFE000)).view(F32).astype(F64)
    if element == "f16":
        return np.ascontiguousarray(code).view(F16).astype(F64)
    if element == "i8":
        return np.ascontiguousarray(code).view(np.int8).astype(F64)
    return small_float(element, arch).decode(code).astype(F64)


def by_row(x: Array, shape: Shape, element: str) -> Array:
    """[lanes, per_lane] to [waves, dim, k]."""
    if shape.in_halves(element):
        parts = x.reshape(-1, shape.groups, shape.dim, shape.per_lane // 16, 16)
        return parts.transpose(0, 2, 3, 1, 4).reshape(-1, shape.dim, shape.k)
    return x.reshape(-1, shape.groups, shape.dim, shape.per_lane).transpose(0, 2, 1, 3).reshape(-1, shape.dim, shape.k)


def to_registers(d: Array, shape: Shape) -> Array:
    """[waves, dim, dim] to [outputs, lanes]."""
    waves = len(d)
    if shape.dim == 16:
        return d.reshape(waves, 4, 4, 16).transpose(2, 0, 1, 3).reshape(4, -1)
    return d.reshape(waves, 4, 2, 4, 32).transpose(1, 3, 0, 2, 4).reshape(16, -1)


def operand(w: Group, reg: int, shape: Shape, element: str, arch: str) -> Array:
    """A or B of every wave: fp64 [waves, dim, k]."""
    block = w.V[reg : reg + shape.registers(element)]
    return by_row(decode(codes(block, BITS[element], shape.per_lane), element, arch), shape, element)


def accumulate(w: Group, ins: Instruction, shape: Shape, product: Array) -> None:
    """D = product + C, rounded once; matrix instructions ignore EXEC."""
    d, c = ins.parsed[0], ins.parsed[3]
    n = shape.outputs
    out = to_registers(product, shape)
    old: Any = w.V[c.reg : c.reg + n] if c.kind == "v" else np.array(c.value & M32, U32)
    if shape.accumulator == "f32":
        w.V[d.reg : d.reg + n].view(F32)[...] = out + old.view(F32)
    else:
        w.V[d.reg : d.reg + n] = (out.astype(I64) + old.view(I32)).astype(U32)


def compile_mfma(ins: Instruction, arch: str) -> Run:
    """The function that runs an unscaled matrix instruction."""
    shape = shape_of(ins)
    a, b = ins.parsed[1].reg, ins.parsed[2].reg

    def run(w: Group) -> None:
        left = operand(w, a, shape, shape.a, arch)
        right = operand(w, b, shape, shape.b, arch)
        accumulate(w, ins, shape, left @ right.transpose(0, 2, 1))

    return run
