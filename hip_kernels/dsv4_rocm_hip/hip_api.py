"""HIP's module API through ctypes: load a code object, find a kernel, launch it on a stream."""

import ctypes
import os
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from typing import Any

LIBRARY = "libamdhip64.so"
MAPS = Path("/proc/self/maps")  # what this process has loaded


class HipError(RuntimeError):
    """A HIP call failed, or there is no HIP runtime."""


def _candidates() -> Iterator[str]:
    """Where the runtime may be: first the one this process (torch) has loaded, two copies would not share devices."""
    if MAPS.is_file():
        for line in MAPS.read_text().splitlines():
            path = line.partition("/")[2]
            if path.rpartition("/")[2].startswith(LIBRARY):
                yield "/" + path
    yield LIBRARY
    yield str(Path(os.environ.get("ROCM_PATH") or "/opt/rocm") / "lib" / LIBRARY)


@cache
def runtime() -> "HipRuntime":
    """The HIP runtime of this process.

    Raises:
        HipError: none can be loaded; every place that was tried is named.
    """
    tried = []
    for place in dict.fromkeys(_candidates()):
        try:
            return HipRuntime(ctypes.CDLL(place))
        except OSError as error:
            tried.append(f"{place} ({error})")
    raise HipError(f"no HIP runtime; install ROCm or set ROCM_PATH to it. Tried {'; '.join(tried)}")


class HipRuntime:
    """The five calls that are needed; each raises HipError with the error's name and what it was about."""

    def __init__(self, library: Any) -> None:
        self._library = library
        pointer, number, address = ctypes.c_void_p, ctypes.c_uint, ctypes.POINTER(ctypes.c_void_p)
        self._bind("hipModuleLoadData", address, pointer)
        self._bind("hipModuleGetFunction", address, pointer, ctypes.c_char_p)
        self._bind("hipModuleLaunchKernel", pointer, *[number] * 7, pointer, address, address)
        for name in ("hipGetErrorName", "hipGetErrorString"):
            self._bind(name, ctypes.c_int, result=ctypes.c_char_p)

    def _bind(self, name: str, *arguments: Any, result: Any = ctypes.c_int) -> None:
        function = getattr(self._library, name)
        function.argtypes, function.restype = list(arguments), result

    def _check(self, status: int, call: str, about: str) -> None:
        if status:
            name, text = (read(status) or b"?" for read in self._error_texts)
            raise HipError(f"{call} failed for {about}: {name.decode()} ({status}), {text.decode()}")

    @property
    def _error_texts(self) -> tuple[Callable[[int], bytes | None], Callable[[int], bytes | None]]:
        return self._library.hipGetErrorName, self._library.hipGetErrorString

    def load(self, code: bytes, kernel: str, about: str) -> ctypes.c_void_p:
        """The kernel of a code object on the current device; the module stays loaded.

        Args:
            code: a code object.
            kernel: name of the kernel.
            about: what an error calls it.
        """
        module, function = ctypes.c_void_p(), ctypes.c_void_p()
        self._check(self._library.hipModuleLoadData(ctypes.byref(module), code), "hipModuleLoadData", about)
        status = self._library.hipModuleGetFunction(ctypes.byref(function), module, kernel.encode())
        self._check(status, "hipModuleGetFunction", about)
        return function

    def launch(
        self,
        function: ctypes.c_void_p,
        grid: tuple[int, int, int],
        block: tuple[int, int, int],
        lds: int,
        stream: int,
        params: ctypes.Structure,
        about: str,
    ) -> None:
        """Enqueue a kernel that takes one struct by value; the struct is copied before this returns."""
        arguments = (ctypes.c_void_p * 1)(ctypes.addressof(params))
        status = self._library.hipModuleLaunchKernel(function, *grid, *block, lds, stream, arguments, None)
        self._check(status, "hipModuleLaunchKernel", f"{about}, grid {grid}, block {block}, {lds} bytes of LDS")
