"""Compile Triton and Gluon kernels for gfx942 / gfx950 on a machine without a GPU, and read their resources."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from dsv4_rocm.testing.cdna.cost import Stats
from dsv4_rocm.testing.cdna.device import Device
from dsv4_rocm.testing.cdna.kernel_info import KernelInfo, from_assembly


class Compiled:
    """A kernel compiled ahead of time."""

    def __init__(self, kernel: Any, kinds: Sequence[str]) -> None:
        self.kernel = kernel
        self.kinds = list(kinds)
        self.assembly: str = kernel.asm["amdgcn"]
        self.code_object: bytes = kernel.asm["hsaco"]
        self.lds_bytes: int = kernel.metadata.shared
        self.threads: int = 64 * kernel.metadata.num_warps
        self.info: KernelInfo = from_assembly(self.assembly, kernel.metadata.name)

    def run(self, dev: Device, grid: tuple[int, int, int], args: Sequence[Any], assembly: str | None = None) -> Stats:
        """Launch on an emulated device; `assembly` replaces the compiled text (for mutations)."""
        block = (self.threads, 1, 1)
        return dev.launch_text(assembly or self.assembly, self.info, grid, block, args, self.lds_bytes, self.kinds)


def compile_kernel(
    function: Any,
    arch: str,
    signature: Mapping[str, str],
    constants: Mapping[str, Any],
    aligned: Sequence[str] = (),
    **options: Any,
) -> Compiled:
    """Compile `function`.

    Args:
        function: a `triton.jit` or `gluon.jit` function.
        arch: "gfx942" or "gfx950".
        signature: argument name -> Triton type ("*bf16", "i32", ...), without the constants.
        constants: constexpr arguments.
        aligned: arguments that are multiples of 16 (what Triton finds out for itself at a launch).
        **options: num_warps, num_stages, matrix_instr_nonkdim, ...
    """
    import triton
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    names = function.arg_names
    types = {n: signature.get(n, "constexpr") for n in names}
    attrs = {(names.index(n),): [["tt.divisibility", 16]] for n in aligned}
    if type(function).__name__.startswith("Gluon"):
        from triton.experimental.gluon._runtime import GluonASTSource

        source = GluonASTSource(fn=function, signature=types, constexprs=dict(constants), attrs=attrs)
    else:
        source = ASTSource(fn=function, signature=types, constexprs=dict(constants), attrs=attrs)
    kernel = triton.compile(source, target=GPUTarget("hip", arch, 64), options=options)
    kinds = ["" if types[n].startswith("*") else types[n] for n in names if types[n] != "constexpr"]
    return Compiled(kernel, kinds)
