"""Undefined bits through scalar instructions; the bits of a register are those undefined in any wave of the group."""

from __future__ import annotations

import re

from dsv4_rocm.testing.cdna.assembly import Instruction
from dsv4_rocm.testing.cdna.errors import Finding
from dsv4_rocm.testing.cdna.formats import M32
from dsv4_rocm.testing.cdna.operands import EXEC, SCC, Operand
from dsv4_rocm.testing.cdna.waves import S_BASE, Group, Scalar

_EXEC = (EXEC, EXEC + 1)
_LOGIC = re.compile(r"^s_(and|or|xor|andn2|orn2|not|mov|cselect)_b(32|64)$")


def mark(w: Group, reg: int, bits: int) -> None:
    """Set the undefined bits of an SGPR."""
    if bits:
        w.undef.add(S_BASE + reg)
        w.undef_bits[reg] = bits
    else:
        w.undef.discard(S_BASE + reg)
        w.undef_bits.pop(reg, None)


def undefined(w: Group, reg: int) -> int:
    return w.undef_bits.get(reg, M32) if S_BASE + reg in w.undef else 0


def _any_wave(value: Scalar) -> int:
    if isinstance(value, int):
        return value
    out = 0
    for v in value:
        out |= v
    return out


def _operand(w: Group, o: Operand, high: int) -> tuple[int, int, int]:
    """(undefined bits, ones of any wave, zeros of any wave) of one word of a source."""
    if o.kind != "s":
        word = o.double_bits >> 32 * high & M32 if high else o.value & M32
        return 0, word, ~word & M32
    reg = o.reg + high
    value = w.s32(reg)
    zeros = _any_wave(w.each(lambda v: ~v & M32, value))
    return undefined(w, reg), _any_wave(value), zeros


def _logic_bits(w: Group, ins: Instruction, operation: str, high: int) -> int:
    parts = [_operand(w, o, high) for o in ins.parsed[1:3]]
    bits = parts[0][0] | (parts[1][0] if len(parts) > 1 else 0)
    if operation in ("and", "andn2"):
        pa, a, _ = parts[0]
        pb, b, zb = parts[1]
        return bits & (a | pa) & ((zb if operation == "andn2" else b) | pb)
    if operation == "or":
        pa, _, za = parts[0]
        pb, _, zb = parts[1]
        return bits & (za | pa) & (zb | pb)
    return bits


def step(w: Group, ins: Instruction) -> None:
    """Run a scalar instruction together with its effect on undefined bits."""
    tainted = sorted(ins.reads & w.undef)
    if not tainted:
        ins.run(w)
        for reg in ins.writes:
            mark(w, reg - S_BASE, 0)
        return
    if ins.family == "smem" and tainted:
        raise Finding("uninitialised", f"undefined s{tainted[0] - S_BASE} is used as an address")
    match = _LOGIC.match(ins.op)
    results: dict[int, int] = {}
    if match and not (match[1] == "cselect" and S_BASE + SCC in w.undef):
        d = ins.parsed[0].reg
        for high in range(int(match[2]) // 32):
            results[d + high] = _logic_bits(w, ins, match[1], high)
        flag = M32 if any(results.values()) else 0
    else:
        flag = M32 if tainted else 0
        results = {reg - S_BASE: flag for reg in ins.writes if reg != S_BASE + SCC}
    if any(results.get(reg) for reg in _EXEC):
        raise Finding("uninitialised", f"undefined s{tainted[0] - S_BASE} reaches EXEC")
    ins.run(w)
    for reg, bits in results.items():
        mark(w, reg, bits)
    if S_BASE + SCC in ins.writes:
        mark(w, SCC, flag)
