"""inv_rope_quant in Triton: one launch. The heads of a group are neighbours, so grouping them moves nothing."""

# Triton has no types for what a kernel takes.
# mypy: disable-error-code="no-untyped-def"

import torch
import triton
import triton.language as tl
from torch import Tensor

from dsv4_rocm.kernels.inv_rope_quant import tuning
from dsv4_rocm.kernels.triton_common import require_gpu, require_rows_of, rotate_rows, turn
from dsv4_rocm.model_spec import HEAD_DIM, ROPE_DIM


@triton.jit
def inv_rope_kernel(
    x_ptr,  # [tokens, heads, CHANNELS]
    positions_ptr,  # int64 [tokens]
    frequencies_ptr,  # fp32 [ROPE / 2]
    out_ptr,  # [tokens, heads, CHANNELS], contiguous
    token_stride,
    head_stride,
    heads,
    CHANNELS: tl.constexpr,
    HEADS: tl.constexpr,
    ROPE: tl.constexpr,
):
    token = tl.program_id(0).to(tl.int64)
    head = tl.program_id(1) * HEADS + tl.arange(0, HEADS)
    channel = tl.arange(0, CHANNELS)
    live = (head < heads)[:, None]
    row_ptr = x_ptr + token * token_stride + head[:, None] * head_stride
    x = tl.load(row_ptr + channel[None, :], mask=live, other=0.0).to(tl.float32)  # [HEADS, CHANNELS]
    sine, cosine = turn(frequencies_ptr, tl.load(positions_ptr + token), CHANNELS, ROPE)
    turned = rotate_rows(x, -sine[None, :], cosine[None, :], HEADS, CHANNELS)
    row_ptr = out_ptr + (token * heads + head[:, None]) * CHANNELS
    tl.store(row_ptr + channel[None, :], turned.to(out_ptr.dtype.element_ty), mask=live)


def inv_rope_quant(output: Tensor, positions: Tensor, frequencies: Tensor, num_groups: int) -> Tensor:
    """See `op.InvRopeQuant`. Equals the reference except for values within fp32 rounding of a middle.

    Raises:
        ValueError: `output` is not contiguous in its channels, its heads do not divide into groups, or there is no GPU.
    """
    require_gpu()
    require_rows_of("inv_rope_quant", output=output)
    tokens, heads, _ = output.shape
    if heads % num_groups:
        raise ValueError(f"inv_rope_quant: {heads} heads do not divide into {num_groups} groups")
    out = torch.empty((tokens, num_groups, heads // num_groups * HEAD_DIM), dtype=output.dtype, device=output.device)
    if tokens == 0:
        return out
    inv_rope_kernel[(tokens, triton.cdiv(heads, tuning.HEADS_PER_PROGRAM))](
        output,
        positions,
        frequencies,
        out,
        output.stride(0),
        output.stride(1),
        heads,
        CHANNELS=HEAD_DIM,
        HEADS=tuning.HEADS_PER_PROGRAM,
        ROPE=ROPE_DIM,
        num_warps=tuning.NUM_WARPS,
    )
    return out
