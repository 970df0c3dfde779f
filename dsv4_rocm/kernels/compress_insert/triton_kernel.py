"""compress_insert in Triton: one launch stores the state rows of all tokens, a second one closes groups."""

# Triton has no types for what a kernel takes.
# mypy: disable-error-code="no-untyped-def"

import triton
import triton.language as tl
from torch import Tensor

from dsv4_rocm.cache.addressing import PagedCache, TokenBatch
from dsv4_rocm.cache.addressing_triton import row_block
from dsv4_rocm.cache.layout import FP8_GROUP, NOPE_DIM, CacheKind, Encoding
from dsv4_rocm.kernels.compress_insert import tuning
from dsv4_rocm.kernels.triton_common import (
    LOG2E,
    converts_fnuz,
    require_byte_rows,
    require_rows_of,
    rotate_row,
    store_index_row,
    store_key_row,
    store_mxfp4_row,
    turn,
)
from dsv4_rocm.model_spec import ROPE_DIM
from dsv4_rocm.number_formats import FP4_GROUP


@triton.jit
def store_state_kernel(
    values_ptr,  # fp32 [tokens, WIDTH], rows of `values_stride`
    gates_ptr,  # fp32 [tokens, WIDTH], rows of `gates_stride`
    bias_ptr,  # fp32 [RATIO, WIDTH]
    positions_ptr,  # int64 [tokens]
    slots_ptr,  # int64 [tokens]
    state_ptr,  # uint8 pages of `page_stride` bytes
    values_stride,
    gates_stride,
    page_stride,
    WIDTH: tl.constexpr,
    RATIO: tl.constexpr,
    ROWS_PER_PAGE: tl.constexpr,
    DATA_BYTES: tl.constexpr,
):
    token = tl.program_id(0).to(tl.int64)
    slot = tl.load(slots_ptr + token)
    if slot < 0:
        return
    channel = tl.arange(0, WIDTH)
    phase = tl.load(positions_ptr + token) % RATIO
    value = tl.load(values_ptr + token * values_stride + channel)
    gate = tl.load(gates_ptr + token * gates_stride + channel) + tl.load(bias_ptr + phase * WIDTH + channel)
    row_ptr = state_ptr + slot // ROWS_PER_PAGE * page_stride + slot % ROWS_PER_PAGE * DATA_BYTES
    row_ptr = row_ptr.to(tl.pointer_type(tl.float32))
    tl.store(row_ptr + channel, value)
    tl.store(row_ptr + WIDTH + channel, gate)


@triton.jit(do_not_specialize=["table_stride"])
def close_groups_kernel(
    values_ptr,  # fp32 [tokens, WIDTH], rows of `values_stride`
    gates_ptr,  # fp32 [tokens, WIDTH], rows of `gates_stride`
    bias_ptr,  # fp32 [RATIO, WIDTH]
    weight_ptr,  # [CHANNELS]
    frequencies_ptr,  # fp32 [ROPE / 2]
    positions_ptr,  # int64 [tokens]
    request_ptr,  # int64 [tokens]
    starts_ptr,  # int32 [requests + 1], first token of each request
    slots_ptr,  # int64 [tokens], slots of entries
    table_ptr,  # int32 [requests, blocks], blocks of the state
    state_ptr,  # uint8 pages of `state_stride` bytes
    entries_ptr,  # uint8 pages of `entries_stride` bytes
    values_stride,
    gates_stride,
    table_stride,
    state_stride,
    entries_stride,
    eps,
    CHANNELS: tl.constexpr,
    WIDTH: tl.constexpr,
    OVERLAP: tl.constexpr,
    RATIO: tl.constexpr,
    STEP: tl.constexpr,
    STATE_BYTES: tl.constexpr,
    ROWS_PER_PAGE: tl.constexpr,
    DATA_BYTES: tl.constexpr,
    SCALE_BYTES: tl.constexpr,
    SCALE_OFFSET: tl.constexpr,
    INDEX: tl.constexpr,
    MXFP4: tl.constexpr,
    STAGES: tl.constexpr,
    FACTOR: tl.constexpr,
    NOPE: tl.constexpr,
    GROUP: tl.constexpr,
    ROPE: tl.constexpr,
    FNUZ: tl.constexpr,
):
    token = tl.program_id(0).to(tl.int64)
    slot = tl.load(slots_ptr + token)
    if slot < 0:
        return
    end = tl.load(positions_ptr + token).to(tl.int32)
    request = tl.load(request_ptr + token)
    # Rows of the pooling range that lie before the batch. The range starts at this token of the batch:
    range_token = token - (OVERLAP * RATIO - 1)
    stored = tl.load(starts_ptr + request) - range_token.to(tl.int32)
    values_ptr += range_token * values_stride
    gates_ptr += range_token * gates_stride
    channel = tl.arange(0, CHANNELS)
    step = tl.arange(0, STEP)
    top = tl.full((CHANNELS,), float("-inf"), tl.float32)
    total = tl.zeros((CHANNELS,), tl.float32)
    pooled = tl.zeros((CHANNELS,), tl.float32)
    first = end - (OVERLAP * RATIO - 1)
    for offset in range(tl.where(first < 0, RATIO, 0), OVERLAP * RATIO, STEP):  # no row lies before position 0
        # A step is a page. Rows of this batch come from the projections, the others from the page; where no other is
        # left, the column may have none.
        row = offset + step[:, None]
        fresh = row >= stored
        page = row_block(table_ptr, table_stride, request, first + offset, STEP) * state_stride
        row_ptr = (state_ptr + page + step[:, None] * STATE_BYTES).to(tl.pointer_type(tl.float32))
        part = offset // RATIO * CHANNELS  # the previous group gives the first half of the channels
        cell = part + channel[None, :]
        bias = tl.load(bias_ptr + row % RATIO * WIDTH + cell, mask=fresh, other=0.0)
        gate = tl.load(tl.where(fresh, gates_ptr + row * gates_stride, row_ptr + WIDTH) + cell) + bias
        value = tl.load(tl.where(fresh, values_ptr + row * values_stride, row_ptr) + cell)  # [STEP, CHANNELS]
        above = tl.maximum(top, tl.max(gate, 0) * LOG2E)
        fade = tl.exp2(top - above)
        weight = tl.exp2(tl.fma(gate, LOG2E, -above[None, :]))
        total = total * fade + tl.sum(weight, 0)
        pooled = pooled * fade + tl.sum(weight * value, 0)
        top = above
    pooled = pooled / total
    root = tl.rsqrt(tl.sum(pooled * pooled, 0) / CHANNELS + eps)
    normed = pooled * root * tl.load(weight_ptr + channel).to(tl.float32)
    sine, cosine = turn(frequencies_ptr, end - (RATIO - 1), CHANNELS, ROPE)
    rotated = rotate_row(normed, sine, cosine, CHANNELS)
    page_ptr = entries_ptr + slot // ROWS_PER_PAGE * entries_stride
    row = slot % ROWS_PER_PAGE
    if MXFP4:
        store_mxfp4_row(page_ptr, row, rotated, CHANNELS, GROUP, STAGES, FACTOR, DATA_BYTES, SCALE_BYTES, SCALE_OFFSET)
    elif INDEX:
        store_index_row(page_ptr, row, rotated, CHANNELS, DATA_BYTES, SCALE_BYTES, SCALE_OFFSET, FNUZ)
    else:
        store_key_row(page_ptr, row, rotated, CHANNELS, NOPE, GROUP, DATA_BYTES, SCALE_BYTES, SCALE_OFFSET, FNUZ)


