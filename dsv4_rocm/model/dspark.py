"""DSparkDraftModel: a block of drafts in one pass, over context rows made from the target's streams."""

from collections.abc import Iterable
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn
from vllm.model_executor.layers.layernorm import RMSNorm
from vllm.model_executor.layers.logits_processor import LogitsProcessor
from vllm.model_executor.layers.vocab_parallel_embedding import ParallelLMHead, VocabParallelEmbedding
from vllm.model_executor.models.utils import maybe_prefix

from dsv4_rocm.attention.backend import mark_draft_caches
from dsv4_rocm.attention.context import LayerContext
from dsv4_rocm.attention.layer import Attention
from dsv4_rocm.attention.metadata import step_metadata
from dsv4_rocm.cache.addressing import PagedCache, TokenBatch
from dsv4_rocm.kernels.rotary import rotate
from dsv4_rocm.linear import Fp32OutputLinear, replicated_linear
from dsv4_rocm.model.causal_lm import layer_context
from dsv4_rocm.model.decoder_layer import DecoderLayer
from dsv4_rocm.model.hyper_connections import HyperHead
from dsv4_rocm.model.weights import load_draft_weights
from dsv4_rocm.model_spec import HEAD_DIM, DSparkSpec, LayerSpec, ModelSpec
from dsv4_rocm.upstream import refuse


def whole_block(batch: TokenBatch, window: PagedCache) -> tuple[TokenBatch, PagedCache]:
    """A batch and a window cache with which every token sees its whole block, and the context before the block.

    All tokens of a block of k stand at its last position, and the window is k longer: it then reaches back to the
    same first row for all of them, the window of the context that ends where the block begins.

    Args:
        batch: blocks of equal length, one per request.
        window: the cache that holds context and block.

    Raises:
        ValueError: the blocks are not of equal length.
    """
    length = batch.tokens_per_request
    if length is None or window.layout.window is None:
        raise ValueError(f"a draft needs blocks of equal length, at most 8, got starts {batch.query_start.tolist()}")
    token = torch.arange(batch.num_tokens, device=batch.positions.device)
    last = token // length * length + length - 1
    wide = replace(window.layout, window=window.layout.window + length)
    return replace(batch, positions=batch.positions[last.clamp_max(batch.num_tokens - 1)]), replace(window, layout=wide)


class BlockAttention(Attention):
    """Attention of a draft stage: where a step is not causal, tokens see the whole block (docs/model-spec.md 5)."""

    def forward(self, hidden: Tensor) -> Tensor:
        """[tokens, hidden] -> [tokens, hidden]; rows past the step's tokens are padding and come out as zero."""
        step = step_metadata()
        if step is None or step[self.swa.prefix].causal:
            return super().forward(hidden)
        batch, window = step[self.swa.prefix].batch, self.swa.paged(step)
        tokens, padding = hidden[: batch.num_tokens], hidden.shape[0] - batch.num_tokens
        frequencies = self._frequencies.to(hidden.device)
        query, _, key = self._project(tokens)
        query = self._qnorm_rope_insert(query, key, batch.positions, frequencies, self.norm_eps, window)
        seen, wide = whole_block(batch, window)
        output = self._sparse_attention(query, self.attn_sink, HEAD_DIM**-0.5, seen, wide, None, None)
        turned = rotate(output.float(), batch.positions, frequencies, inverse=True)  # each by its own position
        return self._project_back(turned.to(output.dtype), padding)

    def store_context(self, states: Tensor, positions: Tensor, slots: Tensor | None) -> None:
        """Write the rows of context tokens.

        Args:
            states: [tokens, hidden], projected streams of the target.
            positions: int64 [tokens].
            slots: int64 [tokens], -1 for nothing; None in a profiling run.
        """
        _, key = self.wq_a_wkv(states).split(self._latent_sizes, -1)
        key = self.kv_norm(key)
        if slots is None:
            return
        nobody = states.new_zeros(states.shape[0], 1, HEAD_DIM)  # context tokens ask nothing
        cache = self.swa.at_slots(slots)
        self._qnorm_rope_insert(nobody, key, positions, self._frequencies.to(key.device), self.norm_eps, cache)


