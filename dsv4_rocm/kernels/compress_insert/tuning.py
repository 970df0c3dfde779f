"""Launch settings of the compress_insert kernels. Registers come from the compiler; no time was measured."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Settings:
    """How one kernel is compiled.

    Attributes:
        num_warps: waves of a workgroup.
        rows: state rows of one step of the online softmax; they lie in one page.
    """

    num_warps: int
    rows: int


STORE_WARPS = 4


def settings(channels: int, rows_per_page: int) -> Settings:
    """Settings of the closing kernel. 8 rows of 512 channels in 4 waves hold 72 registers on gfx942."""
    return Settings(num_warps=4 if channels > 128 else 1, rows=min(8, rows_per_page))
