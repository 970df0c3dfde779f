"""SALU instructions: arithmetic on Python integers, once where all waves of a group agree."""

from __future__ import annotations

import operator
import re
from collections.abc import Callable
from typing import Any

from dsv4_rocm.testing.cdna.assembly import Instruction, Run
from dsv4_rocm.testing.cdna.errors import EmulationError
from dsv4_rocm.testing.cdna.formats import M32, M64
from dsv4_rocm.testing.cdna.operands import M0, SCC, Operand
from dsv4_rocm.testing.cdna.waves import Group, Scalar

Read = Callable[[Group], Scalar]
IGNORED = frozenset(
    [
        "s_nop",
        "s_waitcnt",
        "s_setprio",
        "s_sleep",
        "s_icache_inv",
        "s_dcache_wb",
        "s_dcache_inv",
        "s_inst_prefetch",
        "s_ttracedata",
        "s_wakeup",
        "s_sethalt",
        "s_incperflevel",
        "s_decperflevel",
        "s_clause",
        "s_code_end",
    ]
)
COMPARE = {
    "eq": operator.eq,
    "lg": operator.ne,
    "gt": operator.gt,
    "ge": operator.ge,
    "lt": operator.lt,
    "le": operator.le,
}
LOGIC: dict[str, Callable[[int, int], int]] = {
    "and": lambda a, b: a & b,
    "or": lambda a, b: a | b,
    "xor": lambda a, b: a ^ b,
    "andn2": lambda a, b: a & ~b,
    "orn2": lambda a, b: a | ~b,
    "nand": lambda a, b: ~(a & b),
    "nor": lambda a, b: ~(a | b),
    "xnor": lambda a, b: ~(a ^ b),
    "andn1": lambda a, b: ~a & b,
    "orn1": lambda a, b: ~a | b,
}


def as_signed(v: int) -> int:
    return v - (1 << 32) if v >> 31 else v


def _as_signed64(v: int) -> int:
    return v - (1 << 64) if v >> 63 else v


def _k16(v: int) -> int:
    return v - 65536 if 0x8000 <= v < 65536 else v


def _overflow(r: int) -> int:
    return int(not -(1 << 31) <= r < 1 << 31)


def _bfe(v: int, control: int, sign: bool, width: int) -> tuple[int, int]:
    offset, count = control & (width - 1), (control >> 16) & 127
    r = (v >> offset) & ((1 << count) - 1)
    if sign and count and r >> (count - 1):
        r -= 1 << count
    r &= (1 << width) - 1
    return r, int(r != 0)


def _shifted_add(n: int) -> Callable[[int, int], tuple[int, int]]:
    return lambda a, b: ((a << n) + b & M32, int((a << n) + b > M32))


def _pick(better: Callable[[int, int], bool], key: Callable[[int], int]) -> Callable[[int, int], tuple[int, int]]:
    return lambda a, b: (a, 1) if better(key(a), key(b)) else (b, 0)


def _nonzero(function: Callable[..., int], mask: int = M32) -> Callable[..., tuple[int, int]]:
    def run(*args: int) -> tuple[int, int]:
        r = function(*args) & mask
        return r, int(r != 0)

    return run


