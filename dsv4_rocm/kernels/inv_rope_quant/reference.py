"""Reference of inv_rope_quant in plain torch."""

from torch import Tensor

from dsv4_rocm.kernels.rotary import rotate


def inv_rope_quant(output: Tensor, positions: Tensor, frequencies: Tensor, num_groups: int) -> Tensor:
    """See `op.InvRopeQuant`."""
    turned = rotate(output.float(), positions, frequencies, inverse=True).to(output.dtype)
    tokens, heads, width = output.shape
    return turned.reshape(tokens, num_groups, heads // num_groups * width)
