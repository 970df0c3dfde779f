"""compress_insert: entries by the formula, for any chunking, at every boundary."""

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from dsv4_rocm.cache.layout import BLOCK_TOKENS, Encoding, entries_layout, index_layout, state_layout
from dsv4_rocm.cache.retention import Retention
from dsv4_rocm.cache.rows import read_rows
from dsv4_rocm.kernels.compress_insert.reference import compress_insert
from dsv4_rocm.kernels.rotary import rotary_frequencies, rotate
from dsv4_rocm.model_spec import FLASH, LayerKind

EPS = 1e-6
KINDS = {
    "c4a": (LayerKind.C4A, entries_layout(LayerKind.C4A, Encoding.FP32), False),
    "c128a": (LayerKind.C128A, entries_layout(LayerKind.C128A, Encoding.FP32), False),
    "index": (LayerKind.C4A, index_layout(Encoding.FP32), True),
}
LENGTHS = [3, 4, 7, 8, 127, 128, 129, 130, 255, 256, 257, 383, 384, 385, 511, 512, 513]


class Stream:
    """One sequence of projections, and the entries that the formula gives for it."""

    def __init__(self, name: str, tokens: int, seed: int = 0) -> None:
        self.kind, self.entries, self.index = KINDS[name]
        generator = torch.Generator().manual_seed(seed)
        width = self.entries.channels
        self.values = torch.randn(tokens, self.kind.overlap * width, generator=generator)
        self.gates = torch.randn(tokens, self.kind.overlap * width, generator=generator) * 2
        self.ape = torch.randn(self.kind.ratio, self.kind.overlap * width, generator=generator)
        self.norm = torch.rand(width, generator=generator) + 0.5
        self.frequencies = rotary_frequencies(FLASH, self.kind)

    def expected(self) -> torch.Tensor:
        """Entries by section 4.5 of the mathematics, in fp64, from the whole sequence at once."""
        ratio, width = self.kind.ratio, self.entries.channels
        count = self.values.shape[0] // ratio
        shape = (count, ratio, self.values.shape[1])
        value = self.values[: count * ratio].double().view(shape)
        gate = (self.gates[: count * ratio] + self.ape.repeat(count, 1)).double().view(shape)
        if self.kind.overlap == 2:
            nothing = torch.full_like(gate[:1, :, :width], -torch.inf)
            gate = torch.cat([torch.cat([nothing, gate[:-1, :, :width]]), gate[:, :, width:]], 1)
            value = torch.cat([torch.cat([torch.zeros_like(nothing), value[:-1, :, :width]]), value[:, :, width:]], 1)
        pooled = (torch.softmax(gate, 1) * value).sum(1)
        normed = pooled * torch.rsqrt(pooled.square().mean(-1, keepdim=True) + EPS) * self.norm.double()
        return rotate(normed, torch.arange(count) * ratio, self.frequencies)

    def run(self, make_cache, make_batch, chunks: list[int]) -> torch.Tensor:
        """Entries that the op leaves in the cache when the sequence comes in chunks."""
        tokens = self.values.shape[0]
        state = make_cache(state_layout(self.kind, Encoding.FP32, self.index), tokens=tokens)
        entries = make_cache(self.entries, tokens=tokens + 256)
        first = 0
        for length in chunks:
            part, batch = slice(first, first + length), make_batch((first, length))
            compress_insert(
                self.values[part],
                self.gates[part],
                self.ape,
                self.norm,
                EPS,
                self.frequencies,
                batch,
                state.at(batch),
                entries.at(batch),
            )
            first += length
        assert first == tokens
        self.untouched = read_rows(
            self.entries, entries.pages, entries.rows(0, torch.tensor([tokens // self.kind.ratio]))
        )
        return read_rows(self.entries, entries.pages, entries.rows(0, torch.arange(tokens // self.kind.ratio)))


@pytest.mark.parametrize("name", KINDS)
@pytest.mark.parametrize("length", LENGTHS)
def test_entries_at_every_boundary(make_cache, make_batch, name: str, length: int) -> None:
    stream = Stream(name, length)
    got = stream.run(make_cache, make_batch, [length])
    assert got.shape[0] == length // stream.kind.ratio
    torch.testing.assert_close(got.double(), stream.expected(), rtol=1e-5, atol=1e-5)
    assert stream.untouched.isnan().all(), "the entry of the open group must not be written"


@given(st.data(), st.sampled_from(list(KINDS)))
@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_any_chunking_gives_the_same_entries(make_cache, make_batch, data: st.DataObject, name: str) -> None:
    length = data.draw(st.sampled_from([130, 257, 385]))
    cuts = sorted(data.draw(st.sets(st.integers(1, length - 1), max_size=6)))
    chunks = [b - a for a, b in zip([0, *cuts], [*cuts, length], strict=True)]
    stream = Stream(name, length)
    whole = stream.run(make_cache, make_batch, [length])
    assert torch.equal(stream.run(make_cache, make_batch, chunks), whole)


def test_continuing_behind_a_prefix_hit(make_cache, make_batch) -> None:
    """Entry 64 pools tokens 252..259: with the state rows of 252..255 alone it equals the cold value."""
    stream = Stream("c4a", 260)
    cold = stream.run(make_cache, make_batch, [260])
    state = make_cache(state_layout(LayerKind.C4A, Encoding.FP32), tokens=260)
    entries = make_cache(stream.entries, tokens=512)
    for first, count in ((252, 4), (256, 4)):
        part, batch = slice(first, first + count), make_batch((first, count))
        paged = entries.at(batch)
        if first == 252:
            paged.slots.fill_(-1)  # cached: only its state rows are there
        arguments = (stream.values[part], stream.gates[part], stream.ape, stream.norm, EPS, stream.frequencies)
        compress_insert(*arguments, batch, state.at(batch), paged)
    warm = read_rows(stream.entries, entries.pages, entries.rows(0, torch.tensor([64])))
    assert torch.equal(warm[0], cold[64])


def test_requests_of_one_batch_do_not_mix(make_cache, make_batch) -> None:
    streams = [Stream("c4a", 40, seed=1), Stream("c4a", 24, seed=2)]
    state = make_cache(state_layout(LayerKind.C4A, Encoding.FP32), requests=2, tokens=64)
    entries = make_cache(streams[0].entries, requests=2, tokens=64)
    batch = make_batch((0, 40), (0, 24))
    values, gates = (torch.cat([getattr(s, part) for s in streams]) for part in ("values", "gates"))
    first = streams[0]
    compress_insert(
        values, gates, first.ape, first.norm, EPS, first.frequencies, batch, state.at(batch), entries.at(batch)
    )
    for request, stream in enumerate(streams):
        stream.ape, stream.norm = first.ape, first.norm
        ids = torch.arange(stream.values.shape[0] // 4)
        got = read_rows(first.entries, entries.pages, entries.rows(request, ids))
        torch.testing.assert_close(got.double(), stream.expected(), rtol=1e-5, atol=1e-5)


class Life:
    """One request whose state pages come and go as the memory manager's rule says; pages that are gone hold NaN."""

    def __init__(self, stream: Stream, make_cache, make_batch, drafts: int) -> None:
        self.stream, self.make_batch, self.drafts = stream, make_batch, drafts
        self.tokens = stream.values.shape[0]
        self.state = make_cache(state_layout(stream.kind, Encoding.FP32, stream.index), tokens=self.tokens + 16)
        self.entries = make_cache(stream.entries, tokens=self.tokens + 256)
        self.blocks = self.state.table.clone()
        self.rule = Retention.of(self.state.layout, 1 + drafts)
        self.position, self.columns, self.covered = 0, set(), 0

    def step(self, count: int, accepted: int | None = None) -> None:
        """Compute `count` tokens; with drafts, all behind the first `1 + accepted` are wrong and will be run again."""
        first, end = self.position, self.position + count
        self._pages(end)
        part, batch = slice(first, end), self.make_batch((first, count))
        values, gates = self.stream.values[part].clone(), self.stream.gates[part].clone()
        right = count if accepted is None else 1 + accepted
        values[right:], gates[right:] = 1e3, -1e3
        compress_insert(
            values,
            gates,
            self.stream.ape,
            self.stream.norm,
            EPS,
            self.stream.frequencies,
            batch,
            self.state.at(batch),
            self.entries.at(batch),
        )
        self.position = first + right

    def preempt(self, boundary: int) -> None:
        """Lose all pages but those that a hit at a boundary of 256 tokens finds, and go on from there."""
        self.position = min(boundary, self.position // BLOCK_TOKENS) * BLOCK_TOKENS
        page, hit = self.rule.page, self.position // self.rule.page
        read = self.rule.first_read(self.position)
        self.columns = {c for c in range(hit) if (c + 1) * page > read or self._is_cached(c)}
        self.covered = hit
        self._poison()

    def _pages(self, end: int) -> None:
        """Columns of the chunk that ends at `end`, after those are freed that nobody reads again."""
        page, needed = self.rule.page, -(-(end + self.drafts) // self.rule.page)
        kept = self.rule.retained_from(self.position)
        self.columns = {c for c in self.columns if (c + 1) * page > kept or self._is_cached(c)}
        fresh = {column for column in range(self.covered, needed) if self.rule.needs_page(column, end, True)}
        self.columns |= fresh
        self.covered = max(self.covered, needed)
        self._poison()

    def _is_cached(self, column: int) -> bool:
        """A column that may be hit stays readable after it is freed: its page lies in the prefix cache."""
        return self.rule.needs_page(column, 1 << 30, True)

    def _poison(self) -> None:
        self.state.table = self.blocks.clone()
        gone = [c for c in range(self.blocks.shape[1]) if c not in self.columns]
        self.state.pages[self.blocks[0, gone].long()] = 0xFF
        self.state.keep(0, self.columns)

    def outcome(self) -> tuple[torch.Tensor, torch.Tensor]:
        """State rows that the next step may read, and all entries."""
        rows = torch.arange(self.rule.first_read(self.position), self.position)
        ids = torch.arange(self.position // self.stream.kind.ratio)
        return (
            read_rows(self.state.layout, self.state.pages, self.state.rows(0, rows)),
            read_rows(self.entries.layout, self.entries.pages, self.entries.rows(0, ids)),
        )


SERIAL: dict[str, Life] = {}


def serial(name: str, make_cache, make_batch, tokens: int) -> Life:
    """The request computed in one chunk, once per kind of cache."""
    if name not in SERIAL:
        SERIAL[name] = Life(Stream(name, tokens), make_cache, make_batch, 0)
        SERIAL[name].step(tokens)
    return SERIAL[name]


@given(st.data(), st.sampled_from(["index", "c128a"]), st.integers(0, 3))
@settings(max_examples=30, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_any_life_of_a_request_gives_the_serial_result(make_cache, make_batch, data, name: str, drafts: int) -> None:
    """Chunks, preemptions with prefix hits, drafts of which any number is accepted: only retained pages are read."""
    tokens = 700
    expected = serial(name, make_cache, make_batch, tokens)
    life = Life(expected.stream, make_cache, make_batch, drafts)
    preemptions = data.draw(st.integers(0, 2))
    while life.position < tokens:
        left = tokens - life.position
        if drafts and left > drafts and data.draw(st.booleans()):
            for _ in range(min(data.draw(st.integers(1, 12)), left // (1 + drafts))):
                life.step(1 + drafts, data.draw(st.integers(0, drafts)))
        else:
            life.step(min(left, data.draw(st.sampled_from([1, 3, 64, 127, 128, 129, 256, 300]))))
        if preemptions and life.position > BLOCK_TOKENS and data.draw(st.booleans()):
            preemptions -= 1
            life.preempt(data.draw(st.integers(0, 2)))
    for got, wanted in zip(life.outcome(), expected.outcome(), strict=True):
        assert torch.equal(got, wanted)


def test_too_little_retention_is_noticed(make_cache, make_batch) -> None:
    """Nineteen tokens are taken back although pages are kept for none: rows that the next step reads are gone."""
    life = Life(Stream("index", 40), make_cache, make_batch, 0)
    life.step(8)
    life.step(20, accepted=0)
    life.step(7)
    assert life.outcome()[1].isnan().any()
