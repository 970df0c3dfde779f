"""Vector issue cycles of the sparse decode for one key more: ours and the installed vLLM's, dynamic and static."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from dsv4_rocm import arch
from dsv4_rocm.arch import GpuArch
from dsv4_rocm.model_spec import LayerKind
from dsv4_rocm.testing.bench import upstream
from dsv4_rocm.testing.bench.arguments import FLASH_TP1, Arguments, Rank, attention
from dsv4_rocm.testing.bench.cases import serving
from dsv4_rocm.testing.bench.main_loop import matrix_loops
from dsv4_rocm.testing.bench.recorder import Launched, launches
from dsv4_rocm.testing.bench.records import Record, counts, resources
from dsv4_rocm.testing.cdna.cost import SIMDS

ENTRIES = (128, 256)  # with 128 window keys: past the raises of the maximum, which come with the first keys
Run = Callable[[Arguments], Any]


@dataclass(frozen=True, slots=True)
class Marginal:
    """Clocks of a CU for one key more of 64 heads.

    Attributes:
        vector: vector ALU and transcendental.
        mfma: matrix.
        fixed: vector clocks without any key, if all keys cost the same.
    """

    vector: float
    mfma: float
    fixed: int


def one_cu(name: str) -> GpuArch:
    """The architecture with one CU: no plan splits keys to fill it."""
    return replace(arch.get(name), compute_units=1)


def marginal(few: Launched, many: Launched, keys: tuple[int, int], heads: int) -> Marginal:
    """From the counts of one kernel with two numbers of keys, for one token with `heads` heads."""
    more, scale = keys[1] - keys[0], 64 / heads / SIMDS
    vector = [launched.stats.valu_clocks + launched.stats.trans_clocks for launched in (few, many)]
    slope = (vector[1] - vector[0]) / more
    matrix = (many.stats.mfma_clocks - few.stats.mfma_clocks) / more
    return Marginal(slope * scale, matrix * scale, round((vector[0] - slope * keys[0]) / SIMDS))


def measure(run: Run, impl: str, name: str, rank: Rank = FLASH_TP1, remark: str | None = None) -> Record:
    """S1 of one implementation on one emulated architecture.

    Raises:
        Finding: the kernel does something the hardware would punish.
    """
    found = []
    for entries in ENTRIES:
        arguments = attention(rank, LayerKind.C4A, entries=entries)
        every = launches(name, partial(run, arguments), on=one_cu(name))
        found.append(max(every, key=lambda launched: launched.stats.mfma_clocks))  # not what ends splits
    window = arguments["window"].layout.window
    few, many = window + ENTRIES[0], window + ENTRIES[1]
    cost = marginal(found[0], found[1], (few, many), rank.heads)
    return Record(
        op="sparse_attention",
        impl=impl,
        arch=name,
        case=f"{rank.name}-c4a-decode-b1-marginal",
        how="emulated",
        **resources(found[1], name) | counts(found[1]),
        valu_cycles_per_key_64heads=round(cost.vector, 1),
        valu_cycles_per_key_static=_by_loops(found[0], found[1], name, many - few, rank.heads),
        valu_cycles_fixed=cost.fixed,
        remark=remark,
    )


def _by_loops(few: Launched, many: Launched, name: str, keys: int, heads: int) -> tuple[float, float]:
    """What the loops' instructions say: clocks of a turn, times the turns that so many keys more take."""
    loops = matrix_loops(many.text, many.name, name)
    turns = [many.executed[loop.head] - few.executed[loop.head] for loop in loops]
    scale = 64 / heads / SIMDS / keys
    low, high = (
        round(sum(loop.vector_clocks[k] * count for loop, count in zip(loops, turns, strict=True)) * scale, 1)
        for k in range(2)
    )
    return low, high


def ours(name: str) -> list[Record]:
    """S1 of every GPU implementation that serves the architecture."""
    found = serving("sparse_attention", name)
    return [measure(partial(_with_names, one.load()), one.name, name) for one in found]


def _with_names(function: Callable[..., Any], arguments: Arguments) -> Any:
    return function(**arguments)


def baseline(name: str) -> list[Record]:
    """S1 of the installed vLLM's kernel; nothing where it has none."""
    if upstream.source_file() is None:
        return []
    on = one_cu(name)
    with upstream.decode_launcher(on) as launcher:
        run = partial(upstream.decode, launcher, on=on)
        record = measure(run, upstream.label(), name, remark="launcher and kernels of the installed vLLM")
    return [replace(record, valu_cycles_fixed=None)]  # its window keys have a loop, and a cost, of their own
