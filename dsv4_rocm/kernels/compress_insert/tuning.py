"""Launch settings of the compress_insert kernels. Registers come from the compiler; no time was measured."""

STORE_WARPS = 4


def close_warps(channels: int) -> int:
    """Waves of the closing kernel. A page of 8 rows of 512 channels in 4 waves holds 74 registers on gfx942."""
    return 4 if channels > 128 else 1