# name -> function of 32-bit ints giving (result, scc)
WITH_SCC: dict[str, Callable[..., tuple[int, int]]] = {
    "s_add_i32": lambda a, b: (a + b & M32, _overflow(as_signed(a) + as_signed(b))),
    "s_sub_i32": lambda a, b: (a - b & M32, _overflow(as_signed(a) - as_signed(b))),
    "s_add_u32": lambda a, b: (a + b & M32, int(a + b > M32)),
    "s_sub_u32": lambda a, b: (a - b & M32, int(b > a)),
    "s_lshl_b32": _nonzero(lambda a, b: a << (b & 31)),
    "s_lshr_b32": _nonzero(lambda a, b: a >> (b & 31)),
    "s_ashr_i32": _nonzero(lambda a, b: as_signed(a) >> (b & 31)),
    "s_absdiff_i32": _nonzero(lambda a, b: abs(as_signed(a) - as_signed(b))),
    "s_bfe_u32": lambda a, b: _bfe(a, b, False, 32),
    "s_bfe_i32": lambda a, b: _bfe(a, b, True, 32),
    "s_max_i32": _pick(operator.gt, as_signed),
    "s_min_i32": _pick(operator.lt, as_signed),
    "s_max_u32": _pick(operator.gt, int),
    "s_min_u32": _pick(operator.lt, int),
    "s_not_b32": _nonzero(lambda a: ~a),
    "s_bcnt1_i32_b32": _nonzero(lambda a: a.bit_count()),
    "s_abs_i32": _nonzero(lambda a: abs(as_signed(a))),
    **{f"s_lshl{n}_add_u32": _shifted_add(n) for n in range(1, 5)},
}
WITHOUT_SCC: dict[str, Callable[..., int]] = {
    "s_mov_b32": lambda a: a,
    "s_mul_i32": lambda a, b: a * b,
    "s_mul_hi_u32": lambda a, b: (a * b) >> 32,
    "s_mul_hi_i32": lambda a, b: (as_signed(a) * as_signed(b)) >> 32,
    "s_bfm_b32": lambda a, b: ((1 << (a & 31)) - 1) << (b & 31),
    "s_brev_b32": lambda a: int(f"{a:032b}"[::-1], 2),
    "s_ff1_i32_b32": lambda a: (a & -a).bit_length() - 1 if a else M32,
    "s_ff0_i32_b32": lambda a: (~a & M32 & -(~a & M32)).bit_length() - 1 if a != M32 else M32,
    "s_flbit_i32_b32": lambda a: 32 - a.bit_length() if a else M32,
    "s_sext_i32_i16": lambda a: ((a & 0xFFFF) ^ 0x8000) - 0x8000,
    "s_sext_i32_i8": lambda a: ((a & 0xFF) ^ 0x80) - 0x80,
    "s_pack_ll_b32_b16": lambda a, b: (a & 0xFFFF) | (b & 0xFFFF) << 16,
    "s_pack_lh_b32_b16": lambda a, b: (a & 0xFFFF) | (b & 0xFFFF0000),
    "s_pack_hh_b32_b16": lambda a, b: (a >> 16) | (b & 0xFFFF0000),
}
# 64-bit: name -> (function, widths of the sources, width of the result)
WIDE_WITH_SCC: dict[str, tuple[Callable[..., tuple[int, int]], str, int]] = {
    "s_lshl_b64": (_nonzero(lambda a, b: a << (b & 63), M64), "ds", 64),
    "s_lshr_b64": (_nonzero(lambda a, b: a >> (b & 63), M64), "ds", 64),
    "s_ashr_i64": (_nonzero(lambda a, b: _as_signed64(a) >> (b & 63), M64), "ds", 64),
    "s_bfe_u64": (lambda a, b: _bfe(a, b, False, 64), "ds", 64),
    "s_bfe_i64": (lambda a, b: _bfe(a, b, True, 64), "ds", 64),
    "s_not_b64": (_nonzero(lambda a: ~a, M64), "d", 64),
    "s_bcnt1_i32_b64": (_nonzero(lambda a: a.bit_count()), "d", 32),
}
WIDE_WITHOUT_SCC: dict[str, tuple[Callable[..., int], str, int]] = {
    "s_mov_b64": (lambda a: a, "d", 64),
    "s_bfm_b64": (lambda a, b: ((1 << (a & 63)) - 1) << (b & 63), "ss", 64),
    "s_brev_b64": (lambda a: int(f"{a:064b}"[::-1], 2), "d", 64),
    "s_ff1_i32_b64": (lambda a: (a & -a).bit_length() - 1 if a else M32, "d", 32),
    "s_flbit_i32_b64": (lambda a: 64 - a.bit_length() if a else M32, "d", 32),
}


def read32(o: Operand) -> Read:
    if o.kind == "s":
        reg = o.reg
        if reg == SCC:
            return lambda w: w.S[SCC]
        return lambda w: w.s32(reg)
    value = o.value & M32
    return lambda w: value


def read64(o: Operand) -> Read:
    if o.kind == "s":
        reg = o.reg
        return lambda w: w.s64(reg)
    value = o.double_bits
    return lambda w: value


