"""What a launch needs to know about a kernel besides its code: arguments, LDS, descriptor; from assembly text."""

from __future__ import annotations

import re
from dataclasses import dataclass, field

from dsv4_rocm.testing.cdna.errors import EmulationError

HIDDEN = [
    "hidden_block_count_x",
    "hidden_block_count_y",
    "hidden_block_count_z",
    "hidden_group_size_x",
    "hidden_group_size_y",
    "hidden_group_size_z",
    "hidden_remainder_x",
    "hidden_remainder_y",
    "hidden_remainder_z",
    "hidden_grid_dims",
]


@dataclass(frozen=True)
class Argument:
    """One kernel argument: where it lies in the argument block and what kind of value it is."""

    offset: int
    size: int
    kind: str
    name: str = ""

    @property
    def hidden(self) -> bool:
        return self.kind.startswith("hidden")


@dataclass(frozen=True)
class KernelInfo:
    """A kernel's metadata; resources are whatever the compiler reported."""

    name: str
    arguments: tuple[Argument, ...]
    kernarg_bytes: int
    lds_bytes: int
    resources: dict[str, int] = field(default_factory=dict)


RESOURCES = [
    "vgpr_count",
    "agpr_count",
    "sgpr_count",
    "vgpr_spill_count",
    "sgpr_spill_count",
    "private_segment_fixed_size",
]


def _number(name: str, text: str, default: int = 0) -> int:
    match = re.search(rf"\.{name}:\s+(\d+)", text)
    return int(match[1]) if match else default


def _arguments(text: str) -> tuple[Argument, ...]:
    out = []
    for item in re.split(r"\n\s+- ", text):
        offset, size = re.search(r"\.offset:\s+(\d+)", item), re.search(r"\.size:\s+(\d+)", item)
        kind, name = re.search(r"\.value_kind:\s+(\S+)", item), re.search(r"\.name:\s+(\S+)", item)
        if offset and size and kind:
            out.append(Argument(int(offset[1]), int(size[1]), kind[1], name[1] if name else ""))
    return tuple(out)


def from_assembly(text: str, name: str | None = None) -> KernelInfo:
    """Read the .amdgpu_metadata block of assembly text for one kernel (the first where no name is given)."""
    start = text.find("amdhsa.kernels:", max(0, text.find(".amdgpu_metadata")))
    if start < 0:
        raise EmulationError("no .amdgpu_metadata block: cannot tell the kernel's arguments")
    documents = re.split(r"\n  - (?=\.)", text[start:])[1:]
    for document in documents:
        found = re.search(r"\n    \.name:\s+(\S+)|^\.name:\s+(\S+)", document)
        label = (found[1] or found[2]) if found else ""
        if name is None or label == name:
            begin = document.find(".args:")
            end = re.search(r"\n    \.\w", document[begin + 6 :]) if begin >= 0 else None
            part = document[begin : begin + 6 + end.start() if end else None] if begin >= 0 else ""
            return KernelInfo(
                label,
                _arguments(part),
                _number("kernarg_segment_size", document),
                _number("group_segment_fixed_size", document),
                {key: _number(key, document) for key in RESOURCES},
            )
    raise EmulationError(f"kernel {name!r} is not in the metadata")
