"""Which implementation serves an op on an architecture: `choose` returns one, or raises with every reason."""

import importlib
import logging
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache, wraps
from types import ModuleType
from typing import Any

from dsv4_rocm import envs
from dsv4_rocm.arch import GpuArch, Vendor
from dsv4_rocm.cache.layout import Encoding
from dsv4_rocm.cache.library_limits import LIBRARY_KERNELS
from dsv4_rocm.cache.specs import CacheEncodings
from dsv4_rocm_hip import manifest

logger = logging.getLogger(f"vllm.{__name__}")  # below vLLM's logger, so that its settings hold

OPS = (
    "qnorm_rope_insert",
    "compress_insert",
    "indexer_query",
    "indexer_select",
    "sparse_attention",
    "inv_rope_quant",
)


Refusal = Callable[[GpuArch, CacheEncodings], str | None]


@dataclass(frozen=True, slots=True)
class Implementation:
    """One way to compute an op.

    Attributes:
        name: what `DSV4_ROCM_IMPL_<OP>` calls it.
        target: `module:function`, imported when chosen.
        refuses: why it cannot serve an architecture with some cache encodings, or None when it can.
        library: the kernel behind an adapter, as `LIBRARY_KERNELS` calls it; one whose addresses end is refused,
            because a pool is not known to be small when ops are chosen.
    """

    name: str
    target: str
    refuses: Refusal
    library: str | None = None

    def refusal(self, arch: GpuArch, encodings: CacheEncodings) -> str | None:
        """Why it cannot be chosen, or None."""
        for kernel in LIBRARY_KERNELS:
            if kernel.name == self.library:
                return f"{kernel.name} is right only for pools up to {kernel.reach_bytes} bytes ({kernel.source})"
        return self.refuses(arch, encodings)

    def load(self) -> Callable[..., Any]:
        """The function; on a host that emulates a GPU it runs there, unless it is plain torch."""
        module, function = self.target.split(":")
        loaded: Callable[..., Any] = getattr(importlib.import_module(module), function)
        emulated = envs.emulated_arch()
        return loaded if emulated is None or self.name == "reference" else _on_emulator(loaded, emulated)


def _on_emulator(function: Callable[..., Any], arch: str) -> Callable[..., Any]:
    from dsv4_rocm.testing.cdna import device

    emulator = device(arch)

    @wraps(function)
    def run(*args: Any, **kwargs: Any) -> Any:
        with emulator:
            return function(*args, **kwargs)

    return run


@dataclass(frozen=True, slots=True)
class Choice:
    """The outcome of a selection: the implementation, and why each faster one was refused."""

    op: str
    chosen: Implementation
    rejected: dict[str, str]


def _op_module(op: str) -> ModuleType:
    return importlib.import_module(f"dsv4_rocm.kernels.{op}.op")


def implementations(op: str) -> tuple[Implementation, ...]:
    """Implementations of an op, fastest first."""
    found: tuple[Implementation, ...] = _op_module(op).IMPLEMENTATIONS
    return found


def choose(op: str, arch: GpuArch, encodings: CacheEncodings) -> Choice:
    """Pick the first implementation that can serve `arch` with caches in these encodings.

    `DSV4_ROCM_IMPL_<OP>` forces one; a forced implementation never falls back.

    Raises:
        ValueError: the forced name is unknown, or the forced (or every) implementation refuses, with each reason.
    """
    available = implementations(op)
    forced = envs.forced_impl(op)
    if forced is not None:
        names = [implementation.name for implementation in available]
        if forced not in names:
            raise ValueError(
                f"{envs.impl_variable(op)}={forced} names no implementation of {op}; known: {', '.join(names)}"
            )
        available = tuple(implementation for implementation in available if implementation.name == forced)
    rejected: dict[str, str] = {}
    for implementation in available:
        reason = implementation.refusal(arch, encodings)
        if reason is None:
            return Choice(op, implementation, rejected)
        rejected[implementation.name] = reason
    reasons = "; ".join(f"{name}: {reason}" for name, reason in rejected.items())
    raise ValueError(f"no implementation of {op} can serve {arch.name}: {reasons}")


def table(arch: GpuArch, encodings: CacheEncodings) -> list[Choice]:
    """The choice for every op, in the order of the data flow."""
    return [choose(op, arch, encodings) for op in OPS]


def render_table(choices: list[Choice]) -> str:
    """One line per op: the implementation, and the reasons against the faster ones."""
    lines = []
    for choice in choices:
        against = "; ".join(f"not {name}: {reason}" for name, reason in choice.rejected.items())
        lines.append(f"  {choice.op:<18} {choice.chosen.name}" + (f"  ({against})" if against else ""))
    return "\n".join(lines)


@cache
def log_table(arch: GpuArch, encodings: CacheEncodings) -> None:
    """Print the table of choices, once per process."""
    logger.info("dsv4_rocm ops on %s:\n%s", arch.name, render_table(table(arch, encodings)))


def needs_code_object(variant: str, and_also: Refusal) -> Refusal:
    """A HIP kernel: its code object for the architecture, and what `and_also` asks for."""

    def refuses(arch: GpuArch, encodings: CacheEncodings) -> str | None:
        if arch.vendor is not Vendor.AMD:
            return f"needs an AMD GPU, not {arch.name}"
        return manifest.missing(variant, arch.name) or and_also(arch, encodings)

    return refuses


def always(_arch: GpuArch, _encodings: CacheEncodings) -> None:
    """The reference serves everything."""
    return


def needs_gpu(arch: GpuArch, _encodings: CacheEncodings) -> str | None:
    """A kernel that runs on AMD and NVIDIA GPUs whatever the caches hold."""
    return f"needs an AMD or NVIDIA GPU, not {arch.name}" if arch.vendor is Vendor.HOST else None


def needs_gpu_and_fp8_rows(arch: GpuArch, encodings: CacheEncodings) -> str | None:
    """A kernel that reads or writes fp8 key rows."""
    fits = encodings.rows is Encoding.FP8
    return needs_gpu(arch, encodings) or (None if fits else f"needs fp8 key rows, not {encodings.rows.value}")


def needs_gpu_and_byte_index(arch: GpuArch, encodings: CacheEncodings) -> str | None:
    """A kernel that reads or writes fp8 or mxfp4 index rows, or prepares queries for them."""
    fits = encodings.index in (Encoding.FP8, Encoding.MXFP4)
    reason = f"needs fp8 or mxfp4 index rows, not {encodings.index.value}"
    return needs_gpu(arch, encodings) or (None if fits else reason)


def needs_gpu_and_byte_caches(arch: GpuArch, encodings: CacheEncodings) -> str | None:
    """A kernel that reads or writes fp8 key rows, and fp8 or mxfp4 index rows."""
    return needs_gpu_and_fp8_rows(arch, encodings) or needs_gpu_and_byte_index(arch, encodings)
