"""The ops that `choose` picks on a GPU, put together as the attention layer puts them, against the references."""

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from dsv4_rocm import arch
from dsv4_rocm.attention.metadata_builder import MetadataBuilder
from dsv4_rocm.cache.addressing import PagedCache, TokenBatch, row_slots
from dsv4_rocm.cache.layout import Encoding
from dsv4_rocm.cache.specs import SERVED, CacheEncodings, layer_caches, to_vllm
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

    def __init__(self, make_cache, ops: dict[str, Callable[..., Any]], kind: LayerKind, requests: int = 1) -> None:
        self.ops, self.kind = ops, kind
        self.addresses: Steps | None = None
        self.frequencies = rotary_frequencies(FLASH, kind)
        layouts = layer_caches(kind, ENCODINGS, FLASH.window)
        self.caches = {name: make_cache(layout, requests, tokens=256) for name, layout in layouts.items()}

    def _cache(self, name: str, batch) -> PagedCache:
        cache = self.caches[name]
        return cache.at(batch) if self.addresses is None else self.addresses.paged(name, cache)

    def _compress(self, name: str, entries, batch, seed: int) -> None:
        width = self.kind.overlap * entries.layout.channels
        values, gates = draw(batch.num_tokens, width, seed=seed), draw(batch.num_tokens, width, seed=seed + 1)
        ape, norm = draw(self.kind.ratio, width, seed=7), draw(entries.layout.channels, seed=8).abs().bfloat16()
        state = self._cache(f"{name}.state", batch)
        self.ops["compress_insert"](values, gates, ape, norm, EPS, self.frequencies, batch, state, entries)

    def forward(self, batch, seed: int) -> torch.Tensor:
        tokens, window, entries, selected = batch.num_tokens, self._cache("swa", batch), None, None
        query, key = draw(tokens, HEADS, 512, seed=seed).bfloat16(), draw(tokens, 512, seed=seed + 1).bfloat16()
        query = self.ops["qnorm_rope_insert"](query, key, batch.positions, self.frequencies, EPS, window)
        if self.kind is not LayerKind.SWA:
            entries = self._cache("entries", batch)
            self._compress("compressor", entries, batch, seed + 2)
        if self.kind is LayerKind.C4A:
            index = self._cache("indexer.keys", batch)
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
    assert "reference" not in {implementation.name for implementation in ours.values()}
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


class Steps:
    """Metadata of steps of one shape: what vLLM keeps at fixed addresses, and our builders' metadata of it."""

    def __init__(self, layer: Layer, requests: int, tokens: int) -> None:
        config = SimpleNamespace(
            scheduler_config=SimpleNamespace(max_num_batched_tokens=64),
            speculative_config=None,
            parallel_config=SimpleNamespace(decode_context_parallel_size=1),
        )
        self.caches, self.requests, self.tokens = layer.caches, requests, tokens
        self.query_start = torch.arange(requests + 1, dtype=torch.int32) * tokens
        self.seq_lens = torch.zeros(requests, dtype=torch.int32)
        self.tables = {name: cache.table.clone() for name, cache in layer.caches.items()}
        self.token_slots = {name: torch.zeros(requests * tokens, dtype=torch.int64) for name in layer.caches}
        self.builders = {
            name: MetadataBuilder(to_vllm(cache.layout), [name], config, torch.device("cpu"))
            for name, cache in layer.caches.items()
        }
        self.groups: dict[str, Any] = {}

    def build(self, order: list[int], lengths: list[int]) -> TokenBatch:
        """Requests in this order, with so long contexts at the end of the step."""
        self.seq_lens.copy_(torch.tensor(lengths))
        ends = self.seq_lens.long().repeat_interleave(self.tokens)
        positions = ends - self.tokens + torch.arange(self.tokens).repeat(self.requests)
        request = torch.arange(self.requests).repeat_interleave(self.tokens)
        for name, cache in self.caches.items():
            self.tables[name].copy_(cache.table[order])
            page = cache.layout.tokens_per_page
            self.token_slots[name].copy_(row_slots(self.tables[name], request, positions, page))
            common = SimpleNamespace(
                num_reqs=self.requests,
                num_actual_tokens=self.requests * self.tokens,
                max_query_len=self.tokens,
                query_start_loc=self.query_start,
                seq_lens=self.seq_lens,
                slot_mapping=self.token_slots[name],
                block_table_tensor=self.tables[name],
                causal=True,
            )
            self.groups[name] = self.builders[name].build(0, common)
        batch: TokenBatch = self.groups["swa"].batch
        return batch

    def paged(self, name: str, cache: Any) -> PagedCache:
        group = self.groups[name]
        return PagedCache(cache.layout, cache.pages, group.block_table, group.slots)


@pytest.mark.parametrize(
    ("kind", "tokens"),
    [
        pytest.param(LayerKind.C4A, 2, id="c4a-draft-verify-2"),
        pytest.param(LayerKind.C128A, 2, id="c128a-draft-verify-2", marks=pytest.mark.slow),
        pytest.param(LayerKind.C128A, 1, id="c128a-decode", marks=pytest.mark.slow),
    ],
)
def test_a_graph_of_a_step_serves_another(gpu, make_cache, make_batch, monkeypatch, kind: LayerKind, tokens) -> None:
    """The launches of a step, repeated as they were, compute the next one: nothing of them depends on its contents."""
    layer = Layer(make_cache, {op: choose(op, arch.HOST, SERVED).chosen.load() for op in OPS}, kind, requests=2)
    layer.forward(make_batch((0, 140), (0, 9)), 0)
    layer.ops = {op: choose(op, arch.current(), SERVED).chosen.load() for op in OPS}
    layer.addresses = steps = Steps(layer, requests=2, tokens=tokens)

    recorded, launch = [], gpu.launch_text
    with monkeypatch.context() as patch:
        patch.setattr(gpu, "launch_text", lambda *call: recorded.append(call) or launch(*call))
        result = layer.forward(steps.build([0, 1], [140 + tokens, 9 + tokens]), 1)

    before = {name: cache.pages.clone() for name, cache in layer.caches.items()}
    batch = steps.build([1, 0], [9 + 2 * tokens, 140 + 2 * tokens])
    for call in recorded:
        launch(*call)
    got, written = result.clone(), {name: cache.pages.clone() for name, cache in layer.caches.items()}
    assert not torch.equal(written["swa"], before["swa"])
    for name, cache in layer.caches.items():
        cache.pages.copy_(before[name])
    assert torch.equal(got, layer.forward(batch, 1))
    for name, cache in layer.caches.items():
        assert torch.equal(cache.pages, written[name])
