"""Runs the workgroups of a launch: waves in step where they can, one after another where a schedule asks for it."""

from __future__ import annotations

import random
import time
from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np

from dsv4_rocm.testing.cdna import taint
from dsv4_rocm.testing.cdna.assembly import Instruction
from dsv4_rocm.testing.cdna.checks import Checks
from dsv4_rocm.testing.cdna.cost import Stats
from dsv4_rocm.testing.cdna.errors import EmulationError, Finding, located
from dsv4_rocm.testing.cdna.formats import M64, U8
from dsv4_rocm.testing.cdna.memory import Arena
from dsv4_rocm.testing.cdna.operands import EXEC, SCC
from dsv4_rocm.testing.cdna.program import LDS_LIMIT, Block, Program
from dsv4_rocm.testing.cdna.traffic import Traffic
from dsv4_rocm.testing.cdna.waves import S_BASE, Group
from dsv4_rocm.testing.cdna.workgroup import Workgroup

MAX_STEPS = 200_000_000
PATIENCE = 20_000  # blocks one group may run while others stand ready


@dataclass
class Launch:
    """One kernel launch: where its arguments lie and how large it is."""

    program: Program
    arena: Arena
    grid: tuple[int, int, int]
    block: tuple[int, int, int]
    kernarg: bytes
    lds_bytes: int
    checks: Checks
    schedule: str = "lockstep"
    max_steps: int = MAX_STEPS
    traffic: bool = False
    counts: list[int] = field(default_factory=list)


class Schedule:
    """Order of the waves between barriers: "lockstep", "forward", "reverse" or "random:SEED"."""

    def __init__(self, text: str) -> None:
        self.kind, _, seed = text.partition(":")
        if self.kind not in ("lockstep", "forward", "reverse", "random"):
            raise ValueError(f"schedule must be lockstep, forward, reverse or random:SEED, got {text!r}")
        self.random = random.Random(int(seed or 0))

    @property
    def in_step(self) -> bool:
        return self.kind == "lockstep"

    def order(self, groups: list[Group]) -> list[Group]:
        groups = sorted(groups, key=lambda g: g.first, reverse=self.kind == "reverse")
        if self.kind == "random":
            self.random.shuffle(groups)
        return groups


