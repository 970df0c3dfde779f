"""ds_ instructions: reads, writes, atomics, and the lane exchanges that use the LDS crossbar."""

from __future__ import annotations

import re

import numpy as np

from dsv4_rocm.testing.cdna.assembly import Instruction, Run
from dsv4_rocm.testing.cdna.atomic_ops import UPDATES, apply, update_for
from dsv4_rocm.testing.cdna.errors import EmulationError
from dsv4_rocm.testing.cdna.formats import I64, U8, U32, Array
from dsv4_rocm.testing.cdna.lanes import swizzle_source, transposed_elements
from dsv4_rocm.testing.cdna.lds import bank_conflicts
from dsv4_rocm.testing.cdna.memory_ops import chosen
from dsv4_rocm.testing.cdna.transfers import collect, deliver, undefined_data
from dsv4_rocm.testing.cdna.waves import Group

_READ = re.compile(r"^ds_read_(b32|b64|b96|b128|u8|i8|u16|i16|u8_d16|u16_d16|u8_d16_hi|u16_d16_hi)$")
_READ2 = re.compile(r"^ds_read2(st64)?_b(32|64)$")
_WRITE = re.compile(r"^ds_write_(b8|b16|b32|b64|b96|b128)(_d16_hi)?$")
_WRITE2 = re.compile(r"^ds_write2(st64)?_b(32|64)$")
_TRANSPOSE = re.compile(r"^ds_read_b64_tr_(b16|b8|b4)$")
_ATOMIC = re.compile(r"^ds_(add|sub|max|min|and|or|xor|inc|dec|wrxchg)(_rtn)?_(u32|i32|b32|f32)$")
_COMPARE_STORE = re.compile(r"^ds_cmpst(_rtn)?_b32$")


def _address(w: Group, reg: int, offset: int) -> tuple[Array, Array]:
    # base plus offset wraps at 32 bits: compilers fold a positive offset onto a negative base
    base = w.R[reg] + U32(offset) if offset else w.R[reg]
    return chosen(w, base.astype(I64))


def _note_conflicts(w: Group, ins: Instruction, address: Array, lanes: Array, nbytes: int) -> None:
    """Bank conflicts are estimated on the first execution of an instruction of a program."""
    if ins.index not in w.wg.conflicts:
        first = address[lanes >> 6 == lanes[0] >> 6] if len(lanes) else address
        w.wg.conflicts[ins.index] = bank_conflicts(first, nbytes) if len(first) else 1.0


def _read(ins: Instruction, kind: str) -> Run:
    d, reg, offset = ins.parsed[0].reg, ins.parsed[1].reg, ins.mods.get("offset", 0)
    if kind[0] == "b":
        nbytes, extension = int(kind[1:]) // 8, 0
    else:
        nbytes = 1 if "8" in kind.split("_")[0] else 2
        extension = 1 if kind[0] == "i" else 3 if kind.endswith("hi") else 2 if kind.endswith("d16") else 0

    def run(w: Group) -> bool:
        address, lanes = _address(w, reg, offset)
        if not len(address):
            return False
        _note_conflicts(w, ins, address, lanes, nbytes)
        words, undefined = w.wg.lds.load(ins, address, nbytes, lanes)
        return deliver(w, d, words, undefined, nbytes, extension)

    return run


def _offsets2(ins: Instruction, stride: str | None, bits: str) -> tuple[int, int, int]:
    nbytes = int(bits) // 8
    step = (64 if stride else 1) * nbytes
    return ins.mods.get("offset0", 0) * step, ins.mods.get("offset1", 0) * step, nbytes


