"""qnorm_rope_insert in Triton: one launch, a program for some heads of a token and one for its window key."""

# Triton has no types for what a kernel takes.
# mypy: disable-error-code="no-untyped-def"

import torch
import triton
import triton.language as tl
from torch import Tensor

from dsv4_rocm.cache.addressing import PagedCache
from dsv4_rocm.cache.layout import FP8_GROUP, NOPE_DIM
from dsv4_rocm.kernels.qnorm_rope_insert import tuning
from dsv4_rocm.kernels.triton_common import (
    converts_fnuz,
    require_fp8_rows,
    require_rows_of,
    rotate_row,
    rotate_rows,
    store_key_row,
    turn,
)
from dsv4_rocm.model_spec import HEAD_DIM, ROPE_DIM


@triton.jit
def qnorm_rope_insert_kernel(
    query_ptr,  # [tokens, heads, CHANNELS]
    key_ptr,  # [tokens, CHANNELS]
    positions_ptr,  # int64 [tokens]
    frequencies_ptr,  # fp32 [ROPE / 2]
    slots_ptr,  # int64 [tokens]
    window_ptr,  # uint8 pages of `page_stride` bytes
    out_ptr,  # [tokens, heads, CHANNELS], contiguous
    token_stride,
    head_stride,
    key_stride,
    page_stride,
    heads,
    eps,
    CHANNELS: tl.constexpr,
    HEADS: tl.constexpr,
    ROWS_PER_PAGE: tl.constexpr,
    DATA_BYTES: tl.constexpr,
    SCALE_BYTES: tl.constexpr,
    SCALE_OFFSET: tl.constexpr,
    NOPE: tl.constexpr,
    GROUP: tl.constexpr,
    ROPE: tl.constexpr,
    FNUZ: tl.constexpr,
):
    token = tl.program_id(0).to(tl.int64)
    first = tl.program_id(1) * HEADS
    sine, cosine = turn(frequencies_ptr, tl.load(positions_ptr + token), CHANNELS, ROPE)
    channel = tl.arange(0, CHANNELS)
    if first < heads:
        head = first + tl.arange(0, HEADS)
        live = (head < heads)[:, None]
        row_ptr = query_ptr + token * token_stride + head[:, None] * head_stride
        query = tl.load(row_ptr + channel[None, :], mask=live, other=0.0).to(tl.float32)  # [HEADS, CHANNELS]
        root = tl.rsqrt(tl.sum(query * query, 1) / CHANNELS + eps)
        turned = rotate_rows(query * root[:, None], sine[None, :], cosine[None, :], HEADS, CHANNELS)
        row_ptr = out_ptr + (token * heads + head[:, None]) * CHANNELS
        tl.store(row_ptr + channel[None, :], turned.to(out_ptr.dtype.element_ty), mask=live)
    else:
        slot = tl.load(slots_ptr + token)
        if slot >= 0:
            key = tl.load(key_ptr + token * key_stride + channel).to(tl.float32)
            page_ptr = window_ptr + slot // ROWS_PER_PAGE * page_stride
            turned = rotate_row(key, sine, cosine, CHANNELS)
            row = slot % ROWS_PER_PAGE
            store_key_row(page_ptr, row, turned, CHANNELS, NOPE, GROUP, DATA_BYTES, SCALE_BYTES, SCALE_OFFSET, FNUZ)


def qnorm_rope_insert(
    query: Tensor, key: Tensor, positions: Tensor, frequencies: Tensor, norm_eps: float, window: PagedCache
) -> Tensor:
    """See `op.QnormRopeInsert`. fp8 rows only.

    Rows and queries equal the reference's except for values within fp32 rounding of the middle between two codes.

    Raises:
        ValueError: the window is not of fp8 rows, an argument is not contiguous, or there is no GPU.
    """
    layout = window.layout
    require_fp8_rows("qnorm_rope_insert", layout)
    require_rows_of("qnorm_rope_insert", query=query, key=key, pages=window.pages)
    tokens, heads, _ = query.shape
    out = torch.empty(query.shape, dtype=query.dtype, device=query.device)
    if tokens == 0:
        return out
    grid = (tokens, triton.cdiv(heads, tuning.HEADS_PER_PROGRAM) + 1)
    qnorm_rope_insert_kernel[grid](
        query,
        key,
        positions,
        frequencies,
        window.slots,
        window.pages,
        out,
        query.stride(0),
        query.stride(1),
        key.stride(0),
        window.pages.stride(0),
        heads,
        norm_eps,
        CHANNELS=HEAD_DIM,
        HEADS=tuning.HEADS_PER_PROGRAM,
        ROWS_PER_PAGE=layout.rows_per_page,
        DATA_BYTES=layout.data_bytes,
        SCALE_BYTES=layout.scale_bytes,
        SCALE_OFFSET=layout.scale_offset,
        NOPE=NOPE_DIM,
        GROUP=FP8_GROUP,
        ROPE=ROPE_DIM,
        FNUZ=converts_fnuz(),
        num_warps=tuning.NUM_WARPS,
    )
    return out