def _store(d: int, width: int) -> Callable[[Group, Scalar], None]:
    if width == 64:
        return lambda w, v: w.set64(d, v)
    return lambda w, v: w.set32(d, v)


def _apply(function: Callable[..., Any], reads: list[Read], d: int, width: int, scc: bool) -> Run:
    store = _store(d, width)
    if scc:

        def with_scc(w: Group) -> None:
            result, flag = w.each2(function, *[r(w) for r in reads])
            store(w, result)
            w.set_scc(flag)

        return with_scc
    return lambda w: store(w, w.each(function, *[r(w) for r in reads]))


def _logic(ins: Instruction) -> Run | None:
    match = re.match(r"^s_(\w+?)_b(32|64)$", ins.op)
    if not match or match[1] not in LOGIC:
        return None
    wide = match[2] == "64"
    mask = M64 if wide else M32
    read = read64 if wide else read32
    function = LOGIC[match[1]]
    return _apply(_nonzero(function, mask), [read(o) for o in ins.parsed[1:3]], ins.parsed[0].reg, int(match[2]), True)


def _saveexec(ins: Instruction) -> Run:
    function = _nonzero(LOGIC[ins.op[2 : -len("_saveexec_b64")]], M64)
    d, source = ins.parsed[0].reg, read64(ins.parsed[1])

    def run(w: Group) -> None:
        old = w.ex
        result, flag = w.each2(function, source(w), old)
        w.set64(d, old)
        w.set_exec(result)
        w.set_scc(flag)

    return run


def _compare(ins: Instruction) -> Run | None:
    match = re.match(r"^s_(cmpk?)_(eq|lg|gt|ge|lt|le)_(i32|u32|u64)$", ins.op)
    if match:
        read = read64 if match[3] == "u64" else read32
        a, b = read(ins.parsed[0]), read(ins.parsed[1])
        test = COMPARE[match[2]]
        key: Callable[[int], int] = as_signed if match[3] == "i32" else int
        return lambda w: w.set_scc(w.each(lambda x, y: int(test(key(x), key(y))), a(w), b(w)))
    match = re.match(r"^s_bitcmp([01])_b32$", ins.op)
    if match:
        a, b, wanted = read32(ins.parsed[0]), read32(ins.parsed[1]), int(match[1])
        return lambda w: w.set_scc(w.each(lambda x, y: int((x >> (y & 31)) & 1 == wanted), a(w), b(w)))
    return None


def _with_carry(ins: Instruction) -> Run:
    d, a, b = ins.parsed[0].reg, read32(ins.parsed[1]), read32(ins.parsed[2])
    if ins.op == "s_addc_u32":
        function: Callable[..., tuple[int, int]] = lambda x, y, c: (x + y + c & M32, int(x + y + c > M32))  # noqa: E731
    else:
        function = lambda x, y, c: (x - y - c & M32, int(x - y - c < 0))  # noqa: E731

    def run(w: Group) -> None:
        result, flag = w.each2(function, a(w), b(w), w.S[SCC])
        w.set32(d, result)
        w.set_scc(flag)

    return run


def _select(ins: Instruction) -> Run:
    width = 64 if ins.op.endswith("64") else 32
    read = read64 if width == 64 else read32
    d = ins.parsed[0].reg
    store, a = _store(d, width), read(ins.parsed[1])
    b = read(ins.parsed[2]) if ins.op.startswith("s_cselect") else read(ins.parsed[0])
    return lambda w: store(w, w.each(lambda s, x, y: x if s else y, w.S[SCC], a(w), b(w)))


def _immediate(ins: Instruction) -> Run:
    d, k = ins.parsed[0].reg, _k16(ins.parsed[1].value)
    if ins.op == "s_movk_i32":
        return lambda w: w.set32(d, k & M32)
    if ins.op == "s_mulk_i32":
        return lambda w: w.set32(d, w.each(lambda a: a * k, w.s32(d)))
    return _apply(lambda a: (a + k & M32, _overflow(as_signed(a) + k)), [lambda w: w.s32(d)], d, 32, True)


def _bitset(ins: Instruction) -> Run:
    d, source, one = ins.parsed[0].reg, read32(ins.parsed[1]), ins.op == "s_bitset1_b32"
    if one:
        return lambda w: w.set32(d, w.each(lambda v, b: v | 1 << (b & 31), w.s32(d), source(w)))
    return lambda w: w.set32(d, w.each(lambda v, b: v & ~(1 << (b & 31)), w.s32(d), source(w)))


