"""A record of the benchmark, and records as a table."""

from dataclasses import dataclass
from typing import Any

from rich.table import Table

from dsv4_rocm import arch
from dsv4_rocm.testing.bench.recorder import Launched
from dsv4_rocm.testing.cdna.cost import SIMDS


@dataclass(frozen=True, slots=True, kw_only=True)
class Record:
    """One kernel of one case, or one figure of a whole op or layer; None where a figure does not apply.

    Attributes:
        op: name of the op, or `decoder_layer`.
        impl: implementation; `upstream ...` is the installed vLLM's kernel.
        arch: what it was compiled for.
        case: production shape.
        kernel: of the op; None where all of its kernels are meant.
        how: what was done: `emulated`, `compiled`, `launch plan`, `counted`.
        vgpr: vector registers with accumulation registers, or registers of a CUDA thread.
        agpr: how many of them are accumulation registers.
        sgpr_spills: spilled scalar registers.
        vgpr_spills: spilled vector registers.
        scratch_bytes: private memory of a lane, or stack of a CUDA thread.
        lds_bytes: LDS or shared memory of a workgroup.
        code_bytes: machine code.
        occupancy: waves of a SIMD that registers and LDS allow.
        mfma_cycles: issue clocks of matrix instructions, of a CU: summed over waves, over four SIMDs.
        valu_cycles: issue clocks of vector ALU and transcendental instructions, of a CU.
        valu_cycles_per_key_64heads: the same for one key more of 64 heads, counted with two numbers of keys.
        valu_cycles_per_key_static: the same from the loop in the machine code: cheapest turn, and all of its blocks.
        valu_cycles_fixed: what a workgroup issues besides, for no key at all.
        mfma_share: matrix clocks of all vector and matrix clocks.
        bytes_moved: bytes that go between workgroups and memory; what a workgroup touches twice counts once.
        bytes_requested: bytes that instructions ask for: every read of a workgroup is a miss.
        bytes_minimum: bytes that have to move, counted once.
        launches_per_layer: kernels that one decode step of the layer launches.
        remark: what else has to be said.
    """

    op: str
    impl: str
    arch: str
    case: str
    how: str
    kernel: str | None = None
    vgpr: int | None = None
    agpr: int | None = None
    sgpr_spills: int | None = None
    vgpr_spills: int | None = None
    scratch_bytes: int | None = None
    lds_bytes: int | None = None
    code_bytes: int | None = None
    occupancy: int | None = None
    mfma_cycles: int | None = None
    valu_cycles: int | None = None
    valu_cycles_per_key_64heads: float | None = None
    valu_cycles_per_key_static: tuple[float, float] | None = None
    valu_cycles_fixed: int | None = None
    mfma_share: float | None = None
    bytes_moved: int | None = None
    bytes_requested: int | None = None
    bytes_minimum: int | None = None
    launches_per_layer: int | None = None
    remark: str | None = None


def resources(launched: Launched, name: str) -> dict[str, Any]:
    """The fields that the compiler decides."""
    found = launched.info.resources
    return {
        "kernel": launched.name,
        "vgpr": found["vgpr_count"],
        "agpr": found["agpr_count"],
        "sgpr_spills": found["sgpr_spill_count"],
        "vgpr_spills": found["vgpr_spill_count"],
        "scratch_bytes": found["private_segment_fixed_size"],
        "lds_bytes": launched.lds_bytes,
        "code_bytes": launched.code_bytes,
        "occupancy": launched.occupancy(arch.get(name)),
    }


def counts(launched: Launched) -> dict[str, Any]:
    """The fields that running the kernel counts."""
    stats = launched.stats
    return {
        "mfma_cycles": stats.mfma_clocks // SIMDS,
        "valu_cycles": (stats.valu_clocks + stats.trans_clocks) // SIMDS,
        "mfma_share": round(stats.mfma_share, 3),
        "bytes_moved": stats.moved_bytes,
        "bytes_requested": stats.requested_bytes,
    }


COLUMNS = {
    "op": "op",
    "impl": "impl",
    "arch": "arch",
    "case": "case",
    "kernel": "kernel",
    "how": "how",
    "VGPR": "vgpr",
    "spills": "spills",
    "LDS": "lds_bytes",
    "code": "code_bytes",
    "waves": "occupancy",
    "MFMA": "mfma_cycles",
    "VALU": "valu_cycles",
    "VALU/key": "valu_cycles_per_key_64heads",
    "static": "valu_cycles_per_key_static",
    "bytes": "bytes_moved",
    "/min": "ratio",
    "all misses": "bytes_requested",
    "launches": "launches_per_layer",
}
TEXT = 6  # columns of words; the others are figures


def _cells(record: Record) -> dict[str, object]:
    spills = None if record.vgpr is None else (record.sgpr_spills or 0) + (record.vgpr_spills or 0)
    ratio = None
    if record.bytes_moved is not None and record.bytes_minimum:
        ratio = round(record.bytes_moved / record.bytes_minimum, 2)
    static = record.valu_cycles_per_key_static
    shown = None if static is None else f"{static[0]}..{static[1]}" if static[0] != static[1] else static[0]
    values = {column: getattr(record, field, None) for column, field in COLUMNS.items()}
    return values | {"spills": spills, "/min": ratio, "static": shown}


def render(records: list[Record]) -> Table:
    """The records as a table."""
    table = Table(title="Emulated, compiled and computed figures, no times", title_justify="left")
    for index, column in enumerate(COLUMNS):
        table.add_column(column, justify="left" if index < TEXT else "right")
    for record in records:
        table.add_row(*("-" if value is None else str(value) for value in _cells(record).values()))
    return table
