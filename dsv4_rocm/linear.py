"""Linear layers: vLLM's where a checkpoint's quantization runs, and plain ones that the attention needs.

A joined layer holds several of the checkpoint's matrices over one input, for one product instead of several. Its
`parts` name them, relative to the module it is in, in the order of their shard ids; `model.weights` loads by them.
"""

from collections.abc import Collection
from typing import Any

import torch
from torch import Tensor, nn
from vllm.distributed import get_tensor_model_parallel_rank, get_tensor_model_parallel_world_size
from vllm.model_executor.layers.linear import (
    LinearBase,
    MergedColumnParallelLinear,
    ReplicatedLinear,
    RowParallelLinear,
)


def replicated_linear(in_size: int, out_size: int, quant_config: Any, prefix: str) -> LinearBase:
    """vLLM's linear layer, the same on every tensor-parallel rank."""
    return ReplicatedLinear(in_size, out_size, bias=False, return_bias=False, quant_config=quant_config, prefix=prefix)


def joined_linear(
    in_size: int, parts: dict[str, int], quant_config: Any, prefix: str, split: Collection[str] = ()
) -> MergedColumnParallelLinear:
    """vLLM's linear layer over several matrices; outputs one after the other.

    Args:
        in_size: inputs of every matrix.
        parts: outputs of each matrix by its name in the checkpoint.
        quant_config: vLLM's quantization.
        prefix: name of the layer.
        split: parts whose outputs the tensor-parallel ranks share; the others are the same on every rank.
    """
    ranks = get_tensor_model_parallel_world_size()
    sizes = [size // ranks if name in split else size for name, size in parts.items()]
    layer = MergedColumnParallelLinear(
        in_size, sizes, bias=False, return_bias=False, quant_config=quant_config, prefix=prefix, disable_tp=True
    )
    layer.parts, layer.split_parts = tuple(parts), frozenset(split)
    return layer


def row_linear(in_size: int, out_size: int, quant_config: Any, prefix: str, reduce: bool = True) -> LinearBase:
    """vLLM's linear layer, inputs split over the tensor-parallel ranks."""
    return RowParallelLinear(
        in_size,
        out_size,
        bias=False,
        return_bias=False,
        reduce_results=reduce,
        quant_config=quant_config,
        prefix=prefix,
    )


def parameter(*shape: int, dtype: torch.dtype = torch.float32) -> nn.Parameter:
    """A weight that is loaded from the checkpoint and never trained."""
    return nn.Parameter(torch.empty(*shape, dtype=dtype), requires_grad=False)


def rank_slice(weight: Tensor, dim: int) -> Tensor:
    """This tensor-parallel rank's share of a checkpoint tensor along one dimension."""
    size = get_tensor_model_parallel_world_size()
    if weight.shape[dim] % size:
        raise ValueError(
            f"--tensor-parallel-size {size} does not divide dimension {dim} of a weight of shape {tuple(weight.shape)}"
        )
    share: Tensor = weight.chunk(size, dim)[get_tensor_model_parallel_rank()]
    return share


def sharded_parameter(*shape: int, dtype: torch.dtype = torch.float32) -> nn.Parameter:
    """A weight of which each tensor-parallel rank loads its share of the first dimension."""
    weight = parameter(*shape, dtype=dtype)

    def load(target: nn.Parameter, loaded: Tensor) -> None:
        target.data.copy_(rank_slice(loaded, 0))

    weight.weight_loader = load  # type: ignore[attr-defined]
    return weight


class Fp32OutputLinear(nn.Module):
    """`x W^T` in fp32 whatever the dtypes are: compressor projections, router and index weights lose nothing."""

    def __init__(self, in_size: int, out_size: int) -> None:
        super().__init__()
        self.weight = parameter(out_size, in_size, dtype=torch.get_default_dtype())

    def forward(self, x: Tensor) -> Tensor:
        """[tokens, in] -> fp32 [tokens, out]."""
        if x.is_cuda and x.dtype is not torch.float32:
            return torch.mm(x, self.weight.t(), out_dtype=torch.float32)
        return nn.functional.linear(x.float(), self.weight.float())


class JoinedFp32OutputLinear(Fp32OutputLinear):
    """Fp32OutputLinear over several matrices."""

    def __init__(self, in_size: int, parts: dict[str, int]) -> None:
        super().__init__(in_size, sum(parts.values()))
        self.parts, self.split_parts, self._sizes = tuple(parts), frozenset[str](), tuple(parts.values())

        def load(target: nn.Parameter, loaded: Tensor, shard: int) -> None:
            target.data.split(self._sizes)[shard].copy_(loaded)

        self.weight.weight_loader = load  # type: ignore[attr-defined]

    def by_part(self, x: Tensor) -> dict[str, Tensor]:
        """[tokens, in] -> fp32 [tokens, out] of each part, views of one result."""
        return dict(zip(self.parts, self(x).split(self._sizes, -1), strict=True))


class GroupedLinear(nn.Module):
    """The grouped output projection wo_a: a group multiplies its own slice of the input. Ranks share the groups."""

    def __init__(self, in_size: int, out_size: int, num_groups: int) -> None:
        super().__init__()
        self.num_groups = num_groups
        self.weight = sharded_parameter(num_groups * out_size, in_size, dtype=torch.get_default_dtype())

    def forward(self, x: Tensor) -> Tensor:
        """[tokens, groups, in] -> [tokens, groups * out]."""
        weight = self.weight.unflatten(0, (self.num_groups, -1))
        return torch.einsum("tgi,goi->tgo", x, weight).flatten(1)
