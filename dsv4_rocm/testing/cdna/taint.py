"""Undefined bits through instructions: where an uninitialised value goes, and where it must not arrive.

Only instructions that touch a register with undefined bits come here; everything else runs without any of this.
"""

from __future__ import annotations

import re
from collections.abc import Callable

import numpy as np

from dsv4_rocm.testing.cdna import scalar_taint
from dsv4_rocm.testing.cdna.assembly import Instruction
from dsv4_rocm.testing.cdna.cross_lane_ops import chosen_lanes
from dsv4_rocm.testing.cdna.effects import base_name, packed_words, registers
from dsv4_rocm.testing.cdna.errors import Finding
from dsv4_rocm.testing.cdna.formats import BITS, M32, U32, Array
from dsv4_rocm.testing.cdna.half_table import HALF_OPS
from dsv4_rocm.testing.cdna.lanes import dpp_source
from dsv4_rocm.testing.cdna.mfma import output_row, shape_of
from dsv4_rocm.testing.cdna.operands import EXEC, VCC, Operand
from dsv4_rocm.testing.cdna.scalar_ops import read32
from dsv4_rocm.testing.cdna.sources import SDWA
from dsv4_rocm.testing.cdna.vector_table import permute
from dsv4_rocm.testing.cdna.waves import S_BASE, Group, lanes_of, masks_of

ALL = U32(M32)
_EXEC = {S_BASE + EXEC, S_BASE + EXEC + 1}
_MOVES = re.compile(
    r"^(v_mov_b(32|64)|v_accvgpr_\w+|v_swap_b32|v_permlane\d+_swap_b32|v_pk_mov_b32|ds_bpermute_b32|ds_permute_b32"
    r"|ds_swizzle_b32)$"
)
_SHIFTS = re.compile(r"^v_(lshlrev|lshrrev|ashrrev)_(b32|i32|b64|i64)$")
_BITWISE = re.compile(r"^v_(and|or|xor|xnor|not|bfi|or3|and_or|bitop3|lshl_or)_b(32|16)$")
_CARRIES = re.compile(
    r"^v_(add_u32|sub_u32|subrev_u32|add3_u32|lshl_add_u32|add_lshl_u32|mul_lo_u32|xad_u32|mad_u64_u32|mad_i64_i32"
    r"|lshl_add_u64)$"
)
_PACKED_WORDS = re.compile(r"^v_pk_(mul|add|fma)_f32$")
_MEMORY = frozenset(["global", "flat", "buffer", "scratch"])


def step(w: Group, ins: Instruction) -> None:
    """Run an instruction together with its effect on undefined bits. Raises an "uninitialised" finding."""
    family = ins.family
    if family in ("salu", "smem"):
        scalar_taint.step(w, ins)
        return
    if (family == "lds" and not _MOVES.match(ins.op)) or family in _MEMORY:
        _access(w, ins)
        return
    if ins.op.startswith("v_nop"):
        return
    whole = w.mask is True or family == "mfma"
    if whole and w.undef.isdisjoint(ins.reads) and "_dpp" not in ins.op:
        ins.run(w)  # from defined values, into every lane: the result is defined
        _define(w, ins)
        return
    before = _matrix(w, ins) if family == "mfma" else _vector(w, ins)
    ins.run(w)
    if before is not None:
        before()
    _settle(w, ins)


def _define(w: Group, ins: Instruction) -> None:
    for reg in ins.writes:
        if reg >= S_BASE:
            scalar_taint.mark(w, reg - S_BASE, 0)
        elif reg in w.undef:
            _poison(w, reg)[...] = 0
            w.undef.discard(reg)


def _settle(w: Group, ins: Instruction) -> None:
    """Keep `undef` to the registers that still have undefined bits."""
    assert w.poison is not None
    for reg in ins.writes:
        if reg < S_BASE:
            if w.poison.bits[reg].any():
                w.undef.add(reg)
            else:
                w.undef.discard(reg)


def _poison(w: Group, reg: int) -> Array:
    assert w.poison is not None
    result: Array = w.poison.bits[reg]
    return result


def _write(w: Group, reg: int, bits: Array) -> None:
    np.copyto(_poison(w, reg), bits, where=w.mask)


