"""Paged caches for tests and benchmarks: any layout, any block placement, every unused byte poisoned."""

import torch
from torch import Tensor

from dsv4_rocm.cache.addressing import (
    PagedCache,
    TokenBatch,
    entry_slots,
    paged_slots,
    request_of_token,
    row_slots,
    uniform_tokens,
)
from dsv4_rocm.cache.layout import CacheLayout

POISON = 0xFF  # an fp32 NaN, an e4m3 NaN and an e8m0 NaN


class Cache:
    """One cache for some requests; blocks are given out in a scrambled order and block 0 stays poisoned.

    Args:
        layout: what the bytes mean.
        requests: rows of the block table.
        tokens: positions that each request's blocks cover.
    """

    def __init__(self, layout: CacheLayout, requests: int = 1, tokens: int = 1024) -> None:
        self.layout = layout
        columns = -(-tokens // layout.tokens_per_page)
        blocks = requests * columns + 1
        stride = layout.padded_page_bytes + 576
        memory = torch.full((blocks * stride,), POISON, dtype=torch.uint8)
        self.pages = memory.as_strided((blocks, layout.page_bytes), (stride, 1))
        order = torch.randperm(blocks - 1, generator=torch.Generator().manual_seed(0)) + 1
        self.table = order.view(requests, columns).int()

    def at(self, batch: TokenBatch) -> PagedCache:
        """The cache with the slots of a batch's tokens."""
        page = self.layout.tokens_per_page
        slots = row_slots(self.table, batch.request, batch.positions, page)
        if self.layout.tokens_per_row > 1:
            slots = entry_slots(slots, batch.positions, self.layout.tokens_per_row, page)
        else:
            slots = paged_slots(slots, page)
        return PagedCache(self.layout, self.pages, self.table, slots)

    def keep(self, request: int, columns: set[int]) -> None:
        """Leave a request pages in some columns alone; the others become block 0."""
        kept = torch.tensor([column in columns for column in range(self.table.shape[1])])
        self.table[request] = torch.where(kept, self.table[request], 0)

    def rows(self, request: int, ids: Tensor) -> Tensor:
        """Slots of some rows (positions or entry ids) of a request."""
        return row_slots(self.table, torch.tensor(request), ids, self.layout.rows_per_page)


def token_batch(*ranges: tuple[int, int]) -> TokenBatch:
    """A batch with one request per (first position, number of tokens)."""
    lengths = torch.tensor([count for _, count in ranges])
    query_start = torch.cat([torch.zeros(1, dtype=torch.int64), lengths.cumsum(0)]).int()
    positions = torch.cat([torch.arange(first, first + count) for first, count in ranges])
    tokens = positions.shape[0]
    uniform = uniform_tokens(len(ranges), tokens, max(count for _, count in ranges))
    return TokenBatch(positions, query_start, request_of_token(query_start, tokens), uniform)
