"""The ops that `choose` picks on a GPU, put together as the attention layer puts them, against the references."""

from collections.abc import Callable
from typing import Any

import pytest
import torch

from dsv4_rocm import arch
from dsv4_rocm.cache.layout import Encoding
from dsv4_rocm.cache.specs import SERVED, CacheEncodings, layer_caches
from dsv4_rocm.kernels.rotary import rotary_frequencies
from dsv4_rocm.kernels.selection import OPS, choose
from dsv4_rocm.model_spec import FLASH, LayerKind

HEADS, INDEX_HEADS, TOP_K, EPS = 16, 64, 16, 1e-6
ENCODINGS = CacheEncodings(Encoding.FP8, Encoding.FP8)
CHUNKS = [(0, 9), (9, 1), (10, 2)]
# bf16 weights and results on one side, fp32 on the other: about 2^-9 each; a flipped code of a key moves less.
BOUND = 0.005


class Layer:
    """One attention layer with random projections over caches of its own."""

    def __init__(self, make_cache, ops: dict[str, Callable[..., Any]], kind: LayerKind) -> None:
        self.ops, self.kind = ops, kind
        self.frequencies = rotary_frequencies(FLASH, kind)
        layouts = layer_caches(kind, ENCODINGS, FLASH.window)
        self.caches = {name: make_cache(layout, tokens=256) for name, layout in layouts.items()}

    def _compress(self, name: str, entries, batch, seed: int) -> None:
        width = self.kind.overlap * entries.layout.channels
        values, gates = draw(batch.num_tokens, width, seed=seed), draw(batch.num_tokens, width, seed=seed + 1)
        ape, norm = draw(self.kind.ratio, width, seed=7), draw(entries.layout.channels, seed=8).abs().bfloat16()
        state = self.caches[f"{name}.state"].at(batch)
        self.ops["compress_insert"](values, gates, ape, norm, EPS, self.frequencies, batch, state, entries)

    def forward(self, batch, seed: int) -> torch.Tensor:
        tokens, window, entries, selected = batch.num_tokens, self.caches["swa"].at(batch), None, None
        query, key = draw(tokens, HEADS, 512, seed=seed).bfloat16(), draw(tokens, 512, seed=seed + 1).bfloat16()
        query = self.ops["qnorm_rope_insert"](query, key, batch.positions, self.frequencies, EPS, window)
        if self.kind is not LayerKind.SWA:
            entries = self.caches["entries"].at(batch)
            self._compress("compressor", entries, batch, seed + 2)
        if self.kind is LayerKind.C4A:
            index = self.caches["indexer.keys"].at(batch)
            self._compress("indexer.compressor", index, batch, seed + 4)
            projected = draw(tokens, INDEX_HEADS, 128, seed=seed + 6).bfloat16()
            weights = draw(tokens, INDEX_HEADS, seed=seed + 7)
            prepared = self.ops["indexer_query"](projected, weights, batch.positions, self.frequencies, index.layout)
            selected = self.ops["indexer_select"](prepared, batch, index, TOP_K)
        sink = draw(HEADS, seed=9)
        attend = self.ops["sparse_attention"]
        return attend(query, sink, 512**-0.5, batch, window, entries, selected, self.frequencies)


def draw(*shape: int, seed: int) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


@pytest.mark.parametrize(
    "kind", [pytest.param(LayerKind.SWA, id="swa", marks=pytest.mark.slow), pytest.param(LayerKind.C4A, id="c4a")]
)
def test_a_layer_equals_the_references(gpu, make_cache, make_batch, kind: LayerKind) -> None:
    ours = {op: choose(op, arch.current(), SERVED).chosen for op in OPS}
    assert {implementation.name for implementation in ours.values()} == {"triton"}
    theirs = {op: choose(op, arch.HOST, SERVED).chosen for op in OPS}
    layers = [Layer(make_cache, {op: choice.load() for op, choice in ops.items()}, kind) for ops in (ours, theirs)]
    launches = []
    for number, chunk in enumerate(CHUNKS):
        before = len(gpu.launches)
        got, expected = (layer.forward(make_batch(chunk), 100 * number) for layer in layers)
        launches.append(len(gpu.launches) - before)
        error = (got.double() - expected.double()).square().mean().sqrt()
        assert error <= BOUND * expected.double().square().mean().sqrt()
    # c4a: query and key 1, two compressors 2 each, index query 1, scores and selection 2, attention 1
    assert set(launches) == {{LayerKind.SWA: 2, LayerKind.C4A: 9}[kind]}