def _access(w: Group, ins: Instruction) -> None:
    """Loads, stores and atomics: addresses must be defined; data is looked at where it is moved."""
    stores = "_store_" in ins.op or "write" in ins.op or "_atomic_" in ins.op
    data = _data_registers(ins) if stores else frozenset()
    preserved = ins.writes if "d16" in ins.op else frozenset()
    for reg in sorted((ins.reads - data - preserved - _EXEC) & w.undef):
        if reg >= S_BASE:
            raise Finding("uninitialised", f"undefined s{reg - S_BASE} is used as an address or resource")
        bad = np.flatnonzero(_poison(w, reg)[w.active])
        if len(bad):
            lane = int(w.lane_ids[w.active[bad[0]]])
            raise Finding("uninitialised", f"undefined v{reg} is used as an address", lane)
    half = {2: 0xFFFF0000, 3: 0xFFFF}[3 if ins.op.endswith("hi") else 2] if "d16" in ins.op else 0
    for reg in ins.writes:
        _write(w, reg, _poison(w, reg) & U32(half))
    ins.run(w)
    _settle(w, ins)


def _data_registers(ins: Instruction) -> frozenset[int]:
    if ins.family == "buffer":
        return frozenset(registers(ins.parsed[0]))
    if ins.family == "lds" and "write" in ins.op:
        return frozenset().union(*(registers(o) for o in ins.parsed[1:]))
    back = 1 if ins.writes else 0
    return frozenset(registers(ins.parsed[back + 1])) if len(ins.parsed) > back + 1 else frozenset()


def _read_mask(ins: Instruction, name: str, encoding: str, position: int) -> int:
    """Bits of source `position` (from 0) an instruction looks at."""
    if encoding == "sdwa":
        shift, mask = SDWA[ins.mods.get(f"src{position}_sel", "DWORD")]
        return mask << shift
    if name in HALF_OPS or (name.endswith(("_u16", "_i16", "_f16")) and name.startswith("v_cmp")):
        select = ins.mods.get("op_sel", [])
        return 0xFFFF0000 if position < len(select) and select[position] else 0xFFFF
    if name.startswith("v_cvt_f32_ubyte"):
        return 255 << 8 * int(name[-1])
    return M32


def _source_poison(w: Group, operand: Operand) -> Array | None:
    """Undefined bits of a one-register source over the lanes, None where it has none."""
    if operand.kind == "v" and operand.reg in w.undef:
        return _poison(w, operand.reg)
    if operand.kind == "s" and S_BASE + operand.reg in w.undef:
        return np.full(w.lanes, U32(w.undef_bits.get(operand.reg, M32)))
    return None


def _undefined_lanes(w: Group, ins: Instruction) -> Array:
    """Lanes in which any bit the instruction looks at is undefined."""
    name, encoding = base_name(ins)
    bad = np.zeros(w.lanes, bool)
    seen: set[int] = set()
    start = next((k for k, o in enumerate(ins.parsed) if not registers(o) <= ins.writes), 1)
    for position, operand in enumerate(ins.parsed[max(1, start) :]):
        seen |= registers(operand)
        for reg in sorted(registers(operand) & w.undef):
            part = Operand("s", reg - S_BASE) if reg >= S_BASE else Operand("v", reg)
            bits = _source_poison(w, part)
            if bits is None:
                continue
            if "dpp" in encoding and position == 0:
                source, exists = dpp_source(ins.mods)
                bits = np.where(np.tile(exists, w.count), bits[w.lane_index(source)], U32(0))
            if part.kind == "s" and operand.count == 2 and _is_lane_mask(name, position):
                bad |= _mask_lanes(w, operand.reg)
            else:
                bad |= bits & U32(_read_mask(ins, name, encoding, position)) != 0
    for reg in (ins.reads - seen - _EXEC) & w.undef:  # a destination that is read, or VCC
        bad |= _mask_lanes(w, VCC) if reg >= S_BASE else _poison(w, reg) != 0
    return bad


def _is_lane_mask(name: str, position: int) -> bool:
    return name.startswith(("v_cndmask", "v_addc", "v_subb")) and position >= 2


def _mask_lanes(w: Group, reg: int) -> Array:
    low, high = (w.undef_bits.get(r, M32) if S_BASE + r in w.undef else 0 for r in (reg, reg + 1))
    return lanes_of(low | high << 32, w.count)


