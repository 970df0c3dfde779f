"""Drafts, rejections, preemptions and prefix hits: the rows that a later step reads are those of a serial run."""

from functools import cache

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch import Tensor

from dsv4_rocm.cache.addressing import PagedCache, TokenBatch
from dsv4_rocm.cache.layout import CacheLayout
from dsv4_rocm.cache.rows import read_rows
from dsv4_rocm.cache.specs import SERVED, layer_caches
from dsv4_rocm.kernels.compress_insert.reference import compress_insert
from dsv4_rocm.kernels.qnorm_rope_insert.reference import qnorm_rope_insert
from dsv4_rocm.kernels.rotary import rotary_frequencies
from dsv4_rocm.model_spec import FLASH, HEAD_DIM, INDEX_HEAD_DIM, LayerKind
from dsv4_rocm.testing.paged import POISON, Cache, token_batch

EPS = 1e-6
TOKENS = 640
BLOCK = 256
WRONG = 97  # distinct rejected tokens
KINDS = [LayerKind.C4A, LayerKind.C128A]


class Tokens:
    """What the projections make of each token of the sequence, and of tokens that will be rejected."""

    def __init__(self, kind: LayerKind) -> None:
        generator = torch.Generator().manual_seed(kind.ratio)

        def draw(*shape: int) -> Tensor:
            return torch.randn(*shape, generator=generator)

        self.kind, self.frequencies = kind, rotary_frequencies(FLASH, kind)
        self.keys = draw(TOKENS + WRONG, HEAD_DIM)
        widths = {"entries": HEAD_DIM, "indexer.keys": INDEX_HEAD_DIM}
        rows = {name: kind.overlap * width for name, width in widths.items()}
        self.values = {name: draw(TOKENS + WRONG, width) for name, width in rows.items()}
        self.gates = {name: draw(TOKENS + WRONG, width) for name, width in rows.items()}
        self.bias = {name: draw(kind.ratio, width) for name, width in rows.items()}
        self.norm = {name: torch.rand(width, generator=generator) + 0.5 for name, width in widths.items()}


tokens_of = cache(Tokens)


