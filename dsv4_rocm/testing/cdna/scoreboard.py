"""Waits and hazards of a wave as a state machine over basic blocks; every (block, state) is worked out once.

What is pending depends on the instructions a wave executed, not on its data, so states are shared by all waves,
workgroups and launches of a program.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from dsv4_rocm.testing.cdna import hazards
from dsv4_rocm.testing.cdna.assembly import Instruction
from dsv4_rocm.testing.cdna.checks import Checks
from dsv4_rocm.testing.cdna.effects import registers, returns_value
from dsv4_rocm.testing.cdna.errors import Finding

VM_MAX = 63
_COUNTER = re.compile(r"(vmcnt|lgkmcnt|expcnt)\((\d+)\)")


@dataclass(frozen=True)
class State:
    """Instruction indices of pending operations, oldest first, and of recent hazard sources with their age."""

    vector: tuple[int, ...] = ()  # counted by vmcnt
    local: tuple[int, ...] = ()  # counted by lgkmcnt
    recent: tuple[tuple[int, int], ...] = ()


def wait_counts(ins: Instruction) -> dict[str, int]:
    """Limits an s_waitcnt sets; a counter it leaves alone is absent. expcnt counts nothing on these architectures."""
    text = " ".join(ins.operands)
    found = {name: int(value) for name, value in _COUNTER.findall(text)}
    if found or not text:
        return found
    number = int(text, 0)
    vm = number & 15 | (number >> 14 & 3) << 4
    out = {"vmcnt": vm} if vm < VM_MAX else {}
    lgkm = number >> 8 & 15
    return {**out, "lgkmcnt": lgkm} if lgkm < 15 else out


def counters(ins: Instruction) -> tuple[bool, bool]:
    """Whether an instruction counts in vmcnt and in lgkmcnt."""
    family = ins.family
    vector = family in ("global", "buffer", "scratch", "flat") or ins.op.startswith("buffer_wbl2")
    return vector, family in ("lds", "smem", "flat")


def results(ins: Instruction) -> frozenset[int]:
    """Registers a pending operation will still write."""
    if "_store_" in ins.op or ("_atomic_" in ins.op and not returns_value(ins)):
        return frozenset()
    return ins.writes


class Scoreboard:
    """State machine of one program."""

    def __init__(self, instructions: list[Instruction], arch: str, checks: Checks | None = None) -> None:
        self.instructions, self.arch = instructions, arch
        checks = checks or Checks()
        self.waits, self.barriers, self.hazard = checks.waits, checks.barriers, checks.hazards
        self.states: list[State] = [State()]
        self.ids: dict[State, int] = {State(): 0}
        self.memo: dict[tuple[int, int, int], int] = {}
        # register sets as bit masks: the common case is that nothing pending is touched
        self.touched = [sum(1 << r for r in ins.touch) for ins in instructions]
        self.written = [sum(1 << r for r in results(ins)) for ins in instructions]
        self.needs: dict[tuple[int, int], hazards.Need] = {}

    def run(self, start: int, stop: int, state: int) -> int:
        """State after instructions `start` .. `stop`; raises a "wait" or "hazard" finding."""
        key = (start, stop, state)
        found = self.memo.get(key)
        if found is None:
            now = self._walk(start, stop, self.states[state])
            found = self.ids.setdefault(now, len(self.states))
            if found == len(self.states):
                self.states.append(now)
            self.memo[key] = found
        return found

    def _walk(self, start: int, stop: int, state: State) -> State:
        vector, local, recent = state.vector, state.local, state.recent
        pending = self._union(vector, local)
        for index in range(start, stop):
            ins = self.instructions[index]
            if self.hazard:
                recent = self._hazards(recent, ins)
            if not self.waits:
                continue
            if pending & self.touched[index] or ins.op == "s_barrier":
                self._pending(vector, local, ins)
            if ins.op == "s_waitcnt":
                limits = wait_counts(ins)
                vector = self._retire(vector, limits.get("vmcnt"), "flat")
                local = self._retire(local, limits.get("lgkmcnt"), "smem")
                pending = self._union(vector, local)
            in_vector, in_local = counters(ins)
            if in_vector:
                vector = (*vector, index)[-VM_MAX:]
            if in_local:
                local = (*local, index)
            if in_vector or in_local:
                pending |= self.written[index]
        return State(vector, local, recent)

    def _union(self, *queues: tuple[int, ...]) -> int:
        out = 0
        for queue in queues:
            for index in queue:
                out |= self.written[index]
        return out

    def _retire(self, pending: tuple[int, ...], limit: int | None, unordered: str) -> tuple[int, ...]:
        if limit is None or limit >= len(pending):
            return pending
        if limit == 0:
            return ()
        # scalar loads and flat accesses return out of order: nothing is known to be back before the count is zero
        families = {self.instructions[k].family for k in pending}
        if families & {unordered, "flat"}:
            return pending
        return pending[len(pending) - limit :]

    def _pending(self, vector: tuple[int, ...], local: tuple[int, ...], ins: Instruction) -> None:
        for queue, counter in ((vector, "vmcnt"), (local, "lgkmcnt")):
            for index in queue:
                earlier = self.instructions[index]
                if (
                    self.barriers
                    and ins.op == "s_barrier"
                    and earlier.op.startswith(("ds_write", "ds_add", "ds_max", "ds_min", "ds_or"))
                ):
                    text = f"s_barrier while an LDS write has not been waited for ({counter}): {earlier.where}"
                    raise Finding("wait", text, at=ins.where)
                shared = results(earlier) & ins.touch
                if shared and not self._in_order(earlier, ins, shared):
                    text = f"{self._names(shared)} used before its load was waited for ({counter}): {earlier.where}"
                    raise Finding("wait", text, at=ins.where)

    def _in_order(self, earlier: Instruction, ins: Instruction, shared: frozenset[int]) -> bool:
        """Loads of one counter return in order, so a second load may overwrite what a first has not delivered."""
        ordered = counters(earlier) == counters(ins) and earlier.family not in ("smem", "flat")
        return ordered and shared <= ins.writes and ins.family != "smem" and not shared & self._addresses(ins)

    @staticmethod
    def _addresses(ins: Instruction) -> frozenset[int]:
        return frozenset().union(*(registers(o) for o in ins.parsed[1:]))

    @staticmethod
    def _names(ids: frozenset[int]) -> str:
        first = min(ids)
        return f"v{first}" if first < 256 else f"a{first - 256}" if first < 512 else f"s{first - 512}"

    def _superseded(self, index: int, newer: tuple[tuple[int, int], ...], ins: Instruction) -> bool:
        """Whether later results lie over everything of an earlier one that `ins` touches: then those decide."""
        shared = self.instructions[index].writes & ins.touch
        later = frozenset().union(*(self.instructions[k].writes for k, _ in newer))
        return bool(shared) and shared <= later

    def _hazards(self, recent: tuple[tuple[int, int], ...], ins: Instruction) -> tuple[tuple[int, int], ...]:
        for place, (index, age) in enumerate(recent):
            key = (index, ins.index)
            need = self.needs.get(key)
            if need is None:
                need = self.needs[key] = hazards.needed(self.instructions[index], ins, self.arch)
            if need[0] > age and not self._superseded(index, recent[place + 1 :], ins):
                text = f"{need[1]}: {need[0]} wait states needed, {age} given, after {self.instructions[index].where}"
                raise Finding("hazard", text, at=ins.where)
        states = hazards.wait_states(ins)
        kept = [(k, age + states) for k, age in recent if age + states < hazards.horizon(self.instructions[k])]
        if hazards.horizon(ins):
            kept.append((ins.index, 0))
        return tuple(kept)
