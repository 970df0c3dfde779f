"""Launch settings of sparse_attention. Registers and issue cycles are the compiler's and the emulator's, not times."""

from dataclasses import dataclass

from dsv4_rocm.arch import GpuArch, MatrixCore, Vendor
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
    """

    keys: int
    num_warps: int
    num_stages: int
    lazy: bool


def _amd(keys: int, num_warps: int, lazy: bool) -> Settings:
    return Settings(keys, num_warps, num_stages=2, lazy=lazy)


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

# Where the rows are of several tokens, whose limits take registers of their own: 32 keys spill 13 to 41 on gfx950.
SHARED = {MatrixCore.CDNA4_MFMA: {64: _amd(16, 4, lazy=False)}}

MIN_SPLIT_KEYS = 256  # 16 heads take 61 clocks a key on gfx942: fewer keys cost less than the launch that combines
COMBINED_SPLITS = 8  # partial results that a program of the combining kernel reads at once, for so many heads
COMBINED_HEADS = 4
SOME_UNITS = 128  # where the number of compute units is not known
# Caches that workgroups are dealt to in turn: one on each XCD of CDNA, one for the whole chip elsewhere.
L2S = {Vendor.AMD: 8, Vendor.NVIDIA: 1}


@dataclass(frozen=True, slots=True)
class Splits:
    """Into how many parts the keys of a program are split: `min(count, per_key * keys + at_least)`, and at least one.

    Attributes:
        count: the most, what is launched; the number of keys is known to the device only.
        per_key: parts that are worth it for each key.
        at_least: parts that are worth it without keys.
    """

    count: int
    per_key: float
    at_least: float


def row_block(arch: GpuArch, rows: int) -> int:
    """Rows of a workgroup, which share dequantized keys: 16 (a matrix tile) up to what the registers hold."""
    blocks = SETTINGS[arch.matrix_core]
    return min((block for block in blocks if block >= rows), default=max(blocks))


def shared_queries(arch: GpuArch, heads: int, drafts: int) -> int:
    """Tokens of a request that one workgroup takes: all of them where their rows fit, else one."""
    return drafts if heads * drafts <= max(SETTINGS[arch.matrix_core]) else 1


def settings(arch: GpuArch, rows: int, queries: int) -> Settings:
    """Settings for a workgroup of `rows` rows: heads of so many tokens."""
    own = SETTINGS[arch.matrix_core][rows]
    return own if queries == 1 else SHARED.get(arch.matrix_core, {}).get(rows, own)


def splits(
    arch: GpuArch, groups: int, blocks: int, rows: int, most_keys: int, row: CacheLayout, tile_keys: int
) -> Splits:
    """Into how many parts the keys of each group of tokens are split.

    As many as it takes to fill the chip, as long as what splits add (the query read again by each, bf16 partial results
    written and read once) stays within 2 / sqrt(groups) of the bytes that must move, whatever the number of keys: 5 for
    one token of 64 heads with 640 keys, 2 for 8 of them, 1 from 16 on.

    Args:
        arch: the architecture.
        groups: tokens, or requests whose tokens share a workgroup.
        blocks: workgroups for the rows of a group.
        rows: heads of a group.
        most_keys: what a group can have.
        row: the layout of the keys.
        tile_keys: keys of a tile.
    """
    extra = 2 * groups**-0.5
    query = 2 * rows * HEAD_DIM  # bytes; a result or a partial result has as many
    per_key, at_least = extra * row.row_bytes / (3 * query), (2 * extra + 1) / 3
    fill = (arch.compute_units or SOME_UNITS) // (groups * blocks) if most_keys >= MIN_SPLIT_KEYS else 1
    tiles = -(-most_keys // tile_keys)
    share = -(-tiles // max(1, min(int(per_key * most_keys + at_least), fill)))
    return Splits(-(-tiles // share), per_key, at_least)
