"""Reference of indexer_select in plain torch: one request after the other, bounded tiles of tokens."""

import torch
from torch import Tensor

from dsv4_rocm.cache.addressing import PagedCache, TokenBatch, row_slots
from dsv4_rocm.cache.rows import read_rows
from dsv4_rocm.kernels.indexer_query.op import IndexQuery
from dsv4_rocm.number_formats import e4m3_decode

TILE_TOKENS = 128


def indexer_select(
    query: IndexQuery, batch: TokenBatch, index: PagedCache, top_k: int, workspace: Tensor | None = None
) -> Tensor:
    """See `op.IndexerSelect`; the workspace is not used."""
    quantized = query.values.dtype is torch.uint8
    values = e4m3_decode(query.values) if quantized else query.values.float()
    ratio = index.layout.tokens_per_row
    selected = torch.full((batch.num_tokens, top_k), -1, dtype=torch.int32, device=values.device)
    for request, start, end in batch.spans():
        visible = (batch.positions[start:end] + 1) // ratio
        entries = torch.arange(int(visible.max()), device=values.device)
        slots = row_slots(index.block_table, index.block_table.new_tensor(request), entries, index.layout.rows_per_page)
        keys = read_rows(index.layout, index.pages, slots)  # [entries, 128]
        for first in range(start, end, TILE_TOKENS):
            tile = slice(first, min(first + TILE_TOKENS, end))
            scores = index_scores(values[tile], query.weights[tile], keys)
            selected[tile] = top_entries(scores, visible[tile.start - start : tile.stop - start], top_k)
    return selected


def index_scores(query: Tensor, weights: Tensor, keys: Tensor) -> Tensor:
    """`sum_h w_h * relu(q_h . k_e)`: [tokens, heads, 128], [tokens, heads], [entries, 128] -> [tokens, entries]."""
    products = torch.relu(torch.einsum("thd,ed->the", query, keys.to(query.dtype)))
    return torch.einsum("the,th->te", products, weights.to(query.dtype))


def top_entries(scores: Tensor, visible: Tensor, top_k: int) -> Tensor:
    """Best `top_k` finite scores among the first `visible` of each row, ties by lowest id: -> int32 [tokens, top_k]."""
    tokens, entries = scores.shape
    usable = scores.isfinite() & (torch.arange(entries, device=scores.device) < visible[:, None])
    ranked = scores.masked_fill(~usable, -torch.inf)
    order = torch.argsort(ranked, dim=1, descending=True, stable=True)[:, :top_k]
    order = order.where(usable.gather(1, order), -1)
    padding = order.new_full((tokens, top_k - order.shape[1]), -1)
    return torch.cat([order, padding], 1).int()
