"""Where a token's row or an entry's row lies: block tables, slots, and the batch that refers to them. All int64."""

from dataclasses import dataclass
from itertools import pairwise

import torch
from torch import Tensor

from dsv4_rocm.cache.layout import CacheLayout

MOST_SHARED_TOKENS = 8  # query tokens of a request that share keys: a verified token and seven drafts


@dataclass(frozen=True, slots=True)
class TokenBatch:
    """The query tokens of one step, request after request.

    Attributes:
        positions: int64 [tokens], absolute position of each token.
        query_start: int32 [requests + 1], first token of each request; the last element is the number of tokens.
        request: int64 [tokens], request of each token.
        tokens_per_request: on the host, the number of tokens (1 .. 8) of every request, when it is the same for all:
            token t is then of request `t // tokens_per_request`, or padding. None says nothing.
    """

    positions: Tensor
    query_start: Tensor
    request: Tensor
    tokens_per_request: int | None = None

    @property
    def num_tokens(self) -> int:
        return self.positions.shape[0]

    def spans(self) -> list[tuple[int, int, int]]:
        """(request, first token, end) of every request that has tokens; brings the lengths to the host."""
        bounds = pairwise(self.query_start.tolist())
        return [(request, start, end) for request, (start, end) in enumerate(bounds) if end > start]


@dataclass(frozen=True, slots=True)
class PagedCache:
    """One physical cache as an op sees it.

    Attributes:
        layout: what the bytes mean.
        pages: uint8 [num_blocks, page_bytes], strided by the pool's block stride.
        block_table: int32 [requests, blocks], the block of each page-sized range of positions.
        slots: int64 [tokens], where each token of the batch writes its row, -1 for nothing. For entries only the token
            that closes a group has a slot.
    """

    layout: CacheLayout
    pages: Tensor
    block_table: Tensor
    slots: Tensor


def uniform_tokens(requests: int, tokens: int, longest: int) -> int | None:
    """`TokenBatch.tokens_per_request` of a batch with so many requests and tokens, its longest request this long."""
    return longest if 1 <= longest <= MOST_SHARED_TOKENS and requests * longest == tokens else None


def request_of_token(query_start: Tensor, num_tokens: int) -> Tensor:
    """Request of each token: int32 [requests + 1] -> int64 [num_tokens]; no shape depends on data, as graphs need."""
    tokens = torch.arange(num_tokens, device=query_start.device, dtype=query_start.dtype)
    return torch.searchsorted(query_start[1:], tokens, right=True)


def token_positions(query_start: Tensor, seq_lens: Tensor, request: Tensor) -> Tensor:
    """Position of each token, counted back from the end of its request's context: int64 [tokens].

    Padding has position -1 and sees nothing: tokens of a request of length 0, and tokens past the last request.

    Args:
        query_start: int32 [requests + 1].
        seq_lens: int32 [requests], context length of each request with this step's tokens.
        request: int64 [tokens]; the number of requests for a token past the last one.
    """
    owner = request.clamp_max(seq_lens.shape[0] - 1)
    token = torch.arange(request.shape[0], device=request.device)
    position = (seq_lens[owner] + token - query_start[1:][owner]).clamp_min(-1)
    return position.where(request < seq_lens.shape[0], -1)


def paged_slots(token_slots: Tensor, tokens_per_page: int) -> Tensor:
    """Slots of tokens whose column has a page: int64 [tokens]; -1 in block 0, which stands for no page."""
    return torch.where(token_slots >= tokens_per_page, token_slots, -1)


def entry_slots(token_slots: Tensor, positions: Tensor, ratio: int, tokens_per_page: int) -> Tensor:
    """Slot of the entry that each token closes, -1 where it closes none.

    Args:
        token_slots: int64 [tokens], block * tokens_per_page + position in block; -1 for padding.
        positions: int64 [tokens].
        ratio: tokens per entry.
        tokens_per_page: tokens per block.
    """
    rows = tokens_per_page // ratio
    slot = token_slots // tokens_per_page * rows + token_slots % tokens_per_page // ratio
    closes = (positions + 1) % ratio == 0
    return torch.where(closes & (token_slots >= 0), slot, -1)


def row_slots(block_table: Tensor, request: Tensor, row: Tensor, rows_per_page: int) -> Tensor:
    """Physical slot of logical row `row` (a position or an entry id) of a request.

    Out-of-range rows or requests give -1, never somebody else's slot.

    Args:
        block_table: int32 [requests, blocks].
        request: int64, broadcastable with `row`.
        row: int64, any shape.
        rows_per_page: rows per block.
    """
    request, row = torch.broadcast_tensors(request, row)
    column = torch.div(row, rows_per_page, rounding_mode="floor")
    valid = (row >= 0) & (column < block_table.shape[1]) & (request >= 0) & (request < block_table.shape[0])
    block = block_table[request.where(valid, 0), column.where(valid, 0)].long()
    return torch.where(valid, block * rows_per_page + row % rows_per_page, -1)
