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
        num_warps: waves of a workgroup.
        num_stages: 2 loads the next tile's bytes while this one is multiplied.
        lazy: raise the softmax's reference only when a score passes it by 2^16.
        async_copy: let the compiler copy to LDS without registers (gfx950); it splits 16-byte rows into dwords.
        buffer_ops: let the compiler use buffer descriptors; it then loads bytes one by one, or not, by the pool's size.
    """

    keys: int
    num_warps: int
    num_stages: int
    lazy: bool
    async_copy: bool = True
    buffer_ops: bool = True


def _amd(keys: int, num_warps: int, lazy: bool) -> Settings:
    return Settings(keys, num_warps, num_stages=2, lazy=lazy, async_copy=False, buffer_ops=False)


# By heads of a workgroup. Vector ALU + transcendental clocks of a CU a key and 64 heads, counted by the emulator:
# gfx942 178 + 4 for 16 heads, 117 + 4 for 32, 82 + 4 for 64; gfx950 195 + 5, 159 + 5, 96 + 5. With four waves 16 heads
# and 16 or 32 keys a tile take 474 and 887; with lazy gfx950 spills at 64 heads.
CDNA3 = {16: _amd(32, 2, lazy=True), 32: _amd(32, 4, lazy=True), 64: _amd(16, 4, lazy=True)}
CDNA4 = {16: _amd(32, 2, lazy=False), 32: _amd(32, 4, lazy=False), 64: _amd(32, 4, lazy=False)}
HOPPER = {16: Settings(32, 8, num_stages=1, lazy=False)}  # 220 registers; 32 heads leave 72 bytes or more on the stack
BLACKWELL = {16: Settings(32, 4, num_stages=1, lazy=False), 32: Settings(64, 8, num_stages=1, lazy=False)}
SETTINGS = {
    MatrixCore.CDNA3_MFMA: CDNA3,
    MatrixCore.CDNA4_MFMA: CDNA4,
    MatrixCore.WGMMA: HOPPER,
    MatrixCore.TCGEN05: BLACKWELL,
    MatrixCore.MMA_SYNC: HOPPER,
}

COMBINED_HEADS = 4  # heads of a program that combines splits
MIN_SPLIT_KEYS = 96  # below that a split's partial result is more than twice the bytes of its keys


def head_block(arch: GpuArch, heads: int) -> int:
    """Heads of a workgroup, which share dequantized keys: 16 (a matrix tile) up to what the registers hold."""
    blocks = SETTINGS[arch.matrix_core]
    return min((block for block in blocks if block >= heads), default=max(blocks))


def settings(arch: GpuArch, block: int) -> Settings:
    """Settings for a workgroup of `block` heads."""
    return SETTINGS[arch.matrix_core][block]


def splits(arch: GpuArch, tokens: int, heads: int, blocks: int, most_keys: int, row: CacheLayout) -> int:
    """Into how many parts the keys of a token are split.

    As many as it takes to fill the chip, as long as what splits add (the query read again by each, bf16 partial results
    written and read once) stays within 2 / sqrt(tokens) of the bytes that must move: 5 for one token of 64 heads and
    640 keys, 2 for 8, 1 from 16 on.
    """
    query = 2 * heads * HEAD_DIM  # bytes; a result or partial result has as many
    needed = most_keys * row.row_bytes + 2 * query
    affordable = int((2 * tokens**-0.5 * needed + query) / (3 * query))
    fill = (arch.compute_units or 128) // (tokens * blocks)
    return max(1, min(affordable, fill, most_keys // MIN_SPLIT_KEYS))
