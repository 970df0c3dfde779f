"""HIP C++ to a code object with the clang and lld of the PyPI package ziglang; no ROCm, no GPU."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from dsv4_rocm.testing.cdna.errors import EmulationError

PACKAGE = "ziglang==0.17.1"
_TO_BITCODE = (
    "--target=x86_64-unknown-linux-gnu -x hip --cuda-device-only --no-gpu-bundle-output -nogpuinc -nogpulib -nostdinc"
)
_TO_OBJECT = "--target=amdgcn-amd-amdhsa -nogpulib -O3 -c -x ir"


def _zig(*arguments: str) -> None:
    done = subprocess.run([sys.executable, "-m", "ziglang", *arguments], capture_output=True, text=True)
    if done.returncode:
        raise EmulationError(f"zig {' '.join(arguments[:2])} failed:\n{done.stderr[-4000:]}")


def compile_hip(source: Path, arch: str, include: Path, defines: Sequence[str] = (), standard: str = "c++17") -> bytes:
    """Compile a HIP source for one architecture.

    Args:
        source: the .hip file; it may use builtins and what the headers under `include` offer.
        arch: "gfx942" or "gfx950".
        include: directory with `hip/hip_runtime.h`; the HIP headers of ROCm are not used.
        defines: "NAME=VALUE" macros.

    Returns:
        The code object.

    Raises:
        EmulationError: ziglang is not installed, or the compiler failed (its message is included).
    """
    if importlib.util.find_spec("ziglang") is None:
        raise EmulationError(f"compiling HIP needs `pip install {PACKAGE}`")
    with tempfile.TemporaryDirectory() as folder:
        bitcode, obj, out = (str(Path(folder) / name) for name in ("k.bc", "k.o", "k.co"))
        macros = [f"-D{d}" for d in defines]
        flags = [*_TO_BITCODE.split(), f"-std={standard}", f"-I{include}", f"--offload-arch={arch}", *macros]
        _zig("clang", *flags, "-emit-llvm", "-O3", "-c", str(source), "-o", bitcode)
        _zig("clang", *_TO_OBJECT.split(), f"-mcpu={arch}", bitcode, "-o", obj)
        _zig("ld.lld", "-shared", obj, "-o", out)
        return Path(out).read_bytes()
