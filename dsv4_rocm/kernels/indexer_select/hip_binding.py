"""indexer_select with Triton's scores and the selection in HIP C++ (`csrc/topk`)."""

from torch import Tensor

from dsv4_rocm.cache.addressing import PagedCache, TokenBatch
from dsv4_rocm.kernels.indexer_query.op import IndexQuery
from dsv4_rocm.kernels.indexer_select.hip_selection import candidate_words, select_entries
from dsv4_rocm.kernels.indexer_select.rounds import score_and_select


def indexer_select(
    query: IndexQuery, batch: TokenBatch, index: PagedCache, top_k: int, workspace: Tensor | None = None
) -> Tensor:
    """See `op.IndexerSelect` and `rounds.score_and_select`; ids come out in ascending order.

    Raises:
        ValueError: `top_k` is over a segment, or as `score_and_select`.
    """
    return score_and_select(query, batch, index, top_k, workspace, select_entries, candidate_words)
