"""indexer_select in Triton: one launch scores the visible entries, one or two pick the exact best."""

from torch import Tensor

from dsv4_rocm.cache.addressing import PagedCache, TokenBatch
from dsv4_rocm.kernels.indexer_query.op import IndexQuery
from dsv4_rocm.kernels.indexer_select import tuning
from dsv4_rocm.kernels.indexer_select.rounds import score_and_select
from dsv4_rocm.kernels.indexer_select.triton_selection import select_entries


def indexer_select(
    query: IndexQuery, batch: TokenBatch, index: PagedCache, top_k: int, workspace: Tensor | None = None
) -> Tensor:
    """See `op.IndexerSelect` and `rounds.score_and_select`; ids come out in ascending order.

    Raises:
        ValueError: `top_k` is too large for a tile, or as `score_and_select`.
    """
    if top_k > tuning.TILE // 2:
        raise ValueError(f"indexer_select: top_k must be at most {tuning.TILE // 2}, half a tile, got {top_k}")
    return score_and_select(query, batch, index, top_k, workspace, select_entries, tuning.candidate_words)
