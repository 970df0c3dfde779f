"""HIP C++ to an AMDGPU code object: with `hipcc` where ROCm is, else with the clang and lld of PyPI's ziglang."""

import importlib.util
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

ARCHES = ("gfx942", "gfx950")
PACKAGE = "ziglang==0.17.1"
INCLUDE = Path(__file__).parent / "include"
# Neither ROCm's headers nor a standard library: the same source gives the same code wherever it is compiled.
_SOURCE = ("-x", "hip", "--cuda-device-only", "--no-gpu-bundle-output", "-nogpuinc", "-nogpulib", "-nostdinc")
_FRONT = (*_SOURCE, "-std=c++20", "-O3", "-fuse-cuid=none", "-mcode-object-version=5")
_ZIG_FRONT = ("--target=x86_64-unknown-linux-gnu", "-emit-llvm", "-c")
_ZIG_BACK = ("--target=amdgcn-amd-amdhsa", "-nogpulib", "-O3", "-c", "-x", "ir")
_ZIG_LINK = ("-shared", "--strip-debug")
FLAGS = (*_FRONT, *_ZIG_FRONT, *_ZIG_BACK, *_ZIG_LINK)


class CompileError(RuntimeError):
    """There is no compiler, or it refused a source."""


@dataclass(frozen=True, slots=True)
class Compiler:
    """A compiler that was found.

    Attributes:
        kind: "ziglang" or "hipcc".
        program: how it is started.
        version: package and clang version; two compilers with the same version give the same bytes.
    """

    kind: str
    program: tuple[str, ...]
    version: str


def find(kind: str | None = None) -> Compiler:
    """The compiler of this machine: `hipcc` (on PATH, or under ROCM_PATH or /opt/rocm), else ziglang.

    Args:
        kind: "hipcc" or "ziglang" to take that one.

    Raises:
        CompileError: it is not there.
    """
    if kind not in (None, "hipcc", "ziglang"):
        raise CompileError(f"the compiler is hipcc or ziglang, got {kind}")
    rocm = Path(os.environ.get("ROCM_PATH") or "/opt/rocm")
    hipcc = shutil.which("hipcc") or shutil.which("hipcc", path=str(rocm / "bin"))
    if hipcc and kind != "ziglang":
        return Compiler("hipcc", (hipcc,), f"hipcc, {_clang_version(hipcc, '--version')}")
    if kind != "hipcc" and importlib.util.find_spec("ziglang"):
        program = (sys.executable, "-m", "ziglang")
        package = f"ziglang {_run([*program, 'version']).strip()}"
        return Compiler("ziglang", program, f"{package}, {_clang_version(*program, 'clang', '--version')}")
    missing = "neither hipcc nor ziglang is" if kind is None else f"{kind} is not"
    raise CompileError(f"{missing} installed: `pip install {PACKAGE}`, or install ROCm and set ROCM_PATH")


def compile_hip(
    source: Path,
    arch: str,
    defines: Sequence[str] = (),
    include: Sequence[Path] = (),
    flags: Sequence[str] = (),
    compiler: Compiler | None = None,
) -> bytes:
    """Compile a HIP source for one architecture.

    Args:
        source: the .hip file; it may use compiler builtins, `dsv4/` headers and what is under `include`.
        arch: "gfx942" or "gfx950".
        defines: "NAME=VALUE" macros.
        include: more directories of headers.
        flags: more flags of the front end.
        compiler: from `find`.

    Returns:
        The code object; the same bytes for the same sources, compiler version and flags, wherever they lie.

    Raises:
        CompileError: there is no compiler, or it failed (its message is included).
    """
    compiler = compiler or find()
    includes = [*include, INCLUDE, INCLUDE / "freestanding"]
    front = [*_FRONT, *(f"-I{folder}" for folder in includes), *(f"-D{define}" for define in defines), *flags]
    front += [f"--offload-arch={arch}", f"-ffile-prefix-map={source.parent}=."]
    with tempfile.TemporaryDirectory() as folder:
        bitcode, object_file, out = (str(Path(folder) / name) for name in ("k.bc", "k.o", "k.co"))
        if compiler.kind == "hipcc":
            _run([*compiler.program, *front, str(source), "-o", out])
        else:  # its clang links through zig, which knows no AMD GPU: the steps one by one
            zig = compiler.program
            _run([*zig, "clang", *front, *_ZIG_FRONT, str(source), "-o", bitcode])
            _run([*zig, "clang", *_ZIG_BACK, f"-mcpu={arch}", bitcode, "-o", object_file])
            _run([*zig, "ld.lld", *_ZIG_LINK, object_file, "-o", out])
        return Path(out).read_bytes()


def _clang_version(*command: str) -> str:
    found = re.search(r"clang version \S+", _run(command))
    return found[0] if found else "unknown clang"


def _run(command: Sequence[str]) -> str:
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        raise CompileError(f"{' '.join(command)} failed:\n{done.stderr[-4000:]}")
    return done.stdout
