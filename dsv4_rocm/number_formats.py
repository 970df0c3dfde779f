"""The low-precision formats of checkpoints and caches: e4m3, e8m0 and e2m1, with their group quantization rules."""

import torch
from torch import Tensor

E4M3_MAX = 448.0
E2M1_MAX = 6.0
FP8_AMAX_FLOOR = 1e-4  # the floor is on the group's amax, not on its scale
FP4_AMAX_FLOOR = E2M1_MAX * 2.0**-126
FP4_GROUP = 32
E8M0_NAN = 255
E2M1_VALUES = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0)


def pow2_ceil(x: Tensor) -> Tensor:
    """Smallest power of two >= x, for positive normal x; exact, decided on the fp32 bits."""
    mantissa, exponent = torch.frexp(x.float())
    return torch.ldexp(torch.ones_like(mantissa), torch.where(mantissa == 0.5, exponent - 1, exponent))


def e8m0_encode(scale: Tensor) -> Tensor:
    """Powers of two (fp32) to their biased exponents (uint8): 1.0 -> 127."""
    return (torch.frexp(scale.float()).exponent + 126).clamp(0, 254).to(torch.uint8)


def e8m0_decode(code: Tensor) -> Tensor:
    """Biased exponents (uint8) to fp32 powers of two; 255 is NaN."""
    value = torch.ldexp(torch.ones_like(code, dtype=torch.float32), code.int() - 127)
    return torch.where(code == E8M0_NAN, torch.nan, value)


def e8m0_double(code: Tensor) -> Tensor:
    """Biased exponents of twice the scale: one more, saturating at the largest finite one (254); NaN (255) stays."""
    return torch.where(code < 254, code + 1, code)


def e4m3_encode(x: Tensor) -> Tensor:
    """fp32 to canonical OCP e4m3 bytes (uint8): round to nearest even, saturating at 448, and never 0x80 (-0).

    Without 0x80 and NaN a byte means exactly half as much on FNUZ hardware, so every vendor can read it.
    """
    byte = x.float().clamp(-E4M3_MAX, E4M3_MAX).to(torch.float8_e4m3fn).view(torch.uint8)
    return torch.where(byte == 0x80, 0, byte)


def e4m3_decode(byte: Tensor) -> Tensor:
    """OCP e4m3 bytes (uint8) to fp32."""
    return byte.contiguous().view(torch.float8_e4m3fn).float()


def fp8_group_scale(x: Tensor, group: int) -> Tensor:
    """Power-of-two scale of each group of `group` values in the last dimension: [..., n] -> fp32 [..., n / group]."""
    amax = x.float().unflatten(-1, (-1, group)).abs().amax(-1)
    return pow2_ceil(amax.clamp_min(FP8_AMAX_FLOOR) / E4M3_MAX)


def quantize_fp8(x: Tensor, group: int) -> tuple[Tensor, Tensor]:
    """Quantize the last dimension by group: [..., n] -> canonical e4m3 uint8 [..., n], fp32 scales [..., n / group]."""
    scale = fp8_group_scale(x, group)
    return e4m3_encode(x.float() / scale.repeat_interleave(group, -1)), scale


def dequantize_fp8(byte: Tensor, scale: Tensor) -> Tensor:
    """Inverse of `quantize_fp8`: uint8 [..., n], fp32 [..., n / group] -> fp32 [..., n]."""
    return e4m3_decode(byte) * scale.float().repeat_interleave(byte.shape[-1] // scale.shape[-1], -1)


def e2m1_encode(x: Tensor) -> Tensor:
    """fp32 to 4-bit codes (uint8 0..15, sign in bit 3): round to nearest, ties to the even code, saturating at 6."""
    values = torch.tensor(E2M1_VALUES, device=x.device)
    middle = (values[1:] + values[:-1]) / 2
    magnitude = x.float().abs().clamp(max=E2M1_MAX)
    code = torch.bucketize(magnitude, middle)  # a tie stays below its middle
    tie = (code < 7) & (magnitude == middle[code.clamp(max=6)])
    code = torch.where(tie & (code % 2 == 1), code + 1, code)
    return (code + 8 * torch.signbit(x).long()).to(torch.uint8)


def e2m1_decode(code: Tensor) -> Tensor:
    """4-bit codes (uint8 0..15) to fp32."""
    values = torch.tensor(E2M1_VALUES, device=code.device)
    return torch.cat([values, -values])[code.long()]


def quantize_mxfp4(x: Tensor) -> tuple[Tensor, Tensor]:
    """Quantize groups of 32: [..., n] -> packed uint8 [..., n / 2] (even element low), e8m0 [..., n / 32]."""
    groups = x.float().unflatten(-1, (-1, FP4_GROUP))
    scale = pow2_ceil(groups.abs().amax(-1).clamp_min(FP4_AMAX_FLOOR) / E2M1_MAX)
    code = e2m1_encode(groups / scale[..., None]).flatten(-2)
    return code[..., 0::2] | (code[..., 1::2] << 4), e8m0_encode(scale)


def dequantize_mxfp4(packed: Tensor, scale: Tensor) -> Tensor:
    """Inverse of `quantize_mxfp4`: packed [..., n / 2] (uint8 or int8), e8m0 bytes [..., n / 32] -> fp32 [..., n]."""
    byte = packed.view(torch.uint8)
    value = e2m1_decode(torch.stack([byte & 15, byte >> 4], -1).flatten(-2))
    return value * e8m0_decode(scale.view(torch.uint8)).repeat_interleave(FP4_GROUP, -1)


def hadamard(x: Tensor) -> Tensor:
    """Orthonormal Walsh-Hadamard transform of the last dimension (a power of two), Sylvester order.

    It is its own inverse and keeps dot products, but spreads outlier channels over all of them before rounding.
    """
    size = x.shape[-1]
    flat = x
    span = 1
    while span < size:
        pairs = flat.unflatten(-1, (-1, 2, span))
        first, second = pairs[..., 0, :], pairs[..., 1, :]
        flat = torch.stack([first + second, first - second], -2).flatten(-3)
        span *= 2
    scaled: Tensor = flat * size**-0.5
    return scaled


def quantize_fp8_blocks(weight: Tensor, block: int = 128) -> tuple[Tensor, Tensor]:
    """Checkpoint FP8 linear: [out, in] -> float8_e4m3fn [out, in], e8m0 bytes [ceil(out / block), ceil(in / block)]."""
    rows, cols = (-(-n // block) for n in weight.shape)
    padded = weight.new_zeros(rows * block, cols * block, dtype=torch.float32)
    padded[: weight.shape[0], : weight.shape[1]] = weight
    blocks = padded.view(rows, block, cols, block)
    scale = pow2_ceil(blocks.abs().amax((1, 3)).clamp_min(FP8_AMAX_FLOOR) / E4M3_MAX)
    byte = e4m3_encode(blocks / scale[:, None, :, None]).view(rows * block, cols * block)
    return byte[: weight.shape[0], : weight.shape[1]].contiguous().view(torch.float8_e4m3fn), e8m0_encode(scale)


def dequantize_fp8_blocks(weight: Tensor, scale: Tensor, block: int = 128) -> Tensor:
    """Inverse of `quantize_fp8_blocks`; `scale` is e8m0 (uint8 or float8_e8m0fnu) or, in -Base checkpoints, fp32."""
    factor = scale.float() if scale.dtype == torch.float32 else e8m0_decode(scale.view(torch.uint8))
    factor = factor.repeat_interleave(block, 0)[: weight.shape[0]].repeat_interleave(block, 1)[:, : weight.shape[1]]
    return weight.float() * factor
