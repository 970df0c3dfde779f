"""DeepSeekV4MTPModel: the serial draft, one or more window-only layers that guess the token after next."""

from collections.abc import Iterable
from typing import Any

from torch import Tensor, nn
from vllm.model_executor.layers.layernorm import RMSNorm
from vllm.model_executor.layers.logits_processor import LogitsProcessor
from vllm.model_executor.layers.vocab_parallel_embedding import ParallelLMHead, VocabParallelEmbedding
from vllm.model_executor.models.utils import maybe_prefix

from dsv4_rocm.attention.backend import mark_draft_caches
from dsv4_rocm.attention.context import LayerContext
from dsv4_rocm.linear import replicated_linear
from dsv4_rocm.model.causal_lm import layer_context
from dsv4_rocm.model.decoder_layer import DecoderLayer
from dsv4_rocm.model.hyper_connections import HyperHead
from dsv4_rocm.model.weights import load_draft_weights
from dsv4_rocm.model_spec import LayerSpec
from dsv4_rocm.upstream import refuse


class DraftLayer(DecoderLayer):
    """A window-only decoder layer over the target's streams and the embedding of the token that follows."""

    def __init__(self, context: LayerContext, layer: LayerSpec, prefix: str) -> None:
        super().__init__(context, layer, prefix)
        hidden, eps, quant = context.spec.hidden_size, context.spec.norm_eps, context.quant_config
        self.enorm, self.hnorm, self.norm = (RMSNorm(hidden, eps) for _ in range(3))
        self.e_proj = replicated_linear(hidden, hidden, quant, f"{prefix}.e_proj")
        self.h_proj = replicated_linear(hidden, hidden, quant, f"{prefix}.h_proj")
        self.hc_head = HyperHead(context.spec)

    def draft(self, embedded: Tensor, streams: Tensor, token_ids: Tensor) -> Tensor:
        """Streams of the draft.

        Args:
            embedded: [tokens, hidden], embedding of the token after each position.
            streams: [tokens, hc_mult, hidden], of the target or of the previous draft step.
            token_ids: int [tokens], the same tokens' ids.

        Returns:
            [tokens, hc_mult, hidden].
        """
        carried = self.h_proj(self.hnorm(streams.flatten(0, 1))).view_as(streams)
        drafted: Tensor = self(self.e_proj(self.enorm(embedded))[:, None] + carried, token_ids)
        return drafted

    def merge(self, streams: Tensor) -> Tensor:
        """[tokens, hc_mult, hidden] -> [tokens, hidden], ready for the output head."""
        merged: Tensor = self.norm(self.hc_head(streams))
        return merged


class DraftStages(nn.Module):
    """The draft layers under their numbers after the decoder layers, and the embedding, which vLLM shares."""

    def __init__(self, context: LayerContext, prefix: str) -> None:
        super().__init__()
        spec = context.spec
        self.embed_tokens = VocabParallelEmbedding(spec.vocab_size, spec.hidden_size, prefix=f"{prefix}.embed_tokens")
        self.layers = nn.ModuleDict(
            {
                str(layer.index): DraftLayer(context, layer, f"{prefix}.layers.{layer.index}")
                for layer in spec.draft_layers
            }
        )


class DeepSeekV4MTPModel(nn.Module):
    """Serial MTP as vLLM's proposers call it: flat streams in, flat streams out, logits on demand."""

    def __init__(self, *, vllm_config: Any, prefix: str = "") -> None:
        super().__init__()
        self.config = vllm_config.speculative_config.draft_model_config.hf_config
        self.context = layer_context(vllm_config)
        spec = self.context.spec
        self.model = DraftStages(self.context, maybe_prefix(prefix, "model"))
        self.lm_head: nn.Module = ParallelLMHead(
            spec.vocab_size, spec.hidden_size, prefix=maybe_prefix(prefix, "lm_head")
        )
        self.logits_processor = LogitsProcessor(spec.vocab_size)
        mark_draft_caches(self)

    def embed_input_ids(self, input_ids: Tensor) -> Tensor:
        """int [tokens] -> [tokens, hidden]."""
        embedded: Tensor = self.model.embed_tokens(input_ids)
        return embedded

    def forward(
        self,
        input_ids: Tensor,
        positions: Tensor,
        hidden_states: Tensor,
        intermediate_tensors: Any = None,
        inputs_embeds: Tensor | None = None,
        spec_step_idx: int = 0,
    ) -> Tensor:
        """One draft step; positions come with the caches' metadata.

        Args:
            input_ids: int [tokens], the token that follows each position.
            positions: unused.
            hidden_states: [tokens, hc_mult * hidden], the streams at each position.
            intermediate_tensors: unused.
            inputs_embeds: [tokens, hidden] instead of embedding `input_ids`.
            spec_step_idx: step within one proposal; stages take turns.

        Returns:
            [tokens, hc_mult * hidden].
        """
        spec = self.context.spec
        embedded = self.embed_input_ids(input_ids) if inputs_embeds is None else inputs_embeds
        streams = hidden_states.view(-1, spec.hc_mult, spec.hidden_size)
        return self._stage(spec_step_idx).draft(embedded, streams, input_ids).flatten(1)

    def compute_logits(self, hidden_states: Tensor, spec_step_idx: int = 0) -> Tensor | None:
        """[tokens, hc_mult * hidden] -> [tokens, vocab]."""
        spec = self.context.spec
        merged = self._stage(spec_step_idx).merge(hidden_states.view(-1, spec.hc_mult, spec.hidden_size))
        logits: Tensor | None = self.logits_processor(self.lm_head, merged)
        return logits

    def load_weights(self, weights: Iterable[tuple[str, Tensor]]) -> set[str]:
        """Load `mtp.*` of a checkpoint; see `dsv4_rocm.model.weights`."""
        try:
            return load_draft_weights(self, weights, self.context)
        except ValueError as error:
            refuse(str(error))

    def _stage(self, step: int) -> DraftLayer:
        stages: list[Any] = list(self.model.layers.values())
        stage: DraftLayer = stages[step % len(stages)]
        return stage
