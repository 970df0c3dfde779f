"""Arguments of a command-line run: a small YAML file that says what to launch and with which data."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from dsv4_rocm.testing.cdna.errors import EmulationError
from dsv4_rocm.testing.cdna.formats import Array

EXAMPLE = """\
kernel: add            # may be left out where the file has one kernel
grid: [3]
block: 256
lds: 0                 # dynamic LDS bytes
args:                  # in the order of the signature
  - {array: float32, shape: [768], fill: random, seed: 1}
  - {array: float32, shape: [768], fill: 1.5}
  - {array: float32, shape: [768], fill: uninitialised, save: out.npy}
  - {load: data.npy}
  - 768                # an integer
  - 0.5                # a 32-bit float
  - {double: 0.5}
"""


@dataclass
class RunFile:
    """A launch as a YAML file describes it."""

    kernel: str | None
    grid: list[int]
    block: list[int]
    lds: int
    args: list[Any]
    uninitialised: list[Array] = field(default_factory=list)
    outputs: list[tuple[Array, Path]] = field(default_factory=list)


def _sizes(value: Any, name: str) -> list[int]:
    sizes = value if isinstance(value, list) else [value]
    if not 1 <= len(sizes) <= 3 or not all(isinstance(v, int) and v > 0 for v in sizes):
        raise EmulationError(f"{name} must be one to three positive integers, got {value!r}")
    return sizes


def _array(entry: dict[str, Any], out: RunFile, folder: Path) -> Array:
    fill = entry.get("fill", 0)
    if "load" in entry:
        array: Array = np.ascontiguousarray(np.load(folder / entry["load"]))
    else:
        shape, dtype = _shape(entry), np.dtype(entry["array"])
        if fill == "random":
            rng = np.random.default_rng(entry.get("seed", 0))
            whole = np.issubdtype(dtype, np.integer)
            top = min(1 << 16, np.iinfo(dtype).max) if whole else 0
            array = (rng.integers(0, top, shape) if whole else rng.standard_normal(shape)).astype(dtype)
        else:
            array = np.full(shape, 0 if fill == "uninitialised" else fill, dtype)
    if fill == "uninitialised":
        out.uninitialised.append(array)
    if "save" in entry:
        out.outputs.append((array, folder / entry["save"]))
    return array


def _shape(entry: dict[str, Any]) -> list[int]:
    shape = entry.get("shape", [1])
    return shape if isinstance(shape, list) else [shape]


def read(path: Path) -> RunFile:
    """Read a run file; arrays to load or save are relative to it. EmulationError with an example on bad input."""
    try:
        import yaml
    except ModuleNotFoundError:
        raise EmulationError("reading the run file needs `pip install pyyaml`") from None
    data = yaml.safe_load(path.read_text())
    if not isinstance(data, dict) or "args" not in data:
        raise EmulationError(f"{path} is no run file; an example:\n{EXAMPLE}")
    grid, block = _sizes(data.get("grid", 1), "grid"), _sizes(data.get("block", 64), "block")
    out = RunFile(data.get("kernel"), grid, block, int(data.get("lds", 0)), [])
    for entry in data["args"]:
        if isinstance(entry, dict):
            if "double" in entry:
                out.args.append(np.float64(entry["double"]).tobytes())
            else:
                out.args.append(_array(entry, out, path.parent))
        else:
            out.args.append(entry)
    return out
