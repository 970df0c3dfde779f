"""vLLM's view of our caches: one attention backend, and one module per physical cache."""

from typing import Any

import torch
from torch import Tensor, nn
from vllm.config import get_current_vllm_config
from vllm.model_executor.layers.attention_layer_base import AttentionLayerBase
from vllm.v1.attention.backend import AttentionBackend, MultipleOf
from vllm.v1.kv_cache_layout import KVCacheLayout

from dsv4_rocm.attention.metadata import GroupMetadata
from dsv4_rocm.attention.metadata_builder import MetadataBuilder
from dsv4_rocm.cache.addressing import PagedCache
from dsv4_rocm.cache.layout import CacheLayout
from dsv4_rocm.cache.managers import require_registered
from dsv4_rocm.cache.retention import InFlight
from dsv4_rocm.cache.specs import as_draft, to_vllm


class Dsv4Backend(AttentionBackend):
    """Names our builder and the block-outermost pool layout that lets caches of any row size share one pool."""

    @staticmethod
    def get_name() -> str:
        return "DSV4_ROCM"

    @staticmethod
    def get_builder_cls() -> type[MetadataBuilder]:
        return MetadataBuilder

    @staticmethod
    def get_impl_cls() -> type:
        raise RuntimeError("DSV4_ROCM has no AttentionImpl: the attention layer calls its ops itself")

    @staticmethod
    def get_supported_kernel_block_sizes(kv_cache_spec: Any = None) -> list[Any]:
        return [MultipleOf(1)]

    @classmethod
    def supported_kv_cache_layouts(cls) -> tuple[KVCacheLayout, ...]:
        return (KVCacheLayout.BLHNC,)


def in_flight(vllm_config: Any) -> InFlight:
    """What a server of this configuration may have in flight."""
    batches = vllm_config.max_concurrent_batches
    return InFlight(
        batched_tokens=vllm_config.scheduler_config.max_num_batched_tokens,
        batches=batches,
        rollback_tokens=1 + vllm_config.num_speculative_tokens * batches,
        early=vllm_config.kv_transfer_config is None,
    )


class CacheModule(nn.Module, AttentionLayerBase):
    """One physical cache of one layer, known to vLLM by its prefix."""

    def __init__(self, layout: CacheLayout, prefix: str) -> None:
        super().__init__()
        self.layout = layout
        self.prefix = prefix
        self.of_draft = False
        self.kv_cache = torch.empty(0, dtype=torch.uint8)
        layers = get_current_vllm_config().compilation_config.static_forward_context
        if prefix in layers:
            raise ValueError(f"two caches are called {prefix}")
        layers[prefix] = self

    def bind_kv_cache(self, kv_cache: Tensor) -> None:
        """Take this cache's view of the pool: uint8 [blocks, 1, rows, row bytes] -> pages [blocks, page bytes]."""
        blocks, heads, rows, row_bytes = kv_cache.shape
        expected = (1, self.layout.rows_per_page, self.layout.row_bytes)
        if kv_cache.dtype != torch.uint8 or (heads, rows, row_bytes) != expected:
            raise ValueError(
                f"{self.prefix}: expected uint8 [blocks, {expected}], got {kv_cache.dtype} {tuple(kv_cache.shape)}"
            )
        shape, strides = (blocks, self.layout.page_bytes), (kv_cache.stride(0), 1)
        self.kv_cache = kv_cache.as_strided(shape, strides, kv_cache.storage_offset())

    def get_kv_cache_spec(self, vllm_config: Any) -> Any:
        spec = to_vllm(self.layout, in_flight(vllm_config))
        require_registered(spec)
        return as_draft(spec) if self.of_draft else spec

    def get_attn_backend(self) -> type[AttentionBackend]:
        return Dsv4Backend

    def paged(self, step: dict[str, GroupMetadata]) -> PagedCache:
        """This cache with its addresses of one step."""
        group = step[self.prefix]
        return PagedCache(self.layout, self.kv_cache, group.block_table, group.slots)

    def at_slots(self, slots: Tensor) -> PagedCache:
        """This cache for a writer that is told its slots outside a step: int64 [tokens]."""
        return PagedCache(self.layout, self.kv_cache, slots.new_zeros(0, 0, dtype=torch.int32), slots)


def mark_draft_caches(model: nn.Module) -> None:
    """Say that the caches of this model are a draft's."""
    for module in model.modules():
        if isinstance(module, CacheModule):
            module.of_draft = True
