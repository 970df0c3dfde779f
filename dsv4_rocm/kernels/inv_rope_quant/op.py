"""inv_rope_quant: turn the attention output back and lay it out by group; quantized where wo_a takes fp8 (not yet)."""

from typing import Protocol

from torch import Tensor

from dsv4_rocm.kernels.selection import Implementation, always, needs_gpu


class InvRopeQuant(Protocol):
    def __call__(self, output: Tensor, positions: Tensor, frequencies: Tensor, num_groups: int) -> Tensor:
        """Rotate the last 64 channels of each head by `-t * theta` and concatenate the heads of a group.

        Args:
            output: [tokens, heads, 512], from sparse_attention.
            positions: int64 [tokens].
            frequencies: fp32 [32].
            num_groups: output groups on this rank; group g holds consecutive heads.

        Returns:
            [tokens, num_groups, heads / num_groups * 512] in the dtype of `output`, for the grouped wo_a.
        """
        ...


IMPLEMENTATIONS = (
    Implementation("triton", "dsv4_rocm.kernels.inv_rope_quant.triton_kernel:inv_rope_quant", needs_gpu),
    Implementation("reference", "dsv4_rocm.kernels.inv_rope_quant.reference:inv_rope_quant", always),
)
