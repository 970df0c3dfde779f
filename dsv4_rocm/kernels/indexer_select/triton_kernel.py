"""indexer_select in Triton: one launch scores the visible entries, one picks the exact best by radix.

Scores pass through memory, as integers in their order, for at most `tuning.WORKSPACE_BYTES` at a time.
"""

# Triton has no types for what a kernel takes.
# mypy: disable-error-code="no-untyped-def"

import torch
import triton
import triton.language as tl
from torch import Tensor

from dsv4_rocm.cache.addressing import PagedCache, TokenBatch
from dsv4_rocm.kernels.indexer_query.op import IndexQuery
from dsv4_rocm.kernels.indexer_select import tuning
from dsv4_rocm.kernels.triton_common import amd_options, converts_fnuz, require_fp8_rows, require_gpu, require_rows_of
from dsv4_rocm.model_spec import INDEX_HEAD_DIM


@triton.jit
def _ordered(score):
    """uint32 in the order of the scores; 0 for what is not finite. -0 and 0 are equal."""
    bits = tl.where(score == 0, 0.0, score).to(tl.int32, bitcast=True)
    usable = (bits & 0x7F800000) != 0x7F800000
    ordered = (bits ^ ((bits >> 31) | -(2**31))).to(tl.uint32, bitcast=True)
    return tl.where(usable, ordered, 0)


