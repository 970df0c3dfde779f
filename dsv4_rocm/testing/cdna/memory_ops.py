"""global_, flat_ and scratch_ instructions."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from dsv4_rocm.testing.cdna import sources
from dsv4_rocm.testing.cdna.assembly import Instruction, Run
from dsv4_rocm.testing.cdna.atomic_ops import global_atomic
from dsv4_rocm.testing.cdna.errors import EmulationError
from dsv4_rocm.testing.cdna.formats import I32, I64, M64, U64, Array
from dsv4_rocm.testing.cdna.operands import M0, Operand
from dsv4_rocm.testing.cdna.transfers import LOADS, STORES, collect, deliver, undefined_data
from dsv4_rocm.testing.cdna.waves import Group

Address = Callable[[Group], Array]
LDS_DMA_BASE = 0xFFFFF


def chosen(w: Group, address: Array) -> tuple[Array, Array]:
    """Addresses and workgroup lane numbers of the active lanes."""
    if w.mask is True:
        return address, w.lane_ids
    return address[w.active], w.lane_ids[w.active]


def global_address(vector: Operand, scalar: Operand | None, offset: int) -> Address:
    """uint64 addresses: a VGPR pair, or an SGPR pair plus a 32-bit VGPR, plus the instruction offset."""
    if scalar is None or scalar.kind == "off":
        pair, constant = sources.pair(vector), U64(offset & M64)
        return lambda w: np.asarray(pair(w)) + constant
    reg, base = vector.reg, sources.pair(scalar)
    if vector.kind == "off":
        return lambda w: np.broadcast_to(base(w) + U64(offset & M64), w.lanes)
    return lambda w: w.R[reg].astype(U64) + (base(w) + U64(offset & M64))


def transfer_to_lds(w: Group, ins: Instruction, words: Array, nbytes: int, offset: int, lanes: Array) -> None:
    """The LDS half of a load-to-LDS: lane l of a wave lands at M0 + offset + l * size, waited for by vmcnt."""
    base = (np.asarray(w.row(M0)).astype(I64) & LDS_DMA_BASE) + offset
    start = base[lanes - w.lane0] if base.ndim else base
    address = start + (lanes & 63) * max(nbytes, 4)
    w.wg.lds.store(ins, address, words, nbytes, lanes)
    w.wg.transfers.start(address, nbytes, lanes)


def _load(ins: Instruction, d: int, address: Address, nbytes: int, extension: int) -> Run:
    def run(w: Group) -> bool:
        where, lanes = chosen(w, address(w))
        if not len(where):
            return False
        offset = w.wg.arena.offsets(where, nbytes, "load", lanes)
        w.wg.global_access("read", ins, offset, nbytes, lanes)
        undefined = w.wg.arena.undefined_bits(offset, nbytes)
        return deliver(w, d, w.wg.arena.load(offset, nbytes), undefined, nbytes, extension)

    return run


def _load_to_lds(ins: Instruction, address: Address, nbytes: int) -> Run:
    offset_value = ins.mods.get("offset", 0)

    def run(w: Group) -> None:
        where, lanes = chosen(w, address(w))
        if len(where):
            offset = w.wg.arena.offsets(where, nbytes, "load to LDS", lanes)
            w.wg.global_access("read", ins, offset, nbytes, lanes)
            transfer_to_lds(w, ins, w.wg.arena.load(offset, nbytes), nbytes, offset_value, lanes)

    return run


def _store(ins: Instruction, s: int, address: Address, nbytes: int, high: bool) -> Run:
    def run(w: Group) -> None:
        where, lanes = chosen(w, address(w))
        if len(where):
            offset = w.wg.arena.offsets(where, nbytes, "store", lanes)
            w.wg.global_access("write", ins, offset, nbytes, lanes)
            w.require_defined(s, nbytes, "a store", high=high)
            w.wg.arena.store(offset, collect(w, w.values, s, nbytes, high), nbytes)

    return run


def _compile_global(ins: Instruction, kind: str, name: str) -> Run:
    p, offset = ins.parsed, ins.mods.get("offset", 0)

    def address(first: int, base: int) -> Address:
        return global_address(p[first], p[base] if len(p) > base else None, offset)

    if kind == "load":
        if name.startswith("lds_"):
            return _load_to_lds(ins, address(0, 1), LOADS[name[4:]][0])
        return _load(ins, p[0].reg, address(1, 2), *LOADS[name])
    if kind == "store":
        return _store(ins, p[1].reg, address(0, 2), STORES[name], name.endswith("hi"))
    if kind == "atomic":
        return global_atomic(ins, name, address)
    raise EmulationError("unknown global memory instruction")


def _scratch_address(vector: Operand, scalar: Operand, offset: int) -> Address:
    def run(w: Group) -> Array:
        out = np.full(w.lanes, offset, I64)
        if vector.kind == "v":
            out += w.R[vector.reg].view(I32)
        if scalar.kind == "s":
            out += np.asarray(w.row(scalar.reg)).astype(I64)
        return out

    return run


def _compile_scratch(ins: Instruction, kind: str, name: str) -> Run:
    p, offset = ins.parsed, ins.mods.get("offset", 0)
    if kind == "load":
        d, (nbytes, extension) = p[0].reg, LOADS[name]
        address = _scratch_address(p[1], p[2], offset)

        def load(w: Group) -> bool:
            where, lanes = chosen(w, address(w))
            if not len(where):
                return False
            words, undefined = w.wg.scratch.load(where, nbytes, lanes)
            return deliver(w, d, words, undefined, nbytes, extension)

        return load
    s, nbytes, high = p[1].reg, STORES[name], name.endswith("hi")
    target = _scratch_address(p[0], p[2], offset)

    def store(w: Group) -> None:
        where, lanes = chosen(w, target(w))
        if len(where):
            undefined = undefined_data(w, s, nbytes, high)
            w.wg.scratch.store(where, collect(w, w.values, s, nbytes, high), nbytes, lanes, undefined)

    return store


def scalar_load(ins: Instruction) -> Run:
    """s_load_dword*: dwords from memory to SGPRs."""
    count = int(ins.op.partition("dwordx")[2] or 1)
    d, base, extra = ins.parsed[0].reg, ins.parsed[1].reg, ins.parsed[2]
    constant = ins.mods.get("offset", 0) + (extra.value if extra.kind == "c" else 0)

    def run(w: Group) -> None:
        start = w.s64(base)
        if extra.kind == "s":
            start = w.each(lambda a, b: a + b, start, w.s32(extra.reg))
        starts = start if isinstance(start, list) else [start]
        rows = [w.wg.arena.scalars((a + constant) & ~3, count) for a in starts]
        for k in range(count):
            w.set32(d + k, rows[0][k] if len(rows) == 1 else [row[k] for row in rows])

    return run


def compile_memory(ins: Instruction) -> Run:
    """The function that runs a global_, flat_ or scratch_ instruction."""
    space, _, rest = ins.op.partition("_")
    kind, _, name = rest.partition("_")
    try:
        return _compile_scratch(ins, kind, name) if space == "scratch" else _compile_global(ins, kind, name)
    except KeyError:
        raise EmulationError("unknown memory instruction") from None
