"""Bytes of a decode step's attention over the least possible: by the launch plan, and counted on small shapes."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from dsv4_rocm import arch
from dsv4_rocm.arch import GpuArch
from dsv4_rocm.kernels.selection import Implementation
from dsv4_rocm.model_spec import HEAD_DIM, LayerKind
from dsv4_rocm.testing.bench.arguments import RANKS, Arguments, Rank, attention
from dsv4_rocm.testing.bench.cases import serving
from dsv4_rocm.testing.bench.recorder import Launched, launches
from dsv4_rocm.testing.bench.records import Record

BATCHES = (1, 8, 64)
VALUE = 2  # bytes of a bf16 query, result or partial result
SOFTMAX_STATE = 8  # bytes of a head's maximum and sum, which go with a partial result
ID = 4  # bytes of a selected entry's id


@dataclass(frozen=True, slots=True)
class Scaled:
    """A small decode step, on a chip with so few CUs that keys are split as on a real one."""

    requests: int
    entries: int
    compute_units: int

    def on(self, name: str) -> GpuArch:
        return replace(arch.get(name), compute_units=self.compute_units)


SCALED = (Scaled(1, 256, 304), Scaled(3, 160, 8))


def minimum(arguments: Arguments) -> int:
    """Keys of every token once, its query, its result."""
    tokens, heads, _ = arguments["query"].shape
    return int(tokens * (_keys(arguments) * _row_bytes(arguments) + 2 * heads * HEAD_DIM * VALUE))


def planned(arguments: Arguments, found: list[Launched]) -> int:
    """What the launches move if every workgroup reads its keys once and nothing is shared between workgroups.

    The first launch attends, on a grid of (tokens, blocks of heads, splits); a second one puts splits together.
    """
    tokens, heads, _ = arguments["query"].shape
    readers, blocks, splits = found[0].grid
    selected = arguments["selected"]
    ids = 0 if selected is None else readers * blocks * selected.shape[1] * ID
    keys = readers * blocks * _keys(arguments) * _row_bytes(arguments) + ids
    values = tokens * heads * HEAD_DIM * VALUE
    partial_results = tokens * heads * (HEAD_DIM * VALUE + SOFTMAX_STATE) * splits if splits > 1 else 0
    return int(keys + splits * values + 2 * partial_results + values)


def _keys(arguments: Arguments) -> int:
    entries, window = arguments["entries"], arguments["window"].layout.window
    if entries is None:
        return int(window)
    selected = arguments["selected"]
    if selected is not None:
        return int(window + selected.shape[1])
    return int(window + (arguments["batch"].positions[0] + 1) // entries.layout.tokens_per_row)


def _row_bytes(arguments: Arguments) -> int:
    return int(arguments["window"].layout.row_bytes)


def _call(implementation: Implementation, arguments: Arguments) -> Callable[[], Any]:
    return partial(implementation.load(), **arguments)


def full_shape(implementation: Implementation, name: str, rank: Rank, batch: int) -> Record:
    """The plan's bytes of a c4a layer at a batch of the real model."""
    arguments = attention(rank, LayerKind.C4A, requests=batch, entries=rank.spec.index_topk, fill=False)
    found = launches(name, _call(implementation, arguments), run=False)
    return Record(
        op="sparse_attention",
        impl=implementation.name,
        arch=name,
        case=f"{rank.name}-c4a-decode-b{batch}",
        how="launch plan",
        bytes_moved=planned(arguments, found),
        bytes_minimum=minimum(arguments),
        remark=f"grid {found[0].grid}, {len(found)} launches",
    )


def scaled_shape(implementation: Implementation, name: str, rank: Rank, scaled: Scaled) -> tuple[Record, int]:
    """Bytes counted by the emulator on a scaled-down shape, and what the plan says for it.

    Raises:
        Finding: a kernel does something the hardware would punish.
    """
    arguments = attention(rank, LayerKind.C4A, requests=scaled.requests, entries=scaled.entries)
    found = launches(name, _call(implementation, arguments), on=scaled.on(name))
    record = Record(
        op="sparse_attention",
        impl=implementation.name,
        arch=name,
        case=f"{rank.name}-c4a-decode-b{scaled.requests}-scaled",
        how="emulated",
        bytes_moved=sum(launched.stats.moved_bytes for launched in found),
        bytes_requested=sum(launched.stats.requested_bytes for launched in found),
        bytes_minimum=minimum(arguments),
        remark=f"{scaled.entries} entries, {scaled.compute_units} CUs, grid {found[0].grid}",
    )
    return record, planned(arguments, found)


def records(name: str) -> list[Record]:
    """S4 of every implementation on one architecture."""
    found = []
    for implementation in serving("sparse_attention", name):
        found += [full_shape(implementation, name, rank, batch) for rank in RANKS for batch in BATCHES]
        found += [scaled_shape(implementation, name, rank, SCALED[0])[0] for rank in RANKS]
    return found
