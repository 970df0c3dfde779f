"""Rounds of scores and selection over a bounded workspace; what selects is the implementation's."""

from collections.abc import Callable
from typing import Protocol

import torch
from torch import Tensor

from dsv4_rocm.cache.addressing import PagedCache, TokenBatch
from dsv4_rocm.kernels.indexer_query.op import IndexQuery
from dsv4_rocm.kernels.indexer_select import tuning
from dsv4_rocm.kernels.indexer_select.triton_scores import score_entries
from dsv4_rocm.kernels.triton_common import require_gpu, require_index_rows, require_rows_of


class SelectEntries(Protocol):
    def __call__(
        self, scores: Tensor, batch: TokenBatch, first: int, requests: int, ratio: int, out: Tensor, candidates: Tensor
    ) -> None:
        """Keep the best finite scores of tokens `first` .. `first + n`, equal ones by lowest id.

        Args:
            scores: fp32 [n, width], `width` a multiple of 16; entry e is visible to a token at position t where
                `e < floor((t + 1) / ratio)`, and what lies behind is undefined.
            batch: the tokens.
            first: first token of the round.
            requests: number of requests; a token of a request from there on sees nothing.
            ratio: tokens per entry.
            out: int32 [tokens, top_k]; rows of the round are written: ids, then -1.
            candidates: int32 [at least candidate_words(width, top_k) * n], may be overwritten.
        """
        ...


def score_and_select(
    query: IndexQuery,
    batch: TokenBatch,
    index: PagedCache,
    top_k: int,
    workspace: Tensor | None,
    select_entries: SelectEntries,
    candidate_words: Callable[[int, int], int],
) -> Tensor:
    """`op.IndexerSelect` with Triton's scores and any selection. fp8 and mxfp4 index rows.

    `candidate_words(entries, top_k)` is what the selection needs for one token.

    Raises:
        ValueError: the index rows are of another encoding, an argument is not contiguous, the workspace does not hold
            one token's scores, or there is no GPU.
    """
    require_gpu()
    layout, table = index.layout, index.block_table
    require_index_rows("indexer_select", layout)
    require_rows_of("indexer_select", pages=index.pages, block_table=table)
    if not (query.values.is_contiguous() and query.weights.is_contiguous()):
        raise ValueError("indexer_select: index queries must be contiguous, as indexer_query returns them")
    tokens, device = batch.num_tokens, query.values.device
    out = torch.empty((tokens, top_k), dtype=torch.int32, device=device)
    if tokens == 0 or top_k == 0:
        return out
    entries = table.shape[1] * layout.rows_per_page
    words = entries + candidate_words(entries, top_k)
    available = tuning.WORKSPACE_BYTES if workspace is None else workspace.numel() * workspace.element_size()
    step = tuning.round_tokens(batch, 4 * words, available)
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
