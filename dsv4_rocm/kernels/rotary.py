"""Rotary embedding of DeepSeek-V4: frequencies with and without YaRN, and the rotation of the last channels."""

import math

import torch
from torch import Tensor

from dsv4_rocm.model_spec import ROPE_DIM, LayerKind, ModelSpec


def rotary_frequencies(spec: ModelSpec, kind: LayerKind) -> Tensor:
    """Angle per position of each channel pair of a layer: fp32 [32].

    SWA layers turn at `rope_theta^(-i/32)`. Layers that compress turn everything in them at
    `compress_rope_theta^(-i/32)`, interpolated by YaRN between its two correction dimensions.
    """
    exponent = torch.arange(0, ROPE_DIM, 2, dtype=torch.float32) / ROPE_DIM
    if kind is LayerKind.SWA:
        return 1.0 / spec.rope_theta**exponent
    yarn, theta = spec.yarn, spec.compress_rope_theta
    frequency = 1.0 / theta**exponent

    def correction(turns: float) -> float:
        return ROPE_DIM * math.log(yarn.original_max_position / (turns * 2 * math.pi)) / (2 * math.log(theta))

    low = max(math.floor(correction(yarn.beta_fast)), 0)
    high = min(math.ceil(correction(yarn.beta_slow)), ROPE_DIM - 1)
    pair = torch.arange(ROPE_DIM // 2, dtype=torch.float32)
    ramp = ((pair - low) / (high - low if high != low else 1e-3)).clamp(0, 1)
    return frequency / yarn.factor * ramp + frequency * (1 - ramp)


def rotate(x: Tensor, positions: Tensor, frequencies: Tensor, inverse: bool = False) -> Tensor:
    """Turn adjacent pairs of the last 64 channels of [tokens, ..., d] by position * frequency; the rest passes through.

    The angle is the fp32 product of both, rounded to fp32: near position 2^20 that rounding is worth 0.01 rad, so an
    fp64 table would not be equivalent.
    """
    angle = positions.float()[:, None] * frequencies  # [tokens, 32]
    cos, sin = angle.cos().to(x.dtype), angle.sin().to(x.dtype)
    if inverse:
        sin = -sin
    shape = (x.shape[0], *[1] * (x.ndim - 2), cos.shape[1])
    cos, sin = cos.view(shape), sin.view(shape)
    even, odd = x[..., -ROPE_DIM::2], x[..., -ROPE_DIM + 1 :: 2]
    turned = torch.stack([even * cos - odd * sin, even * sin + odd * cos], -1).flatten(-2)
    return torch.cat([x[..., :-ROPE_DIM], turned], -1)