def _vector(w: Group, ins: Instruction) -> Callable[[], None] | None:
    """Undefined bits of the results, as a function to call once the instruction has run."""
    name, _ = base_name(ins)
    if name.startswith("v_cmp"):
        return _to_mask(w, ins, _undefined_lanes(w, ins), [ins.parsed[0].reg])
    if name in ("v_readlane_b32", "v_readfirstlane_b32"):
        return _to_scalar(w, ins)
    if name == "v_writelane_b32":
        return _write_lane(w, ins)
    if name == "v_cndmask_b32":
        return _select(w, ins)
    sources = ins.parsed[1:] if not name.startswith(("v_swap", "v_permlane")) else ins.parsed
    if name == "v_perm_b32" and ins.parsed[3].kind != "v":
        permuted = _permuted(w, ins)
        return lambda: _write(w, ins.parsed[0].reg, permuted)
    if _moves_only(name, ins, sources):
        return lambda: _run_on_poison(w, ins)
    if _BITWISE.match(name) and base_name(ins)[1] not in ("sdwa", "dpp"):
        bits = _bitwise(w, ins, name)
        return lambda: _write(w, ins.parsed[0].reg, bits)
    if _PACKED_WORDS.match(name):
        return _packed(w, ins)
    if _CARRIES.match(name) and base_name(ins)[1] not in ("sdwa", "dpp"):
        return _carry_up(w, ins)
    bad = _undefined_lanes(w, ins)
    full = np.where(bad, ALL, U32(0))
    scalars = [o.reg for o in ins.parsed[:2] if registers(o) & ins.writes and o.kind == "s"]
    marks = _to_mask(w, ins, bad, scalars) if scalars else None

    def after() -> None:
        for reg in ins.writes:
            if reg < S_BASE:
                _write(w, reg, full)
        if marks:
            marks()

    return after


def _packed(w: Group, ins: Instruction) -> Callable[[], None]:
    """Packed fp32: each result spoils by the words chosen for it."""
    full = []
    for words in packed_words(ins):
        bad = np.zeros(w.lanes, bool)
        for reg in words & w.undef:
            part = Operand("s", reg - S_BASE) if reg >= S_BASE else Operand("v", reg)
            bits = _source_poison(w, part)
            bad |= False if bits is None else bits != 0
        full.append(np.where(bad, ALL, U32(0)))

    def after() -> None:
        for word in range(2):
            _write(w, ins.parsed[0].reg + word, full[word])

    return after


def _carry_up(w: Group, ins: Instruction) -> Callable[[], None]:
    """Sums and products: an undefined bit spoils itself and the bits above it."""
    d = ins.parsed[0]
    total = np.zeros(w.lanes, np.uint64)
    for operand in (o for o in ins.parsed[1:] if not registers(o) <= ins.writes or o.kind == "v"):
        for word in range(min(operand.count, 2)):
            part = Operand(operand.kind, operand.reg + word) if operand.kind in "vs" else operand
            bits = _source_poison(w, part)
            if bits is not None:
                total |= bits.astype(np.uint64) << np.uint64(32 * word)
    total |= ~total + np.uint64(1)  # the lowest set bit and everything above
    scalars = [o.reg for o in ins.parsed[1:2] if o.kind == "s" and registers(o) <= ins.writes]
    marks = _to_mask(w, ins, total != 0, scalars) if scalars else None

    def after() -> None:
        for word in range(d.count):
            _write(w, d.reg + word, (total >> np.uint64(32 * word)).astype(U32))
        if marks:
            marks()

    return after


def _moves_only(name: str, ins: Instruction, sources: list[Operand]) -> bool:
    """Whether the instruction treats its data as bits to carry, so that it can be run on the undefined bits."""
    if _MOVES.match(name):
        return all(o.kind == "v" for o in sources)
    if _SHIFTS.match(name):
        return sources[0].kind != "v" and sources[1].kind == "v" and base_name(ins)[1] != "sdwa"
    return name == "v_alignbit_b32" and sources[2].kind != "v" and sources[0].kind == sources[1].kind == "v"


def _permuted(w: Group, ins: Instruction) -> Array:
    """v_perm_b32 by a known selector: undefined bytes move like the bytes; constants are defined."""
    zero = np.zeros(w.lanes, U32)
    a, b = (p if (p := _source_poison(w, o)) is not None else zero for o in ins.parsed[1:3])
    if _source_poison(w, ins.parsed[3]) is not None:
        return np.full(w.lanes, ALL)
    selector = np.broadcast_to(_value(w, ins.parsed[3]), w.lanes)
    for k in range(4):
        constant = (selector >> U32(8 * k)) & U32(255) > 11
        selector = np.where(constant, selector & U32(~(255 << 8 * k) & M32) | U32(12 << 8 * k), selector)
    return np.broadcast_to(permute(a, b, selector), w.lanes)


def _run_on_poison(w: Group, ins: Instruction) -> None:
    assert w.poison is not None
    w.show(w.poison)
    try:
        ins.run(w)
    finally:
        w.show(w.values)


