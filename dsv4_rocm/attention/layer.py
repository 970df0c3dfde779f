"""The attention layer: hidden states in, hidden states out, readable from top to bottom."""

from torch import Tensor, nn
from vllm.model_executor.layers.layernorm import RMSNorm

from dsv4_rocm.attention.backend import CacheModule
from dsv4_rocm.attention.compressor import Compressor, under, within
from dsv4_rocm.attention.context import LayerContext
from dsv4_rocm.attention.indexer import Indexer
from dsv4_rocm.attention.metadata import step_metadata
from dsv4_rocm.cache.specs import layer_caches
from dsv4_rocm.kernels.qnorm_rope_insert.op import QnormRopeInsert
from dsv4_rocm.kernels.rotary import rotary_frequencies
from dsv4_rocm.kernels.selection import choose
from dsv4_rocm.kernels.sparse_attention.op import SparseAttention
from dsv4_rocm.linear import (
    GroupedLinear,
    JoinedFp32OutputLinear,
    joined_linear,
    row_linear,
    sharded_parameter,
)
from dsv4_rocm.model_spec import HEAD_DIM, INDEX_HEAD_DIM, LayerKind


class Attention(nn.Module):
    """Attention of one decoder layer of any kind. Parameter names are the checkpoint's."""

    def __init__(self, context: LayerContext, kind: LayerKind, prefix: str) -> None:
        super().__init__()
        spec, quant = context.spec, context.quant_config
        heads, groups = spec.num_heads // context.tp_size, spec.o_groups // context.tp_size
        self.num_heads, self.num_groups, self.norm_eps = heads, groups, spec.norm_eps
        latents = {"wq_a": spec.q_lora_rank, "wkv": HEAD_DIM}
        self.wq_a_wkv = joined_linear(spec.hidden_size, latents, quant, f"{prefix}.wq_a_wkv")
        self._latent_sizes = tuple(latents.values())
        self.q_norm = RMSNorm(spec.q_lora_rank, spec.norm_eps)
        queries = {"wq_b": spec.num_heads * HEAD_DIM}
        if kind is LayerKind.C4A:
            queries["indexer.wq_b"] = spec.index_heads * INDEX_HEAD_DIM
        self.queries = joined_linear(spec.q_lora_rank, queries, quant, f"{prefix}.queries", split=("wq_b",))
        self.kv_norm = RMSNorm(HEAD_DIM, spec.norm_eps)
        self.wo_a = GroupedLinear(spec.heads_per_group * HEAD_DIM, spec.o_lora_rank, groups)
        self.wo_b = row_linear(spec.o_groups * spec.o_lora_rank, spec.hidden_size, quant, f"{prefix}.wo_b")
        self.attn_sink = sharded_parameter(heads)

        caches = layer_caches(kind, context.encodings, spec.window)
        self.swa = CacheModule(caches["swa"], f"{prefix}.swa")
        self.entries: CacheModule | None = None
        self.indexer: Indexer | None = None
        if kind is not LayerKind.SWA:
            self.entries = CacheModule(caches["entries"], f"{prefix}.entries")
            state = caches["compressor.state"]
            self.compressor = Compressor(context, kind, self.entries, state, f"{prefix}.compressor")
        if kind is LayerKind.C4A:
            self.indexer = Indexer(context, caches, f"{prefix}.indexer")
        # All that is projected from the hidden states in fp32, as one product.
        self.projections: JoinedFp32OutputLinear | None = None
        if kind is not LayerKind.SWA:
            indexer_parts = {} if self.indexer is None else under("indexer", self.indexer.parts)
            parts = under("compressor", self.compressor.parts) | indexer_parts
            self.projections = JoinedFp32OutputLinear(spec.hidden_size, parts)

        # Kept out of the state dict and of the model's dtype: angles need fp32.
        self._frequencies = rotary_frequencies(spec, kind)
        self._qnorm_rope_insert: QnormRopeInsert = choose(
            "qnorm_rope_insert", context.arch, context.encodings
        ).chosen.load()
        self._sparse_attention: SparseAttention = choose(
            "sparse_attention", context.arch, context.encodings
        ).chosen.load()

    def forward(self, hidden: Tensor) -> Tensor:
        """[tokens, hidden] -> [tokens, hidden]; rows past the step's tokens are padding and come out as zero."""
        step = step_metadata()
        if step is None:
            return self._without_caches(hidden)
        batch = step[self.swa.prefix].batch
        tokens, padding = hidden[: batch.num_tokens], hidden.shape[0] - batch.num_tokens
        frequencies = self._frequencies.to(hidden.device)

        query, index_query, key = self._project(tokens)
        window = self.swa.paged(step)
        query = self._qnorm_rope_insert(query, key, batch.positions, frequencies, self.norm_eps, window)

        entries, selected = None, None
        if self.projections is not None and self.entries is not None:
            projected = self.projections.by_part(tokens)
            self.compressor(within("compressor", projected), frequencies, step)
            entries = self.entries.paged(step)
            if self.indexer is not None:
                selected = self.indexer(within("indexer", projected), index_query, frequencies, step)

        output = self._sparse_attention(
            query, self.attn_sink, HEAD_DIM**-0.5, batch, window, entries, selected, frequencies
        )
        return self._project_back(output, padding)

    def _project(self, tokens: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Queries [tokens, heads, 512], queries of the indexer (none without one), normed keys [tokens, 512]."""
        latent, key = self.wq_a_wkv(tokens).split(self._latent_sizes, -1)
        queries = self.queries(self.q_norm(latent))
        query, index_query = queries.tensor_split([self.num_heads * HEAD_DIM], -1)
        return query.unflatten(-1, (-1, HEAD_DIM)), index_query, self.kv_norm(key)

    def _project_back(self, output: Tensor, padding: int) -> Tensor:
        """[tokens, heads, 512] -> [tokens + padding, hidden]."""
        grouped = output.view(-1, self.num_groups, self.num_heads // self.num_groups * HEAD_DIM)
        result: Tensor = self.wo_b(self.wo_a(grouped))
        return nn.functional.pad(result, (0, 0, 0, padding)) if padding else result

    def _without_caches(self, hidden: Tensor) -> Tensor:
        """Zeros, for the memory of a step: vLLM's profiling run, before the caches exist, sizes the KV pool by it."""
        query, _, _ = self._project(hidden)
        return self._project_back(query.new_zeros(query.shape), padding=0)
