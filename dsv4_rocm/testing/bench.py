"""`make bench`: what every GPU kernel costs on emulated gfx942 and gfx950, as a table and as build/bench.json.

Registers, spills and code size are the compiler's; cycles and bytes are counted while the machine code runs on the
emulator. Nothing here is a time.
"""

import argparse
import json
import os
import re
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from rich.table import Table

from dsv4_rocm import arch
from dsv4_rocm.cache.layout import Encoding, entries_layout, index_layout, state_layout, swa_layout
from dsv4_rocm.cache.rows import write_rows
from dsv4_rocm.cache.specs import SERVED
from dsv4_rocm.kernels.rotary import rotary_frequencies
from dsv4_rocm.kernels.selection import implementations
from dsv4_rocm.model_spec import FLASH, HEAD_DIM, LayerKind
from dsv4_rocm.testing.cdna.cost import Stats
from dsv4_rocm.testing.cdna.device import Device
from dsv4_rocm.testing.cdna.kernel_info import KernelInfo
from dsv4_rocm.testing.paged import Cache, token_batch

ARCHES = ("gfx942", "gfx950")
REGISTERS_PER_SIMD = 512
WAVES_PER_SIMD = 8
REGISTER_GRANULE = 8
HEADS = 64


@dataclass(frozen=True, slots=True)
class Record:
    """One kernel of one case; None where a figure does not apply."""

    op: str
    impl: str
    arch: str
    case: str
    kernel: str
    vgpr: int
    agpr: int
    sgpr_spills: int
    vgpr_spills: int
    scratch_bytes: int
    lds_bytes: int
    code_bytes: int | None
    occupancy: int
    mfma_cycles: int
    valu_cycles: int
    valu_cycles_per_key_64heads: float | None
    bytes_moved: int
    bytes_minimum: int | None
    launches_per_layer: int | None


@dataclass(frozen=True, slots=True)
class Case:
    """Inputs of one op at a production shape.

    Attributes:
        op: name of the op.
        name: readable id.
        arguments: builds the op's arguments.
        keys: keys that all heads attend to, for cycles per key.
        bytes_minimum: bytes that have to move, counted once.
    """

    op: str
    name: str
    arguments: Callable[[], Sequence[Any]]
    keys: int | None = None
    bytes_minimum: int | None = None


class _Recorder(Device):
    """An emulated device that keeps what the compiler said about each kernel it ran."""

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self.kernels: list[tuple[KernelInfo, int, int | None, Stats]] = []

    def launch_text(
        self,
        text: str,
        info: KernelInfo,
        grid: tuple[int, int, int],
        block: tuple[int, int, int],
        args: Sequence[Any],
        lds_bytes: int,
        kinds: Sequence[str] = (),
    ) -> Stats:
        stats = super().launch_text(text, info, grid, block, args, lds_bytes, kinds)
        size = re.search(r"codeLenInByte = (\d+)", text)
        self.kernels.append((info, lds_bytes, int(size[1]) if size else None, stats))
        return stats


def _random(*shape: int, dtype: torch.dtype = torch.bfloat16) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(0)).to(dtype)


def _filled(layout: Any, rows: int, tokens: int) -> Cache:
    cache = Cache(layout, tokens=tokens)
    values = _random(rows, layout.channels, dtype=torch.float32)
    write_rows(layout, cache.pages, cache.rows(0, torch.arange(rows)), values)
    return cache


def _compress(kind: LayerKind, index: bool) -> Case:
    def arguments() -> Sequence[Any]:
        layout = index_layout(Encoding.FP8) if index else entries_layout(kind, Encoding.FP8)
        state = Cache(state_layout(kind, Encoding.FP8, index), tokens=kind.ratio * 2)
        width = kind.overlap * layout.channels
        rows = _random(kind.ratio * 2, 2 * width, dtype=torch.float32)
        positions = torch.arange(kind.ratio * 2)
        write_rows(state.layout, state.pages, state.rows(0, positions), rows)
        batch = token_batch((kind.ratio * 2 - 1, 1))
        values, gates = rows[-1:, :width].clone(), rows[-1:, width:].clone()
        ape, norm = _random(kind.ratio, width, dtype=torch.float32), _random(layout.channels)
        entries = Cache(layout, tokens=kind.ratio * 2)
        frequencies = rotary_frequencies(FLASH, kind)
        return values, gates, ape, norm, 1e-6, frequencies, batch, state.at(batch), entries.at(batch)

    rows_read = kind.overlap * kind.ratio
    width = 128 if index else HEAD_DIM
    name = f"flash-{'index' if index else kind.name.lower()}-decode-b1-closing"
    return Case("compress_insert", name, arguments, bytes_minimum=rows_read * width * 2 * 4)


def _query_insert() -> Sequence[Any]:
    batch = token_batch((1000, 8))
    window = Cache(swa_layout(Encoding.FP8), tokens=1088)
    frequencies = rotary_frequencies(FLASH, LayerKind.C4A)
    return _random(8, HEADS, 512), _random(8, 512), batch.positions, frequencies, 1e-6, window.at(batch)


def _index_query() -> Sequence[Any]:
    batch = token_batch((1000, 8))
    frequencies = rotary_frequencies(FLASH, LayerKind.C4A)
    weights = _random(8, HEADS, dtype=torch.float32)
    return _random(8, HEADS, 128), weights, batch.positions, frequencies, index_layout(Encoding.FP8)


