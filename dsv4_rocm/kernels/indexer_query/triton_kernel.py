"""indexer_query in Triton: one launch, a program for some index heads of a token."""

# Triton has no types for what a kernel takes.
# mypy: disable-error-code="no-untyped-def"

import torch
import triton
import triton.language as tl
from torch import Tensor

from dsv4_rocm.cache.layout import CacheLayout
from dsv4_rocm.kernels.indexer_query import tuning
from dsv4_rocm.kernels.indexer_query.op import IndexQuery
from dsv4_rocm.kernels.triton_common import (
    converts_fnuz,
    e4m3_bytes,
    hadamard_rows,
    largest,
    require_index_rows,
    require_rows_of,
    rotate_rows,
    scale_exponent,
    turn,
)
from dsv4_rocm.model_spec import INDEX_HEAD_DIM, ROPE_DIM


@triton.jit
def indexer_query_kernel(
    query_ptr,  # [tokens, heads, CHANNELS]
    weights_ptr,  # [tokens, heads]
    positions_ptr,  # int64 [tokens]
    frequencies_ptr,  # fp32 [ROPE / 2]
    values_ptr,  # uint8 [tokens, heads, CHANNELS], contiguous
    folded_ptr,  # fp32 [tokens, heads], contiguous
    token_stride,
    head_stride,
    weights_stride,
    heads,
    factor,
    CHANNELS: tl.constexpr,
    HEADS: tl.constexpr,
    ROPE: tl.constexpr,
    ROTATED: tl.constexpr,
    FNUZ: tl.constexpr,
):
    token = tl.program_id(0).to(tl.int64)
    head = tl.program_id(1) * HEADS + tl.arange(0, HEADS)
    channel = tl.arange(0, CHANNELS)
    live = head < heads
    row_ptr = query_ptr + token * token_stride + head[:, None] * head_stride
    query = tl.load(row_ptr + channel[None, :], mask=live[:, None], other=0.0).to(tl.float32)  # [HEADS, CHANNELS]
    sine, cosine = turn(frequencies_ptr, tl.load(positions_ptr + token), CHANNELS, ROPE)
    turned = rotate_rows(query, sine[None, :], cosine[None, :], HEADS, CHANNELS)
    if ROTATED:
        turned = hadamard_rows(turned, HEADS, CHANNELS)
    exponent = scale_exponent(largest(turned, 1))  # [HEADS]
    row_ptr = values_ptr + (token * heads + head[:, None]) * CHANNELS
    tl.store(row_ptr + channel[None, :], e4m3_bytes(turned, exponent[:, None], FNUZ), mask=live[:, None])
    weight = tl.load(weights_ptr + token * weights_stride + head, mask=live, other=0.0).to(tl.float32)
    scale = (exponent << 23).to(tl.float32, bitcast=True)
    tl.store(folded_ptr + token * heads + head, weight * factor * scale, mask=live)


def indexer_query(
    query: Tensor, weights: Tensor, positions: Tensor, frequencies: Tensor, index: CacheLayout
) -> IndexQuery:
    """See `op.IndexerQuery`. fp8 and mxfp4 index rows.

    Bytes equal the reference's except for values within fp32 rounding of the middle between two codes.

    Raises:
        ValueError: the index rows are of another encoding, an argument is not contiguous, or there is no GPU.
    """
    require_index_rows("indexer_query", index)
    require_rows_of("indexer_query", query=query, weights=weights)
    tokens, heads, width = query.shape
    values = torch.empty(query.shape, dtype=torch.uint8, device=query.device)
    folded = torch.empty((tokens, heads), dtype=torch.float32, device=query.device)
    if tokens == 0:
        return IndexQuery(values, folded)
    together = tuning.heads_per_program(tokens)
    indexer_query_kernel[(tokens, triton.cdiv(heads, together))](
        query,
        weights,
        positions,
        frequencies,
        values,
        folded,
        query.stride(0),
        query.stride(1),
        weights.stride(0),
        heads,
        width**-0.5 * heads**-0.5,
        CHANNELS=INDEX_HEAD_DIM,
        HEADS=together,
        ROPE=ROPE_DIM,
        ROTATED=index.rotated,
        FNUZ=converts_fnuz(),
        num_warps=tuning.NUM_WARPS,
    )
    return IndexQuery(values, folded)
