"""DeepseekV4ForCausalLM: the model that vLLM's registry finds under the checkpoint's architecture name."""

import logging
from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor, nn
from vllm.distributed import get_pp_group, get_tensor_model_parallel_world_size
from vllm.model_executor.layers.layernorm import RMSNorm
from vllm.model_executor.layers.logits_processor import LogitsProcessor
from vllm.model_executor.layers.vocab_parallel_embedding import ParallelLMHead, VocabParallelEmbedding
from vllm.model_executor.models.interfaces import SupportsEagle3, SupportsPP
from vllm.model_executor.models.utils import PPMissingLayer, make_layers, maybe_prefix
from vllm.platforms import current_platform
from vllm.sequence import IntermediateTensors

from dsv4_rocm import arch
from dsv4_rocm.attention.context import LayerContext
from dsv4_rocm.cache.specs import encodings_of
from dsv4_rocm.kernels.selection import log_table
from dsv4_rocm.model.decoder_layer import DecoderLayer
from dsv4_rocm.model.hyper_connections import HyperHead
from dsv4_rocm.model.weights import load_weights
from dsv4_rocm.model_spec import ModelSpec
from dsv4_rocm.upstream import refuse

logger = logging.getLogger(f"vllm.{__name__}")  # below vLLM's logger, so that its settings hold


def layer_context(vllm_config: Any) -> LayerContext:
    """Read vLLM's configuration once."""
    model = vllm_config.model_config
    current = arch.current()
    return LayerContext(
        spec=ModelSpec.from_config(model.hf_config),
        arch=current,
        encodings=encodings_of(vllm_config, current),
        # On the host vLLM's quantized layers need AMX; plain weights run on any CPU.
        quant_config=None if current_platform.is_cpu() else vllm_config.quant_config,
        tp_size=get_tensor_model_parallel_world_size(),
    )


class DeepseekV4Model(nn.Module):
    """Embedding, decoder layers over four residual streams, merging head, final norm; or one pipeline stage of it."""

    def __init__(self, context: LayerContext, prefix: str) -> None:
        super().__init__()
        spec = context.spec
        self._spec = spec
        pipeline = get_pp_group()
        self.embed_tokens: nn.Module = PPMissingLayer()
        if pipeline.is_first_rank:
            self.embed_tokens = VocabParallelEmbedding(
                spec.vocab_size, spec.hidden_size, prefix=f"{prefix}.embed_tokens"
            )

        def make_layer(prefix: str) -> DecoderLayer:
            return DecoderLayer(context, spec.layers[int(prefix.rsplit(".", 1)[-1])], prefix)

        self.start_layer, self.end_layer, self.layers = make_layers(
            len(spec.layers), make_layer, prefix=f"{prefix}.layers"
        )
        self.norm: nn.Module = PPMissingLayer()
        self.hc_head: nn.Module = PPMissingLayer()
        if pipeline.is_last_rank:
            self.norm = RMSNorm(spec.hidden_size, spec.norm_eps)
            self.hc_head = HyperHead(spec)
        self.streams_for_draft: Tensor | None = None
        self.mean_after: tuple[int, ...] = ()  # numbers of layers, from 1, whose mean streams a DSpark draft reads

    def keep_streams(self, tokens: int) -> None:
        """From now on the streams before the head stay readable: [tokens, hc_mult * hidden], for a serial draft."""
        spec = self._spec
        width = spec.hc_mult * spec.hidden_size
        self.streams_for_draft = torch.zeros(tokens, width)

    def forward(
        self, input_ids: Tensor, intermediate: IntermediateTensors | None, inputs_embeds: Tensor | None
    ) -> Tensor | IntermediateTensors | tuple[Tensor, list[Tensor]]:
        """int [tokens] -> [tokens, hidden], and the means of `mean_after`; or the streams for the next stage."""
        if intermediate is None:
            embedded = self.embed_tokens(input_ids) if inputs_embeds is None else inputs_embeds
            streams = embedded[:, None].repeat(1, self._spec.hc_mult, 1)
        else:
            streams = intermediate["hidden_states"]
        means = []
        for number in range(self.start_layer, self.end_layer):
            streams = self.layers[number](streams, input_ids)
            if number + 1 in self.mean_after:
                means.append(streams.mean(1))
        if not get_pp_group().is_last_rank:
            return IntermediateTensors({"hidden_states": streams})
        if self.streams_for_draft is not None:
            self.streams_for_draft[: streams.shape[0]].copy_(streams.flatten(1))
        merged: Tensor = self.norm(self.hc_head(streams))
        return (merged, means) if means else merged


class DeepseekV4ForCausalLM(nn.Module, SupportsPP, SupportsEagle3):
    """The served model."""

    def __init__(self, *, vllm_config: Any, prefix: str = "") -> None:
        super().__init__()
        self.config = vllm_config.model_config.hf_config
        self.context = layer_context(vllm_config)
        spec = self.context.spec
        log_table(self.context.arch, self.context.encodings)
        self.model = DeepseekV4Model(self.context, maybe_prefix(prefix, "model"))
        if vllm_config.speculative_config is not None and vllm_config.speculative_config.method == "mtp":
            self.model.keep_streams(vllm_config.scheduler_config.max_num_batched_tokens)
        self.lm_head: nn.Module = PPMissingLayer()
        if get_pp_group().is_last_rank:
            self.lm_head = ParallelLMHead(spec.vocab_size, spec.hidden_size, prefix=maybe_prefix(prefix, "lm_head"))
        self.logits_processor = LogitsProcessor(spec.vocab_size)

    def make_empty_intermediate_tensors(
        self, batch_size: int, dtype: torch.dtype, device: torch.device
    ) -> IntermediateTensors:
        """Buffer for the streams that come from the previous pipeline stage."""
        spec = self.context.spec
        shape = (batch_size, spec.hc_mult, spec.hidden_size)
        return IntermediateTensors({"hidden_states": torch.zeros(shape, dtype=dtype, device=device)})

    def embed_input_ids(self, input_ids: Tensor) -> Tensor:
        """int [tokens] -> [tokens, hidden]."""
        embedded: Tensor = self.model.embed_tokens(input_ids)
        return embedded

    def forward(
        self,
        input_ids: Tensor,
        positions: Tensor,
        intermediate_tensors: IntermediateTensors | None = None,
        inputs_embeds: Tensor | None = None,
    ) -> Tensor | IntermediateTensors | tuple[Tensor, list[Tensor]]:
        """One step; positions come with the caches' metadata, so that both cannot disagree."""
        return self.model(input_ids, intermediate_tensors, inputs_embeds)

    def compute_logits(self, hidden_states: Tensor) -> Tensor | None:
        """[tokens, hidden] -> [tokens, vocab]."""
        logits: Tensor | None = self.logits_processor(self.lm_head, hidden_states)
        return logits

    def get_mtp_target_hidden_states(self) -> Tensor | None:
        """The last step's streams before the head, which vLLM hands to a serial draft; None without one."""
        return self.model.streams_for_draft

    def set_aux_hidden_state_layers(self, layers: tuple[int, ...]) -> None:
        """Layers, counted from 1, after which the mean of the streams is handed to a DSpark draft."""
        self.model.mean_after = tuple(layers)

    def load_weights(self, weights: Iterable[tuple[str, Tensor]]) -> set[str]:
        """Load a checkpoint by DeepSeek's tensor names; see `dsv4_rocm.model.weights`."""
        try:
            return load_weights(self, weights, self.context)
        except ValueError as error:
            refuse(str(error))
