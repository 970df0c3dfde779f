"""Builds GroupMetadata from vLLM's batch: fixed buffers, no data-dependent shape, no transfer to the host."""

from typing import Any

import torch
from vllm.v1.attention.backend import AttentionCGSupport, AttentionMetadataBuilder, CommonAttentionMetadata

from dsv4_rocm import arch
from dsv4_rocm.attention.metadata import GroupMetadata
from dsv4_rocm.cache.addressing import (
    TokenBatch,
    entry_slots,
    paged_slots,
    request_of_token,
    token_positions,
    uniform_tokens,
)
from dsv4_rocm.cache.specs import encodings_of
from dsv4_rocm.kernels.selection import table


class MetadataBuilder(AttentionMetadataBuilder):
    """One per KV group and kind of row. Everything it hands out lives in buffers whose addresses never change."""

    @classmethod
    def get_cudagraph_support(cls, vllm_config: Any, kv_cache_spec: Any) -> AttentionCGSupport:
        """What the chosen ops allow: kernels read all but shapes and tokens per request on the device.

        A graph keeps both, so its batches must be uniform; the reference ops read lengths on the host.
        """
        current = arch.current()
        chosen = {choice.chosen.name for choice in table(current, encodings_of(vllm_config, current))}
        return AttentionCGSupport.NEVER if "reference" in chosen else AttentionCGSupport.UNIFORM_BATCH

    def __init__(self, kv_cache_spec: Any, layer_names: list[str], vllm_config: Any, device: torch.device) -> None:
        super().__init__(kv_cache_spec, layer_names, vllm_config, device)
        capacity = vllm_config.scheduler_config.max_num_batched_tokens
        self._request = torch.zeros(capacity, dtype=torch.int64, device=device)
        self._positions = torch.zeros(capacity, dtype=torch.int64, device=device)
        self._slots = torch.full((capacity,), -1, dtype=torch.int64, device=device)

    def build(
        self, common_prefix_len: int, common_attn_metadata: CommonAttentionMetadata, fast_build: bool = False
    ) -> GroupMetadata:
        """Metadata of one step; padded tokens get slot -1 and belong to the request past the last one."""
        common = common_attn_metadata
        count = common.num_actual_tokens
        request, positions, slots = self._request[:count], self._positions[:count], self._slots[:count]
        request.copy_(request_of_token(common.query_start_loc, count))
        positions.copy_(token_positions(common.query_start_loc, common.seq_lens, request))
        ratio = self.kv_cache_spec.tokens_per_state
        token_slots = common.slot_mapping[:count]
        if ratio == 1:
            slots.copy_(paged_slots(token_slots, self.kv_cache_spec.block_size))
        else:
            slots.copy_(entry_slots(token_slots, positions, ratio, self.kv_cache_spec.block_size))
        batch = TokenBatch(
            positions=positions,
            query_start=common.query_start_loc,
            request=request,
            tokens_per_request=uniform_tokens(common.num_reqs, count, common.max_query_len),
        )
        return GroupMetadata(batch, common.block_table_tensor, slots, causal=bool(common.causal))
