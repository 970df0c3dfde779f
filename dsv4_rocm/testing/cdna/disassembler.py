"""Machine code to assembly text, through the LLVM C API of the PyPI package rocm-llvm-python; no ROCm needed."""

from __future__ import annotations

import ctypes
import importlib.util
import re
from pathlib import Path

from dsv4_rocm.testing.cdna.errors import EmulationError

PACKAGE = "rocm-llvm-python==7.2.2.562.46"
_BRANCH = re.compile(r"^(s_c?branch\w*) (\d+)$")
_LINE_BYTES = 512


def library() -> Path:
    """The LLVM shared library of rocm-llvm-python; EmulationError says what to install where it is missing."""
    try:
        spec = importlib.util.find_spec("rocm.llvm")
    except ModuleNotFoundError:
        spec = None
    for place in spec.submodule_search_locations or () if spec else ():
        for path in sorted(Path(place).glob("librocmllvm.so*")):
            return path
    raise EmulationError(f"disassembly needs `pip install {PACKAGE}`")


def _open(arch: str) -> tuple[ctypes.CDLL, ctypes.c_void_p]:
    llvm = ctypes.CDLL(str(library()))
    for part in ("TargetInfo", "TargetMC", "Disassembler"):
        getattr(llvm, f"LLVMInitializeAMDGPU{part}")()
    create = llvm.LLVMCreateDisasmCPU
    create.restype = ctypes.c_void_p
    create.argtypes = [
        ctypes.c_char_p,
        ctypes.c_char_p,
        ctypes.c_void_p,
        ctypes.c_int,
        ctypes.c_void_p,
        ctypes.c_void_p,
    ]
    step = llvm.LLVMDisasmInstruction
    step.restype = ctypes.c_size_t
    pointer, number = ctypes.c_void_p, ctypes.c_uint64
    step.argtypes = [pointer, ctypes.c_char_p, number, number, ctypes.c_char_p, ctypes.c_size_t]
    llvm.LLVMDisasmDispose.argtypes = [ctypes.c_void_p]
    handle = create(b"amdgcn-amd-amdhsa", arch.encode(), None, 0, None, None)
    if not handle:
        raise EmulationError(f"LLVM does not know {arch}")
    return llvm, ctypes.c_void_p(handle)


def disassemble(code: bytes, label: str, arch: str) -> str:
    """Text of `code`: `label:` first, a label at every branch target, one instruction a line."""
    llvm, handle = _open(arch)
    buffer = ctypes.create_string_buffer(_LINE_BYTES)
    rows: list[tuple[int, str]] = []
    targets: set[int] = set()
    at = 0
    try:
        while at < len(code):
            size = llvm.LLVMDisasmInstruction(
                handle, code[at : at + 64], min(64, len(code) - at), at, buffer, _LINE_BYTES
            )
            if not size:
                raise EmulationError(f"undecodable instruction at offset {at:#x} of {label}")
            text = buffer.value.decode().strip()
            if match := _BRANCH.match(text):
                distance = int(match[2]) - (65536 if int(match[2]) >= 32768 else 0)
                targets.add(at + 4 + 4 * distance)
                text = f"{match[1]} L{at + 4 + 4 * distance:x}"
            rows.append((at, text))
            at += size
    finally:
        llvm.LLVMDisasmDispose(handle)
    out = [f"{label}:"]
    for place, text in rows:
        if place in targets:
            out.append(f"L{place:x}:")
        out.append("\t" + text)
    out.append(f"; codeLenInByte = {at}")  # as compilers note it
    return "\n".join(out) + "\n"
