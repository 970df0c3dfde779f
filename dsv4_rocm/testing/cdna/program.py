"""A decoded program: instructions with the functions that run them, cut into basic blocks; cached by its text."""

from __future__ import annotations

from collections import Counter, OrderedDict
from collections.abc import Callable
from dataclasses import dataclass

from dsv4_rocm.testing.cdna.assembly import Instruction, Run, parse, parse_line
from dsv4_rocm.testing.cdna.buffer_ops import compile_buffer
from dsv4_rocm.testing.cdna.checks import Checks
from dsv4_rocm.testing.cdna.cost import CostTable
from dsv4_rocm.testing.cdna.effects import annotate, fill_registers, is_load_to_lds
from dsv4_rocm.testing.cdna.errors import EmulationError
from dsv4_rocm.testing.cdna.lds_ops import compile_lds
from dsv4_rocm.testing.cdna.memory_ops import compile_memory, scalar_load
from dsv4_rocm.testing.cdna.mfma import compile_mfma
from dsv4_rocm.testing.cdna.mfma_scaled import compile_scaled
from dsv4_rocm.testing.cdna.operands import EXEC, SCC, VCC
from dsv4_rocm.testing.cdna.scalar_ops import compile_scalar
from dsv4_rocm.testing.cdna.scoreboard import Scoreboard, counters, wait_counts
from dsv4_rocm.testing.cdna.vector_ops import compile_vector
from dsv4_rocm.testing.cdna.waves import Group, Scalar

ARCHES = ("gfx942", "gfx950")
LDS_LIMIT = {"gfx942": 65536, "gfx950": 163840}
_ENDS = ("s_setvskip", "s_set_gpr_idx_on", "s_set_gpr_idx_off", "s_set_gpr_idx_mode", "s_set_gpr_idx_idx")
_MODULE = {
    "salu": "scalar_ops.py",
    "smem": "memory_ops.py",
    "valu": "vector_table.py (or half_table.py, packed_ops.py, convert_ops.py)",
    "mfma": "mfma.py",
    "lds": "lds_ops.py",
    "buffer": "buffer_ops.py",
}


@dataclass(eq=False)
class Block:
    """Instructions `start` .. `stop`, entered at the first and left after the last."""

    start: int
    stop: int
    body: list[Instruction]
    last: Instruction | None  # a branch, barrier or end; None where the block falls through
    touch: frozenset[int]
    target: int | None = None
    condition: Callable[[Group], Scalar] | None = None


def _raise(message: str) -> Run:
    def run(w: Group) -> None:
        raise EmulationError(message)

    return run


def _compile(ins: Instruction, arch: str) -> Run:
    family = ins.family
    if family in ("wait", "cache"):
        return lambda w: None
    if family == "salu":
        return compile_scalar(ins)
    if family == "smem":
        if not ins.op.startswith("s_load_dword"):
            raise EmulationError("unknown scalar memory instruction")
        return scalar_load(ins)
    if family == "valu":
        return compile_vector(ins, arch)
    if family == "mfma":
        return (compile_scaled if "_scale_" in ins.op else compile_mfma)(ins, arch)
    if family == "lds":
        return compile_lds(ins)
    if family == "buffer":
        return compile_buffer(ins)
    if family in ("global", "flat", "scratch"):
        return compile_memory(ins)
    raise EmulationError("unknown instruction")


def decode(ins: Instruction, arch: str) -> None:
    """Fill in what an instruction touches and how it runs; an unknown one raises when it is reached."""
    try:
        annotate(ins)
        if ins.family != "branch":
            ins.run = _compile(ins, arch)
    except (EmulationError, LookupError, ValueError, AttributeError) as error:
        place = _MODULE.get(ins.family, "memory_ops.py")
        reason = str(error) if isinstance(error, EmulationError) else f"{type(error).__name__}: {error}"
        ins.problem = f"{ins.op}: {reason}, line {ins.where}; to add it: dsv4_rocm/testing/cdna/{place} and a test"
        ins.run = _raise(ins.problem)


def _condition(op: str) -> Callable[[Group], Scalar] | None:
    if op == "s_branch":
        return None
    wanted = int(op[-1] == "1") if "scc" in op else int(op.endswith("nz"))
    if "scc" in op:
        return lambda w: w.each(lambda s: int(s == wanted), w.S[SCC])
    if "vcc" in op:
        return lambda w: w.each(lambda v: int((v != 0) == bool(wanted)), w.s64(VCC))
    return lambda w: w.each(lambda v: int((v != 0) == bool(wanted)), w.s64(EXEC))