class Executor:
    """Runs one launch."""

    def __init__(self, launch: Launch) -> None:
        self.launch, self.program = launch, launch.program
        self.schedule = Schedule(launch.schedule)
        limit = LDS_LIMIT[self.program.arch]
        if launch.lds_bytes > limit:
            raise EmulationError(f"{launch.lds_bytes} bytes of LDS asked for, {self.program.arch} has {limit}")
        self.threads = launch.block[0] * launch.block[1] * launch.block[2]
        self.waves = -(-self.threads // 64)
        if not 1 <= self.waves <= 16:
            raise EmulationError(f"a workgroup has 1 to 1024 threads, got {launch.block}")
        self.block_counts: dict[int, int] = {}
        self.steps = 0
        self.place = ""

    def run(self) -> Stats:
        launch, stats, start = self.launch, Stats(), time.perf_counter()
        scratch = self.program.descriptor.get("private_segment_fixed_size", 0)
        data = np.frombuffer(launch.kernarg, U8)
        kernarg = launch.arena.add(len(data), data)
        wg = Workgroup(self.program.registers, self.waves, launch.arena, launch.lds_bytes, scratch, launch.checks)
        wg.conflicts = self.program.conflicts
        wg.traffic = traffic = Traffic(len(launch.arena.data)) if launch.traffic else None
        first = True
        with np.errstate(all="ignore"):
            for z in range(launch.grid[2]):
                for y in range(launch.grid[1]):
                    for x in range(launch.grid[0]):
                        if not first:
                            wg.reset()
                        first = False
                        self.place = f"workgroup ({x}, {y}, {z})"
                        self._workgroup(wg, (x, y, z), kernarg)
                        if traffic:
                            traffic.end_workgroup()
        counts = [0] * len(self.program.instructions)
        for begin, count in self.block_counts.items():
            for index in range(begin, self.program.blocks[begin].stop):
                counts[index] += count
        launch.counts = counts
        stats.add(self.program.costs, counts, self.program.conflicts)
        if traffic:
            stats.moved_bytes, stats.requested_bytes = traffic.moved, traffic.requested
        stats.seconds, stats.launches = time.perf_counter() - start, 1
        return stats

    def _first_group(self, wg: Workgroup, ids: tuple[int, int, int], kernarg: int) -> Group:
        g = Group(wg, 0, self.waves)
        defined = self._scalars(g, ids, kernarg)
        if wg.undefined is not None:
            g.undef = set(range(self.program.registers)) | set(self.program.scalars)
            g.undef -= {S_BASE + r for r in (*defined, EXEC, EXEC + 1)}
        self._thread_ids(g)
        full, rest = divmod(self.threads, 64)
        g.set_exec(M64 if not rest else [M64] * full + [(1 << rest) - 1] if full else (1 << rest) - 1)
        return g

    def _scalars(self, g: Group, ids: tuple[int, int, int], kernarg: int) -> list[int]:
        """Set up the user and system SGPRs the kernel descriptor asks for; returns those that were set."""
        kd, at, defined = self.program.descriptor, 0, list[int]()

        def put(value: int) -> None:
            g.set32(at, value)
            defined.append(at)

        for name, size in (
            ("private_segment_buffer", 4),
            ("dispatch_ptr", 2),
            ("queue_ptr", 2),
            ("kernarg_segment_ptr", 2),
            ("dispatch_id", 2),
            ("flat_scratch_init", 2),
            ("private_segment_size", 1),
        ):
            if kd.get(f"user_sgpr_{name}"):
                if name == "kernarg_segment_ptr":
                    g.set64(at, kernarg)
                    defined += [at, at + 1]
                at += size
        length, offset = kd.get("user_sgpr_kernarg_preload_length", 0), kd.get("user_sgpr_kernarg_preload_offset", 0)
        for k in range(length):
            start = 4 * (offset + k)
            put(int.from_bytes(self.launch.kernarg[start : start + 4], "little"))
            at += 1
        at = kd.get("user_sgpr_count", at)
        for name, value in zip("xyz", ids, strict=True):
            if kd.get(f"system_sgpr_workgroup_id_{name}"):
                put(value)
                at += 1
        return defined

    def _thread_ids(self, g: Group) -> None:
        """v0 holds the thread ids, 10 bits a dimension (packed work-item ids of these architectures)."""
        x, y, _ = self.launch.block
        flat = g.lane_ids
        g.R[0][...] = flat % x | flat // x % y << 10 | flat // (x * y) << 20
        if g.poison is not None:
            g.poison.bits[0][...] = 0
            g.undef.discard(0)

    def _workgroup(self, wg: Workgroup, ids: tuple[int, int, int], kernarg: int) -> None:
        first = self._first_group(wg, ids, kernarg)
        in_step = self.schedule.in_step
        ready = [first] if in_step else self.schedule.order([first.piece(k, 1) for k in range(self.waves)])
        waiting: list[Group] = []
        patience = PATIENCE
        while ready or waiting:
            if not ready:
                self._release(wg)
                ready, waiting = self._regroup(waiting) if in_step else self.schedule.order(waiting), []
            place = min(range(len(ready)), key=lambda k: ready[k].pc) if in_step and len(ready) > 1 else 0
            if patience <= 0:
                place, patience = len(ready) - 1, PATIENCE
            patience = patience - 1 if len(ready) > 1 else PATIENCE
            g = ready.pop(place)
            after = self._run_block(g)
            for piece in after:
                if piece.pc < 0:
                    piece.pc = ~piece.pc
                    waiting.append(piece)
                else:
                    ready.insert(0, piece)
            if in_step and len(ready) > 1:
                ready = self._regroup(ready)
        self._release(wg)

    def _release(self, wg: Workgroup) -> None:
        try:
            wg.barrier()
        except EmulationError as error:
            raise located(error, self.place, "the next barrier or the end") from None

    def _regroup(self, groups: list[Group]) -> list[Group]:
        """Join neighbouring waves that stand at the same instruction in the same mode."""
        out: list[Group] = []
        for g in sorted(groups, key=lambda g: g.first):
            last = out[-1] if out else None
            if (
                last
                and last.pc == g.pc
                and last.first + last.count == g.first
                and last.skip_vector == g.skip_vector
                and last.fp8_saturate == g.fp8_saturate
            ):
                out[-1] = last.joined(g)
            else:
                out.append(g)
        return out

    def _run_block(self, g: Group) -> list[Group]:
        """Run one basic block. Groups at a barrier come back with their pc inverted, ended ones not at all."""
        block = self.program.blocks.get(g.pc)
        if block is None:
            raise EmulationError(f"{self.place}: execution ran past the end of the program")
        self.steps += (block.stop - block.start) * g.count
        if self.steps > self.launch.max_steps:
            raise EmulationError(f"{self.launch.max_steps} steps reached at {block.body or block.last} (endless loop?)")
        self.block_counts[block.start] = self.block_counts.get(block.start, 0) + g.count
        try:
            track = self.program.scoreboard.run
            g.track = g.each(lambda state: track(block.start, block.stop, state), g.track)
        except Finding as error:
            raise located(error, self._who(g), "") from None
        self._body(g, block)
        return self._leave(g, block)

    def _who(self, g: Group) -> str:
        waves = f"wave {g.first}" if g.count == 1 else f"waves {g.first}..{g.first + g.count - 1}"
        return f"{self.place} {waves}"

    def _body(self, g: Group, block: Block) -> None:
        ins: Instruction | None = None
        special = bool(g.skip_vector or g.index_mode)
        body = self._special(g, block) if special else iter(block.body)
        try:
            if not special and g.undef.isdisjoint(block.touch):
                for ins in body:
                    if ins.run(g) is True:  # undefined bits came in with a load
                        break
            for ins in body:
                if g.undef.isdisjoint(ins.touch):
                    ins.run(g)
                else:
                    taint.step(g, ins)
        except EmulationError as error:
            raise located(error, self._who(g), ins.where if ins else "") from None
        except (IndexError, ValueError, TypeError, OverflowError) as error:
            text = f"{type(error).__name__}: {error}"
            raise located(EmulationError(text), self._who(g), ins.where if ins else "") from error

    def _special(self, g: Group, block: Block) -> Iterator[Instruction]:
        """Blocks under s_setvskip (vector instructions do nothing) or s_set_gpr_idx (register numbers move)."""
        for ins in block.body:
            if g.skip_vector and ins.op.startswith(("v_", "ds_", "global_", "buffer_", "flat_", "scratch_")):
                continue
            if g.index_mode and ins.family == "valu":
                if not isinstance(g.index_mode, int):
                    raise EmulationError("s_set_gpr_idx with different values in the waves of a group is not modelled")
                yield self.program.moved(ins, g.index_mode & 0xFFFF)
            else:
                yield ins

    def _leave(self, g: Group, block: Block) -> list[Group]:
        last = block.last
        if last is None or last.op == "s_barrier":
            g.pc = block.stop if last is None else ~block.stop
            return [g]
        if last.op == "s_endpgm":
            return []
        assert block.target is not None
        if block.condition is None:
            g.pc = block.target
            return [g]
        if not g.undef.isdisjoint(last.reads):
            name = "SCC" if S_BASE + SCC in last.reads else "a lane mask"
            raise located(Finding("uninitialised", f"undefined {name} decides a branch"), self._who(g), last.where)
        taken = block.condition(g)
        if isinstance(taken, int):
            g.pc = block.target if taken else block.stop
            return [g]
        return self._divide(g, taken, block.target, block.stop)

    def _divide(self, g: Group, taken: list[int], target: int, following: int) -> list[Group]:
        out, start = [], 0
        for k in range(1, g.count + 1):
            if k == g.count or bool(taken[k]) != bool(taken[start]):
                piece = g.piece(g.first + start, k - start)
                piece.pc = target if taken[start] else following
                out.append(piece)
                start = k
        return out


def run(launch: Launch) -> Stats:
    """Execute a launch; returns its statistics and fills `launch.counts`."""
    return Executor(launch).run()