def _store_state(values: Tensor, gates: Tensor, bias: Tensor, batch: TokenBatch, state: PagedCache, ratio: int) -> None:
    layout = state.layout
    store_state_kernel[(values.shape[0],)](
        values,
        gates,
        bias,
        batch.positions,
        state.slots,
        state.pages,
        values.stride(0),
        gates.stride(0),
        state.pages.stride(0),
        WIDTH=values.shape[1],
        RATIO=ratio,
        ROWS_PER_PAGE=layout.rows_per_page,
        DATA_BYTES=layout.data_bytes,
        num_warps=tuning.STORE_WARPS,
    )


def _close_groups(
    values: Tensor,
    gates: Tensor,
    bias: Tensor,
    weight: Tensor,
    eps: float,
    frequencies: Tensor,
    batch: TokenBatch,
    state: PagedCache,
    entries: PagedCache,
) -> None:
    layout, states = entries.layout, state.layout
    mxfp4 = layout.encoding is Encoding.MXFP4
    close_groups_kernel[(batch.num_tokens,)](
        values,
        gates,
        bias,
        weight,
        frequencies,
        batch.positions,
        batch.request,
        batch.query_start,
        entries.slots,
        state.block_table,
        state.pages,
        entries.pages,
        values.stride(0),
        gates.stride(0),
        state.block_table.stride(0),
        state.pages.stride(0),
        entries.pages.stride(0),
        eps,
        CHANNELS=layout.channels,
        WIDTH=values.shape[1],
        OVERLAP=states.channels // (2 * layout.channels),
        RATIO=layout.tokens_per_row,
        STEP=states.rows_per_page,
        STATE_BYTES=states.data_bytes,
        ROWS_PER_PAGE=layout.rows_per_page,
        DATA_BYTES=layout.data_bytes,
        SCALE_BYTES=layout.scale_bytes,
        SCALE_OFFSET=layout.scale_offset,
        INDEX=layout.kind is CacheKind.INDEX,
        MXFP4=mxfp4,
        STAGES=layout.channels.bit_length() - 1,
        FACTOR=layout.channels**-0.5,
        NOPE=NOPE_DIM,
        GROUP=FP4_GROUP if mxfp4 else FP8_GROUP,
        ROPE=ROPE_DIM,
        FNUZ=converts_fnuz(),
        num_warps=tuning.close_warps(layout.channels),
    )


def compress_insert(
    values: Tensor,
    gates: Tensor,
    position_bias: Tensor,
    norm_weight: Tensor,
    norm_eps: float,
    frequencies: Tensor,
    batch: TokenBatch,
    state: PagedCache,
    entries: PagedCache,
) -> None:
    """See `op.CompressInsert`. Two launches, of which the second does nothing where no group closes.

    Entries equal the reference's bytes except for values within fp32 rounding of the middle between two codes.

    Raises:
        ValueError: the entries are neither fp8 nor mxfp4 rows, an argument is not contiguous, or there is no GPU.
    """
    require_byte_rows("compress_insert", entries.layout)
    require_rows_of("compress_insert", values=values, gates=gates, pages=state.pages, entries=entries.pages)
    if not position_bias.is_contiguous():
        raise ValueError(f"compress_insert: position_bias must be contiguous, got strides {position_bias.stride()}")
    if batch.num_tokens == 0:
        return
    _store_state(values, gates, position_bias, batch, state, entries.layout.tokens_per_row)
    _close_groups(values, gates, position_bias, norm_weight, norm_eps, frequencies, batch, state, entries)
