"""AMDGPU code objects (ELF): kernels, their descriptors and metadata, and the code as assembly text."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import Any

from dsv4_rocm.testing.cdna import disassembler
from dsv4_rocm.testing.cdna.errors import EmulationError
from dsv4_rocm.testing.cdna.kernel_info import RESOURCES, Argument, KernelInfo
from dsv4_rocm.testing.cdna.msgpack_reader import read as read_msgpack

_MACHINE_AMDGPU = 224
_ARCH_OF_FLAGS = {0x4C: "gfx942", 0x4F: "gfx950"}
_NOTE_METADATA = 32
_PROPERTIES = (
    "private_segment_buffer",
    "dispatch_ptr",
    "queue_ptr",
    "kernarg_segment_ptr",
    "dispatch_id",
    "flat_scratch_init",
    "private_segment_size",
)


class CodeObject:
    """A loaded code object. Raises EmulationError on anything that is not an AMDGPU ELF file."""

    def __init__(self, data: bytes) -> None:
        if data[:4] != b"\x7fELF" or struct.unpack_from("<H", data, 18)[0] != _MACHINE_AMDGPU:
            raise EmulationError("not an AMDGPU code object (an ELF file with machine 224)")
        self.data = data
        (flags,) = struct.unpack_from("<I", data, 48)
        self.arch = _ARCH_OF_FLAGS.get(flags & 0xFF, f"flags {flags:#x}")
        self.segments: list[tuple[int, int, int]] = []  # file offset, address, bytes in the file
        self.metadata: dict[str, Any] = {}
        for kind, offset, address, size in self._program_headers():
            if kind == 1:
                self.segments.append((offset, address, size))
            elif kind == 4:
                self._notes(offset, size)
        self.symbols = dict(self._symbols())
        self.kernels: dict[str, dict[str, Any]] = {k[".name"]: k for k in self.metadata.get("amdhsa.kernels", [])}

    def _program_headers(self) -> Iterator[tuple[int, int, int, int]]:
        (start,) = struct.unpack_from("<Q", self.data, 32)
        size, count = struct.unpack_from("<HH", self.data, 54)
        for k in range(count):
            kind, _, offset, address, _, bytes_, _, _ = struct.unpack_from("<IIQQQQQQ", self.data, start + k * size)
            yield kind, offset, address, bytes_

    def _notes(self, start: int, size: int) -> None:
        at = start
        while at < start + size:
            name, desc, kind = struct.unpack_from("<III", self.data, at)
            at += 12 + (name + 3 & ~3)
            if kind == _NOTE_METADATA:
                self.metadata = read_msgpack(self.data[at : at + desc])[0]
            at += desc + 3 & ~3

    def _symbols(self) -> Iterator[tuple[str, tuple[int, int]]]:
        (start,) = struct.unpack_from("<Q", self.data, 40)
        size, count, _ = struct.unpack_from("<HHH", self.data, 58)
        for k in range(count):
            header = struct.unpack_from("<IIQQQQIIQQ", self.data, start + k * size)
            if header[1] not in (2, 11):
                continue
            (names,) = struct.unpack_from("<Q", self.data, start + header[6] * size + 24)
            for at in range(header[4], header[4] + header[5], 24):
                name, _, _, _, value, length = struct.unpack_from("<IBBHQQ", self.data, at)
                end = self.data.index(b"\0", names + name)
                yield self.data[names + name : end].decode(), (value, length)

    def bytes_at(self, address: int, size: int) -> bytes:
        for offset, start, length in self.segments:
            if start <= address < start + length:
                return self.data[offset + address - start : offset + min(address - start + size, length)]
        raise EmulationError(f"address {address:#x} is in no segment of the code object")

    def name(self, kernel: str | None) -> str:
        if kernel is None and len(self.kernels) == 1:
            return next(iter(self.kernels))
        if kernel not in self.kernels:
            raise EmulationError(f"kernel {kernel!r} is not in the code object; it has {', '.join(self.kernels)}")
        return kernel

    def descriptor(self, kernel: str) -> dict[str, int]:
        """The kernel descriptor under the names of the .amdhsa_ directives."""
        raw = self.bytes_at(self.symbols[kernel + ".kd"][0], 64)
        group, private, kernarg = struct.unpack_from("<III", raw)
        _, _, second = struct.unpack_from("<III", raw, 44)
        properties, preload = struct.unpack_from("<HH", raw, 56)
        out = {f"user_sgpr_{name}": properties >> k & 1 for k, name in enumerate(_PROPERTIES)}
        out |= {f"system_sgpr_workgroup_id_{axis}": second >> 7 + k & 1 for k, axis in enumerate("xyz")}
        return out | {
            "group_segment_fixed_size": group,
            "private_segment_fixed_size": private,
            "kernarg_size": kernarg,
            "user_sgpr_count": second >> 1 & 31,
            "user_sgpr_kernarg_preload_length": preload & 0x7F,
            "user_sgpr_kernarg_preload_offset": preload >> 7,
        }

    def info(self, kernel: str) -> KernelInfo:
        """Arguments and resources of a kernel."""
        meta = self.kernels[kernel]
        arguments = tuple(
            Argument(a[".offset"], a[".size"], a[".value_kind"], a.get(".name", "")) for a in meta.get(".args", [])
        )
        resources = {key: int(meta.get("." + key, 0)) for key in RESOURCES}
        return KernelInfo(
            kernel, arguments, meta[".kernarg_segment_size"], meta[".group_segment_fixed_size"], resources
        )

    def code(self, kernel: str) -> bytes:
        """Machine code of a kernel; to the end of its segment where the symbol has no size."""
        place = self.symbols[kernel + ".kd"][0]
        (relative,) = struct.unpack_from("<q", self.bytes_at(place, 64), 16)
        entry = place + relative
        return self.bytes_at(entry, self.symbols.get(kernel, (0, 0))[1] or len(self.data))

    def assembly(self, kernel: str) -> str:
        """Assembly text with labels, headed by the descriptor, for the parser."""
        lines = [f".amdhsa_kernel {kernel}"]
        lines += [f".amdhsa_{key} {value}" for key, value in self.descriptor(kernel).items()]
        return "\n".join(lines) + "\n" + disassembler.disassemble(self.code(kernel), kernel, self.arch)
