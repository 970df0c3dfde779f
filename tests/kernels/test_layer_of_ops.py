"""The ops put together as the attention layer puts them, against the reference model's attention, without vLLM."""

import pytest
import torch

from dsv4_rocm.cache.addressing import PagedCache
from dsv4_rocm.cache.layout import Encoding
from dsv4_rocm.cache.specs import CacheEncodings, layer_caches
from dsv4_rocm.kernels.compress_insert.reference import compress_insert
from dsv4_rocm.kernels.indexer_query.reference import indexer_query
from dsv4_rocm.kernels.indexer_select.reference import indexer_select
from dsv4_rocm.kernels.qnorm_rope_insert.reference import qnorm_rope_insert
from dsv4_rocm.kernels.rotary import rotary_frequencies
from dsv4_rocm.kernels.sparse_attention.reference import sparse_attention
from dsv4_rocm.model_spec import LayerKind, ModelSpec
from dsv4_rocm.testing.reference_attention import Attention, LayerCache
from dsv4_rocm.testing.reference_layers import Params, rms_norm
from dsv4_rocm.testing.tiny_config import ORACLE, config_json
from dsv4_rocm.testing.tiny_weights import draw_weights

SPEC = ModelSpec.from_config(config_json(ORACLE))
WEIGHTS = draw_weights(ORACLE)
LAYERS = {LayerKind.SWA: 0, LayerKind.C4A: 1, LayerKind.C128A: 2}
TOKENS = 300
CHUNKINGS = {
    "one": [300],
    "sixties": [64] * 4 + [44],
    "token-by-token-tail": [250] + [1] * 50,
    "odd": [3, 1, 124, 2, 126, 44],
}
BOUND = 2e-5


class LayerOfOps:
    """One attention layer over paged caches."""

    def __init__(self, make_cache, kind: LayerKind, encodings: CacheEncodings) -> None:
        self.kind = kind
        self.params = Params(WEIGHTS).under(f"layers.{LAYERS[kind]}.attn")
        self.frequencies = rotary_frequencies(SPEC, kind)
        layouts = layer_caches(kind, encodings, SPEC.window)
        self.caches = {name: make_cache(layout, tokens=TOKENS + 256) for name, layout in layouts.items()}

    def _compress(self, name: str, x: torch.Tensor, batch, into: PagedCache) -> None:
        params = self.params.under(name)
        projections = params.linear("wkv", x), params.linear("wgate", x)
        state = self.caches[f"{name}.state"].at(batch)
        norm = params["norm.weight"]
        compress_insert(*projections, params["ape"], norm, SPEC.norm_eps, self.frequencies, batch, state, into)

    def forward(self, x: torch.Tensor, batch) -> torch.Tensor:
        params, eps = self.params, SPEC.norm_eps
        latent = rms_norm(params.linear("wq_a", x), eps, params["q_norm.weight"])
        query = params.linear("wq_b", latent).view(len(x), SPEC.num_heads, 512)
        key = rms_norm(params.linear("wkv", x), eps, params["kv_norm.weight"])
        window, entries, selected = self.caches["swa"].at(batch), None, None
        query = qnorm_rope_insert(query, key, batch.positions, self.frequencies, eps, window)
        if self.kind is not LayerKind.SWA:
            entries = self.caches["entries"].at(batch)
            self._compress("compressor", x, batch, entries)
        if self.kind is LayerKind.C4A:
            index, indexer = self.caches["indexer.keys"].at(batch), params.under("indexer")
            self._compress("indexer.compressor", x, batch, index)
            projected = indexer.linear("wq_b", latent).view(len(x), SPEC.index_heads, 128)
            weights = indexer.linear("weights_proj", x)
            index_query = indexer_query(projected, weights, batch.positions, self.frequencies, index.layout)
            selected = indexer_select(index_query, batch, index, SPEC.index_topk)
        sink = params["attn_sink"]
        out = sparse_attention(query, sink, 512**-0.5, batch, window, entries, selected, self.frequencies)
        grouped = out.view(len(x), SPEC.o_groups, -1)
        down = params["wo_a.weight"].view(SPEC.o_groups, SPEC.o_lora_rank, -1)
        return params.linear("wo_b", torch.einsum("tgi,gri->tgr", grouped, down).flatten(1))


def run(make_cache, make_batch, kind: LayerKind, encoding: Encoding, chunks: list[int]) -> torch.Tensor:
    layer = LayerOfOps(make_cache, kind, CacheEncodings(encoding, encoding))
    pieces, first = [], 0
    for length in chunks:
        pieces.append(layer.forward(HIDDEN[first : first + length], make_batch((first, length))))
        first += length
    return torch.cat(pieces)


HIDDEN = torch.randn(TOKENS, SPEC.hidden_size, generator=torch.Generator().manual_seed(3))


@pytest.mark.parametrize("kind", LAYERS, ids=lambda kind: kind.name.lower())
@pytest.mark.parametrize("chunking", CHUNKINGS)
def test_exact_rows_equal_the_reference_model(make_cache, make_batch, kind: LayerKind, chunking: str) -> None:
    params = Params(WEIGHTS).under(f"layers.{LAYERS[kind]}.attn")
    expected = Attention(ORACLE, kind.ratio, params, "exact").forward(HIDDEN, 0, LayerCache())
    got = run(make_cache, make_batch, kind, Encoding.FP32, CHUNKINGS[chunking])
    assert (got - expected).abs().max() <= BOUND


@pytest.mark.parametrize("kind", LAYERS, ids=lambda kind: kind.name.lower())
def test_fp8_rows_equal_the_reference_model_but_for_flips(make_cache, make_batch, kind: LayerKind) -> None:
    """The same inputs are rounded on both sides: nearly all tokens are equal, and a token behind a flip is close."""
    params = Params(WEIGHTS).under(f"layers.{LAYERS[kind]}.attn")
    quantized = Attention(ORACLE, kind.ratio, params, "fp8").forward(HIDDEN, 0, LayerCache())
    exact = Attention(ORACLE, kind.ratio, params, "exact").forward(HIDDEN, 0, LayerCache())
    got = run(make_cache, make_batch, kind, Encoding.FP8, [300])
    difference, effect = (got - quantized).abs().amax(1), (exact - quantized).abs().amax(1)
    assert difference.median() <= 0.02 * effect.median()
    assert difference.mean() <= 0.2 * effect.mean()
