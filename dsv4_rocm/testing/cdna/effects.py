"""Which registers an instruction reads and writes, and to which family it belongs; from its text alone."""

from __future__ import annotations

import re

from dsv4_rocm.testing.cdna.assembly import Instruction
from dsv4_rocm.testing.cdna.operands import EXEC, M0, SCC, VCC, Operand, parse_operand
from dsv4_rocm.testing.cdna.waves import S_BASE

ENCODING = re.compile(r"^(.*?)_(e32|e64_dpp|e64|sdwa|dpp)$")
TRANSCENDENTAL = ("v_exp_", "v_log_", "v_rcp_", "v_rsq_", "v_sqrt_", "v_sin_", "v_cos_")
_NO_OPERANDS = re.compile(
    r"^s_(nop|waitcnt|setprio|sleep|barrier|endpgm|branch|cbranch_\w+|setreg_\w+|icache_inv|dcache_\w+|inst_prefetch"
    r"|ttracedata|wakeup|set_gpr_idx_(off|mode)|sethalt|trap|incperflevel|decperflevel|clause|code_end|sendmsg\w*)$"
)
_NO_SCC = re.compile(
    r"^s_(mov|movk|cmov|cselect|mul|mulk|brev|ff[01]|flbit|sext|pack|bitset|bfm|getreg|getpc|memtime|memrealtime|load"
    r"|setvskip|set_gpr_idx)"
)
_READS_SCC = re.compile(r"^s_(addc|subb|cselect|cmov|cbranch_scc)")
_COMPARE = re.compile(r"^s_(cmp|cmpk|bitcmp)")
_TWO_RESULTS = re.compile(r"^v_(\w+_co_(ci_)?u32|div_scale_\w+|mad_(u64_u32|i64_i32))")
_READS_RESULT = re.compile(
    r"^v_(fmac|mac|pk_fmac|dot2c|dot4c|dot8c|writelane|swap|permlane\w+swap|cvt_pk_(fp8|bf8)_f32|cvt_sr|fma_mix(lo|hi)|mad_mix(lo|hi)"
    r"|cvt_scalef32_pk_(fp8|bf8|fp4))"
)
_PACKED_WORDS = re.compile(r"^v_pk_(mul_f32|add_f32|fma_f32|mov_b32)$")
_KEYWORDS = ("gpr_idx(", "hwreg(", "vmcnt(", "lgkmcnt(", "expcnt(", "sendmsg(")


def vgprs(operand: Operand) -> list[int]:
    return list(range(operand.reg, operand.reg + operand.count)) if operand.kind == "v" else []


def registers(operand: Operand) -> set[int]:
    """Ids of the registers an operand names."""
    if operand.kind == "s":
        return {S_BASE + r for r in range(operand.reg, operand.reg + operand.count)}
    return set(vgprs(operand))


def family(op: str) -> str:
    """salu, smem, branch, wait, valu, mfma, lds, global, flat, buffer, scratch, cache or unknown."""
    if op.startswith(("s_load_dword", "s_buffer_load", "s_store", "s_memtime", "s_memrealtime")):
        return "smem"
    if op.startswith(("s_branch", "s_cbranch")) or op in ("s_barrier", "s_endpgm"):
        return "branch"
    if op in ("s_waitcnt", "s_nop"):
        return "wait"
    if op.startswith("s_"):
        return "salu"
    if op.startswith(("v_mfma", "v_smfmac")):
        return "mfma"
    if op.startswith("v_"):
        return "valu"
    if op.startswith("ds_"):
        return "lds"
    if re.match(r"^buffer_(wbl2|inv|wbinvl1|gl0_inv)", op):
        return "cache"
    for name in ("global", "flat", "buffer", "scratch"):
        if op.startswith(name + "_"):
            return name
    return "unknown"


def base_name(ins: Instruction) -> tuple[str, str]:
    """VALU mnemonic without its encoding suffix, and the suffix."""
    match = ENCODING.match(ins.op)
    return (match[1], match[2]) if match else (ins.op, "")


def returns_value(ins: Instruction) -> bool:
    """Whether a memory atomic returns the old value."""
    return ins.flag("sc0") or ins.flag("glc") or "_rtn" in ins.op


def is_load_to_lds(ins: Instruction) -> bool:
    return ins.family in ("global", "buffer") and ("_lds_" in ins.op or ins.flag("lds"))


def _destinations(ins: Instruction) -> int:
    op, fam = ins.op, ins.family
    if fam in ("global", "flat", "buffer", "scratch"):
        if "_store_" in op or is_load_to_lds(ins):
            return 0
        if "_atomic_" in op:
            return 1 if returns_value(ins) else 0
        return 1
    if fam == "lds":
        return 0 if op.startswith("ds_write") or ("_rtn" not in op and _is_lds_atomic(op)) else 1
    if fam in ("branch", "wait", "cache") or _COMPARE.match(op) or op in ("s_setvskip", "s_set_gpr_idx_on"):
        return 0
    return 2 if _TWO_RESULTS.match(op) else 1


