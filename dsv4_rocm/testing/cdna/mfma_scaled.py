"""Matrix instructions with e8m0 block scales (gfx950): 32 elements of K share a scale byte of the lane."""

from __future__ import annotations

import numpy as np

from dsv4_rocm.testing.cdna import sources
from dsv4_rocm.testing.cdna.assembly import Instruction, Run
from dsv4_rocm.testing.cdna.formats import F64, U32, Array
from dsv4_rocm.testing.cdna.mfma import Shape, accumulate, operand, shape_of
from dsv4_rocm.testing.cdna.sources import Source, broadcast
from dsv4_rocm.testing.cdna.waves import Group

BLOCK = 32
E8M0_NAN = 255


def scale_byte(ins: Instruction, position: int) -> int:
    """Which byte of the scale register operand `position` (0: A, 1: B) uses."""
    low, high = ins.mods.get("op_sel", [0, 0, 0]), ins.mods.get("op_sel_hi", [0, 0, 0])
    return int(low[position] + 2 * high[position])


def _scales(w: Group, source: Source, byte: int, shape: Shape) -> Array:
    """fp64 [waves, dim, groups, 1]."""
    exponent = (broadcast(w, source(w)) >> U32(8 * byte)) & U32(255)
    value = np.where(exponent == E8M0_NAN, np.nan, np.exp2(exponent.astype(F64) - 127))
    return value.reshape(-1, shape.groups, shape.dim).transpose(0, 2, 1)[..., None]


def compile_scaled(ins: Instruction, arch: str) -> Run:
    """The function that runs v_mfma_scale_*."""
    shape = shape_of(ins)
    registers = ins.parsed[1].reg, ins.parsed[2].reg
    scales = sources.bits(ins.parsed[4]), sources.bits(ins.parsed[5])
    elements = shape.a, shape.b

    def scaled(w: Group, k: int) -> Array:
        x = operand(w, registers[k], shape, elements[k], arch)
        factor = _scales(w, scales[k], scale_byte(ins, k), shape)
        return (x.reshape(*x.shape[:2], shape.groups, BLOCK) * factor).reshape(x.shape)

    def run(w: Group) -> None:
        accumulate(w, ins, shape, scaled(w, 0) @ scaled(w, 1).transpose(0, 2, 1))

    return run
