"""sparse_attention in Triton against attention in fp64 over the same rows, on emulated gfx942 and gfx950."""

import dataclasses
import math
from itertools import pairwise

import pytest
import torch
import triton
import triton.language as tl

from dsv4_rocm import arch
from dsv4_rocm.cache.layout import Encoding, entries_layout, swa_layout
from dsv4_rocm.cache.rows import read_rows, write_rows
from dsv4_rocm.kernels.rotary import rotary_frequencies, rotate
from dsv4_rocm.kernels.sparse_attention import tuning
from dsv4_rocm.kernels.sparse_attention.partials import partials
from dsv4_rocm.kernels.sparse_attention.reference import sparse_attention as reference
from dsv4_rocm.kernels.sparse_attention.triton_kernel import _place, sparse_attention
from dsv4_rocm.model_spec import FLASH, LayerKind
from dsv4_rocm.testing import cdna

SCALE = 512**-0.5
# Rounding to bf16: a step of 2^-7 of the power of two below, uniform (sqrt(1/12)), and mantissas uniform in 1..2.
STEP = 2.0**-7 * 12**-0.5 * 0.5**0.5


class Scene:
    """Filled fp8 caches of one batch. Rows that no token may read keep their poison, block 0 too."""

    def __init__(self, sparse_cache, batch, kind: LayerKind, heads: int, top_k: int = 0, gain: float = 1.0) -> None:
        generator = torch.Generator().manual_seed(0)
        self.batch, self.kind = batch, kind
        bounds = batch.query_start.tolist()
        spans = [self._span(batch.positions[a:b]) for a, b in pairwise(bounds)]
        self.window = sparse_cache(swa_layout(Encoding.FP8), [(max(0, a - 127), b) for a, b in spans])
        self.entries = self.selected = None
        if kind is not LayerKind.SWA:
            # Of a long context only what is selected, and the last entry, lie in blocks of their own.
            needed = [(0 if top_k == 0 else max(0, b - 4 * 400), b) for _, b in spans]
            self.entries = sparse_cache(entries_layout(kind, Encoding.FP8), needed)
        for request, (first, end) in enumerate(spans):
            self._fill(self.window, request, torch.arange(max(first - 127, 0), end), gain, generator)
            if self.entries is not None:
                ids = torch.arange(-(-needed[request][0] // kind.ratio), end // kind.ratio)
                self._fill(self.entries, request, ids, gain, generator)
        if top_k:
            self.selected = torch.full((batch.num_tokens, top_k), -1, dtype=torch.int32)
            for t, position in enumerate(batch.positions.tolist()):
                visible = (position + 1) // kind.ratio
                first = -(-needed[int(batch.request[t])][0] // kind.ratio)
                ids = first + torch.randperm(max(visible - first, 0), generator=generator)[: top_k - 4]
                place = torch.randperm(top_k, generator=generator)[: len(ids)]  # -1 anywhere
                self.selected[t, place] = ids.int()
        self.query = torch.randn(batch.num_tokens, heads, 512, generator=generator).bfloat16()
        self.sink = torch.randn(heads, generator=generator)
        self.frequencies: torch.Tensor | None = rotary_frequencies(FLASH, kind)

    @staticmethod
    def _span(positions: torch.Tensor) -> tuple[int, int]:
        live = positions[positions >= 0]
        return (int(live.min()), int(live.max()) + 1) if live.numel() else (0, 0)

    @staticmethod
    def _fill(cache, request: int, ids: torch.Tensor, gain: float, generator: torch.Generator) -> None:
        values = torch.randn(len(ids), 512, generator=generator) * gain
        write_rows(cache.layout, cache.pages, cache.rows(request, ids), values)

    def arguments(self) -> tuple:
        entries = None if self.entries is None else self.entries.at(self.batch)
        window = self.window.at(self.batch)
        return self.query, self.sink, SCALE, self.batch, window, entries, self.selected, self.frequencies

    def expected(self) -> torch.Tensor:
        """Token by token, in fp64."""
        out = torch.zeros(self.query.shape, dtype=torch.float64)
        for t, (position, request) in enumerate(
            zip(self.batch.positions.tolist(), self.batch.request.tolist(), strict=True)
        ):
            if position < 0:
                continue
            parts = [self._rows(self.window, request, torch.arange(max(position - 127, 0), position + 1))]
            if self.entries is not None:
                visible = (position + 1) // self.kind.ratio
                ids = torch.arange(visible) if self.selected is None else self.selected[t].long()
                parts.append(self._rows(self.entries, request, ids[(ids >= 0) & (ids < visible)]))
            keys = torch.cat(parts)
            logits = torch.cat([self.query[t].double() @ keys.T * SCALE, self.sink.double()[:, None]], 1)
            out[t] = torch.softmax(logits, 1)[:, :-1] @ keys
        if self.frequencies is not None:
            out = rotate(out, self.batch.positions, self.frequencies, inverse=True)
        return out

    @staticmethod
    def _rows(cache, request: int, ids: torch.Tensor) -> torch.Tensor:
        return read_rows(cache.layout, cache.pages, cache.rows(request, ids)).double()


def relative_error(got: torch.Tensor, expected: torch.Tensor) -> float:
    return float((got.double() - expected).square().mean().sqrt() / expected.square().mean().sqrt())


def bound(splits: int = 1) -> float:
    """Three roundings (bf16 weights, partial results, result) as independent errors, and a quarter for fp32 sums."""
    return 1.25 * STEP * (2 + (splits > 1)) ** 0.5 + 2.0**-12


@pytest.fixture(autouse=True)
def fresh_partials() -> None:
    """Partial results start as NaN in every test."""
    partials.cache_clear()


CASES = {
    # kind, heads, top_k, ranges, splits
    "flash-tp1-c4a-decode-b2": (LayerKind.C4A, 64, 96, [(2000, 1), (65, 1)], 1),
    "flash-tp1-c128a-decode-b1-split-3": (LayerKind.C128A, 64, 0, [(40_000, 1)], 3),
    "flash-tp4-c4a-draft-verify-4-1m": (LayerKind.C4A, 16, 40, [(1_048_572, 4)], 1),
    "flash-tp4-c128a-prefill-chunk": (LayerKind.C128A, 16, 0, [(254, 4), (126, 3)], 1),
    "flash-tp8-c128a-draft-verify-8": (LayerKind.C128A, 8, 0, [(1148, 8), (3, 8)], 1),
    "flash-tp8-c128a-draft-verify-3-split-4": (LayerKind.C128A, 8, 0, [(1150, 3)], 4),
}
SLOW = {
    "flash-tp1-c4a-draft-verify-2": (LayerKind.C4A, 64, 96, [(2000, 2), (65, 2)], 1),
    "flash-tp2-swa-draft-verify-2": (LayerKind.SWA, 32, 0, [(500, 2), (1_048_574, 2)], 1),
    "flash-tp4-c128a-draft-verify-4-split-2": (LayerKind.C128A, 16, 0, [(40_000, 4), (126, 4)], 2),
    "flash-tp4-c128a-draft-verify-2": (LayerKind.C128A, 16, 0, [(254, 2), (0, 2)], 1),
    "pro-tp1-c4a-decode-b1-split-2": (LayerKind.C4A, 128, 70, [(300, 1)], 2),
    "flash-tp2-c4a-prefill-chunk": (LayerKind.C4A, 32, 24, [(126, 3), (0, 5)], 1),
    "flash-tp8-c4a-decode-1m": (LayerKind.C4A, 8, 64, [(1_048_575, 1)], 1),
    "flash-tp1-swa-decode-b3": (LayerKind.SWA, 64, 0, [(0, 1), (64, 1), (1_048_575, 1)], 1),
    "flash-tp1-c4a-decode-512": (LayerKind.C4A, 64, 512, [(4000, 1)], 7),
    "flash-tp1-c128a-decode-128k": (LayerKind.C128A, 64, 0, [(131_071, 1)], 1),
    "pro-tp1-c128a-prefill-chunk": (LayerKind.C128A, 128, 0, [(252, 6)], 1),
    "pro-tp1-c4a-prefill-24": (LayerKind.C4A, 128, 32, [(120, 24)], 1),
}


def compare(gpu, scene: Scene, splits: int) -> None:
    got = sparse_attention(*scene.arguments(), splits=splits)
    assert got.isfinite().all()
    expected = scene.expected()
    assert relative_error(got, expected) <= bound(splits)
    assert relative_error(got[..., -64:], expected[..., -64:]) <= bound(splits)
    assert len(gpu.launches) == (2 if splits > 1 else 1)
    assert any("mfma" in op for op in gpu.launches[0][1].by_opcode)


@pytest.mark.parametrize("name", CASES)
def test_equals_attention_in_fp64(gpu, sparse_cache, make_batch, name: str) -> None:
    kind, heads, top_k, ranges, splits = CASES[name]
    compare(gpu, Scene(sparse_cache, make_batch(*ranges), kind, heads, top_k), splits)


@pytest.mark.slow
@pytest.mark.parametrize("name", SLOW)
def test_equals_attention_in_fp64_at_size(gpu, sparse_cache, make_batch, name: str) -> None:
    kind, heads, top_k, ranges, splits = SLOW[name]
    compare(gpu, Scene(sparse_cache, make_batch(*ranges), kind, heads, top_k), splits)


def test_padded_drafts(gpu, sparse_cache, make_batch) -> None:
    """A batch of four drafts a request: one with less context than drafts, one empty, one behind the last request."""
    batch = make_batch((300, 4), (0, 4), (10, 4), (40, 4))
    scene = Scene(sparse_cache, batch, LayerKind.C128A, 16)
    arguments = scene.arguments()
    batch.positions[4:8] = torch.tensor([-1, -1, 0, 1])
    batch.positions[8:12] = -1
    batch.request[12:] = 4  # its positions are what an earlier step left there
    got, expected = sparse_attention(*arguments, splits=1), scene.expected()
    assert torch.equal(got[12:], torch.zeros_like(got[12:]))
    for part in (slice(0, 4), slice(4, 8)):
        assert relative_error(got[part], expected[part]) <= bound()
    assert torch.equal(got[[4, 5, 8, 9, 10, 11]], torch.zeros_like(got[:6]))


def test_parts_are_written_only_where_they_pay(gpu, sparse_cache, make_batch) -> None:
    """Four splits are launched, for the longest context: requests with few keys write their results at once."""
    positions = [20, 40_000, 3, 5, 7, 9, 11, 300]
    scene = Scene(sparse_cache, make_batch(*[(position, 1) for position in positions]), LayerKind.C128A, 16)
    got, whole = sparse_attention(*scene.arguments()), sparse_attention(*scene.arguments(), splits=1)
    assert relative_error(got, scene.expected()) <= bound(2)
    memory = partials(got.device, got.dtype, 16 * arch.current().compute_units).output
    parts = memory[: 4 * 8 * 16].view(4, *got.shape)
    wide = torch.tensor(positions) == 40_000
    for part in parts:
        assert torch.equal(part.isfinite().all(2).all(1), wide)
    assert torch.equal(got[~wide], whole[~wide])


def test_large_scores(gpu, sparse_cache, make_batch) -> None:
    """Scores that rise by more than 2^16 from tile to tile: the reference of the weights must follow."""
    scene = Scene(sparse_cache, make_batch((300, 1)), LayerKind.C128A, 16, gain=6.0)
    scene.query *= 8
    compare(gpu, scene, 1)


def test_padding_and_no_keys(gpu, sparse_cache, make_batch) -> None:
    """A token at -1 gets zero, also with sinks of +-inf; nothing behind its slots is read (block 0 is NaN)."""
    batch = make_batch((30, 2))
    scene = Scene(sparse_cache, batch, LayerKind.C4A, 16, 16)
    batch.positions[1] = -1
    for sink in (0.0, -math.inf, math.inf):
        scene.sink = torch.full((16,), sink)
        for splits in (1, 2):
            got = sparse_attention(*scene.arguments(), splits=splits)
            assert torch.equal(got[1], torch.zeros_like(got[1]))
            expected = torch.zeros(1) if sink == math.inf else scene.expected()[0]
            if sink == math.inf:
                assert torch.equal(got[0], torch.zeros_like(got[0]))
            else:
                assert relative_error(got[0], expected) <= bound(splits)


def test_tokens_behind_the_last_request_get_zero(gpu, sparse_cache, make_batch) -> None:
    scene = Scene(sparse_cache, make_batch((30, 2)), LayerKind.C4A, 16, 16)
    arguments = scene.arguments()
    scene.batch.request[1] = 1  # there is one request
    got = sparse_attention(*arguments, splits=1)
    assert got[0].count_nonzero() > 0
    assert torch.equal(got[1], torch.zeros_like(got[1]))


SELECTIONS = {
    "all-skipped": [-1] * 8,
    "out-of-range": [10**6, -1, -(2**31), 2**31 - 1, 8, 9, -5, -1],
    "empty": [],
    "k-is-visible": [5, 2, 7, 0, 3, 1, 6, 4],
}


@pytest.mark.parametrize("ids", SELECTIONS.values(), ids=SELECTIONS)
def test_ids_that_are_not_visible_do_not_count(gpu, sparse_cache, make_batch, ids: list[int]) -> None:
    scene = Scene(sparse_cache, make_batch((31, 1)), LayerKind.C4A, 16, 8)
    scene.selected = torch.tensor([ids], dtype=torch.int32)
    compare(gpu, scene, 1)


def test_the_reference_agrees(gpu, sparse_cache, make_batch) -> None:
    scene = Scene(sparse_cache, make_batch((140, 2)), LayerKind.C4A, 6, 16)
    got, expected = sparse_attention(*scene.arguments()), reference(*scene.arguments())
    assert relative_error(got, expected.double()) <= bound(7) + STEP


def test_rows_of_a_foreign_writer(gpu, sparse_cache, make_batch) -> None:
    """A peer's -0, byte 0x80, counts as 0, which FNUZ hardware must be told."""
    scene = Scene(sparse_cache, make_batch((509, 4)), LayerKind.C4A, 16, 40)
    native = scene.window.layout
    for cache in (scene.window, scene.entries):
        cache.layout = dataclasses.replace(cache.layout, foreign=True)
        rows = cache.pages[1:, : native.scale_offset].unflatten(1, (-1, native.data_bytes))
        rows[..., :448:3] = 0x80
    compare(gpu, scene, 1)
    scene.window.layout = native
    scene.entries.layout = dataclasses.replace(scene.entries.layout, foreign=False)
    undefined = sparse_attention(*scene.arguments()).isnan().any()
    assert undefined == (arch.current().fp8 is arch.Fp8Encoding.E4M3FNUZ)


@pytest.mark.parametrize("schedule", ["reverse", "random:1"])
def test_waves_in_any_order_give_the_same_bits(gpu, sparse_cache, make_batch, schedule: str) -> None:
    scene = Scene(sparse_cache, make_batch((140, 1)), LayerKind.C4A, 16, 16)
    expected = sparse_attention(*scene.arguments())
    with cdna.device(gpu.arch, schedule=schedule):
        assert torch.equal(sparse_attention(*scene.arguments()), expected)


def test_an_empty_batch_launches_nothing(gpu, sparse_cache, make_batch) -> None:
    scene = Scene(sparse_cache, make_batch((31, 1)), LayerKind.C4A, 16, 8)
    arguments = list(scene.arguments())
    arguments[0], arguments[3], arguments[6] = scene.query[:0], make_batch((0, 0)), scene.selected[:0]
    assert sparse_attention(*arguments).shape == (0, 16, 512)
    assert gpu.launches == []


def test_what_is_not_supported_is_refused(gpu, sparse_cache, make_batch) -> None:
    scene = Scene(sparse_cache, make_batch((31, 1)), LayerKind.SWA, 16)
    arguments = list(scene.arguments())
    arguments[4] = sparse_cache(swa_layout(Encoding.FP32), [(0, 32)]).at(scene.batch)
    with pytest.raises(ValueError, match="takes flat, unrotated fp8 rows, got flat fp32 swa rows"):
        sparse_attention(*arguments)


def test_issue_clocks(gpu, sparse_cache, make_batch) -> None:
    """Vector ALU and transcendental clocks of a CU for one more key of 64 heads, from what the emulator counted."""
    clocks = []
    for top_k in (96, 160):
        scene = Scene(sparse_cache, make_batch((2000, 1)), LayerKind.C4A, 64, top_k)
        sparse_attention(*scene.arguments(), splits=1)
        clocks.append((gpu.stats.valu_clocks + gpu.stats.trans_clocks) / 4)
    assert (clocks[1] - clocks[0]) / 64 <= {"gfx942": 95, "gfx950": 120}[gpu.arch]


MODELS = {  # heads of a rank, keys
    "flash-tp1-c4a": (64, 640),
    "flash-tp4-c4a": (16, 640),
    "flash-tp4-swa": (16, 128),
    "pro-tp8-c4a": (16, 1152),
    "pro-tp8-1m": (16, 8320),
}
EXPECTED_SPLITS = {
    "flash-tp1-c4a": {1: 5, 8: 2, 64: 1, 4096: 1},
    "flash-tp4-c4a": {1: 10, 8: 5, 64: 2, 4096: 1},
    "pro-tp8-c4a": {1: 18, 8: 9, 64: 3, 4096: 1},
    "pro-tp8-1m": {1: 130, 8: 38, 64: 4, 4096: 1},
    "flash-tp4-swa": {1: 1, 8: 1, 64: 1, 4096: 1},
}


@pytest.mark.parametrize("tokens", [1, 8, 64, 4096])
@pytest.mark.parametrize("model", MODELS)
def test_splits_fill_the_chip_within_their_bytes(model: str, tokens: int) -> None:
    """3 / 2 / 1.3 times the bytes that must move at 1 / 8 / 64 tokens, for any number of keys up to the most."""
    (heads, most_keys), row = MODELS[model], swa_layout(Encoding.FP8)
    splits = tuning.splits(arch.GFX942, tokens, 1, heads, most_keys, row, 32)
    assert splits.count == EXPECTED_SPLITS[model][tokens]
    query = 2 * heads * 512  # bytes; a result or a partial result, written and read, has as many
    for keys in range(1, most_keys + 1):
        parts = max(min(int(keys * splits.per_key + splits.at_least), splits.count), 1)
        needed = keys * row.row_bytes + 2 * query
        moved = needed + (parts - 1) * query + (parts > 1) * parts * 2 * query
        assert moved / needed <= {1: 3, 8: 2}.get(tokens, 1.3)


@triton.jit
def places_kernel(out_ptr, members, L2S: tl.constexpr):
    group, member = _place(members, L2S)
    tl.store(out_ptr + tl.program_id(0), group * members + member)


@pytest.mark.parametrize("members", [1, 4, 6])
@pytest.mark.parametrize("groups", [1, 8, 19])
def test_programs_of_the_same_keys_share_an_l2(gpu, members: int, groups: int) -> None:
    """Programs are dealt to eight L2s in turn: those of a group are of one, until fewer than eight groups are left."""
    places = torch.full((groups * members,), -1, dtype=torch.int32)
    places_kernel[(groups * members,)](places, members, L2S=8)
    assert places.sort().values.tolist() == list(range(groups * members))
    dealt = torch.arange(groups * members) % 8
    for group in range(groups // 8 * 8):
        assert dealt[places // members == group].unique().numel() == 1
