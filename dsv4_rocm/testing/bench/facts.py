"""Writes the tables of docs/measured-facts.md from the benchmark's records."""

from collections.abc import Sequence
from datetime import date
from pathlib import Path

from dsv4_rocm.testing.bench.recorder import AMD
from dsv4_rocm.testing.bench.records import Record
from dsv4_rocm.testing.bench.traffic import BATCHES

START, END = "<!-- tables from `make bench`: start -->", "<!-- tables from `make bench`: end -->"
Row = Sequence[object]


def update(page: Path, records: list[Record]) -> None:
    """Replace the tables of a page.

    Raises:
        ValueError: the page has no place for them.
    """
    text = page.read_text()
    if text.count(START) != 1 or text.count(END) != 1:
        raise ValueError(f"{page} must have the lines {START} and {END} once each")
    before, rest = text.split(START)
    page.write_text(f"{before}{START}\n{tables(records)}\n{END}{rest.split(END)[1]}")


def tables(records: list[Record]) -> str:
    """All tables as Markdown, with the date."""
    made = f"Made on {date.today().isoformat()}."
    return "\n\n".join((made, *(make(records) for make in (cycles, traffic, counted, launches, resources))))


def _table(columns: Row, rows: Sequence[Row]) -> str:
    lines = [f"| {' | '.join(map(str, columns))} |", "|" + " --- |" * len(columns)]
    lines += ["| " + " | ".join("-" if cell is None else str(cell) for cell in row) + " |" for row in rows]
    return "\n".join(lines)


def cycles(records: list[Record]) -> str:
    """Vector issue clocks of a CU for one key more of 64 heads."""
    rows = []
    for one in records:
        if one.valu_cycles_per_key_64heads is not None:
            static = "..".join(dict.fromkeys(map(str, one.valu_cycles_per_key_static or ())))
            spills = (one.sgpr_spills or 0) + (one.vgpr_spills or 0)
            figures = (one.valu_cycles_per_key_64heads, static, one.valu_cycles_fixed, one.vgpr, spills, one.occupancy)
            rows.append((one.impl, one.arch, *figures))
    columns = ("implementation", "arch", "counted", "loop in the code", "without keys", "registers", "spills", "waves")
    return "Sparse decode, vector clocks of a CU for one key more of 64 heads:\n\n" + _table(columns, rows)


def traffic(records: list[Record]) -> str:
    """Moved bytes over the minimum by batch."""
    plans = [one for one in records if one.how == "launch plan"]
    ratios = {(one.impl, one.arch, one.case): (one.bytes_moved or 0) / (one.bytes_minimum or 1) for one in plans}
    keys = dict.fromkeys((one.impl, one.arch, one.case.rsplit("-b", 1)[0]) for one in plans)
    rows = [(*key, *(f"{ratios[(*key[:2], f'{key[2]}-b{batch}')]:.2f}" for batch in BATCHES)) for key in keys]
    columns = ("implementation", "arch", "shape", *(f"batch {batch}" for batch in BATCHES))
    return "Sparse decode, moved bytes over the least possible, by the launch plan:\n\n" + _table(columns, rows)


def counted(records: list[Record]) -> str:
    """Bytes that the emulator counted over the minimum of an op."""
    rows = []
    for one in records:
        if one.how == "emulated" and one.bytes_minimum:
            ratios = (round((moved or 0) / one.bytes_minimum, 2) for moved in (one.bytes_moved, one.bytes_requested))
            rows.append((one.op, one.impl, one.arch, one.case, one.bytes_minimum, *ratios))
    columns = ("op", "implementation", "arch", "case", "least bytes", "moved over it", "if every read misses")
    return "Bytes of an op's kernels as the emulator counts them:\n\n" + _table(columns, rows)


def launches(records: list[Record]) -> str:
    """Launches of a layer, and by what."""
    rows = []
    for one in records:
        if one.launches_per_layer is not None:
            rows.append((one.arch, one.case, one.launches_per_layer, one.remark))
    columns = ("arch", "layer", "launches", "by")
    return "Launches of one decode step of a layer:\n\n" + _table(columns, rows)


def resources(records: list[Record]) -> str:
    """Registers, spills, shared memory and code of every kernel."""
    rows = []
    for one in records:
        if one.kernel is not None and one.how in ("emulated", "compiled") and not one.impl.startswith("upstream"):
            spills = one.scratch_bytes if one.arch not in AMD else (one.sgpr_spills or 0) + (one.vgpr_spills or 0)
            figures = (one.vgpr, spills, one.lds_bytes, one.code_bytes, one.occupancy, one.mfma_share)
            rows.append((one.impl, one.kernel, one.case, one.arch, *figures))
    columns = ("implementation", "kernel", "case", "arch", "registers", "spills", "LDS", "code", "waves", "MFMA share")
    note = "Kernels (spills: registers; on CUDA bytes of stack. waves: of a SIMD, that registers and LDS allow):\n\n"
    return note + _table(columns, rows)
