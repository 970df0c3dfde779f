"""qnorm_rope_insert in Triton: one launch; programs for some heads of a token, and for some tokens' window keys."""

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
    rotate_rows,
    store_key_rows,
    turn,
    turn_rows,
)
from dsv4_rocm.model_spec import HEAD_DIM, ROPE_DIM


@triton.jit(do_not_specialize=["tokens"])
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
    tokens,
    heads,
    eps,
    CHANNELS: tl.constexpr,
    HEADS: tl.constexpr,
    KEYS: tl.constexpr,
    ROWS_PER_PAGE: tl.constexpr,
    DATA_BYTES: tl.constexpr,
    SCALE_BYTES: tl.constexpr,
    SCALE_OFFSET: tl.constexpr,
    NOPE: tl.constexpr,
    GROUP: tl.constexpr,
    ROPE: tl.constexpr,
    FNUZ: tl.constexpr,
):
    channel = tl.arange(0, CHANNELS)
    blocks = tl.cdiv(heads, HEADS)
    program = tl.program_id(0)
    if program < tokens * blocks:
        token = (program // blocks).to(tl.int64)
        sine, cosine = turn(frequencies_ptr, tl.load(positions_ptr + token), CHANNELS, ROPE)
        head = program % blocks * HEADS + tl.arange(0, HEADS)
        live = (head < heads)[:, None]
        row_ptr = query_ptr + token * token_stride + head[:, None] * head_stride
        query = tl.load(row_ptr + channel[None, :], mask=live, other=0.0).to(tl.float32)  # [HEADS, CHANNELS]
        root = tl.rsqrt(tl.sum(query * query, 1) / CHANNELS + eps)
        turned = rotate_rows(query * root[:, None], sine[None, :], cosine[None, :], HEADS, CHANNELS)
        row_ptr = out_ptr + (token * heads + head[:, None]) * CHANNELS
        tl.store(row_ptr + channel[None, :], turned.to(out_ptr.dtype.element_ty), mask=live)
    else:
        owner = (program - tokens * blocks) * KEYS + tl.arange(0, KEYS)
        slot = tl.load(slots_ptr + owner, mask=owner < tokens, other=-1)
        position = tl.load(positions_ptr + owner, mask=owner < tokens, other=0)
        cell_ptr = key_ptr + owner.to(tl.int64)[:, None] * key_stride + channel[None, :]
        key = tl.load(cell_ptr, mask=(owner < tokens)[:, None], other=0.0).to(tl.float32)  # [KEYS, CHANNELS]
        sines, cosines = turn_rows(frequencies_ptr, position, CHANNELS, ROPE)
        store_key_rows(
            window_ptr + slot // ROWS_PER_PAGE * page_stride,
            slot % ROWS_PER_PAGE,
            slot >= 0,
            rotate_rows(key, sines, cosines, KEYS, CHANNELS),
            KEYS,
            CHANNELS,
            NOPE,
            GROUP,
            DATA_BYTES,
            SCALE_BYTES,
            SCALE_OFFSET,
            FNUZ,
        )


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
    programs = tokens * triton.cdiv(heads, tuning.HEADS_PER_PROGRAM) + triton.cdiv(tokens, tuning.KEYS_PER_PROGRAM)
    qnorm_rope_insert_kernel[(programs,)](
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
        tokens,
        heads,
        norm_eps,
        CHANNELS=HEAD_DIM,
        HEADS=tuning.HEADS_PER_PROGRAM,
        KEYS=tuning.KEYS_PER_PROGRAM,
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
