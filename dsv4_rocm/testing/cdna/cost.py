"""Static properties that cost time: issue clocks, bytes, matrix passes; and the totals of a launch."""

from __future__ import annotations

import re
from collections.abc import Sequence

import numpy as np

from dsv4_rocm.testing.cdna.assembly import Instruction
from dsv4_rocm.testing.cdna.effects import TRANSCENDENTAL

WAVE, SIMDS, LDS_BYTES_PER_CLOCK = 64, 4, 128
VALU_CLOCKS, TRANS_CLOCKS = 4, 16
_MFMA = re.compile(r"_(\d+)x(\d+)x(\d+)(?:_\d+b)?_(\w+)")
_FP4_FP6 = (2, 3, 4)


def mfma_clocks(ins: Instruction) -> int:
    """Issue clocks of a matrix instruction on one SIMD."""
    match = _MFMA.search(ins.op)
    if not match:
        return 0
    dim, kind = int(match[1]), match[4]
    if dim == 4:
        return 8
    double = 1 if dim == 16 else 2
    if kind.startswith("f8f6f4"):
        narrow = ins.mods.get("cbsz", 0) in _FP4_FP6 and ins.mods.get("blgp", 0) in _FP4_FP6
        return (16 if narrow else 32) * double
    return (32 if kind.startswith("f32") else 16) * double


def mfma_passes(ins: Instruction) -> int:
    """Passes of four clocks."""
    return mfma_clocks(ins) // 4


def is_xdl(ins: Instruction) -> bool:
    """Whether a matrix instruction runs in the XDL unit: all but plain fp32 and fp64 inputs."""
    match = _MFMA.search(ins.op)
    return bool(match) and not (match[4].startswith("f32") or "f64" in ins.op) if match else False


def clocks(ins: Instruction) -> int:
    """Issue clocks of a vector or matrix instruction on one SIMD; 0 for everything else."""
    if ins.family == "mfma":
        return mfma_clocks(ins)
    if ins.family != "valu":
        return 0
    return TRANS_CLOCKS if ins.op.startswith(TRANSCENDENTAL) else VALU_CLOCKS


def memory_bytes(ins: Instruction) -> int:
    """Bytes a lane moves."""
    if match := re.search(r"x(\d)$", ins.op):
        return 4 * int(match[1])
    return 1 if "byte" in ins.op else 2 if "short" in ins.op else 4


def lds_bytes(ins: Instruction) -> int:
    """LDS bytes a lane takes of the bandwidth; below a dword a lane still takes a bank, except single bytes."""
    match = re.search(r"_b(\d+)", ins.op)
    width = int(match[1]) // 8 if match else 4
    if re.match(r"^ds_(read|write)_(b?u?8|u8|i8)", ins.op):
        width = 1
    elif "16" in ins.op and "tr_b16" not in ins.op:
        width = 2 if ins.op == "ds_write_b16" else 4
    elif "_tr_b" in ins.op:
        width = 8
    if ins.op.startswith(("ds_bpermute", "ds_permute", "ds_swizzle")):
        width = 4
    return width * (2 if re.match(r"^ds_(read|write)2", ins.op) else 1)


def _row(ins: Instruction) -> dict[str, int]:
    """What one execution by one wave adds to the statistics."""
    family, out = ins.family, {"instructions": 1}
    if family == "mfma":
        out["mfma_clocks"] = mfma_clocks(ins)
    elif family == "valu":
        kind = "trans_clocks" if clocks(ins) == TRANS_CLOCKS else "valu_clocks"
        out[kind] = clocks(ins)
    elif family == "lds":
        out |= {"lds_instructions": 1, "lds_bytes": WAVE * lds_bytes(ins)}
    elif family == "scratch":
        out |= {"scratch_instructions": 1, "scratch_bytes": WAVE * memory_bytes(ins)}
    elif family in ("global", "flat", "buffer"):
        out |= {"memory_instructions": 1, "memory_bytes": WAVE * memory_bytes(ins)}
    elif ins.op.startswith("s_"):
        out["scalar_instructions"] = 1
    return out


class CostTable:
    """The statistics of every instruction of a program as columns, so that a launch is a few dot products."""

    def __init__(self, instructions: Sequence[Instruction]) -> None:
        rows = [_row(ins) for ins in instructions]
        names = {name for row in rows for name in row}
        self.columns = {name: np.array([row.get(name, 0) for row in rows], np.int64) for name in sorted(names)}
        places: dict[str, list[int]] = {}
        for ins in instructions:
            places.setdefault(ins.op, []).append(ins.index)
        self.places = {op: np.array(found) for op, found in places.items()}


class Stats:
    """Dynamic counts of one launch or several.

    `issue_clocks` are clocks summed over waves (one SIMD each); bytes count 64 lanes an instruction. No time is
    measured.
    """

    def __init__(self) -> None:
        self.instructions = 0
        self.by_opcode: dict[str, int] = {}
        self.valu_clocks = self.trans_clocks = self.mfma_clocks = 0
        self.scalar_instructions = self.lds_instructions = self.memory_instructions = self.scratch_instructions = 0
        self.lds_bytes = self.memory_bytes = self.scratch_bytes = 0
        self.lds_clocks = 0.0  # of a CU, conflict-free
        self.conflict_clocks = 0.0  # estimated extra, from the first execution of each LDS instruction of the program
        self.moved_bytes = self.requested_bytes = 0  # only where a device follows traffic
        self.seconds = 0.0
        self.launches = 0

    @property
    def issue_clocks(self) -> int:
        return self.valu_clocks + self.trans_clocks + self.mfma_clocks

    @property
    def mfma_share(self) -> float:
        return self.mfma_clocks / max(1, self.issue_clocks)

    def add(self, table: CostTable, counts: Sequence[int], conflicts: dict[int, float]) -> None:
        """Account for `counts` executions (of a wave each) of every instruction of a program."""
        times = np.array(counts, np.int64)
        for name, column in table.columns.items():
            setattr(self, name, getattr(self, name) + int(times @ column))
        self.lds_clocks = self.lds_bytes / LDS_BYTES_PER_CLOCK
        for index, conflict in conflicts.items():
            moved = int(times[index] * table.columns["lds_bytes"][index])
            self.conflict_clocks += (conflict - 1) * moved / LDS_BYTES_PER_CLOCK
        for op, places in table.places.items():
            count = int(times[places].sum())
            if count:
                self.by_opcode[op] = self.by_opcode.get(op, 0) + count

    def summary(self) -> dict[str, float]:
        """The figures under the names the command line prints."""
        names = "instructions valu_clocks trans_clocks mfma_clocks scalar_instructions lds_instructions lds_bytes"
        names += " lds_clocks conflict_clocks memory_instructions memory_bytes scratch_instructions scratch_bytes"
        out: dict[str, float] = {name: getattr(self, name) for name in names.split()}
        out["mfma_share"] = round(self.mfma_share, 3)
        out["seconds"] = round(self.seconds, 3)
        return out