def _is_lds_atomic(op: str) -> bool:
    return bool(re.match(r"^ds_(add|sub|max|min|and|or|xor|inc|dec|wrap|cmpst)", op))


def _scalar_effects(ins: Instruction, reads: set[int], writes: set[int]) -> None:
    op, scc = ins.op, S_BASE + SCC
    if _READS_SCC.match(op):
        reads.add(scc)
    if ins.family == "salu" and not _NO_SCC.match(op) and not _NO_OPERANDS.match(op):
        writes.add(scc)
    if "saveexec" in op:
        both = {S_BASE + EXEC, S_BASE + EXEC + 1}
        reads |= both
        writes |= both
    if op.startswith(("s_cbranch_vcc", "s_cbranch_cdbg")):
        reads |= {S_BASE + VCC, S_BASE + VCC + 1}
    if op.startswith("s_cbranch_exec"):
        reads |= {S_BASE + EXEC, S_BASE + EXEC + 1}
    if op.startswith(("s_addk", "s_mulk", "s_cmov", "s_bitset")):
        reads |= registers(ins.parsed[0])
    if op.startswith("s_set_gpr_idx_"):
        writes.add(S_BASE + M0)


def packed_words(ins: Instruction) -> tuple[set[int], set[int]]:
    """Registers a packed 32-bit instruction reads for its low and for its high result."""
    sources = ins.parsed[1:]
    low = ins.mods.get("op_sel", [0] * len(sources))
    high = ins.mods.get("op_sel_hi", [1] * len(sources))
    if ins.op.startswith("v_pk_mov"):
        choices: tuple[list[tuple[Operand, int]], ...] = ([(sources[0], low[0])], [(sources[1], low[1])])
    else:
        choices = (list(zip(sources, low, strict=False)), list(zip(sources, high, strict=False)))
    found = [
        set().union(*(registers(Operand(o.kind, o.reg + word)) for o, word in half if o.kind in "vs"))
        for half in choices
    ]
    return found[0], found[1]


def _vector_effects(ins: Instruction, reads: set[int], writes: set[int]) -> None:
    name, encoding = base_name(ins)
    if _PACKED_WORDS.match(name):
        reads.clear()
        reads.update(*packed_words(ins))
    if _READS_RESULT.match(name) or ins.mods.get("dst_unused") == "UNUSED_PRESERVE":
        reads |= registers(ins.parsed[0])
    if "dpp" in encoding and not ins.flag("bound_ctrl") and ins.mods.get("bound_ctrl") is None:
        reads |= registers(ins.parsed[0])
    if name.startswith("v_swap") or "_swap_b32" in name:
        writes |= registers(ins.parsed[1])
    if name.startswith("v_div_fmas"):
        reads |= {S_BASE + VCC, S_BASE + VCC + 1}
    if name == "v_cndmask_b32" and len(ins.parsed) < 4:
        reads |= {S_BASE + VCC, S_BASE + VCC + 1}
    if name.startswith("v_cmpx"):
        writes |= {S_BASE + EXEC, S_BASE + EXEC + 1}


def annotate(ins: Instruction) -> None:
    """Fill `family`, `parsed`, `reads`, `writes` and `touch` of an instruction."""
    ins.family = family(ins.op)
    if ins.family not in ("branch", "wait", "cache") and not _NO_OPERANDS.match(ins.op):
        ins.parsed = [parse_operand(t) for t in ins.operands if not t.startswith(_KEYWORDS) and not _is_pattern(t)]
    fill_registers(ins)


def fill_registers(ins: Instruction) -> None:
    """Fill `reads`, `writes` and `touch` from the parsed operands."""
    reads: set[int] = set()
    writes: set[int] = set()
    count = _destinations(ins)
    for position, operand in enumerate(ins.parsed):
        (writes if position < count else reads).update(registers(operand))
    if ins.family == "mfma":
        pass
    elif ins.op.startswith("s_"):
        _scalar_effects(ins, reads, writes)
    elif ins.family == "valu":
        _vector_effects(ins, reads, writes)
    elif "d16" in ins.op and count:
        reads |= registers(ins.parsed[0])
    if (ins.family == "lds" and "addtid" in ins.op) or is_load_to_lds(ins):
        reads.add(S_BASE + M0)
    ins.reads, ins.writes = frozenset(reads), frozenset(writes)
    ins.touch = ins.reads | ins.writes


def _is_pattern(token: str) -> bool:
    return token.startswith(("swizzle(", "offset:"))
