"""The first step of indexer_select in Triton: fp32 scores of the visible entries of some tokens.

A program scores one page of entries after the other, for all the tokens of its group at once, so that a page is read
once for all drafts of a request.
"""

# Triton has no types for what a kernel takes.
# mypy: disable-error-code="no-untyped-def"

import triton
import triton.language as tl
from torch import Tensor

from dsv4_rocm.arch import MatrixCore
from dsv4_rocm.cache.addressing import PagedCache, TokenBatch
from dsv4_rocm.cache.layout import Encoding
from dsv4_rocm.kernels.indexer_query.op import IndexQuery
from dsv4_rocm.kernels.indexer_select import tuning
from dsv4_rocm.kernels.triton_common import amd_compiler, amd_options, converts_fnuz, require_gpu
from dsv4_rocm.model_spec import INDEX_HEAD_DIM

NATIVE_MXFP4 = (MatrixCore.CDNA4_MFMA,)  # matrix instructions that take e8m0 scales; elsewhere keys become bf16


@triton.jit
def _as_e4m3(byte, FNUZ: tl.constexpr):
    return byte.to(tl.float8e4b8, bitcast=True) if FNUZ else byte.to(tl.float8e4nv, bitcast=True)


@triton.jit
def _score_tokens(
    query_ptr,
    weights_ptr,
    positions_ptr,
    request_ptr,
    table_ptr,
    pages_ptr,
    scores_ptr,
    first,
    group,  # first token
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
    DATA_BYTES: tl.constexpr,
    SCALE_BYTES: tl.constexpr,
    SCALE_OFFSET: tl.constexpr,
    MXFP4: tl.constexpr,
    NATIVE: tl.constexpr,
    FOREIGN: tl.constexpr,
    FNUZ: tl.constexpr,
):
    """Score the entries of one request for its tokens `group` .. `end`, TOKENS of them at most."""
    token = group + tl.arange(0, TOKENS)
    request = tl.load(request_ptr + group).to(tl.int32)
    position = tl.load(positions_ptr + token, mask=token < end, other=-1).to(tl.int32)
    visible = tl.minimum((position + 1) // RATIO, width)
    most = tl.where(request < requests, tl.max(visible, 0), 0)
    if tl.program_id(1) * KEYS < most:
        # Columns are 16 heads of one token, then of the next: a wave has whole tokens and adds their heads up alone.
        column = tl.arange(0, TOKENS * HEADS)
        owner = group + column // 16 % TOKENS
        head = column // (16 * TOKENS) * 16 + column % 16
        live = (owner < end) & (head < heads)
        cell = tl.cast(owner, tl.int64) * heads + head
        channel = tl.arange(0, CHANNELS)
        query = tl.load(query_ptr + cell[None, :] * CHANNELS + channel[:, None], mask=live[None, :], other=0)
        weight = tl.load(weights_ptr + cell, mask=live, other=0.0)
        query = _as_e4m3(query, FNUZ)  # [CHANNELS, TOKENS * HEADS]
        if MXFP4 and not NATIVE:
            query = (query.to(tl.float32) * (2.0 if FNUZ else 1.0)).to(tl.bfloat16)  # FNUZ hardware reads half a value
        row = tl.arange(0, KEYS)
        byte = tl.arange(0, DATA_BYTES)
        scale_byte = tl.arange(0, SCALE_BYTES)
        table_ptr += tl.cast(request, tl.int64) * table_stride
        out_ptr = scores_ptr + tl.cast(token - first, tl.int64)[None, :] * width
        for page in range(tl.program_id(1), tl.cdiv(most, KEYS), tl.num_programs(1)):
            # Rows behind the last visible one are read, since a mask costs more; what comes of them is not stored.
            page_ptr = pages_ptr + tl.load(table_ptr + page).to(tl.int64) * page_stride
            key = tl.load(page_ptr + (row * DATA_BYTES)[:, None] + byte[None, :])  # [KEYS, DATA_BYTES]
            scale_ptr = page_ptr + SCALE_OFFSET
            if MXFP4:
                exponent = tl.load(scale_ptr + (row * SCALE_BYTES)[:, None] + scale_byte[None, :])
                product = tl.dot_scaled(key, exponent, "e2m1", query, None, "e4m3" if NATIVE else "bf16")
            else:
                if FOREIGN:
                    key = tl.where(key == 0x80, 0, key).to(tl.uint8)
                product = tl.dot(_as_e4m3(key, FNUZ), query)
            part = tl.where(product < 0, 0.0, product) * weight[None, :]  # NaN stays
            if TOKENS == 1:  # as a case of the other it would pass through LDS first
                score = tl.sum(part, 1)[:, None]
            else:
                part = tl.reshape(part, (KEYS, HEADS // 16, TOKENS, 16))
                score = tl.sum(tl.sum(part, 1), 2)  # [KEYS, TOKENS]
            if not MXFP4:
                scale = tl.load(scale_ptr.to(tl.pointer_type(tl.float32)) + row)
                score = score * (scale * (4.0 if FNUZ else 1.0))[:, None]  # half of the query times half of the key
            entry = (page * KEYS + row)[:, None]
            tl.store(out_ptr + entry, score, mask=entry < visible[None, :])


@triton.jit(do_not_specialize=["first", "end", "requests", "together", "parts", "stride", "table_stride"])
def score_entries_kernel(
    query_ptr,  # uint8 [tokens, heads, CHANNELS], e4m3
    weights_ptr,  # fp32 [tokens, heads]
    positions_ptr,  # int64 [tokens]
    request_ptr,  # int64 [tokens]
    table_ptr,  # int32 [requests, blocks]
    pages_ptr,  # uint8 pages of `page_stride` bytes
    scores_ptr,  # fp32 [tokens of the round, width]
    first,  # tokens of the round
    end,
    requests,
    together,  # tokens of a request, which `parts` programs share
    parts,
    stride,  # tokens of a program, TOKENS at most
    page_stride,
    table_stride,
    width,
    heads,
    TOKENS: tl.constexpr,
    HEADS: tl.constexpr,
    CHANNELS: tl.constexpr,
    KEYS: tl.constexpr,
    RATIO: tl.constexpr,
    DATA_BYTES: tl.constexpr,
    SCALE_BYTES: tl.constexpr,
    SCALE_OFFSET: tl.constexpr,
    MXFP4: tl.constexpr,
    NATIVE: tl.constexpr,
    FOREIGN: tl.constexpr,
    FNUZ: tl.constexpr,
):
    whole = first + tl.program_id(0) // parts * together
    group = whole + tl.program_id(0) % parts * stride
    stop = tl.minimum(tl.minimum(group + stride, whole + together), end)
    owner = tl.load(request_ptr + tl.minimum(group + tl.arange(0, TOKENS), stop - 1)).to(tl.int32)
    if tl.min(owner, 0) == tl.max(owner, 0):
        _score_tokens(
            query_ptr,
            weights_ptr,
            positions_ptr,
            request_ptr,
            table_ptr,
            pages_ptr,
            scores_ptr,
            first,
            group,
            stop,
            requests,
            page_stride,
            table_stride,
            width,
            heads,
            TOKENS,
            HEADS,
            CHANNELS,
            KEYS,
            RATIO,
            DATA_BYTES,
            SCALE_BYTES,
            SCALE_OFFSET,
            MXFP4,
            NATIVE,
            FOREIGN,
            FNUZ,
        )
    else:
        for token in range(group, stop):
            _score_tokens(
                query_ptr,
                weights_ptr,
                positions_ptr,
                request_ptr,
                table_ptr,
                pages_ptr,
                scores_ptr,
                first,
                token,
                token + 1,
                requests,
                page_stride,
                table_stride,
                width,
                heads,
                1,
                HEADS,
                CHANNELS,
                KEYS,
                RATIO,
                DATA_BYTES,
                SCALE_BYTES,
                SCALE_OFFSET,
                MXFP4,
                NATIVE,
                FOREIGN,
                FNUZ,
            )


def score_entries(query: IndexQuery, batch: TokenBatch, index: PagedCache, first: int, scores: Tensor) -> None:
    """Write `sum_h w_{t,h} * relu(q_{t,h} . k_e)` of the visible entries of tokens `first` .. `first + n`.

    What lies behind a token's last visible entry stays as it is. One launch.

    Args:
        query: from `indexer_query`.
        batch: the tokens.
        index: the index cache, fp8 or mxfp4.
        first: first token of the round.
        scores: fp32 [n, width], contiguous; entries from `width` on are not scored.
    """
    arch, layout, heads = require_gpu(), index.layout, query.values.shape[1]
    mxfp4, fnuz = layout.encoding is Encoding.MXFP4, converts_fnuz()
    requests = index.block_table.shape[0]
    most = tuning.most_tokens(arch, mxfp4)
    together = tuning.tokens_together(batch, requests, most)
    parts = triton.cdiv(together, most)
    stride = triton.cdiv(together, parts)
    tokens = triton.next_power_of_2(stride)
    end = first + scores.shape[0]
    groups = triton.cdiv(end - first, together) * parts
    programs = tuning.programs(arch, groups, triton.cdiv(scores.shape[1], layout.rows_per_page))
    with amd_compiler(async_copy=False, buffer_ops=False):
        score_entries_kernel[groups, programs](
            query.values,
            query.weights,
            batch.positions,
            batch.request,
            index.block_table,
            index.pages,
            scores,
            first,
            end,
            requests,
            together,
            parts,
            stride,
            index.pages.stride(0),
            index.block_table.stride(0),
            scores.shape[1],
            heads,
            TOKENS=tokens,
            HEADS=max(16, triton.next_power_of_2(heads)),
            CHANNELS=INDEX_HEAD_DIM,
            KEYS=layout.rows_per_page,
            RATIO=layout.tokens_per_row,
            DATA_BYTES=layout.data_bytes,
            SCALE_BYTES=layout.scale_bytes,
            SCALE_OFFSET=layout.scale_offset,
            MXFP4=mxfp4,
            NATIVE=arch.matrix_core in NATIVE_MXFP4,
            FOREIGN=layout.foreign and fnuz,
            FNUZ=fnuz,
            **tuning.score_options(arch, tokens),
            **amd_options(matrix_instr_nonkdim=16),
        )
