"""Reference of qnorm_rope_insert in plain torch."""

import torch
from torch import Tensor

from dsv4_rocm.cache.addressing import PagedCache
from dsv4_rocm.cache.rows import write_rows
from dsv4_rocm.kernels.rotary import rotate


def qnorm_rope_insert(
    query: Tensor, key: Tensor, positions: Tensor, frequencies: Tensor, norm_eps: float, window: PagedCache
) -> Tensor:
    """See `op.QnormRopeInsert`."""
    wide = query.float()
    normed = wide * torch.rsqrt(wide.square().mean(-1, keepdim=True) + norm_eps)
    write_rows(window.layout, window.pages, window.slots, rotate(key.float(), positions, frequencies))
    return rotate(normed, positions, frequencies).to(query.dtype)
