"""buffer_ instructions: a resource in four SGPRs, range-checked; out-of-range loads give zero, stores do nothing."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from dsv4_rocm.testing.cdna.assembly import Instruction, Run
from dsv4_rocm.testing.cdna.atomic_ops import run_on_arena
from dsv4_rocm.testing.cdna.effects import is_load_to_lds, returns_value
from dsv4_rocm.testing.cdna.errors import EmulationError
from dsv4_rocm.testing.cdna.formats import I64, U32, U64, Array
from dsv4_rocm.testing.cdna.memory_ops import transfer_to_lds
from dsv4_rocm.testing.cdna.operands import Operand
from dsv4_rocm.testing.cdna.transfers import LOADS, STORES, collect, deliver
from dsv4_rocm.testing.cdna.waves import Group

# addresses and "in range", one entry an active lane
Locate = Callable[[Group], tuple[Array, Array]]


def _wide(w: Group, reg: int) -> Any:
    return np.asarray(w.row(reg)).astype(I64)


def _of_lanes(value: Any, active: Array) -> Any:
    return value[active] if np.ndim(value) else value


def _locate(ins: Instruction, vector: Operand, resource: int, scalar: Operand, nbytes: int) -> Locate:
    offset = ins.mods.get("offset", 0)
    by_index, by_offset = ins.flag("idxen"), ins.flag("offen")

    def run(w: Group) -> tuple[Array, Array]:
        active = w.active
        index = w.R[vector.reg][active].astype(I64) if by_index else I64(0)
        inside = np.full(len(active), offset, I64)
        if by_offset:
            inside += w.R[vector.reg + (1 if by_index else 0)][active]
        shift: Any = I64(scalar.value) if scalar.kind == "c" else _wide(w, scalar.reg)
        low, high, records = _wide(w, resource), _wide(w, resource + 1), _wide(w, resource + 2)
        if ((high >> 31) & 1).any():
            raise EmulationError("a swizzled buffer resource is not modelled")
        base: Any = low | (high & 0xFFFF) << 32
        stride: Any = (high >> 16) & 0x3FFF
        base, shift, stride, records = (_of_lanes(x, active) for x in (base, shift, stride, records))
        # raw buffers count records in bytes, structured ones (stride, index) in elements
        raw = inside + nbytes <= records - np.where(shift < records, shift, 0)
        structured = (index < records) & (inside + nbytes <= np.where(stride == 0, inside + nbytes, stride))
        valid = np.where((stride == 0) | (not by_index), raw, structured) & (inside >= 0)
        return (base + shift + inside + index * stride).astype(U64), valid

    return run


def _load(ins: Instruction, d: int, locate: Locate, nbytes: int, extension: int) -> Run:
    to_lds, offset_value = is_load_to_lds(ins), ins.mods.get("offset", 0)

    def run(w: Group) -> bool:
        if not len(w.active):
            return False
        address, valid = locate(w)
        lanes = w.lane_ids[w.active]
        words = np.zeros((len(address), nbytes // 4) if nbytes > 4 else len(address), U32)
        undefined = None
        if valid.any():
            offset = w.wg.arena.offsets(address[valid], nbytes, "load", lanes[valid])
            w.wg.global_access("read", ins, offset, nbytes, lanes[valid])
            words[valid] = w.wg.arena.load(offset, nbytes)
            found = w.wg.arena.undefined_bits(offset, nbytes)
            if found is not None:
                undefined = np.zeros_like(words)
                undefined[valid] = found
        if to_lds:
            transfer_to_lds(w, ins, words, nbytes, offset_value, lanes)
            return False
        return deliver(w, d, words, undefined, nbytes, extension)

    return run


def _store(ins: Instruction, s: int, locate: Locate, nbytes: int, high: bool) -> Run:
    def run(w: Group) -> None:
        if not len(w.active):
            return
        address, valid = locate(w)
        if valid.any():
            lanes = w.lane_ids[w.active][valid]
            offset = w.wg.arena.offsets(address[valid], nbytes, "store", lanes)
            w.wg.global_access("write", ins, offset, nbytes, lanes)
            w.require_defined(s, nbytes, "a store", valid, high)
            words = collect(w, w.values, s, nbytes, high)
            w.wg.arena.store(offset, np.ascontiguousarray(words[valid]), nbytes)

    return run


def _atomic(ins: Instruction, name: str, locate: Locate) -> Run:
    def chosen(w: Group) -> tuple[Array, Array, Array]:
        address, valid = locate(w)
        return address[valid], w.lane_ids[w.active][valid], np.flatnonzero(valid)

    d = ins.parsed[0].reg
    return run_on_arena(ins, name, d if returns_value(ins) else None, d, chosen)


def compile_buffer(ins: Instruction) -> Run:
    """The function that runs a buffer_ instruction."""
    _, kind, name = ins.op.split("_", 2)
    first = 0 if is_load_to_lds(ins) else 1
    p = ins.parsed
    name = name.removeprefix("lds_")
    try:
        if kind == "load":
            nbytes, extension = LOADS[name]
        else:
            nbytes, extension = (STORES[name], 0) if kind == "store" else (8 if name.endswith("_x2") else 4, 0)
    except KeyError:
        raise EmulationError("unknown buffer instruction") from None
    locate = _locate(ins, p[first], p[first + 1].reg, p[first + 2], nbytes)
    if kind == "load":
        return _load(ins, p[0].reg, locate, nbytes, extension)
    if kind == "store":
        return _store(ins, p[0].reg, locate, nbytes, name.endswith("hi"))
    if kind == "atomic":
        return _atomic(ins, name, locate)
    raise EmulationError("unknown buffer instruction")
