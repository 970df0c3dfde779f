"""Wait states the hardware does not insert itself: the CDNA3 / CDNA4 tables as a function of two instructions.

The manuals call them "manually inserted wait states" and "required independent instructions"; the numbers are those of
LLVM's hazard recognizer, which compilers insert. A pass is four clocks.
"""

from __future__ import annotations

import re

from dsv4_rocm.testing.cdna.assembly import Instruction
from dsv4_rocm.testing.cdna.cost import is_xdl, mfma_passes
from dsv4_rocm.testing.cdna.effects import TRANSCENDENTAL, base_name, is_load_to_lds, registers
from dsv4_rocm.testing.cdna.operands import EXEC, M0, VCC
from dsv4_rocm.testing.cdna.waves import S_BASE

Need = tuple[int, str]
NOTHING: Need = (0, "")
MEMORY = frozenset(["global", "flat", "buffer", "scratch"])
_EXEC = frozenset({S_BASE + EXEC, S_BASE + EXEC + 1})
_VCC = frozenset({S_BASE + VCC, S_BASE + VCC + 1})
_LANE_ACCESS = ("v_readlane_", "v_readfirstlane_", "v_writelane_")
_WAR_STATES = {2: 1, 4: 3, 8: 7, 16: 15}
_WIDE_STORE = re.compile(r"_store_dwordx[34]$")


def wait_states(ins: Instruction) -> int:
    """Wait states an instruction provides to what follows."""
    return int(ins.operands[0], 0) + 1 if ins.op == "s_nop" else 1


def _vector(ids: frozenset[int]) -> frozenset[int]:
    return frozenset(r for r in ids if r < S_BASE)


def _scalar(ids: frozenset[int]) -> frozenset[int]:
    return frozenset(r for r in ids if r >= S_BASE) - _EXEC


def _matrix_then(first: Instruction, then: Instruction, gfx950: int) -> Need:
    passes, xdl = mfma_passes(first), is_xdl(first)
    result = first.writes
    late = passes + 3 + (gfx950 if passes != 2 else 0) if xdl else passes + 2
    need = NOTHING
    if then.family == "mfma":
        accumulator, same = registers(then.parsed[3]), first.parsed[0].reg == then.parsed[3].reg
        others = set().union(*(registers(o) for k, o in enumerate(then.parsed[1:], 1) if k != 3))
        if result & others:
            return late, "a matrix result is read as a matrix operand"
        if result & accumulator:
            if same and len(result) == len(accumulator):
                need = (2 if passes == 2 else 0, "a matrix result is accumulated")
            elif xdl or not is_xdl(then):
                need = (passes + 1 + gfx950 if xdl else passes, "an overlapping matrix result is accumulated")
        return need
    if then.family == "valu" or then.family == "lds" or then.family in MEMORY:
        if result & then.touch:
            need = (late, "a matrix result is used")
        elif xdl and first.parsed[3].kind == "v" and registers(first.parsed[3]) & then.writes:
            need = (_WAR_STATES.get(passes, 15), "the accumulator of a matrix instruction is overwritten")
    return need


def _selects_lane(then: Instruction) -> frozenset[int]:
    if then.op.startswith(("v_readlane_", "v_writelane_")) and len(then.parsed) > 2:
        return frozenset(registers(then.parsed[2]))
    return frozenset()


def _partial_result(ins: Instruction) -> bool:
    """Results the forwarding path cannot deliver in the next cycle: shifted into a part of the register."""
    name, encoding = base_name(ins)
    if encoding == "sdwa":
        return bool(ins.mods.get("dst_sel", "DWORD") != "DWORD")
    selected = ins.mods.get("op_sel")
    packed = name.startswith(("v_pk_", "v_fma_mix", "v_cmp", "v_mfma", "v_dot"))
    sources = 2 if name.startswith("v_cvt_pk_") else len(ins.parsed) - 1
    return bool(selected and not packed and len(selected) > sources and selected[-1])


def _vector_then(first: Instruction, then: Instruction) -> Need:
    found = [NOTHING]
    written = _vector(first.writes)
    scalar = _scalar(first.writes)
    exec_written = bool(first.writes & _EXEC)
    dpp = "dpp" in base_name(then)[1]
    if then.family == "mfma":
        if written & then.reads:
            found.append((2, "a VALU result is read by a matrix instruction"))
        if exec_written:
            found.append((4, "EXEC is written by the VALU before a matrix instruction"))
    if then.family in ("valu", "mfma"):
        if dpp and written & then.reads:
            found.append((2, "a VALU result is read through DPP"))
        if dpp and exec_written:
            found.append((5, "EXEC is written by the VALU before a DPP instruction"))
        if then.op.startswith(_LANE_ACCESS):
            if exec_written:
                found.append((4, "EXEC is written by the VALU before a lane access"))
            if not then.op.startswith("v_writelane") and written & then.reads:
                found.append((1, "a VALU result is read as a lane"))
        if scalar & _selects_lane(then):
            found.append((4, "a lane number is written by the VALU"))
        if "v_div_fmas" in then.op and scalar & _VCC:
            found.append((4, "VCC is written by the VALU before v_div_fmas"))
        if scalar & then.reads:
            found.append((2, "an SGPR written by the VALU is read by the VALU"))
        if first.op.startswith(TRANSCENDENTAL) and not then.op.startswith(TRANSCENDENTAL) and written & then.reads:
            found.append((1, "a transcendental result is read at once"))
        if written & then.reads and _partial_result(first):
            found.append((1, "a result placed in part of a register is read at once"))
    if then.family in MEMORY and scalar & then.reads:
        found.append((5, "an SGPR written by the VALU is read by a memory instruction"))
    return max(found)


def needed(first: Instruction, then: Instruction, arch: str) -> Need:
    """(wait states, reason) that must lie between two instructions of a wave; 0 where there is no hazard."""
    gfx950 = int(arch == "gfx950")
    if first.family == "mfma":
        return _matrix_then(first, then, gfx950)
    if first.family == "valu":
        return _vector_then(first, then)
    if first.family == "salu":
        if S_BASE + M0 in first.writes and (is_load_to_lds(then) or "addtid" in then.op):
            return 1, "M0 is written before an instruction that addresses LDS with it"
        if first.op.startswith("s_setreg") and then.op.startswith(("s_getreg", "s_setreg")):
            same = first.operands[0].split(",")[0] == then.operands[0 if "setreg" in then.op else 1].split(",")[0]
            return (2, "a hardware register is read after it was set") if same and "getreg" in then.op else NOTHING
    if first.family in MEMORY and _WIDE_STORE.search(first.op) and then.family == "valu":
        data = first.parsed[0 if first.family == "buffer" else 1]
        by_register = first.family == "buffer" and first.parsed[3].kind == "s"
        if not by_register and registers(data) & then.writes:
            return 2, "the data of a store of more than 8 bytes is overwritten"
    return NOTHING


def horizon(ins: Instruction) -> int:
    """How many wait states an instruction can still matter."""
    if ins.family == "mfma":
        return 20
    if ins.family == "valu":
        return 5 if any(r >= S_BASE for r in ins.writes) else 2
    if ins.family == "salu":
        return 2 if ins.op.startswith("s_setreg") else 1 if S_BASE + M0 in ins.writes else 0
    return 2 if ins.family in MEMORY and _WIDE_STORE.search(ins.op) else 0
