"""Launch settings of indexer_select. Computed; no time was measured."""

from dsv4_rocm.arch import GpuArch, MatrixCore, Vendor
from dsv4_rocm.cache.addressing import MOST_SHARED_TOKENS, TokenBatch
from dsv4_rocm.cache.gpu_memory import INDEXER_LOGITS_CAP

WORKSPACE_BYTES = INDEXER_LOGITS_CAP  # cap on scores and candidates in memory; more tokens come in several rounds
TILE = 16384  # scores that a workgroup holds in registers, 32 a lane
SMALL_TILE = 2048  # the same where a token sees no more
SELECT_THREADS = 512
PROGRAMS_PER_UNIT = 8


def most_tokens(arch: GpuArch, mxfp4: bool) -> int:
    """Tokens of one program at most, so that their queries fit beside the keys.

    Eight tokens of 64 heads are 64 KiB of e4m3, all the LDS that gfx942 has; as bf16 they are twice that. On NVIDIA
    accumulators of eight tokens leave no registers.
    """
    if arch.vendor is Vendor.NVIDIA or (mxfp4 and arch.matrix_core is MatrixCore.CDNA3_MFMA):
        return MOST_SHARED_TOKENS // 2
    return MOST_SHARED_TOKENS


def tokens_together(batch: TokenBatch, requests: int, most: int) -> int:
    """Neighbouring tokens that are of one request as far as the host knows, or may be."""
    return batch.tokens_per_request or (1 if batch.num_tokens <= requests else most)


def score_options(arch: GpuArch, tokens: int) -> dict[str, int]:
    """AMD: a wave for the heads of each token, two for one. NVIDIA's matrix instructions take four warps."""
    if arch.vendor is Vendor.NVIDIA:
        return {"num_warps": 4 if tokens <= 2 else 8, "num_stages": 2 if tokens == 1 else 1}
    return {"num_warps": max(tokens, 2), "num_stages": 1}


def programs(arch: GpuArch, groups: int, pages: int) -> int:
    """Programs that share the pages of one group of tokens."""
    fill = PROGRAMS_PER_UNIT * (arch.compute_units or 128) // groups
    return max(1, min(fill, pages))


def places(top_k: int) -> int:
    """Candidates that a tile has room for: a power of two, and 16-byte accesses stay whole."""
    return max(16, 1 << (top_k - 1).bit_length())


def candidate_words(entries: int, top_k: int) -> int:
    """int32 words of candidates of one token with so many entries."""
    words = 0
    while entries > TILE:
        entries = -(-entries // TILE) * places(top_k)
        words += 2 * entries
    return words


def round_tokens(batch: TokenBatch, token_bytes: int, workspace_bytes: int) -> int:
    """Tokens whose scores and candidates fit the workspace, whole requests where it holds one."""
    unit = batch.tokens_per_request or MOST_SHARED_TOKENS
    fit = workspace_bytes // token_bytes
    return min(batch.num_tokens, fit // unit * unit or fit)


def workspace_words(tokens: int, entries: int) -> int:
    """int32 words for steps of so many tokens and entries: all scores, or the cap; few tokens also have candidates."""
    return min(WORKSPACE_BYTES // 4, max(tokens, 2 * MOST_SHARED_TOKENS) * entries)
