"""compress_insert in Triton against the reference's bytes, on emulated gfx942 and gfx950."""

import pytest
import torch

from dsv4_rocm.cache.layout import Encoding, entries_layout, index_layout, state_layout
from dsv4_rocm.cache.retention import Retention
from dsv4_rocm.cache.rows import write_rows
from dsv4_rocm.kernels.compress_insert.reference import compress_insert as reference
from dsv4_rocm.kernels.compress_insert.triton_kernel import compress_insert
from dsv4_rocm.kernels.rotary import rotary_frequencies
from dsv4_rocm.model_spec import FLASH, LayerKind
from dsv4_rocm.testing import cdna

EPS = 1e-6
LAYOUTS = {
    "c4a": (LayerKind.C4A, entries_layout(LayerKind.C4A, Encoding.FP8), False),
    "c128a": (LayerKind.C128A, entries_layout(LayerKind.C128A, Encoding.FP8), False),
    "index": (LayerKind.C4A, index_layout(Encoding.FP8), True),
    "mxfp4": (LayerKind.C4A, index_layout(Encoding.MXFP4), True),
}
CASES = {
    "c4a-prefill-11": ("c4a", [(0, 11)]),
    "c4a-decode-b3": ("c4a", [(3, 1), (507, 1), (508, 1)]),
    "c4a-draft-verify-4-at-1m": ("c4a", [(1_048_571, 4)]),
    "c128a-decode-b3": ("c128a", [(127, 1), (1_048_575, 1), (129, 1)]),
    "c128a-chunk-closing-two": ("c128a", [(250, 140)]),
    "c128a-draft-verify-4": ("c128a", [(126, 4)]),
    "index-prefill-9": ("index", [(0, 9)]),
    "index-chunk-over-a-boundary": ("index", [(241, 40)]),
    "mxfp4-prefill-9": ("mxfp4", [(0, 9)]),
    "mxfp4-decode-b2": ("mxfp4", [(1_048_575, 1), (131, 1)]),
    "index-decode-b2": ("index", [(1_048_575, 1), (131, 1)]),
}