@triton.jit
def _visible(positions_ptr, request_ptr, token, requests, RATIO: tl.constexpr):
    """Visible entries of a token; padding behind the last request sees none."""
    known = tl.load(request_ptr + token) < requests
    return tl.where(known, (tl.load(positions_ptr + token).to(tl.int32) + 1) // RATIO, 0)


@triton.jit(do_not_specialize=["first", "end", "table_stride", "requests"])
def score_entries_kernel(
    query_ptr,  # uint8 [tokens, heads, 128], e4m3
    weights_ptr,  # fp32 [tokens, heads]
    positions_ptr,  # int64 [tokens]
    request_ptr,  # int64 [tokens]
    table_ptr,  # int32 [requests, blocks]
    pages_ptr,  # uint8 pages of `page_stride` bytes
    scores_ptr,  # uint32 [tokens of the round, width]
    first,  # tokens of the round
    end,
    requests,
    page_stride,
    table_stride,
    width,
    heads,
    TOKENS: tl.constexpr,
    HEADS: tl.constexpr,
    CHANNELS: tl.constexpr,
    KEYS: tl.constexpr,
    RATIO: tl.constexpr,
    ROWS_PER_PAGE: tl.constexpr,
    DATA_BYTES: tl.constexpr,
    SCALE_BYTES: tl.constexpr,
    SCALE_OFFSET: tl.constexpr,
    FNUZ: tl.constexpr,
):
    group = first + tl.program_id(0) * TOKENS
    head = tl.arange(0, HEADS)
    channel = tl.arange(0, CHANNELS)
    token = group + tl.arange(0, TOKENS)
    limit = tl.load(positions_ptr + token, mask=token < end, other=-1).to(tl.int32) + 1
    most = tl.minimum(tl.max(limit, 0) // RATIO, width)
    step = tl.num_programs(1) * KEYS
    for start in range(tl.program_id(1) * KEYS, most, step):
        entry = start + tl.arange(0, KEYS)
        for t in range(group, tl.minimum(group + TOKENS, end)):  # the keys stay in the first cache for its neighbours
            visible = _visible(positions_ptr, request_ptr, t, requests, RATIO)
            seen = entry < tl.minimum(visible, width)
            request = tl.load(request_ptr + t)
            column = table_ptr + request * table_stride + entry // ROWS_PER_PAGE
            block = tl.load(column, mask=seen, other=0).to(tl.int64)
            page_ptr = pages_ptr + block * page_stride
            row = entry % ROWS_PER_PAGE
            key_ptr = (page_ptr + row * DATA_BYTES)[:, None] + channel[None, :]
            key = tl.load(key_ptr, mask=seen[:, None], other=0)  # [KEYS, CHANNELS]
            scale_ptr = (page_ptr + SCALE_OFFSET + row * SCALE_BYTES).to(tl.pointer_type(tl.float32))
            scale = tl.load(scale_ptr, mask=seen, other=0.0)
            cell = tl.cast(t, tl.int64) * heads + head
            query_cell = query_ptr + cell[None, :] * CHANNELS + channel[:, None]
            query = tl.load(query_cell, mask=(head < heads)[None, :], other=0)  # [CHANNELS, HEADS]
            weight = tl.load(weights_ptr + cell, mask=head < heads, other=0.0)
            if FNUZ:  # the hardware reads half of each byte's value
                product = tl.dot(key.to(tl.float8e4b8, bitcast=True), query.to(tl.float8e4b8, bitcast=True))
                scale = scale * 4.0
            else:
                product = tl.dot(key.to(tl.float8e4nv, bitcast=True), query.to(tl.float8e4nv, bitcast=True))
            score = tl.sum(tl.maximum(product, 0.0) * weight[None, :], 1) * scale
            out_ptr = scores_ptr + tl.cast(t - first, tl.int64) * width + entry
            tl.store(out_ptr, _ordered(score), mask=seen)


@triton.jit(do_not_specialize=["first", "requests"])
def select_entries_kernel(
    scores_ptr,  # uint32 [tokens of the round, width]
    positions_ptr,  # int64 [tokens]
    request_ptr,  # int64 [tokens]
    out_ptr,  # int32 [tokens, TOP_K]
    first,
    requests,
    width,
    TOP_K: tl.constexpr,
    BLOCK: tl.constexpr,
    RATIO: tl.constexpr,
):
    token = first + tl.program_id(0)
    visible = tl.minimum(_visible(positions_ptr, request_ptr, token, requests, RATIO), width)
    scores_ptr += tl.program_id(0).to(tl.int64) * width
    out_ptr += token.to(tl.int64) * TOP_K
    lane = tl.arange(0, BLOCK)
    bins = tl.arange(0, 256)

    # The TOP_K-th best score, eight bits at a time; 0 where everything usable is kept.
    threshold = tl.full((), 0, tl.uint32)
    wanted = tl.full((), TOP_K, tl.int32)
    if visible > TOP_K:
        for shift in range(24, -8, -8):
            counts = tl.zeros((256,), tl.int32)
            for start in range(0, visible, BLOCK):
                score = tl.load(scores_ptr + start + lane, mask=start + lane < visible, other=0)
                here = (start + lane < visible) & ((score >> shift >> 8) == threshold)
                counts += tl.histogram(((score >> shift) & 255).to(tl.int32), 256, mask=here)
            at_least = tl.cumsum(counts, 0, reverse=True)
            best = tl.sum((at_least >= wanted).to(tl.int32), 0) - 1
            wanted -= tl.sum(tl.where(bins == best + 1, at_least, 0), 0)
            threshold = (threshold << 8) | best.to(tl.uint32)

    # Everything above the threshold and the first `wanted` at it, by id.
    kept = 0
    ties = 0
    for start in range(0, visible, BLOCK):
        score = tl.load(scores_ptr + start + lane, mask=start + lane < visible, other=0)
        tie = (score == threshold) & (score > 0)
        rank = ties + tl.cumsum(tie.to(tl.int32), 0)
        take = (score > threshold) | (tie & (rank <= wanted))
        place = kept + tl.cumsum(take.to(tl.int32), 0) - 1
        tl.store(out_ptr + place, start + lane, mask=take)
        kept += tl.sum(take.to(tl.int32), 0)
        ties += tl.sum(tie.to(tl.int32), 0)
    for start in range(0, TOP_K, BLOCK):
        place = start + lane
        tl.store(out_ptr + place, -1, mask=(place >= kept) & (place < TOP_K))


def workspace(tokens: int, most_entries: int, device: torch.device) -> Tensor:
    """Memory for the scores of one round: uint32 [tokens, most_entries]."""
    return torch.empty((tokens, most_entries), dtype=torch.uint32, device=device)


def indexer_select(query: IndexQuery, batch: TokenBatch, index: PagedCache, top_k: int) -> Tensor:
    """See `op.IndexerSelect`. fp8 index rows only; ids come out in ascending order.

    Raises:
        ValueError: the index rows are not fp8, an argument is not contiguous, or there is no GPU.
    """
    arch = require_gpu()
    require_fp8_rows("indexer_select", index.layout)
    require_rows_of("indexer_select", pages=index.pages, block_table=index.block_table)
    if not (query.values.is_contiguous() and query.weights.is_contiguous()):
        raise ValueError("indexer_select: index queries must be contiguous, as indexer_query returns them")
    tokens, device = batch.num_tokens, query.values.device
    out = torch.empty((tokens, top_k), dtype=torch.int32, device=device)
    if tokens == 0 or top_k == 0:
        return out
    most = index.block_table.shape[1] * index.layout.rows_per_page
    share = tuning.shared_tokens(tokens, index.block_table.shape[0])
    round_tokens = tuning.round_tokens(tokens, most)
    scores = workspace(round_tokens, most, device)
    for first in range(0, tokens, round_tokens):
        end = min(first + round_tokens, tokens)
        groups = triton.cdiv(end - first, share)
        _score((groups, tuning.programs(arch, groups, most)), share, query, batch, index, scores, first, end)
        select_entries_kernel[(end - first,)](
            scores,
            batch.positions,
            batch.request,
            out,
            first,
            index.block_table.shape[0],
            most,
            TOP_K=top_k,
            BLOCK=tuning.SELECT_BLOCK,
            RATIO=index.layout.tokens_per_row,
            num_warps=tuning.SELECT_WARPS,
        )
    return out


def _score(
    grid: tuple[int, int],
    share: int,
    query: IndexQuery,
    batch: TokenBatch,
    index: PagedCache,
    scores: Tensor,
    first: int,
    end: int,
) -> None:
    layout, heads = index.layout, query.values.shape[1]
    score_entries_kernel[grid](
        query.values,
        query.weights,
        batch.positions,
        batch.request,
        index.block_table,
        index.pages,
        scores,
        first,
        end,
        index.block_table.shape[0],
        index.pages.stride(0),
        index.block_table.stride(0),
        scores.shape[1],
        heads,
        TOKENS=share,
        HEADS=max(16, triton.next_power_of_2(heads)),
        CHANNELS=INDEX_HEAD_DIM,
        KEYS=tuning.SCORED_KEYS,
        RATIO=layout.tokens_per_row,
        ROWS_PER_PAGE=layout.rows_per_page,
        DATA_BYTES=layout.data_bytes,
        SCALE_BYTES=layout.scale_bytes,
        SCALE_OFFSET=layout.scale_offset,
        FNUZ=converts_fnuz(),
        num_warps=tuning.SCORE_WARPS,
        **amd_options(matrix_instr_nonkdim=16),
    )
