"""GroupMetadata: what one step tells the caches of one KV group, and how a layer gets at it."""

from dataclasses import dataclass

from torch import Tensor
from vllm.forward_context import get_forward_context

from dsv4_rocm.cache.addressing import TokenBatch


@dataclass(frozen=True, slots=True)
class GroupMetadata:
    """One step as the caches of one KV group see it.

    Attributes:
        batch: the query tokens; the same in every group.
        block_table: int32 [requests, blocks] of this group.
        slots: int64 [tokens], where each token writes its row, -1 for nothing.
        causal: whether a token sees nothing behind itself; False in a draft that sees its whole block.
    """

    batch: TokenBatch
    block_table: Tensor
    slots: Tensor
    causal: bool = True


def step_metadata() -> dict[str, GroupMetadata] | None:
    """Metadata by cache name, or None in a profiling or warm-up run without requests."""
    return get_forward_context().attn_metadata or None
