"""What kernels may take on each architecture: `budgets.json`, held by the tests and shown to who exceeds one.

The file has {"op group": {kernel: {architecture: {field: most}}}}; "every kernel" holds for all of them. Registers of
an AMD kernel end where one wave less would fit on a SIMD.
"""

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from dsv4_rocm.testing.bench.cuda_builds import CudaKernel
from dsv4_rocm.testing.bench.recorder import REGISTER_GRANULE, REGISTERS_PER_SIMD, Launched

FILE = Path(__file__).with_name("budgets.json")
EVERY = "every kernel"
Figures = dict[str, int]


def load() -> dict[str, Any]:
    """The budgets."""
    found: dict[str, Any] = json.loads(FILE.read_text())
    return found


def figures(kernel: Launched | CudaKernel) -> Figures:
    """What is budgeted, as the compiler reports it."""
    if isinstance(kernel, CudaKernel):
        return {"registers": kernel.registers, "stack": kernel.stack_bytes, "shared": kernel.shared_bytes}
    found = kernel.info.resources
    return {
        "registers": kernel.registers,
        "spills": found["vgpr_spill_count"] + found["sgpr_spill_count"],
        "scratch": found["private_segment_fixed_size"],
        "shared": kernel.lds_bytes,
        "code": kernel.code_bytes or 0,
    }


def exceeded(budgets: dict[str, Any], where: str, kernel: str, arch: str, found: Figures) -> list[str]:
    """What is over budget, each with the value and the budget; a kernel without a budget is one entry.

    Args:
        budgets: from `load`.
        where: op and group, `sparse_attention 64-heads`.
        kernel: its name.
        arch: what it was compiled for.
        found: from `figures`.
    """
    here = f"{where}: {kernel} on {arch}"
    own = budgets.get(where, {}).get(kernel, {}).get(arch)
    if own is None:
        return [f"{here}: no budget in {FILE.name}; measured {found}"]
    limits = budgets[EVERY][arch] | own
    return [
        f"{here}: {field} {found[field]}, budget {limit}" for field, limit in limits.items() if found[field] > limit
    ]


def proposed(found: Iterable[tuple[str, str, str, Figures]]) -> dict[str, Any]:
    """Budgets for measured figures of (op and group, kernel, architecture), the largest of each.

    Registers up to where a wave less fits (AMD) or the next multiple of 16 (CUDA), shared memory as it is, code with a
    tenth to spare.
    """
    most: dict[str, Any] = {}
    for where, kernel, arch, values in found:
        own = most.setdefault(where, {}).setdefault(kernel, {}).setdefault(arch, {})
        own["registers"] = max(own.get("registers", 0), _register_limit(arch, values["registers"]))
        own["shared"] = max(own.get("shared", 0), values["shared"])
        if "code" in values:
            own["code"] = max(own.get("code", 0), -(-values["code"] * 11 // 10 // 256) * 256)
    return most


def _register_limit(arch: str, registers: int) -> int:
    if arch.startswith("sm"):
        return -(-registers // 16) * 16
    waves = min(REGISTERS_PER_SIMD // (-(-max(registers, 1) // REGISTER_GRANULE) * REGISTER_GRANULE), 8)
    return REGISTERS_PER_SIMD // waves // REGISTER_GRANULE * REGISTER_GRANULE


def text(budgets: dict[str, Any]) -> str:
    """The file's form: a line for each kernel and architecture."""
    return _nested(budgets, 0) + "\n"


def _nested(value: dict[str, Any], depth: int) -> str:
    if not any(isinstance(inner, dict) for inner in value.values()):
        return json.dumps(value)
    pad = "  " * (depth + 1)
    inner = [f"{pad}{json.dumps(key)}: {_nested(one, depth + 1)}" for key, one in value.items()]
    return "{\n" + ",\n".join(inner) + "\n" + "  " * depth + "}"
