"""The indexer of a c4a layer: which entries each token attends to."""

from functools import cache

import torch
from torch import Tensor, nn
from vllm.config import get_current_vllm_config

from dsv4_rocm.attention.backend import CacheModule
from dsv4_rocm.attention.compressor import Compressor, under, within
from dsv4_rocm.attention.context import LayerContext
from dsv4_rocm.attention.metadata import GroupMetadata
from dsv4_rocm.cache.layout import CacheLayout
from dsv4_rocm.kernels.indexer_query.op import IndexerQuery
from dsv4_rocm.kernels.indexer_select import tuning
from dsv4_rocm.kernels.indexer_select.op import IndexerSelect
from dsv4_rocm.kernels.selection import choose
from dsv4_rocm.model_spec import INDEX_HEAD_DIM, LayerKind


@cache
def _workspace(words: int, device: torch.device) -> Tensor:
    """Memory that the layers use one after the other; it is there when vLLM measures, and stays where graphs saw it."""
    return torch.empty(words, dtype=torch.int32, device=device)


def _indexer_workspace(layout: CacheLayout) -> Tensor:
    config = get_current_vllm_config()
    pages = -(-config.model_config.max_model_len // layout.tokens_per_page) + 1
    tokens = config.scheduler_config.max_num_batched_tokens
    return _workspace(tuning.workspace_words(tokens, pages * layout.rows_per_page), torch.get_default_device())


class Indexer(nn.Module):
    """Keeps its own compressed keys and ranks them for each token. The layer projects; see `parts`."""

    def __init__(self, context: LayerContext, caches: dict[str, CacheLayout], prefix: str) -> None:
        super().__init__()
        spec = context.spec
        self.num_heads, self.top_k = spec.index_heads, spec.index_topk
        self.keys = CacheModule(caches["indexer.keys"], f"{prefix}.keys")
        state = caches["indexer.compressor.state"]
        self.compressor = Compressor(context, LayerKind.C4A, self.keys, state, f"{prefix}.compressor")
        self.parts = {"weights_proj": spec.index_heads, **under("compressor", self.compressor.parts)}
        self._indexer_query: IndexerQuery = choose("indexer_query", context.arch, context.encodings).chosen.load()
        chosen = choose("indexer_select", context.arch, context.encodings).chosen
        self._indexer_select: IndexerSelect = chosen.load()
        self._workspace = None if chosen.name == "reference" else _indexer_workspace(self.keys.layout)

    def forward(
        self, projected: dict[str, Tensor], query: Tensor, frequencies: Tensor, step: dict[str, GroupMetadata]
    ) -> Tensor:
        """Update the keys with the tokens of this step, then select.

        Args:
            projected: fp32 [tokens, outputs] of each of `parts`, by the layer.
            query: [tokens, index_heads * 128], by the layer's projection of the query latent.
            frequencies: fp32 [32].
            step: metadata by cache name.

        Returns:
            int32 [tokens, top_k] entry ids, -1 where there are fewer.
        """
        self.compressor(within("compressor", projected), frequencies, step)
        batch = step[self.keys.prefix].batch
        heads = query.view(-1, self.num_heads, INDEX_HEAD_DIM)
        weights = projected["weights_proj"]
        index_query = self._indexer_query(heads, weights, batch.positions, frequencies, self.keys.layout)
        return self._indexer_select(index_query, batch, self.keys.paged(step), self.top_k, self._workspace)