class Lane:
    """One cache of one request under vLLM's block manager: pages come late, leave early, and return poisoned."""

    def __init__(self, layout: CacheLayout) -> None:
        self.layout = layout
        self.page = layout.tokens_per_page
        self.cache = Cache(layout, tokens=2 * (TOKENS + 16))
        self.free = self.cache.table[0].tolist()
        self.blocks: dict[int, int] = {}
        self.trimmed = 0
        self._show()

    def at(self, batch: TokenBatch) -> PagedCache:
        for column in range(int(batch.positions[-1]) // self.page + 1):
            if column not in self.blocks and column >= self.trimmed:
                self.blocks[column] = self.free.pop(0)
        self._show()
        return self.cache.at(batch)

    def trim(self, computed: int) -> None:
        """Columns that lie wholly before the window leave the table; their pages stay intact for a hit."""
        if self.layout.window is not None:
            self.trimmed = max(0, computed - self.layout.window + 1) // self.page
            self._show()

    def restart(self, hit: int) -> None:
        """Give all pages back, except those that a prefix hit of `hit` tokens finds again."""
        first = 0 if self.layout.window is None else max(0, hit - self.layout.window + 1) // self.page
        for column in list(self.blocks):
            if not first <= column < hit // self.page:
                block = self.blocks.pop(column)
                self.cache.pages[block] = POISON
                self.free.append(block)
        self.trimmed = first
        self._show()

    def read(self, first: int, end: int) -> Tensor:
        slots = self.cache.rows(0, torch.arange(first, end))
        return read_rows(self.layout, self.cache.pages, slots)

    def _show(self) -> None:
        table = torch.zeros_like(self.cache.table)
        for column, block in self.blocks.items():
            if column >= self.trimmed:
                table[0, column] = block
        self.cache.table = table


class Layer:
    """The cache writes of one layer."""

    def __init__(self, tokens: Tokens) -> None:
        self.tokens = tokens
        self.lanes = {name: Lane(layout) for name, layout in layer_caches(tokens.kind, SERVED, FLASH.window).items()}
        self.computed = 0

    def step(self, chosen: list[int], accepted: int) -> None:
        """Run the tokens with these numbers behind the computed ones, and keep `accepted` of them."""
        tokens, batch = self.tokens, token_batch((self.computed, len(chosen)))
        query, frequencies = torch.zeros(len(chosen), 1, HEAD_DIM), tokens.frequencies
        window = self.lanes["swa"].at(batch)
        qnorm_rope_insert(query, tokens.keys[chosen], batch.positions, frequencies, EPS, window)
        for entries, state in (("entries", "compressor.state"), ("indexer.keys", "indexer.compressor.state")):
            if entries in self.lanes:
                compress_insert(
                    tokens.values[entries][chosen],
                    tokens.gates[entries][chosen],
                    tokens.bias[entries],
                    tokens.norm[entries],
                    EPS,
                    frequencies,
                    batch,
                    self.lanes[state].at(batch),
                    self.lanes[entries].at(batch),
                )
        self.computed += accepted
        for lane in self.lanes.values():
            lane.trim(self.computed)

    def preempt(self, hit: bool, chunk: int) -> None:
        """Lose the pages, find what a prefix hit finds, and compute the rest of the known tokens again."""
        known = self.computed
        self.computed = (known - 1) // BLOCK * BLOCK if hit else 0
        for lane in self.lanes.values():
            lane.restart(self.computed)
        while self.computed < known:
            count = min(chunk, known - self.computed)
            self.step(list(range(self.computed, self.computed + count)), count)


def rows_read_later(name: str, layout: CacheLayout, kind: LayerKind, computed: int) -> tuple[int, int]:
    """First and end of the rows that a step starting at `computed` reads (docs/model-spec.md section 8)."""
    if name.endswith(".state"):
        group = computed // kind.ratio * kind.ratio
        return max(0, group - (kind.overlap - 1) * kind.ratio), computed
    if layout.window is not None:
        return max(0, computed - layout.window + 1), computed
    return 0, computed // kind.ratio


@cache
def serial(kind: LayerKind) -> dict[str, Tensor]:
    """All rows of the sequence, one token per step, nothing ever taken away."""
    layer = Layer(tokens_of(kind))
    for lane in layer.lanes.values():
        lane.trim = lambda computed: None  # type: ignore[method-assign]
    for token in range(TOKENS):
        layer.step([token], 1)
    return {name: lane.read(0, TOKENS // lane.layout.tokens_per_row) for name, lane in layer.lanes.items()}


@st.composite
def events(draw: st.DrawFn) -> tuple:
    if draw(st.integers(0, 4)) == 0:
        return ("preempt", draw(st.booleans()), draw(st.sampled_from([7, 61, 300])))
    drafts = draw(st.integers(0, 7))
    return ("verify", drafts, draw(st.integers(0, drafts)))


@pytest.mark.parametrize("kind", KINDS)
@settings(max_examples=15, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(prompt=st.sampled_from([2, 120, 250, 505]), steps=st.lists(events(), min_size=1, max_size=14))
def test_rows_equal_the_serial_run(kind: LayerKind, prompt: int, steps: list[tuple]) -> None:
    layer, expected = Layer(tokens_of(kind)), serial(kind)
    layer.step(list(range(prompt)), prompt)
    for number, (what, first, second) in enumerate(steps):
        if what == "preempt":
            layer.preempt(hit=first, chunk=second)
        else:
            start = layer.computed
            right = list(range(start, start + 1 + second))
            wrong = [TOKENS + (start + 13 * number + i) % WRONG for i in range(first - second)]
            layer.step(right + wrong, len(right))
        for name, lane in layer.lanes.items():
            begin, end = rows_read_later(name, lane.layout, kind, layer.computed)
            assert torch.equal(lane.read(begin, end), expected[name][begin:end]), name
