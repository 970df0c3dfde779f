"""inv_rope_quant: turn the attention output back and quantize it by group, for an output projection in fp8."""

from typing import NamedTuple, Protocol

from torch import Tensor

from dsv4_rocm.kernels.selection import Implementation, always, needs_gpu

SCALE_GROUP = 128  # channels of one scale: the K side of the checkpoint's blocks of 128 x 128 weights


class GroupedFp8(NamedTuple):
    """Attention output by output group, quantized.

    Attributes:
        values: uint8 [tokens, groups, width], canonical OCP e4m3 (never 0x80, never NaN). FNUZ hardware reads each byte
            as half its value: a GEMM there doubles the scales.
        scales: fp32 [tokens, groups, width / 128], powers of two; a value is its byte times its scale.
    """

    values: Tensor
    scales: Tensor


class InvRopeQuant(Protocol):
    def __call__(self, output: Tensor, positions: Tensor, frequencies: Tensor, num_groups: int) -> GroupedFp8:
        """Rotate the last 64 channels of each head by `-t * theta`, concatenate the heads of a group, quantize to e4m3.

        Scales follow the rule of fp8 activations, `s = 2^ceil(log2(max(amax, 1e-4) / 448))` over 128 channels; values
        are rounded once, from fp32. This is for a wo_a whose GEMM takes fp8; before one in bf16 `sparse_attention`
        turns its own result.

        Args:
            output: [tokens, heads, 512], from sparse_attention without frequencies.
            positions: int64 [tokens].
            frequencies: fp32 [32].
            num_groups: output groups on this rank; group g holds consecutive heads.

        Returns:
            width = heads / num_groups * 512 channels for each group.
        """
        ...


IMPLEMENTATIONS = (
    Implementation("triton", "dsv4_rocm.kernels.inv_rope_quant.triton_kernel:inv_rope_quant", needs_gpu),
    Implementation("reference", "dsv4_rocm.kernels.inv_rope_quant.reference:inv_rope_quant", always),
)