def _bitwise(w: Group, ins: Instruction, name: str) -> Array:
    operands = ins.parsed[1:]
    bits = [p if (p := _source_poison(w, o)) is not None else np.zeros(w.lanes, U32) for o in operands]
    if name.startswith("v_and"):
        a, b = (_value(w, o) for o in operands[:2])
        out = (bits[0] | bits[1]) & (a | bits[0]) & (b | bits[1])
        return out | bits[2] if name.startswith("v_and_or") else out
    if name.startswith("v_or_"):
        a, b = (_value(w, o) for o in operands[:2])
        return (bits[0] | bits[1]) & ~(a & ~bits[0]) & ~(b & ~bits[1])
    if name.startswith("v_lshl_or"):
        if bits[1].any():
            return np.where(bits[1] != 0, ALL, bits[2])
        return (bits[0] << (_value(w, operands[1]) & U32(31))) | bits[2]
    out = np.bitwise_or.reduce(np.stack(bits), 0)
    result: Array = out & U32(0xFFFF) if name.endswith("16") else out
    return result


def _value(w: Group, operand: Operand) -> Array:
    if operand.kind == "v":
        result: Array = w.values.bits[operand.reg]
        return result
    return np.asarray(w.row(operand.reg)) if operand.kind == "s" else np.asarray(U32(operand.value & M32))


def _select(w: Group, ins: Instruction) -> Callable[[], None]:
    chooser = ins.parsed[3].reg if len(ins.parsed) > 3 else VCC
    zero = np.zeros(w.lanes, U32)
    a, b = (p if (p := _source_poison(w, o)) is not None else zero for o in ins.parsed[1:3])
    bits = np.where(w.lane_mask(chooser), b, a)
    if not w.undef.isdisjoint((S_BASE + chooser, S_BASE + chooser + 1)):
        bits = np.where(_mask_lanes(w, chooser), ALL, bits)
    return lambda: _write(w, ins.parsed[0].reg, bits)


def _to_mask(w: Group, ins: Instruction, bad: Array, regs: list[int]) -> Callable[[], None]:
    masks = masks_of(bad & w.mask_array)
    bits = masks if isinstance(masks, int) else int(np.bitwise_or.reduce(np.array(masks, np.uint64)))
    if bits and ins.op.startswith("v_cmpx"):
        raise Finding("uninitialised", "an undefined value reaches EXEC", int(np.flatnonzero(bad)[0]) + w.lane0)

    def after() -> None:
        for reg in regs:
            scalar_taint.mark(w, reg, bits & M32)
            scalar_taint.mark(w, reg + 1, bits >> 32)

    return after


def _to_scalar(w: Group, ins: Instruction) -> Callable[[], None]:
    source, d = ins.parsed[1], ins.parsed[0].reg
    bits = 0
    if not registers(source).isdisjoint(w.undef):
        if source.kind == "v":
            w.show(w.poison or w.values)
            kept, saved = w.S[d], dict(w.masks)
            try:
                ins.run(w)
            finally:
                w.show(w.values)
            moved = w.s32(d)
            bits = moved if isinstance(moved, int) else int(np.bitwise_or.reduce(np.array(moved)))
            w.S[d], w.masks, w.SV[d] = kept, saved, None
        else:
            bits = w.undef_bits.get(source.reg, M32)
    return lambda: scalar_taint.mark(w, d, bits)


def _write_lane(w: Group, ins: Instruction) -> Callable[[], None]:
    source = ins.parsed[1]
    bits = w.undef_bits.get(source.reg, M32) if registers(source) & w.undef else 0
    lanes = chosen_lanes(w, read32(ins.parsed[2])(w))

    def after() -> None:
        _poison(w, ins.parsed[0].reg)[lanes] = bits

    return after


def _matrix(w: Group, ins: Instruction) -> Callable[[], None]:
    """An undefined element of A spoils its row of the result, one of B its column."""
    shape = shape_of(ins)
    spoiled: list[Array] = []
    for position, element in ((0, shape.a), (1, shape.b)):
        reg = ins.parsed[1 + position].reg
        block = w.poison.plane[reg : reg + shape.per_lane * BITS[element] // 32] if w.poison else w.V[:0]
        bad = np.asarray(block.any(0))
        if shape.scaled:
            scale = _source_poison(w, ins.parsed[4 + position])
            bad = bad if scale is None else bad | (scale != 0)
        spoiled.append(np.asarray(bad.reshape(w.count, shape.groups, shape.dim).any(1)))
    rows, columns = output_row(shape), np.arange(64) % shape.dim
    bad_out = spoiled[0][:, rows] | spoiled[1][:, columns][:, None, :]  # [waves, outputs, 64]
    full = np.where(bad_out, ALL, U32(0)).transpose(1, 0, 2).reshape(shape.outputs, -1)
    c, d = ins.parsed[3], ins.parsed[0].reg
    if c.kind == "v" and w.poison:
        full = full | np.where(w.poison.plane[c.reg : c.reg + shape.outputs] != 0, ALL, U32(0))

    def after() -> None:
        if w.poison:
            w.poison.plane[d : d + shape.outputs] = full

    return after
