"""VALU instructions that move data between lanes or between vector and scalar registers."""

from __future__ import annotations

import numpy as np

from dsv4_rocm.testing.cdna import sources
from dsv4_rocm.testing.cdna.assembly import Instruction, Run
from dsv4_rocm.testing.cdna.formats import I64, Array
from dsv4_rocm.testing.cdna.scalar_ops import read32
from dsv4_rocm.testing.cdna.waves import Group, Scalar, collapse


def first_active(w: Group) -> Array:
    """Index of the first active lane of each wave; lane 0 where none is active."""
    start = np.arange(0, w.lanes, 64)
    return start if w.mask is True else start + w.mask.reshape(-1, 64).argmax(1)


def chosen_lanes(w: Group, lane: Scalar) -> Array:
    """Index of one lane number (a scalar, modulo 64) in each wave."""
    return np.arange(0, w.lanes, 64) + (np.array(lane, I64) & 63)


def _read_first(ins: Instruction) -> Run:
    d, source = ins.parsed[0].reg, ins.parsed[1]
    if source.kind != "v":
        scalar = read32(source)
        return lambda w: w.set32(d, scalar(w))
    reg = source.reg
    return lambda w: w.set32(d, collapse(w.R[reg][first_active(w)].tolist()))


def _read_lane(ins: Instruction) -> Run:
    d, reg, lane = ins.parsed[0].reg, ins.parsed[1].reg, read32(ins.parsed[2])
    return lambda w: w.set32(d, collapse(w.R[reg][chosen_lanes(w, lane(w))].tolist()))


def _write_lane(ins: Instruction) -> Run:
    d, value, lane = ins.parsed[0].reg, read32(ins.parsed[1]), read32(ins.parsed[2])

    def run(w: Group) -> None:
        w.R[d][chosen_lanes(w, lane(w))] = value(w)

    return run


def _swap_halves(ins: Instruction, block: int) -> Run:
    """v_permlane{32,16}_swap: the upper half of a block of one register trades places with the lower of the other."""
    a, b = ins.parsed[0].reg, ins.parsed[1].reg

    def run(w: Group) -> None:
        left, right = w.R[a].reshape(-1, 2, block), w.R[b].reshape(-1, 2, block)
        kept = left[:, 1].copy()
        left[:, 1] = right[:, 0]
        right[:, 0] = kept

    return run


def _swap(ins: Instruction) -> Run:
    a, b = ins.parsed[0].reg, ins.parsed[1].reg

    def run(w: Group) -> None:
        kept = w.R[a].copy()
        w.put(a, w.R[b])
        w.put(b, kept)

    return run


def _move_pair(ins: Instruction) -> Run:
    d, value = ins.parsed[0].reg, sources.pair(ins.parsed[1])
    if ins.parsed[1].kind == "c":
        constant = np.uint64(ins.parsed[1].double_bits)
        return lambda w: w.put_wide(d, constant)
    if ins.parsed[1].kind == "v":
        reg = ins.parsed[1].reg

        def run(w: Group) -> None:
            low, high = w.R[reg].copy(), w.R[reg + 1].copy()
            w.put(d, low)
            w.put(d + 1, high)

        return run
    return lambda w: w.put_wide(d, value(w))


def compile_special(ins: Instruction, name: str) -> Run | None:
    """The function of an instruction of this module, None for any other."""
    if name == "v_readfirstlane_b32":
        return _read_first(ins)
    if name == "v_readlane_b32":
        return _read_lane(ins)
    if name == "v_writelane_b32":
        return _write_lane(ins)
    if name == "v_nop":
        return lambda w: None
    if name == "v_permlane32_swap_b32":
        return _swap_halves(ins, 32)
    if name == "v_permlane16_swap_b32":
        return _swap_halves(ins, 16)
    if name == "v_swap_b32":
        return _swap(ins)
    if name == "v_mov_b64":
        return _move_pair(ins)
    return None