class MarkovHead(nn.Module):
    """What the token before adds to a draft's logits: `w2 w1[x]`. The same on every rank."""

    def __init__(self, spec: ModelSpec, rank: int) -> None:
        super().__init__()
        self.markov_w1 = nn.Embedding(spec.vocab_size, rank)
        self.markov_w2 = nn.Linear(rank, spec.vocab_size, bias=False)


class ConfidenceHead(nn.Module):
    """How likely a draft is right: `sigmoid(proj [h; w1[x]])`."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.proj = Fp32OutputLinear(width, 1)


class BlockLayer(DecoderLayer):
    """One stage. The first also projects the context, the last also has the heads; names are the checkpoint's."""

    attention = BlockAttention
    attn: BlockAttention

    def __init__(self, context: LayerContext, layer: LayerSpec, dspark: DSparkSpec, prefix: str) -> None:
        super().__init__(context, layer, prefix)
        spec, stage = context.spec, layer.index - len(context.spec.layers)
        hidden, eps = spec.hidden_size, spec.norm_eps
        if stage == 0:
            width = len(dspark.target_layers) * hidden
            self.main_proj = replicated_linear(width, hidden, context.quant_config, f"{prefix}.main_proj")
            self.main_norm = RMSNorm(hidden, eps)
        if stage == dspark.stages - 1:
            self.norm = RMSNorm(hidden, eps)
            self.hc_head = HyperHead(spec)
            self.markov_head = MarkovHead(spec, dspark.markov_rank)
            self.confidence_head = ConfidenceHead(hidden + dspark.markov_rank)


class BlockStages(nn.Module):
    """All stages under their numbers after the decoder layers, and the embedding, which vLLM shares."""

    def __init__(self, context: LayerContext, dspark: DSparkSpec, prefix: str) -> None:
        super().__init__()
        spec = context.spec
        self._hc_mult = spec.hc_mult
        self.embed_tokens = VocabParallelEmbedding(spec.vocab_size, spec.hidden_size, prefix=f"{prefix}.embed_tokens")
        stages = {
            str(layer.index): BlockLayer(context, layer, dspark, f"{prefix}.layers.{layer.index}")
            for layer in spec.draft_layers
        }
        self.layers = nn.ModuleDict(stages)
        self.stages: tuple[BlockLayer, ...] = tuple(stages.values())

    @property
    def confidence_head(self) -> ConfidenceHead:
        """Where vLLM looks for it."""
        return self.stages[-1].confidence_head

    def forward(self, embedded: Tensor, token_ids: Tensor) -> Tensor:
        """[tokens, hidden], int [tokens] -> [tokens, hidden], before the final norm."""
        streams = embedded[:, None].repeat(1, self._hc_mult, 1)
        for stage in self.stages:
            streams = stage(streams, token_ids)
        merged: Tensor = self.stages[-1].hc_head(streams)
        return merged