def _read2(ins: Instruction, stride: str | None, bits: str) -> Run:
    d, reg = ins.parsed[0].reg, ins.parsed[1].reg
    first, second, nbytes = _offsets2(ins, stride, bits)

    def run(w: Group) -> bool:
        address, lanes = _address(w, reg, first)
        if not len(address):
            return False
        _note_conflicts(w, ins, address, lanes, nbytes)
        low, low_bits = w.wg.lds.load(ins, address, nbytes, lanes)
        high, high_bits = w.wg.lds.load(ins, _address(w, reg, second)[0], nbytes, lanes)
        # both are read before either register is written: the address may be among them
        found = deliver(w, d, low, low_bits, nbytes)
        return deliver(w, d + nbytes // 4, high, high_bits, nbytes) or found

    return run


def _write(ins: Instruction, kind: str, high: bool) -> Run:
    reg, s, offset, nbytes = ins.parsed[0].reg, ins.parsed[1].reg, ins.mods.get("offset", 0), int(kind[1:]) // 8

    def run(w: Group) -> None:
        address, lanes = _address(w, reg, offset)
        if len(address):
            _note_conflicts(w, ins, address, lanes, nbytes)
            undefined = undefined_data(w, s, nbytes, high)
            w.wg.lds.store(ins, address, collect(w, w.values, s, nbytes, high), nbytes, lanes, undefined)

    return run


def _write2(ins: Instruction, stride: str | None, bits: str) -> Run:
    reg, data = ins.parsed[0].reg, [ins.parsed[1].reg, ins.parsed[2].reg]
    *offsets, nbytes = _offsets2(ins, stride, bits)

    def run(w: Group) -> None:
        for s, offset in zip(data, offsets, strict=True):
            address, lanes = _address(w, reg, offset)
            if len(address):
                _note_conflicts(w, ins, address, lanes, nbytes)
                undefined = undefined_data(w, s, nbytes)
                w.wg.lds.store(ins, address, collect(w, w.values, s, nbytes), nbytes, lanes, undefined)

    return run


def _transpose(ins: Instruction, bits: int) -> Run:
    d, reg, offset = ins.parsed[0].reg, ins.parsed[1].reg, ins.mods.get("offset", 0)

    def run(w: Group) -> bool:
        if w.mask is not True:
            raise EmulationError("a transposing LDS read with inactive lanes is not modelled")
        address = (w.R[reg] + U32(offset)).astype(I64)
        words, undefined = w.wg.lds.load(ins, address, 8, w.lane_ids)
        moved = transposed_elements(words.view(U8).reshape(-1, 8), bits).view(U32)
        if undefined is not None:
            undefined = transposed_elements(undefined.view(U8).reshape(-1, 8), bits).view(U32)
        return deliver(w, d, moved, undefined, 8)

    return run


def _atomic(ins: Instruction, name: str, returns: bool, kind: str) -> Run:
    table = {
        "max": {"u32": "umax", "i32": "smax", "f32": "fmax"},
        "min": {"u32": "umin", "i32": "smin", "f32": "fmin"},
        "add": {"f32": "add_f32"},
        "wrxchg": {"b32": "swap"},
    }
    update = update_for(table.get(name, {}).get(kind, name), False)
    back, offset = 1 if returns else 0, ins.mods.get("offset", 0)
    reg, s = ins.parsed[back].reg, ins.parsed[back + 1].reg

    def run(w: Group) -> None:
        address, lanes = _address(w, reg, offset)
        if len(address):
            w.wg.lds.atomic(ins, address, lanes)
            w.require_defined(s, 4, "an LDS atomic")
            seen = apply(w.wg.lds.views[4], address >> 2, w.R[s][w.active], update)
            if returns:
                w.R[ins.parsed[0].reg][w.active] = seen

    return run


def _compare_store(ins: Instruction, returns: bool) -> Run:
    back, offset = 1 if returns else 0, ins.mods.get("offset", 0)
    reg, expected, new = (ins.parsed[back + k].reg for k in range(3))

    def run(w: Group) -> None:
        address, lanes = _address(w, reg, offset)
        if len(address):
            w.wg.lds.atomic(ins, address, lanes)
            values = w.R[new][w.active], UPDATES["swap"], w.R[expected][w.active]
            seen = apply(w.wg.lds.views[4], address >> 2, *values)
            if returns:
                w.R[ins.parsed[0].reg][w.active] = seen

    return run


def _permute(ins: Instruction) -> Run:
    d, reg, s, offset = ins.parsed[0].reg, ins.parsed[1].reg, ins.parsed[2].reg, U32(ins.mods.get("offset", 0))
    backward = ins.op == "ds_bpermute_b32"

    def run(w: Group) -> None:
        lane = ((w.values.bits[reg] + offset) >> U32(2)) & U32(63)
        index = lane + (np.arange(w.lanes, dtype=U32) & U32(~63 & 0xFFFFFFFF))
        if backward:
            moved = w.R[s][index]
            w.put(d, moved if w.mask is True else np.where(w.mask[index], moved, U32(0)))
        else:
            out = np.zeros(w.lanes, U32)
            out[index[w.active]] = w.R[s][w.active]
            w.put(d, out)

    return run


def _swizzle(ins: Instruction) -> Run:
    d, s, source = ins.parsed[0].reg, ins.parsed[1].reg, swizzle_source(ins.mods["offset"])

    def run(w: Group) -> None:
        index = w.lane_index(source)
        moved = w.R[s][index]
        w.put(d, moved if w.mask is True else np.where(w.mask[index], moved, U32(0)))

    return run


def compile_lds(ins: Instruction) -> Run:
    """The function that runs a ds_ instruction."""
    op = ins.op
    if op in ("ds_bpermute_b32", "ds_permute_b32"):
        return _permute(ins)
    if op == "ds_swizzle_b32":
        return _swizzle(ins)
    if match := _TRANSPOSE.match(op):
        return _transpose(ins, int(match[1][1:]))
    if match := _READ.match(op):
        return _read(ins, match[1])
    if match := _READ2.match(op):
        return _read2(ins, match[1], match[2])
    if match := _WRITE.match(op):
        return _write(ins, match[1], bool(match[2]))
    if match := _WRITE2.match(op):
        return _write2(ins, match[1], match[2])
    if match := _ATOMIC.match(op):
        return _atomic(ins, match[1], bool(match[2]), match[3])
    if match := _COMPARE_STORE.match(op):
        return _compare_store(ins, bool(match[1]))
    raise EmulationError("unknown LDS instruction")
