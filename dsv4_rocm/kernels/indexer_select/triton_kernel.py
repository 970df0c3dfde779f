"""indexer_select in Triton: one launch scores the visible entries, one or two pick the exact best.

Scores pass through memory in fp32, at most a workspace full at a time; `select_entries` is all that reads them.
"""

import torch
from torch import Tensor

from dsv4_rocm.cache.addressing import PagedCache, TokenBatch
from dsv4_rocm.kernels.indexer_query.op import IndexQuery
from dsv4_rocm.kernels.indexer_select import tuning
from dsv4_rocm.kernels.indexer_select.triton_scores import score_entries
from dsv4_rocm.kernels.indexer_select.triton_selection import select_entries
from dsv4_rocm.kernels.triton_common import require_gpu, require_index_rows, require_rows_of


def indexer_select(
    query: IndexQuery, batch: TokenBatch, index: PagedCache, top_k: int, workspace: Tensor | None = None
) -> Tensor:
    """See `op.IndexerSelect`. fp8 and mxfp4 index rows; ids come out in ascending order.

    Raises:
        ValueError: the index rows are of another encoding, an argument is not contiguous, `top_k` is too large for a
            tile, the workspace does not hold one token's scores, or there is no GPU.
    """
    require_gpu()
    layout, table = index.layout, index.block_table
    require_index_rows("indexer_select", layout)
    require_rows_of("indexer_select", pages=index.pages, block_table=table)
    if not (query.values.is_contiguous() and query.weights.is_contiguous()):
        raise ValueError("indexer_select: index queries must be contiguous, as indexer_query returns them")
    if top_k > tuning.TILE // 2:
        raise ValueError(f"indexer_select: top_k must be at most {tuning.TILE // 2}, half a tile, got {top_k}")
    tokens, device = batch.num_tokens, query.values.device
    out = torch.empty((tokens, top_k), dtype=torch.int32, device=device)
    if tokens == 0 or top_k == 0:
        return out
    entries = table.shape[1] * layout.rows_per_page
    words = entries + tuning.candidate_words(entries, top_k)
    available = tuning.WORKSPACE_BYTES if workspace is None else workspace.numel() * workspace.element_size()
    step = tuning.round_tokens(batch, entries, top_k, available)
    if step == 0:
        raise ValueError(
            f"indexer_select: the scores of one token take {4 * words} bytes, the workspace has {available}; "
            "lower --max-model-len"
        )
    if workspace is None:
        workspace = torch.empty(step * words, dtype=torch.int32, device=device)
    memory = workspace.view(torch.int32)
    for first in range(0, tokens, step):
        count = min(step, tokens - first)
        scores = memory[: count * entries].view(torch.float32).view(count, entries)
        score_entries(query, batch, index, first, scores)
        candidates = memory[count * entries :]
        select_entries(scores, batch, first, table.shape[0], layout.tokens_per_row, out, candidates)
    return out
