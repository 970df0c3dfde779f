"""Atomics on global memory and LDS: one vector operation, lane by lane where addresses repeat."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from dsv4_rocm.testing.cdna.assembly import Instruction, Run
from dsv4_rocm.testing.cdna.effects import returns_value
from dsv4_rocm.testing.cdna.errors import EmulationError
from dsv4_rocm.testing.cdna.formats import F16, F32, F64, I32, I64, U32, U64, Array, bf16_round
from dsv4_rocm.testing.cdna.waves import Group

Update = Callable[[Array, Array], Array]


def _as(dtype: Any, function: Callable[[Array, Array], Any]) -> Update:
    return lambda old, new: np.asarray(function(old.view(dtype), new.view(dtype))).view(old.dtype)


def _packed_bf16(old: Array, new: Array) -> Array:
    low = (old << U32(16)).view(F32) + (new << U32(16)).view(F32)
    high = (old & U32(0xFFFF0000)).view(F32) + (new & U32(0xFFFF0000)).view(F32)
    result: Array = bf16_round(low) | (bf16_round(high) << U32(16))
    return result


UPDATES: dict[str, Update] = {
    "add": lambda a, b: a + b,
    "sub": lambda a, b: a - b,
    "umax": np.maximum,
    "umin": np.minimum,
    "or": np.bitwise_or,
    "and": np.bitwise_and,
    "xor": np.bitwise_xor,
    "swap": lambda a, b: b,
    "inc": lambda a, b: np.where(a >= b, a.dtype.type(0), a + a.dtype.type(1)),
    "dec": lambda a, b: np.where((a == 0) | (a > b), b, a - a.dtype.type(1)),
    "add_f32": _as(F32, lambda a, b: a + b),
    "fmax": _as(F32, np.fmax),
    "fmin": _as(F32, np.fmin),
    "add_f64": _as(F64, lambda a, b: a + b),
    "pk_add_bf16": _packed_bf16,
    "pk_add_f16": lambda a, b: (a.view(F16) + b.view(F16)).view(U32),
}
_SIGNED = {"smax": np.maximum, "smin": np.minimum}


def update_for(name: str, wide: bool) -> Update:
    if name in _SIGNED:
        return _as(I64 if wide else I32, _SIGNED[name])
    if name not in UPDATES:
        raise EmulationError("unknown atomic")
    return UPDATES[name]


def apply(memory: Array, index: Array, new: Array, update: Update, compare: Array | None = None) -> Array:
    """Update `memory[index]` in lane order; returns what each lane saw."""

    def once(old: Array, value: Array, expected: Array | None) -> Array:
        return update(old, value) if expected is None else np.where(old == expected, value, old)

    if len(np.unique(index)) == len(index):
        seen: Array = memory[index]
        memory[index] = once(seen, new, compare)
        return seen
    seen = np.empty(len(index), memory.dtype)
    for k, place in enumerate(index):
        old = memory[place : place + 1].copy()
        seen[k] = old[0]
        memory[place] = once(old, new[k : k + 1], None if compare is None else compare[k : k + 1])[0]
    return seen


def _value(w: Group, s: int, wide: bool) -> Array:
    low: Array = w.R[s][w.active]
    return low.astype(U64) | (w.R[s + 1][w.active].astype(U64) << U64(32)) if wide else low


def run_on_arena(
    ins: Instruction, name: str, d: int | None, s: int, locate: Callable[[Group], tuple[Array, Array, Array]]
) -> Run:
    """An atomic of `name` (with an _x2 suffix for 64 bits); `locate` gives addresses, lanes and active indices."""
    wide = name.endswith("_x2") or name.endswith("_f64")
    plain = name.removesuffix("_x2")
    swap = plain == "cmpswap"
    update = UPDATES["swap"] if swap else update_for(plain, wide)
    nbytes = 8 if wide else 4

    def run(w: Group) -> None:
        address, lanes, pick = locate(w)
        if not len(address):
            return
        offset = w.wg.arena.offsets(address, nbytes, "atomic", lanes)
        w.wg.global_access("atomic", ins, offset, nbytes, lanes)
        if wide and int(np.bitwise_or.reduce(offset)) & 7:
            raise EmulationError("64-bit atomic on an address that is no multiple of 8")
        w.require_defined(s, nbytes * (2 if swap else 1), "an atomic", pick)
        compare = _value(w, s + (2 if wide else 1), wide)[pick] if swap else None
        memory = w.wg.arena.views[nbytes]
        seen = apply(memory, offset >> (3 if wide else 2), _value(w, s, wide)[pick], update, compare)
        if d is not None:
            w.R[d][w.active[pick]] = seen.astype(U32)
            if wide:
                w.R[d + 1][w.active[pick]] = (seen >> U64(32)).astype(U32)

    return run


def global_atomic(ins: Instruction, name: str, address: Callable[[int, int], Callable[[Group], Array]]) -> Run:
    back = 1 if returns_value(ins) else 0
    where = address(back, back + 2)

    def locate(w: Group) -> tuple[Array, Array, Array]:
        return where(w)[w.active], w.lane_ids[w.active], np.arange(len(w.active))

    return run_on_arena(ins, name, ins.parsed[0].reg if back else None, ins.parsed[back + 1].reg, locate)
