"""Kernels of libraries whose addresses end before a pool does. Ours are 64-bit throughout."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class LibraryKernel:
    """A kernel that a packed pool can outgrow; block x stride is 1 MB for each block of Flash.

    Attributes:
        name: library and function.
        op: the op of ours that it could serve.
        reach_bytes: byte offsets below this one are right.
        source: where that is reported; newer releases of the library may be mended.
    """

    name: str
    op: str
    reach_bytes: int
    source: str


LIBRARY_KERNELS = (
    LibraryKernel(
        "aiter deepgemm_fp8_paged_mqa_logits", "indexer_select", 1 << 31, "ROCm/aiter#4774, vllm-project/vllm#52109"
    ),
    LibraryKernel("aiter _mla_gluon", "sparse_attention", 1 << 31, "ROCm/aiter#4474"),
)


def out_of_reach(pool_bytes: int) -> list[LibraryKernel]:
    """Kernels that would read or write at wrong addresses in a pool of this size."""
    return [kernel for kernel in LIBRARY_KERNELS if pool_bytes > kernel.reach_bytes]
