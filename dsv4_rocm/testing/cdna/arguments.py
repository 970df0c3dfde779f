"""Kernel arguments: tensors and arrays become buffers of the arena, everything is packed into the argument block."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import Any

import numpy as np

from dsv4_rocm.testing.cdna.errors import EmulationError
from dsv4_rocm.testing.cdna.formats import U8, Array
from dsv4_rocm.testing.cdna.kernel_info import HIDDEN, KernelInfo
from dsv4_rocm.testing.cdna.memory import Arena


def _is_tensor(value: Any) -> bool:
    return type(value).__module__.partition(".")[0] == "torch" and hasattr(value, "untyped_storage")


def _bytes_of(value: Any) -> tuple[int, Array, int]:
    """(identity of the memory, all its bytes, offset of the value in it); views of one storage share its bytes."""
    if _is_tensor(value):
        import torch

        if value.device.type != "cpu":
            raise EmulationError(f"the emulator takes CPU tensors, got one on {value.device}")
        storage = value.untyped_storage()
        raw = torch.empty(0, dtype=torch.uint8).set_(storage).numpy()
        return storage.data_ptr(), raw, value.storage_offset() * value.element_size()
    base = value
    while isinstance(base.base, np.ndarray):
        base = base.base
    if not base.flags.c_contiguous:
        raise EmulationError("a numpy argument must be (a view of) a C-contiguous array")
    raw = base.reshape(-1).view(U8)
    start = base.__array_interface__["data"][0]
    return start, raw, value.__array_interface__["data"][0] - start


class Buffers:
    """The host memory of one launch, mapped into an arena and written back afterwards."""

    def __init__(self, arena: Arena) -> None:
        self.arena = arena
        self.mapped: dict[int, tuple[Array, int]] = {}

    def address(self, value: Any, uninitialised: bool = False) -> int:
        """Virtual address of a tensor or array; its whole storage is mapped once."""
        key, raw, offset = _bytes_of(value)
        if key not in self.mapped:
            phase = key % 256 & ~3
            self.mapped[key] = raw, self.arena.add(raw.nbytes, raw, phase)
        start = self.mapped[key][1] + offset
        if uninitialised:
            size = value.numel() * value.element_size() if _is_tensor(value) else value.nbytes
            self.arena.mark_undefined(start, size)
        return start

    def write_back(self) -> None:
        for raw, start in self.mapped.values():
            found = self.arena.bytes_at(start, raw.nbytes)
            if not np.array_equal(raw, found):
                raw[:] = found


def pack_scalar(value: Any, size: int, kind: str = "") -> bytes:
    """A number as `size` little-endian bytes; `kind` (a Triton type) decides where an int is meant as a float."""
    if kind.startswith(("fp", "bf", "f")) or (not kind and isinstance(value, float)):
        if kind in ("fp64", "f64") or size == 8:
            return struct.pack("<d", value)
        if size == 2:
            return struct.pack("<e", value)
        return struct.pack("<f", value)
    number = int(value)
    return (number & (1 << 8 * size) - 1).to_bytes(size, "little")


def hidden_values(grid: Sequence[int], block: Sequence[int]) -> dict[str, int]:
    return dict(zip(HIDDEN, (*grid, *block, 0, 0, 0, 1 + (grid[1] > 1) + (grid[2] > 1)), strict=True))


def pack(
    info: KernelInfo,
    values: Sequence[Any],
    buffers: Buffers,
    grid: Sequence[int],
    block: Sequence[int],
    kinds: Sequence[str] = (),
    uninitialised: frozenset[int] = frozenset(),
) -> bytes:
    """Fill a kernel's argument block from tensors, arrays, numbers and raw bytes in signature order.

    A struct with pointers is a function: it gets a function from a tensor to its address and returns the raw bytes.
    `uninitialised` holds the ids of tensors whose contents count as undefined until they are written.
    """
    visible = [a for a in info.arguments if not a.hidden]
    end = max((a.offset + a.size for a in info.arguments), default=0)
    out = bytearray(max(info.kernarg_bytes, end, 8))
    if len(values) > len(visible):
        raise EmulationError(f"{info.name} takes {len(visible)} arguments, got {len(values)}")
    # fewer are allowed: Triton appends scratch pointers of its own
    for position, argument in enumerate(visible):
        value = values[position] if position < len(values) else 0
        if value is None:
            value = 0
        if _is_tensor(value) or isinstance(value, np.ndarray):
            raw = buffers.address(value, id(value) in uninitialised).to_bytes(8, "little")
        elif isinstance(value, bytes):
            raw = value
        elif callable(value):
            raw = value(buffers.address)
            if len(raw) != argument.size:
                raise EmulationError(f"{info.name} takes a struct of {argument.size} bytes, got {len(raw)}")
        else:
            raw = pack_scalar(value, argument.size, kinds[position] if position < len(kinds) else "")
        out[argument.offset : argument.offset + argument.size] = raw[: argument.size].ljust(argument.size, b"\0")
    hidden = hidden_values(grid, block)
    for argument in info.arguments:
        if argument.kind in hidden:
            out[argument.offset : argument.offset + argument.size] = hidden[argument.kind].to_bytes(
                argument.size, "little"
            )
    return bytes(out)
