"""Launch settings of sparse_attention. Registers and issue cycles are the compiler's and the emulator's, not times."""

from dataclasses import dataclass

from dsv4_rocm.arch import GpuArch, MatrixCore
from dsv4_rocm.cache.layout import CacheLayout
from dsv4_rocm.model_spec import HEAD_DIM


@dataclass(frozen=True, slots=True)
class Settings:
    """How the attention kernel is compiled.

    Attributes:
        keys: keys of a tile.
        heads: most heads of a workgroup; each key is dequantized once for them.
        num_warps: waves of a workgroup.
        num_stages: 2 loads the next tile's bytes while this one is multiplied.
        lazy: raise the softmax's reference only when a score passes it by 2^16.
        async_copy: let the compiler copy to LDS without registers (gfx950); it splits 16-byte rows into dwords.
        buffer_ops: let the compiler use buffer descriptors; it then loads bytes one by one, or not, by the pool's size.
    """

    keys: int
    heads: int
    num_warps: int
    num_stages: int
    lazy: bool
    async_copy: bool = True
    buffer_ops: bool = True


SETTINGS = {
    MatrixCore.CDNA3_MFMA: Settings(keys=16, heads=64, num_warps=4, num_stages=2, lazy=True, buffer_ops=False),
    MatrixCore.CDNA4_MFMA: Settings(
        keys=32, heads=64, num_warps=4, num_stages=2, lazy=False, async_copy=False, buffer_ops=False
    ),
    MatrixCore.WGMMA: Settings(keys=32, heads=32, num_warps=8, num_stages=1, lazy=False),
    MatrixCore.TCGEN05: Settings(keys=32, heads=32, num_warps=8, num_stages=1, lazy=False),
    MatrixCore.MMA_SYNC: Settings(keys=32, heads=32, num_warps=8, num_stages=1, lazy=False),
}

COMBINED_HEADS = 4  # heads of a program that combines splits
MIN_SPLIT_KEYS = 96  # below that a split's partial result is more than twice the bytes of its keys


def settings(arch: GpuArch) -> Settings:
    return SETTINGS[arch.matrix_core]


def head_block(heads: int, most: int) -> int:
    """Heads of a workgroup: a power of two from 16 (a matrix tile) to `most`."""
    return min(max(16, 1 << (heads - 1).bit_length()), most)


def splits(arch: GpuArch, tokens: int, heads: int, blocks: int, most_keys: int, row: CacheLayout) -> int:
    """Into how many parts the keys of a token are split.

    As many as it takes to fill the chip, as long as the bf16 partial results (written and read once) stay within
    2 / sqrt(tokens) of the bytes that must move: 7 for one token of 64 heads and 640 keys, 2 for 8, 1 from 16 on.
    """
    partial = 2 * 2 * heads * HEAD_DIM
    needed = most_keys * row.row_bytes + 2 * 2 * heads * HEAD_DIM
    affordable = int(2 * tokens**-0.5 * needed / partial)
    fill = (arch.compute_units or 128) // (tokens * blocks)
    return max(1, min(affordable, fill, most_keys // MIN_SPLIT_KEYS))
