"""Launch settings of indexer_select. Computed; no time was measured."""

from dsv4_rocm.arch import GpuArch

SCORED_KEYS = 64  # entries of a tile of scores
SCORE_WARPS = 4
SELECT_BLOCK = 2048  # scores that one step of the selection looks at
SELECT_WARPS = 8
DRAFT_TOKENS = 8  # neighbouring tokens that share one read of the keys
WORKSPACE_BYTES = 256 * 1024**2  # cap on scores in memory; more tokens come in several rounds


def shared_tokens(tokens: int, requests: int) -> int:
    """Tokens of one program: one where every request brings one token, since they share nothing."""
    return 1 if tokens <= requests else DRAFT_TOKENS


def programs(arch: GpuArch, groups: int, most_entries: int) -> int:
    """Programs that share the entries of one group of tokens: four workgroups on a CU."""
    fill = 4 * (arch.compute_units or 128) // groups
    return max(1, min(fill, -(-most_entries // SCORED_KEYS)))


def round_tokens(tokens: int, most_entries: int) -> int:
    """Tokens whose scores fit the workspace, whole groups of them."""
    fit = WORKSPACE_BYTES // (4 * most_entries)
    return min(tokens, max(fit // DRAFT_TOKENS, 1) * DRAFT_TOKENS)
