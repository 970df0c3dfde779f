"""Memory where the splits of sparse_attention leave their results."""

import functools
from typing import NamedTuple

import torch
from torch import Tensor

from dsv4_rocm.model_spec import HEAD_DIM


class Partials(NamedTuple):
    """Where splits leave their results; with n = splits * tokens * heads.

    Attributes:
        output: [n, 512] in the dtype of the result.
        top: fp32 [n], reference of the weights as a power of two.
        total: fp32 [n], sum of the weights.
        parts: int32 [tokens], how many splits had keys.
    """

    output: Tensor
    top: Tensor
    total: Tensor
    parts: Tensor


@functools.cache
def partials(device: torch.device, dtype: torch.dtype, cells: int) -> Partials:
    """Memory for splits, taken once and kept, so that graphs may refer to it; launches on one stream share it."""
    output = torch.empty((cells, HEAD_DIM), dtype=dtype, device=device)
    top, total = torch.empty((2, cells), dtype=torch.float32, device=device)
    return Partials(output, top, total, torch.empty(cells, dtype=torch.int32, device=device))