def _inverse() -> Sequence[Any]:
    return _random(8, HEADS, 512), torch.arange(1000, 1008), rotary_frequencies(FLASH, LayerKind.C4A), FLASH.o_groups


def _decode(entries: int) -> Callable[[], Sequence[Any]]:
    def arguments() -> Sequence[Any]:
        batch = token_batch((4 * entries + 3, 1))
        window = _filled(swa_layout(Encoding.FP8), 4 * entries + 4, 4 * entries + 64)
        keys = _filled(entries_layout(LayerKind.C4A, Encoding.FP8), entries + 1, 4 * entries + 256)
        selected = torch.arange(entries, dtype=torch.int32)[None]
        sink = _random(HEADS, dtype=torch.float32)
        query = _random(1, HEADS, 512)
        return query, sink, 512**-0.5, batch, window.at(batch), keys.at(batch), selected

    return arguments


CASES = (
    Case(
        "qnorm_rope_insert", "flash-decode-b8", _query_insert, bytes_minimum=8 * (HEADS * 512 * 2 * 2 + 512 * 2 + 584)
    ),
    _compress(LayerKind.C4A, index=False),
    _compress(LayerKind.C128A, index=False),
    _compress(LayerKind.C4A, index=True),
    Case("indexer_query", "flash-decode-b8", _index_query, bytes_minimum=8 * HEADS * (128 * 2 + 128 + 4 + 4)),
    Case("sparse_attention", "flash-c4a-decode-b1", _decode(512), keys=640, bytes_minimum=640 * 584),
    Case("inv_rope_quant", "flash-decode-b8", _inverse, bytes_minimum=8 * HEADS * 512 * 2 * 2),
)


def measure(case: Case, name: str) -> list[Record]:
    """Run one case on one emulated architecture with every GPU implementation of its op.

    Raises:
        Finding: the kernel does something the hardware would punish.
    """
    records = []
    for implementation in implementations(case.op):
        if implementation.name == "reference" or implementation.refuses(arch.get(name), SERVED) is not None:
            continue
        run, recorder = implementation.load(), _Recorder(name)
        with arch.override(name), recorder:
            run(*case.arguments())
        records += [_record(case, implementation.name, name, *kernel) for kernel in recorder.kernels]
    return records


def _record(
    case: Case, impl: str, name: str, info: KernelInfo, lds_bytes: int, code_bytes: int | None, stats: Stats
) -> Record:
    resources = info.resources
    registers = max(resources["vgpr_count"], 1)
    granules = -(-registers // REGISTER_GRANULE) * REGISTER_GRANULE
    valu = stats.valu_clocks + stats.trans_clocks
    return Record(
        op=case.op,
        impl=impl,
        arch=name,
        case=case.name,
        kernel=info.name,
        vgpr=resources["vgpr_count"],
        agpr=resources.get("agpr_count", 0),
        sgpr_spills=resources["sgpr_spill_count"],
        vgpr_spills=resources["vgpr_spill_count"],
        scratch_bytes=resources["private_segment_fixed_size"],
        lds_bytes=lds_bytes,
        code_bytes=code_bytes,
        occupancy=min(WAVES_PER_SIMD, REGISTERS_PER_SIMD // granules),
        mfma_cycles=stats.mfma_clocks,
        valu_cycles=valu,
        valu_cycles_per_key_64heads=round(valu / case.keys * 64 / HEADS, 1) if case.keys else None,
        bytes_moved=stats.memory_bytes,
        bytes_minimum=case.bytes_minimum,
        launches_per_layer=None,
    )


def render(records: list[Record]) -> Table:
    """The records as a table."""
    table = Table(title="Emulated and compiled figures, no times", title_justify="left")
    columns = ("op", "impl", "arch", "case", "kernel", "VGPR", "spills", "LDS", "code", "waves", "MFMA", "VALU")
    for column in (*columns, "VALU/key", "bytes"):
        table.add_column(column, justify="left" if column in columns[:5] else "right")
    for r in records:
        spills, per_key = r.sgpr_spills + r.vgpr_spills, r.valu_cycles_per_key_64heads
        figures = (r.vgpr, spills, r.lds_bytes, r.code_bytes, r.occupancy, r.mfma_cycles, r.valu_cycles, per_key)
        row = (r.op, r.impl, r.arch, r.case, r.kernel, *figures, r.bytes_moved)
        table.add_row(*("-" if value is None else str(value) for value in row))
    return table


def main() -> None:
    """Entry of `make bench`."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--json", type=Path, default=Path("build/bench.json"), help="where the records go")
    target = parser.parse_args().json
    os.environ.setdefault("TRITON_DEFAULT_FP_FUSION", "1")  # Triton 3.9 warns unless this is chosen
    records = [record for case in CASES for name in ARCHES for record in measure(case, name)]
    target.parent.mkdir(parents=True, exist_ok=True)
    target.write_text(json.dumps([asdict(record) for record in records], indent=1) + "\n")
    console = Console(width=200)
    console.print(render(records))
    console.print(f"{len(records)} records in {target}")


if __name__ == "__main__":
    main()
