"""Reference of inv_rope_quant in plain torch."""

from torch import Tensor

from dsv4_rocm.kernels.inv_rope_quant.op import SCALE_GROUP, GroupedFp8
from dsv4_rocm.kernels.rotary import rotate
from dsv4_rocm.number_formats import quantize_fp8


def inv_rope_quant(output: Tensor, positions: Tensor, frequencies: Tensor, num_groups: int) -> GroupedFp8:
    """See `op.InvRopeQuant`."""
    turned = rotate(output.float(), positions, frequencies, inverse=True)
    tokens, heads, width = output.shape
    return GroupedFp8(*quantize_fp8(turned.reshape(tokens, num_groups, heads // num_groups * width), SCALE_GROUP))