def _mode(ins: Instruction) -> Run:
    register, value = ins.operands[0], int(ins.operands[1], 0)
    if "MODE" in register and re.search(r",\s*23\s*,\s*1", register):

        def run(w: Group) -> None:
            w.fp8_saturate = bool(value & 1)

        return run
    return lambda w: None


def _index_mode(ins: Instruction) -> Run:
    """s_set_gpr_idx_*: M0[7:0] is the offset, M0[15:12] which operands it moves (source 0, 1, 2, destination)."""

    def update(w: Group, m0: Scalar, on: bool) -> None:
        w.set32(M0, m0)
        w.index_mode = w.each(lambda m: 0x10000 | m & 0xF0FF, m0) if on else 0

    if ins.op == "s_set_gpr_idx_off":
        return lambda w: update(w, w.s32(M0), False)
    if ins.op == "s_set_gpr_idx_mode":
        mode = _index_operands(ins.operands[0]) << 12
        return lambda w: update(w, w.each(lambda m: m & ~0xF000 | mode, w.s32(M0)), bool(w.index_mode))
    source = read32(ins.parsed[0])
    if ins.op == "s_set_gpr_idx_idx":
        return lambda w: update(w, w.each(lambda m, s: m & ~0xFF | s & 0xFF, w.s32(M0), source(w)), bool(w.index_mode))
    chosen = _index_operands(ins.operands[1]) << 12
    return lambda w: update(w, w.each(lambda m, s: m & ~0xF0FF | chosen | s & 0xFF, w.s32(M0), source(w)), True)


def _index_operands(text: str) -> int:
    if not text.startswith("gpr_idx("):
        return int(text, 0) & 15
    names = text[len("gpr_idx(") : -1]
    return sum(1 << k for k, name in enumerate(("SRC0", "SRC1", "SRC2", "DST")) if name in names)


def _vskip(ins: Instruction) -> Run:
    a, b = read32(ins.parsed[0]), read32(ins.parsed[1])

    def run(w: Group) -> None:
        bit = w.each(lambda x, y: (x >> (y & 31)) & 1, a(w), b(w))
        if not isinstance(bit, int):
            raise EmulationError("s_setvskip with different values in the waves of a workgroup is not modelled")
        w.skip_vector = bit

    return run


def compile_scalar(ins: Instruction) -> Run:
    """The function that runs a SALU instruction. Branches, barriers and the end of a program are the executor's."""
    op = ins.op
    if op in IGNORED:
        return lambda w: None
    if op.startswith("s_setreg_imm32"):
        return _mode(ins)
    if op.startswith("s_set_gpr_idx_"):
        return _index_mode(ins)
    if op == "s_setvskip":
        return _vskip(ins)
    if op.endswith("_saveexec_b64"):
        return _saveexec(ins)
    if op in ("s_addc_u32", "s_subb_u32"):
        return _with_carry(ins)
    if op.startswith(("s_cselect_", "s_cmov_")):
        return _select(ins)
    if op in ("s_movk_i32", "s_addk_i32", "s_mulk_i32"):
        return _immediate(ins)
    if op.startswith("s_bitset"):
        return _bitset(ins)
    special = _compare(ins) or _logic(ins)
    if special:
        return special
    if op in WITH_SCC or op in WITHOUT_SCC:
        reads = [read32(o) for o in ins.parsed[1:]]
        scc = op in WITH_SCC
        return _apply(WITH_SCC[op] if scc else WITHOUT_SCC[op], reads, ins.parsed[0].reg, 32, scc)
    scc = op in WIDE_WITH_SCC
    if scc or op in WIDE_WITHOUT_SCC:
        function, kinds, width = (WIDE_WITH_SCC if scc else WIDE_WITHOUT_SCC)[op]
        reads = [(read64 if k == "d" else read32)(o) for k, o in zip(kinds, ins.parsed[1:], strict=True)]
        return _apply(function, reads, ins.parsed[0].reg, width, scc)
    raise EmulationError("unknown SALU instruction")