class DSparkDraftModel(nn.Module):
    """DSpark as vLLM's speculator calls it; the sequential sampling between the methods is vLLM's."""

    has_own_embed_tokens = False
    has_own_lm_head = False
    draft_id_to_target_id = None  # the draft's vocabulary is the target's

    def __init__(self, *, vllm_config: Any, prefix: str = "") -> None:
        super().__init__()
        self.config = vllm_config.speculative_config.draft_model_config.hf_config
        self.context = layer_context(vllm_config)
        spec = self.context.spec
        if spec.dspark is None:
            refuse("config.json has no dspark_block_size: its draft modules are not DSpark's; use method=mtp")
        self.model = BlockStages(self.context, spec.dspark, maybe_prefix(prefix, "model"))
        self.lm_head: nn.Module = ParallelLMHead(
            spec.vocab_size, spec.hidden_size, prefix=maybe_prefix(prefix, "lm_head")
        )
        self.logits_processor = LogitsProcessor(spec.vocab_size)
        mark_draft_caches(self)

    def embed_input_ids(self, input_ids: Tensor) -> Tensor:
        """int [tokens] -> [tokens, hidden]."""
        embedded: Tensor = self.model.embed_tokens(input_ids)
        return embedded

    def get_draft_kv_cache_layer_names(self) -> list[str]:
        """Cache of each stage; the stages may lie in different KV groups."""
        return [stage.attn.swa.prefix for stage in self.model.stages]

    def combine_hidden_states(self, aux_hidden_states: Tensor) -> Tensor:
        """Mean streams of the target layers [tokens, layers * hidden] -> context states [tokens, hidden]."""
        first = self.model.stages[0]
        combined: Tensor = first.main_norm(first.main_proj(aux_hidden_states))
        return combined

    def precompute_and_store_context_kv(
        self,
        context_states: Tensor,
        context_positions: Tensor,
        context_slot_mappings: list[Tensor | None] | None = None,
    ) -> None:
        """Write every stage's rows of the context tokens, all from the same states.

        Args:
            context_states: [tokens, hidden].
            context_positions: int64 [tokens].
            context_slot_mappings: int64 [tokens] per stage, -1 for rejected tokens; None in a profiling run.
        """
        slots = context_slot_mappings or [None] * len(self.model.stages)
        for stage, stage_slots in zip(self.model.stages, slots, strict=True):
            stage.attn.store_context(context_states, context_positions, stage_slots)

    def forward(self, input_ids: Tensor, positions: Tensor, inputs_embeds: Tensor | None = None) -> Tensor:
        """Blocks of [anchor, noise, ...], int [tokens] -> [tokens, hidden] before the final norm."""
        embedded = self.embed_input_ids(input_ids) if inputs_embeds is None else inputs_embeds
        result: Tensor = self.model(embedded, input_ids)
        return result

    def compute_logits(self, hidden_states: Tensor) -> Tensor | None:
        """[tokens, hidden] -> logits [tokens, vocab] without the Markov head's part."""
        logits: Tensor | None = self.logits_processor(self.lm_head, self.model.stages[-1].norm(hidden_states))
        return logits

    def compute_draft_logits(self, hidden_states: Tensor) -> Tensor | None:
        """`compute_logits` under the speculator's name."""
        return self.compute_logits(hidden_states)

    def map_draft_to_target(self, draft_ids: Tensor) -> Tensor:
        """The identity."""
        return draft_ids

    def markov_embed(self, token_ids: Tensor) -> Tensor:
        """int [requests], the tokens before -> [requests, rank]."""
        row: Tensor = self.model.stages[-1].markov_head.markov_w1(token_ids)
        return row

    def markov_bias(self, markov_embed: Tensor) -> Tensor:
        """[requests, rank] -> what to add to the logits, [requests, vocab]."""
        bias: Tensor = self.model.stages[-1].markov_head.markov_w2(markov_embed)
        return bias

    def compute_confidence(self, head_hidden: Tensor, markov_embed: Tensor) -> Tensor:
        """[tokens, hidden], [tokens, rank] -> probability that each draft is accepted, fp32 [tokens, 1]."""
        head: ConfidenceHead = self.model.stages[-1].confidence_head
        return torch.sigmoid(head.proj(torch.cat([head_hidden, markov_embed], -1)))

    def load_weights(self, weights: Iterable[tuple[str, Tensor]]) -> set[str]:
        """Load `mtp.*` of a checkpoint; see `dsv4_rocm.model.weights`."""
        try:
            return load_draft_weights(self, weights, self.context)
        except ValueError as error:
            refuse(str(error))