class Program:
    """The decoded code of one kernel on one architecture."""

    def __init__(self, text: str, kernel: str | None, arch: str, checks: Checks) -> None:
        parsed = parse(text, kernel)
        if not parsed.instructions:
            raise EmulationError(f"no code found for kernel {kernel!r}; labels: {', '.join(list(parsed.labels)[:8])}")
        self.arch, self.kernel = arch, kernel
        self.instructions, self.labels, self.descriptor = parsed.instructions, parsed.labels, parsed.descriptor
        for ins in self.instructions:
            decode(ins, arch)
        vector = [r for ins in self.instructions for r in ins.touch if r < 512]
        indexed = any(ins.op.startswith("s_set_gpr_idx") for ins in self.instructions)
        self.registers = 512 if indexed else max(vector, default=0) + 1
        self.scoreboard = Scoreboard(self.instructions, arch, checks)
        self.scalars = frozenset(r for ins in self.instructions for r in ins.touch if r >= 512)
        self.costs = CostTable(self.instructions)
        self.conflicts: dict[int, float] = {}  # LDS bank conflicts, from the first execution of an instruction
        self.has_transfers = any(is_load_to_lds(ins) for ins in self.instructions)
        if self.has_transfers:
            self._follow_transfers()
        self.blocks = self._cut()
        self._moved: dict[tuple[int, int], Instruction] = {}

    def problems(self) -> Counter[str]:
        """Mnemonics that cannot be run."""
        return Counter(ins.op for ins in self.instructions if ins.problem)

    def _target(self, ins: Instruction) -> int:
        name = ins.operands[0]
        if name in self.labels:
            return self.labels[name]
        try:
            return ins.index + 1 + int(name, 0)
        except ValueError:
            raise EmulationError(f"branch to unknown label {name!r} at {ins.where}") from None

    def _cut(self) -> dict[int, Block]:
        count = len(self.instructions)
        leaders = {0, *(k for k in self.labels.values() if k < count)}
        for ins in self.instructions:
            if ins.family == "branch" or ins.op in _ENDS:
                leaders.add(ins.index + 1)
                if ins.op.startswith(("s_branch", "s_cbranch")):
                    leaders.add(self._target(ins))
        starts = sorted(k for k in leaders if k < count)
        return {a: self._block(a, b) for a, b in zip(starts, [*starts[1:], count], strict=True)}

    def _block(self, start: int, stop: int) -> Block:
        body = self.instructions[start:stop]
        last = body[-1] if body[-1].family == "branch" else None
        touch: frozenset[int] = frozenset().union(*(ins.touch for ins in body))
        block = Block(start, stop, body[:-1] if last else body, last, touch)
        if last and last.op.startswith(("s_branch", "s_cbranch")):
            block.target, block.condition = self._target(last), _condition(last.op)
        return block

    def _follow_transfers(self) -> None:
        """Tell the workgroup about every access vmcnt counts, so that loads to LDS land when they are waited for."""
        for ins in self.instructions:
            if counters(ins)[0]:
                ins.run = _counted(ins.run)
            elif ins.op == "s_waitcnt" and "vmcnt" in (limits := wait_counts(ins)):
                ins.run = _waited(limits["vmcnt"])

    def moved(self, ins: Instruction, mode: int) -> Instruction:
        """The instruction with register numbers moved by an s_set_gpr_idx mode (M0 bits 0-7 and 12-15)."""
        key = (ins.index, mode)
        if key not in self._moved:
            out = parse_line(ins.text, ins.index, ins.source)
            assert out is not None
            annotate(out)
            offset, which = mode & 0xFF, mode >> 12
            for position, operand in enumerate(out.parsed[:4]):
                bit = 8 if position == 0 else 1 << (position - 1)
                if operand.kind == "v" and which & bit:
                    operand.reg += offset
            fill_registers(out)
            out.run = _compile(out, self.arch)
            self._moved[key] = out
        return self._moved[key]


def _counted(run: Run) -> Run:
    def counted(w: Group) -> object:
        result = run(w)
        w.wg.transfers.issued(w)
        return result

    return counted


def _waited(limit: int) -> Run:
    return lambda w: w.wg.transfers.waited(w, limit)


_CACHE: OrderedDict[tuple[str, str | None, str, Checks], Program] = OrderedDict()
_CACHE_SIZE = 64


def load(text: str, kernel: str | None, arch: str, checks: Checks) -> Program:
    """Decode a program, or take it from the cache."""
    key = (text, kernel, arch, checks)
    found = _CACHE.get(key)
    if found is None:
        found = _CACHE[key] = Program(text, kernel, arch, checks)
        while len(_CACHE) > _CACHE_SIZE:
            _CACHE.popitem(last=False)
    _CACHE.move_to_end(key)
    return found
