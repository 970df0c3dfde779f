"""sparse_attention against dense attention in fp64, and the rows that must not count."""

import dataclasses
import math

import pytest
import torch

from dsv4_rocm.cache.layout import Encoding, entries_layout, swa_layout
from dsv4_rocm.cache.rows import read_rows, write_rows
from dsv4_rocm.kernels.rotary import rotary_frequencies, rotate
from dsv4_rocm.kernels.sparse_attention import reference
from dsv4_rocm.kernels.sparse_attention.reference import sparse_attention
from dsv4_rocm.model_spec import FLASH, LayerKind

SCALE = 512**-0.5


class Scene:
    """Filled caches of one batch, with the keys each token may see."""

    def __init__(self, make_cache, batch, kind: LayerKind, encoding: Encoding = Encoding.FP32, heads: int = 4) -> None:
        generator = torch.Generator().manual_seed(0)
        self.batch, self.kind = batch, kind
        requests = batch.query_start.shape[0] - 1
        tokens = int(batch.positions.max()) + 1
        self.window = make_cache(swa_layout(encoding), requests=requests, tokens=tokens)
        self.entries = (
            None if kind is LayerKind.SWA else make_cache(entries_layout(kind, encoding), requests, tokens + 256)
        )
        for request in range(requests):
            end = self._end(request)
            first = max(self._first(request) - 127, 0)
            self._fill(self.window, request, torch.arange(first, end), generator)
            if self.entries is not None:
                self._fill(self.entries, request, torch.arange(end // kind.ratio), generator)
        self.query = torch.randn(batch.num_tokens, heads, 512, generator=generator)
        self.sink = torch.randn(heads, generator=generator)

    def _end(self, request: int) -> int:
        mine = self.batch.positions[self.batch.request == request]
        return int(mine.max()) + 1 if mine.numel() else 0

    def _first(self, request: int) -> int:
        mine = self.batch.positions[self.batch.request == request]
        return int(mine.min()) if mine.numel() else 0

    @staticmethod
    def _fill(cache, request: int, ids: torch.Tensor, generator: torch.Generator) -> None:
        write_rows(cache.layout, cache.pages, cache.rows(request, ids), torch.randn(len(ids), 512, generator=generator))

    def run(
        self,
        selected: torch.Tensor | None = None,
        sink: torch.Tensor | None = None,
        frequencies: torch.Tensor | None = None,
    ) -> torch.Tensor:
        entries = None if self.entries is None else self.entries.at(self.batch)
        return sparse_attention(
            self.query,
            self.sink if sink is None else sink,
            SCALE,
            self.batch,
            self.window.at(self.batch),
            entries,
            selected,
            frequencies,
        )

    def expected(self, selected: torch.Tensor | None = None) -> torch.Tensor:
        """Token by token, key by key, in fp64."""
        out = torch.zeros(self.query.shape, dtype=torch.float64)
        for t, (position, request) in enumerate(
            zip(self.batch.positions.tolist(), self.batch.request.tolist(), strict=True)
        ):
            seen = torch.arange(max(position - 127, 0), position + 1)
            keys = [read_rows(self.window.layout, self.window.pages, self.window.rows(request, seen))]
            if self.entries is not None:
                ids = torch.arange((position + 1) // self.kind.ratio)
                if selected is not None:
                    ids = ids[torch.isin(ids, selected[t])]
                keys.append(read_rows(self.entries.layout, self.entries.pages, self.entries.rows(request, ids)))
            key = torch.cat(keys).double()
            weight = torch.exp(self.query[t].double() @ key.T * SCALE)
            out[t] = weight @ key / (weight.sum(-1) + self.sink.double().exp())[:, None]
        return out


CASES = {
    "swa-prefill": (LayerKind.SWA, [(0, 300)]),
    "c4a-prefill": (LayerKind.C4A, [(0, 300)]),
    "c128a-prefill-chunk": (LayerKind.C128A, [(250, 140)]),
    "c4a-decode-b3": (LayerKind.C4A, [(2, 1), (127, 1), (900, 1)]),
    "c128a-decode-b3": (LayerKind.C128A, [(127, 1), (128, 1), (899, 1)]),
    "mixed-chunks": (LayerKind.C4A, [(64, 40), (0, 7), (500, 1), (3, 2)]),
    "draft-verify-4": (LayerKind.C4A, [(509, 4), (126, 4)]),
}


@pytest.mark.parametrize("name", CASES)
def test_equals_dense_attention(make_cache, make_batch, name: str) -> None:
    kind, ranges = CASES[name]
    scene = Scene(make_cache, make_batch(*ranges), kind)
    torch.testing.assert_close(scene.run().double(), scene.expected(), rtol=1e-5, atol=2e-6)


@pytest.mark.parametrize("encoding", [Encoding.FP8, Encoding.BF16])
def test_encoded_rows_count_as_what_they_decode_to(make_cache, make_batch, encoding: Encoding) -> None:
    scene = Scene(make_cache, make_batch((300, 20)), LayerKind.C4A, encoding)
    torch.testing.assert_close(scene.run().double(), scene.expected(), rtol=1e-5, atol=2e-6)


def test_turning_back_rounds_once(make_cache, make_batch) -> None:
    """In fp32 it is the turned result; in bf16 the result is not rounded before it is turned."""
    scene, frequencies = (
        Scene(make_cache, make_batch((300, 2)), LayerKind.C4A),
        rotary_frequencies(FLASH, LayerKind.C4A),
    )
    exact = scene.run(frequencies=frequencies)
    assert torch.equal(exact, rotate(scene.run(), scene.batch.positions, frequencies, inverse=True))
    assert not torch.equal(exact, scene.run())
    scene.query = scene.query.bfloat16()
    rounded = scene.run(frequencies=frequencies)
    scene.query = scene.query.float()
    assert torch.equal(rounded, scene.run(frequencies=frequencies).bfloat16())


def test_rows_of_a_foreign_writer(make_cache, make_batch) -> None:
    """A peer's -0, byte 0x80, counts as 0."""
    scene = Scene(make_cache, make_batch((300, 2)), LayerKind.C4A, Encoding.FP8)
    results = []
    for byte in (0x00, 0x80):
        for cache in (scene.window, scene.entries):
            cache.layout = dataclasses.replace(cache.layout, foreign=byte == 0x80)
            rows = cache.pages[1:, : cache.layout.scale_offset].unflatten(1, (-1, cache.layout.data_bytes))
            rows[..., :448:3] = byte
        results.append(scene.run())
    assert torch.equal(*results)


def test_a_selection_is_a_set_with_gaps(make_cache, make_batch) -> None:
    """-1 anywhere is skipped; ids past the visible ones are ignored."""
    scene = Scene(make_cache, make_batch((400, 3), (40, 1)), LayerKind.C4A)
    selected = torch.tensor([[5, -1, 99, 0], [-1, -1, -1, -1], [100, 3, -1, 10**6], [-1, 9, 10, 2]], dtype=torch.int32)
    torch.testing.assert_close(scene.run(selected).double(), scene.expected(selected), rtol=1e-5, atol=2e-6)


def test_selecting_everything_equals_no_selection(make_cache, make_batch) -> None:
    scene = Scene(make_cache, make_batch((0, 64)), LayerKind.C4A)
    everything = torch.arange(16, dtype=torch.int32).expand(64, -1)
    assert torch.equal(scene.run(everything), scene.run())


def test_a_token_without_keys_gets_zero(make_cache, make_batch) -> None:
    """Also without a sink, and with a poisoned block 0 behind every slot."""
    scene = Scene(make_cache, make_batch((5, 2)), LayerKind.C4A)
    scene.batch.positions.fill_(-1)
    for sink in (scene.sink, torch.full_like(scene.sink, -math.inf), torch.full_like(scene.sink, math.inf)):
        assert torch.equal(scene.run(sink=sink), torch.zeros_like(scene.query))


def test_an_empty_batch_is_valid(make_cache, make_batch) -> None:
    scene = Scene(make_cache, make_batch((5, 1)), LayerKind.C4A)
    scene.batch = make_batch((0, 0), (0, 0))
    scene.query = scene.query[:0]
    assert scene.run().shape == (0, 4, 512)


@pytest.mark.parametrize(("sink", "factor"), [(-math.inf, None), (math.inf, 0.0)])
def test_extreme_sinks(make_cache, make_batch, sink: float, factor: float | None) -> None:
    scene = Scene(make_cache, make_batch((30, 2)), LayerKind.C4A)
    scene.sink = torch.full((4,), sink)
    got = scene.run()
    if factor == 0.0:
        assert torch.equal(got, torch.zeros_like(got))
    else:
        torch.testing.assert_close(got.double(), scene.expected(), rtol=1e-5, atol=2e-6)


def test_only_referenced_blocks_are_read(make_cache, make_batch, monkeypatch: pytest.MonkeyPatch) -> None:
    """A pool of 1,000 blocks of which three are referenced: no other block is touched."""
    scene = Scene(make_cache, make_batch((699, 1)), LayerKind.C4A)
    scene.entries = make_cache(entries_layout(LayerKind.C4A, Encoding.FP32), requests=999 // 3, tokens=768)
    scene._fill(scene.entries, 0, torch.arange(175), torch.Generator().manual_seed(1))
    touched: set[int] = set()

    def recording(layout, pages, slots) -> torch.Tensor:
        if layout == scene.entries.layout:
            touched.update((slots // layout.rows_per_page).flatten().tolist())
        return read_rows(layout, pages, slots)

    monkeypatch.setattr(reference, "read_rows", recording)
    assert scene.run().isfinite().all()
    assert touched == set(scene.entries.table[0].tolist())
    assert scene.entries.pages.shape[0] == 1000


def test_tiles_do_not_change_the_result(make_cache, make_batch, monkeypatch: pytest.MonkeyPatch) -> None:
    scene = Scene(make_cache, make_batch((0, 200)), LayerKind.C4A)
    whole = scene.run()
    monkeypatch.setattr(reference, "TILE_TOKENS", 7)
    torch.testing.assert_close(scene.run(), whole, rtol=1e-5, atol=2e-6)
