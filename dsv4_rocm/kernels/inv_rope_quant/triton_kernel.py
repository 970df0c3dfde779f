"""inv_rope_quant in Triton: one launch. The heads of a group are neighbours, so grouping them moves nothing."""

# Triton has no types for what a kernel takes.
# mypy: disable-error-code="no-untyped-def"

import torch
import triton
import triton.language as tl
from torch import Tensor

from dsv4_rocm.kernels.inv_rope_quant import tuning
from dsv4_rocm.kernels.inv_rope_quant.op import SCALE_GROUP, GroupedFp8
from dsv4_rocm.kernels.triton_common import (
    converts_fnuz,
    e4m3_bytes,
    require_gpu,
    require_rows_of,
    rotate_rows,
    scale_exponent,
    turn,
)
from dsv4_rocm.model_spec import HEAD_DIM, ROPE_DIM


@triton.jit
def inv_rope_quant_kernel(
    x_ptr,  # [tokens, heads, CHANNELS]
    positions_ptr,  # int64 [tokens]
    frequencies_ptr,  # fp32 [ROPE / 2]
    values_ptr,  # uint8 [tokens, heads, CHANNELS], contiguous
    scales_ptr,  # fp32 [tokens, heads, CHANNELS / GROUP], contiguous
    token_stride,
    head_stride,
    heads,
    CHANNELS: tl.constexpr,
    HEADS: tl.constexpr,
    ROPE: tl.constexpr,
    GROUP: tl.constexpr,
    FNUZ: tl.constexpr,
):
    token = tl.program_id(0).to(tl.int64)
    head = tl.program_id(1) * HEADS + tl.arange(0, HEADS)
    channel = tl.arange(0, CHANNELS)
    live = (head < heads)[:, None]
    row_ptr = x_ptr + token * token_stride + head[:, None] * head_stride
    x = tl.load(row_ptr + channel[None, :], mask=live, other=0.0).to(tl.float32)  # [HEADS, CHANNELS]
    sine, cosine = turn(frequencies_ptr, tl.load(positions_ptr + token), CHANNELS, ROPE)
    turned = rotate_rows(x, -sine[None, :], cosine[None, :], HEADS, CHANNELS)
    groups: tl.constexpr = CHANNELS // GROUP
    turned = tl.reshape(turned, (HEADS, groups, GROUP))
    exponent = scale_exponent(tl.max(tl.abs(turned), 2))  # [HEADS, groups]
    byte = tl.reshape(e4m3_bytes(turned, exponent[:, :, None], FNUZ), (HEADS, CHANNELS))
    row = token * heads + head[:, None]
    tl.store(values_ptr + row * CHANNELS + channel[None, :], byte, mask=live)
    scale = (exponent << 23).to(tl.float32, bitcast=True)
    tl.store(scales_ptr + row * groups + tl.arange(0, groups)[None, :], scale, mask=live)


def inv_rope_quant(output: Tensor, positions: Tensor, frequencies: Tensor, num_groups: int) -> GroupedFp8:
    """See `op.InvRopeQuant`. Equals the reference except for values within fp32 rounding of a middle.

    Raises:
        ValueError: `output` is not contiguous in its channels, its heads do not divide into groups, or there is no GPU.
    """
    require_gpu()
    require_rows_of("inv_rope_quant", output=output)
    tokens, heads, _ = output.shape
    if heads % num_groups:
        raise ValueError(f"inv_rope_quant: {heads} heads do not divide into {num_groups} groups")
    width = heads // num_groups * HEAD_DIM
    values = torch.empty((tokens, num_groups, width), dtype=torch.uint8, device=output.device)
    scales = torch.empty((tokens, num_groups, width // SCALE_GROUP), dtype=torch.float32, device=output.device)
    if tokens == 0:
        return GroupedFp8(values, scales)
    inv_rope_quant_kernel[(tokens, triton.cdiv(heads, tuning.HEADS_PER_PROGRAM))](
        output,
        positions,
        frequencies,
        values,
        scales,
        output.stride(0),
        output.stride(1),
        heads,
        CHANNELS=HEAD_DIM,
        HEADS=tuning.HEADS_PER_PROGRAM,
        ROPE=ROPE_DIM,
        GROUP=SCALE_GROUP,
        FNUZ=converts_fnuz(),
        num_warps=tuning.NUM_WARPS,
    )
    return GroupedFp8(values, scales)