class Stream:
    """The same projections for both implementations, on top of state rows of the tokens before.

    State has pages for the rows before the batch, and for those alone that are read after it.
    """

    def __init__(self, sparse_cache, make_batch, name: str, ranges: list[tuple[int, int]]) -> None:
        self.kind, layout, index = LAYOUTS[name]
        generator = torch.Generator().manual_seed(0)
        self.ranges, self.batch = ranges, make_batch(*ranges)
        width = self.kind.overlap * layout.channels
        tokens = self.batch.num_tokens
        self.values = torch.randn(tokens, width + 3, generator=generator)[:, :width]  # rows of a wider matrix
        self.gates = torch.randn(tokens, width, generator=generator) * 3
        self.ape = torch.randn(self.kind.ratio, width, generator=generator)
        self.norm = (torch.rand(layout.channels, generator=generator) + 0.5).bfloat16()
        self.frequencies = rotary_frequencies(FLASH, self.kind)
        states = state_layout(self.kind, Encoding.FP8, index)
        caches = []
        for _ in range(2):
            state = sparse_cache(states, [(first - states.window, first + count) for first, count in ranges])
            rule = Retention.of(states)
            for request, (first, count) in enumerate(ranges):
                before = set(range(max(first - states.window, 0) // rule.page, -(-first // rule.page)))
                touched = range(first // rule.page, -(-(first + count) // rule.page))
                state.keep(request, before | {c for c in touched if rule.needs_page(c, first + count, cached=True)})
            entries = sparse_cache(layout, [(first, first + count) for first, count in ranges])
            caches.append((state, entries))
        self.ours, self.theirs = caches
        for request, (first, _) in enumerate(ranges):
            history = torch.arange(max(0, first - self.kind.overlap * self.kind.ratio), first)
            if len(history):
                rows = torch.randn(len(history), 2 * width, generator=generator)
                for state, _ in caches:
                    self._write(state, request, history, rows)

    @staticmethod
    def _write(state, request: int, positions: torch.Tensor, rows: torch.Tensor) -> None:
        write_rows(state.layout, state.pages, state.rows(request, positions), rows)

    def run(self, op, caches, dead: list[int]) -> tuple[torch.Tensor, torch.Tensor]:
        state, entries = (cache.at(self.batch) for cache in caches)
        state.slots[dead] = -1
        entries.slots[dead] = -1
        op(self.values, self.gates, self.ape, self.norm, EPS, self.frequencies, self.batch, state, entries)
        return whole(state.pages), whole(entries.pages)


def whole(pages: torch.Tensor) -> torch.Tensor:
    """All bytes of the pool that holds some pages, one block a row: padding and neighbours must stay as they are."""
    return torch.empty(0, dtype=torch.uint8).set_(pages.untyped_storage()).view(pages.shape[0], pages.stride(0))


def codes(layout, data: torch.Tensor) -> torch.Tensor:
    """Codes of values as numbers in the order of what they encode (sign and magnitude): bytes, or e2m1 halves."""
    sign = 128
    if layout.encoding is Encoding.MXFP4:
        data, sign = torch.stack([data & 15, data >> 4], -1), 8
    return torch.where(data >= sign, sign - data.int(), data.int())


def require_same_entries(layout, ours: torch.Tensor, theirs: torch.Tensor) -> None:
    """Scales and untouched bytes equal; values equal but for a rare neighbour, where fp32 rounding crossed a middle."""
    scales = slice(layout.scale_offset, None)
    assert torch.equal(ours[:, scales], theirs[:, scales])
    distance = (codes(layout, ours) - codes(layout, theirs)).abs()
    written = (theirs != 0xFF).sum()
    assert (distance > 0).sum() <= 1 + written * 2.0**-10
    assert distance.max() <= 1


@pytest.mark.parametrize("name", CASES)
def test_equals_the_reference(gpu, sparse_cache, make_batch, name: str) -> None:
    layout, ranges = CASES[name]
    stream = Stream(sparse_cache, make_batch, layout, ranges)
    state, entries = stream.run(compress_insert, stream.ours, [])
    expected_state, expected = stream.run(reference, stream.theirs, [])
    assert torch.equal(state, expected_state)
    require_same_entries(stream.ours[1].layout, entries, expected)
    assert len(gpu.launches) == 2


@pytest.mark.parametrize("schedule", ["reverse", "random:1"])
def test_waves_in_any_order_give_the_same_bytes(gpu, sparse_cache, make_batch, schedule: str) -> None:
    stream = Stream(sparse_cache, make_batch, "c4a", [(508, 4)])
    _, expected = stream.run(compress_insert, stream.ours, [])
    with cdna.device(gpu.arch, schedule=schedule):
        _, entries = stream.run(compress_insert, stream.theirs, [])
    assert torch.equal(entries, expected)


def test_slots_of_minus_one_write_nothing(gpu, sparse_cache, make_batch) -> None:
    stream = Stream(sparse_cache, make_batch, "index", [(124, 4), (0, 4)])
    before = [whole(cache.pages).clone() for cache in stream.ours]
    after = stream.run(compress_insert, stream.ours, list(range(8)))
    assert all(torch.equal(a, b) for a, b in zip(before, after, strict=True))


def test_negative_zero_is_never_written(gpu, sparse_cache, make_batch) -> None:
    """Values that underflow to -0 in e4m3, beside one that sets the scale."""
    stream = Stream(sparse_cache, make_batch, "index", [(0, 4)])
    stream.values = torch.full_like(stream.values, -1e-6)
    stream.values[:, 0::128] = 400.0
    _, entries = stream.run(compress_insert, stream.ours, [])
    _, expected = stream.run(reference, stream.theirs, [])
    assert torch.equal(entries, expected)
    assert not (entries[:, : index_layout(Encoding.FP8).scale_offset] == 0x80).any()


def test_an_empty_batch_launches_nothing(gpu, sparse_cache, make_batch) -> None:
    stream = Stream(sparse_cache, make_batch, "index", [(0, 4)])
    stream.batch = make_batch((0, 0))
    stream.values, stream.gates = stream.values[:0], stream.gates[:0]
    stream.run(compress_insert, stream.ours, [])
    assert gpu.launches == []


def test_other_rows_are_refused(gpu, sparse_cache, make_batch) -> None:
    stream = Stream(sparse_cache, make_batch, "index", [(0, 4)])
    entries = sparse_cache(index_layout(Encoding.BF16), [(0, 4)])
    with pytest.raises(ValueError, match="takes flat, unrotated fp8 rows, got flat bf16 index rows"):
        stream.run(compress_insert, (stream.ours[0], entries), [])
