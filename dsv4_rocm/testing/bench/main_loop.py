"""The loops of a kernel that do its matrix work, found in the machine code: what one turn issues, and loads."""

import re
from collections.abc import Callable
from dataclasses import dataclass

from dsv4_rocm.testing.cdna.assembly import Instruction
from dsv4_rocm.testing.cdna.checks import Checks
from dsv4_rocm.testing.cdna.cost import clocks
from dsv4_rocm.testing.cdna.program import Block, Program, load


@dataclass(frozen=True, slots=True)
class Loop:
    """One turn of one wave.

    Attributes:
        head: the instruction that a turn begins with, by its number in the text.
        vector_clocks: issue clocks of vector ALU and transcendental instructions, (on the cheapest way through the
            body, of all its blocks). Code that is seldom run, such as raising a maximum, is in the second only.
        mfma_clocks: issue clocks of its matrix instructions.
        wide_loads: loads of 16 bytes a lane from global memory.
        byte_loads: loads of one byte a lane.
    """

    head: int
    vector_clocks: tuple[int, int]
    mfma_clocks: int
    wide_loads: int
    byte_loads: int


def matrix_loops(text: str, kernel: str, arch: str) -> list[Loop]:
    """The innermost loops that have matrix instructions: one, or one for each role that waves have.

    Args:
        text: assembly.
        kernel: its name.
        arch: "gfx942" or "gfx950".
    """
    program = load(text, kernel, arch, Checks.of("none"))
    after = {start: _successors(block) for start, block in program.blocks.items()}
    found = [_loop(program, after, head, body) for head, body in _natural_loops(after).items()]
    return [loop for loop in found if loop.mfma_clocks]


def main_loop(text: str, kernel: str, arch: str) -> Loop | None:
    """The one with the most matrix clocks (then the most vector clocks), or None where there is none."""
    found = matrix_loops(text, kernel, arch)
    return max(found, key=lambda loop: (loop.mfma_clocks, loop.vector_clocks[1]), default=None)


def _successors(block: Block) -> list[int]:
    last = block.last
    if last is not None and last.op == "s_endpgm":
        return []
    if block.target is None:
        return [block.stop]
    return [block.target] if block.condition is None else [block.target, block.stop]


def _natural_loops(after: dict[int, list[int]]) -> dict[int, set[int]]:
    """Blocks of each loop without those of loops inside it, by header."""
    dominators = _dominators(after)
    before: dict[int, list[int]] = {place: [] for place in after}
    for place, places in after.items():
        for successor in places:
            before.setdefault(successor, []).append(place)
    bodies: dict[int, set[int]] = {}
    for place in dominators:
        for head in after[place]:
            if head in dominators[place]:
                body, work = bodies.setdefault(head, {head}), [place]
                while work:
                    block = work.pop()
                    if block not in body:
                        body.add(block)
                        work += [earlier for earlier in before[block] if earlier in dominators]
    return {head: body for head, body in bodies.items() if not any(other < body for other in bodies.values())}


def _dominators(after: dict[int, list[int]]) -> dict[int, set[int]]:
    """Blocks that every way to a block passes; only blocks that are reached."""
    entry = min(after)
    reached, work = {entry}, [entry]
    while work:
        for successor in after[work.pop()]:
            if successor in after and successor not in reached:
                reached.add(successor)
                work.append(successor)
    dominators = {place: set(reached) for place in reached}
    dominators[entry] = {entry}
    changed = True
    while changed:
        changed = False
        for place in sorted(reached - {entry}):
            ways = [dominators[earlier] for earlier in reached if place in after[earlier]]
            found = set.intersection(*ways) | {place}
            changed |= found != dominators[place]
            dominators[place] = found
    return dominators


def _loop(program: Program, after: dict[int, list[int]], head: int, body: set[int]) -> Loop:
    def instructions(place: int) -> list[Instruction]:
        return program.instructions[place : program.blocks[place].stop]

    def vector(place: int) -> int:
        return sum(clocks(ins) for ins in instructions(place) if ins.family == "valu")

    everything = [ins for place in body for ins in instructions(place)]
    loads = [ins.op for ins in everything if re.match(r"(global|buffer|flat)_load", ins.op)]
    return Loop(
        head=head,
        vector_clocks=(_cheapest_turn(after, head, body, vector), sum(map(vector, body))),
        mfma_clocks=sum(clocks(ins) for ins in everything if ins.family == "mfma"),
        wide_loads=sum(op.endswith("dwordx4") for op in loads),
        byte_loads=sum("byte" in op for op in loads),
    )


def _cheapest_turn(after: dict[int, list[int]], head: int, body: set[int], cost: Callable[[int], int]) -> int:
    """Least cost from the header back to it; costs are not negative, so relaxing until nothing changes ends."""
    best = {head: cost(head)}
    work = [head]
    while work:
        place = work.pop()
        for successor in after[place]:
            if successor in body and successor != head:
                reached = best[place] + cost(successor)
                if reached < best.get(successor, reached + 1):
                    best[successor] = reached
                    work.append(successor)
    return min(best[place] for place in best if head in after[place])
