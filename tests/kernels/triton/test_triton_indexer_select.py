"""indexer_select in Triton: the exact best of its own scores, and those scores against fp64, on emulated devices."""

import re
from dataclasses import replace

import pytest
import torch

from dsv4_rocm import arch
from dsv4_rocm.cache.addressing import PagedCache
from dsv4_rocm.cache.layout import Encoding, index_layout
from dsv4_rocm.cache.rows import read_rows, write_rows
from dsv4_rocm.kernels.indexer_query.op import IndexQuery
from dsv4_rocm.kernels.indexer_select import tuning
from dsv4_rocm.kernels.indexer_select.reference import index_scores, top_entries
from dsv4_rocm.kernels.indexer_select.triton_kernel import indexer_select
from dsv4_rocm.kernels.indexer_select.triton_scores import score_entries
from dsv4_rocm.number_formats import e4m3_decode, e4m3_encode
from dsv4_rocm.testing import cdna
from dsv4_rocm.testing.bench import budgets

ENCODINGS = pytest.mark.parametrize("encoding", [Encoding.FP8, Encoding.MXFP4], ids=["fp8", "mxfp4"])


def filled(sparse_cache, encoding: Encoding, ends: list[int], seed: int = 0):
    """An index cache with the entries of requests that are `ends` tokens long."""
    layout = index_layout(encoding)
    cache = sparse_cache(layout, [(0, end) for end in ends])
    generator = torch.Generator().manual_seed(seed)
    for request, end in enumerate(ends):
        keys = torch.randn(end // 4, 128, generator=generator)
        write_rows(layout, cache.pages, cache.rows(request, torch.arange(end // 4)), keys)
    return cache


def draw_query(tokens: int, heads: int) -> IndexQuery:
    generator = torch.Generator().manual_seed(1)
    values = e4m3_encode(torch.randn(tokens, heads, 128, generator=generator) * 8)
    return IndexQuery(values, torch.randn(tokens, heads, generator=generator) * 0.1)


def scores_of(cache, batch, query: IndexQuery, t: int) -> tuple[torch.Tensor, torch.Tensor]:
    """fp64 scores of a token's visible entries, and a bound on the error of fp32 sums in any order."""
    visible = (int(batch.positions[t]) + 1) // 4
    keys = read_rows(cache.layout, cache.pages, cache.rows(int(batch.request[t]), torch.arange(visible))).double()
    value, weight = e4m3_decode(query.values[t : t + 1]).double(), query.weights[t : t + 1].double()
    exact = index_scores(value, weight, keys)[0]
    size = index_scores(value.abs(), weight.abs(), keys.abs())[0]
    return exact, size * (128 + value.shape[1]) * 2.0**-24


def require_best(cache, batch, query: IndexQuery, selected: torch.Tensor, top_k: int) -> None:
    """Right number, ascending, visible; and nothing left out that is better beyond rounding."""
    for t in range(batch.num_tokens):
        exact, slack = scores_of(cache, batch, query, t)
        ids = selected[t][selected[t] >= 0].long()
        assert len(ids) == min(top_k, len(exact))
        assert (selected[t, len(ids) :] == -1).all()
        assert (ids[1:] > ids[:-1]).all()
        left = torch.ones(len(exact), dtype=torch.bool)
        left[ids] = False
        if left.any():
            assert (exact + slack)[ids].min() >= (exact - slack)[left].max()


CASES = {
    # heads, top_k, ranges
    "flash-decode-b3": (64, 64, [(1100, 1), (300, 1), (259, 1)]),
    "draft-verify-4": (64, 64, [(700, 4), (301, 4)]),
    "drafts-of-three": (64, 64, [(254, 3), (5, 3)]),
    "drafts-of-five": (64, 64, [(509, 5), (252, 5)]),
    "dspark-verify-8": (64, 64, [(500, 8)]),
    "prefill-chunk-mixed": (64, 16, [(60, 9), (0, 6), (255, 1)]),
    "few-heads": (4, 16, [(300, 2)]),
}


ALWAYS_MXFP4 = ("flash-decode-b3", "draft-verify-4", "prefill-chunk-mixed")
BEST = [
    pytest.param(
        name,
        encoding,
        id=f"{name}-{encoding.value}",
        marks=[pytest.mark.slow] if encoding is Encoding.MXFP4 and name not in ALWAYS_MXFP4 else [],
    )
    for name in CASES
    for encoding in (Encoding.FP8, Encoding.MXFP4)
]


@pytest.mark.parametrize(("name", "encoding"), BEST)
def test_selects_the_best(gpu, sparse_cache, make_batch, name: str, encoding: Encoding) -> None:
    heads, top_k, ranges = CASES[name]
    batch = make_batch(*ranges)
    cache, query = filled(sparse_cache, encoding, [a + b for a, b in ranges]), draw_query(batch.num_tokens, heads)
    require_best(cache, batch, query, indexer_select(query, batch, cache.at(batch), top_k), top_k)
    assert len(gpu.launches) == 2
    mixed = encoding is Encoding.MXFP4 and gpu.arch == "gfx950"
    assert any(("mfma_scale" if mixed else "mfma") in op for op in gpu.launches[0][1].by_opcode)


@ENCODINGS
def test_scores_are_the_reference_within_rounding(gpu, sparse_cache, make_batch, encoding: Encoding) -> None:
    """Every score, and nothing else, is written: what is not visible keeps its NaN."""
    batch = make_batch((250, 4), (3, 4))
    cache, query = filled(sparse_cache, encoding, [254, 7]), draw_query(8, 64)
    scores = torch.full((8, 64), torch.nan)
    score_entries(query, batch, cache.at(batch), 0, scores)
    for t in range(8):
        exact, slack = scores_of(cache, batch, query, t)
        assert ((scores[t, : len(exact)].double() - exact).abs() <= slack).all()
        assert scores[t, len(exact) :].isnan().all()


@pytest.mark.slow
@ENCODINGS
def test_selects_1024_of_many(gpu, sparse_cache, make_batch, encoding: Encoding) -> None:
    """More entries than a tile of the selection holds."""
    batch = make_batch((70_000, 1))
    cache, query = filled(sparse_cache, encoding, [70_001]), draw_query(1, 64)
    require_best(cache, batch, query, indexer_select(query, batch, cache.at(batch), 1024), 1024)
    assert len(gpu.launches) == 3


@pytest.mark.slow
def test_the_last_position_of_a_long_context(gpu, sparse_cache, make_batch) -> None:
    """Position 1,048,575: 262,144 entries, of which all but the last 128 lie in block 0 and are NaN."""
    layout = index_layout(Encoding.FP8)
    cache = sparse_cache(layout, [(1_048_576 - 512, 1_048_576)])
    ids = torch.arange(262_144 - 128, 262_144)
    write_rows(layout, cache.pages, cache.rows(0, ids), torch.randn(128, 128))
    batch, query = make_batch((1_048_574, 2)), draw_query(2, 64)
    selected = indexer_select(query, batch, cache.at(batch), 512)
    assert selected[0, :128].tolist() == [*ids[:-1].tolist(), -1]  # the last group closes at the last token
    assert selected[1, :129].tolist() == [*ids.tolist(), -1]


def test_rounds_give_the_same(gpu, sparse_cache, make_batch, monkeypatch: pytest.MonkeyPatch) -> None:
    """A workspace for eight tokens: three rounds over the same memory, passed in or not."""
    batch = make_batch((100, 20))
    cache, query = filled(sparse_cache, Encoding.FP8, [120]), draw_query(20, 64)
    whole = indexer_select(query, batch, cache.at(batch), 16)
    monkeypatch.setattr(tuning, "WORKSPACE_BYTES", 8 * 64 * 4)
    assert torch.equal(indexer_select(query, batch, cache.at(batch), 16), whole)
    workspace = torch.full((8 * 64,), -1, dtype=torch.int32)
    assert torch.equal(indexer_select(query, batch, cache.at(batch), 16, workspace), whole)
    assert len(gpu.launches) == 2 + 2 * 3 + 2 * 3


def test_a_workspace_without_room_for_a_token_is_refused(gpu, sparse_cache, make_batch) -> None:
    batch = make_batch((100, 2))
    cache = filled(sparse_cache, Encoding.FP8, [102])
    with pytest.raises(
        ValueError, match="scores of one token take 256 bytes, the workspace has 252; lower --max-model"
    ):
        indexer_select(draw_query(2, 64), batch, cache.at(batch), 16, torch.zeros(63, dtype=torch.int32))


@pytest.mark.parametrize("schedule", ["reverse", "random:1"])
def test_waves_in_any_order_select_the_same(gpu, sparse_cache, make_batch, schedule: str) -> None:
    batch = make_batch((500, 4))
    cache, query = filled(sparse_cache, Encoding.MXFP4, [504]), draw_query(4, 64)
    expected = indexer_select(query, batch, cache.at(batch), 64)
    with cdna.device(gpu.arch, schedule=schedule):
        assert torch.equal(indexer_select(query, batch, cache.at(batch), 64), expected)


@ENCODINGS
def test_ties_go_to_the_lowest_entry(gpu, sparse_cache, make_batch, encoding: Encoding) -> None:
    """Three values of keys, many times each: the selection equals the reference's on the same scores."""
    batch = make_batch((1200, 1))
    cache, query = filled(sparse_cache, encoding, [1201]), draw_query(1, 64)
    keys = torch.randn(3, 128, generator=torch.Generator().manual_seed(3))
    choice = torch.randint(3, (300,), generator=torch.Generator().manual_seed(4))
    write_rows(cache.layout, cache.pages, cache.rows(0, torch.arange(300)), keys[choice])
    exact, _ = scores_of(cache, batch, query, 0)
    expected = top_entries(exact[None].float(), torch.tensor([300]), 128)[0].sort().values
    assert torch.equal(indexer_select(query, batch, cache.at(batch), 128)[0], expected)


def test_zeros_of_both_signs_tie(gpu, sparse_cache, make_batch) -> None:
    """No product is positive: every score is 0 or -0, and the lowest ids win."""
    batch = make_batch((399, 1))
    cache, query = filled(sparse_cache, Encoding.FP8, [400]), draw_query(1, 64)
    write_rows(cache.layout, cache.pages, cache.rows(0, torch.arange(100)), torch.full((100, 128), -1.0))
    query.values.copy_(e4m3_encode(torch.ones(1, 64, 128)))
    assert indexer_select(query, batch, cache.at(batch), 8)[0].tolist() == list(range(8))


BAD = torch.tensor([0, 17, 99])
BAD_SCALES = {
    "fp8-nan-and-infinities": (
        Encoding.FP8,
        [torch.tensor([x]).view(torch.uint8) for x in (torch.nan, torch.inf, -torch.inf)],
    ),
    "mxfp4-nan": (
        Encoding.MXFP4,
        [torch.tensor(x, dtype=torch.uint8) for x in ([255], [127, 255], [127, 127, 127, 255])],
    ),
}


@pytest.mark.parametrize("name", BAD_SCALES)
def test_scores_that_are_not_finite_are_never_kept(gpu, sparse_cache, make_batch, name: str) -> None:
    encoding, scales = BAD_SCALES[name]
    batch = make_batch((399, 1))
    cache, query = filled(sparse_cache, encoding, [400]), draw_query(1, 64)
    layout, slots = cache.layout, cache.rows(0, BAD)
    first = layout.scale_offset + slots % layout.rows_per_page * layout.scale_bytes
    for page, byte, scale in zip(slots // layout.rows_per_page, first, scales, strict=True):
        cache.pages[page, byte : byte + len(scale)] = scale
    for top_k in (8, 128):
        ids = indexer_select(query, batch, cache.at(batch), top_k)[0]
        assert not torch.isin(ids, BAD).any()
        assert (ids >= 0).sum() == min(top_k, 97)


def test_keys_that_are_not_numbers_are_never_kept(gpu, sparse_cache, make_batch) -> None:
    """0x7F is NaN for OCP hardware and 240 for FNUZ; 0xFF is NaN and -240; 0x80 is -0 and NaN."""
    batch = make_batch((399, 1))
    cache, query = filled(sparse_cache, Encoding.FP8, [400]), draw_query(1, 64)
    bad = {17: 0x7F, 99: 0xFF} if arch.get(gpu.arch).fp8 is arch.Fp8Encoding.E4M3FN else {17: 0x80, 99: 0x80}
    for entry, byte in bad.items():
        slot = int(cache.rows(0, torch.tensor(entry)))
        cache.pages[slot // 64, slot % 64 * 128 + 5] = byte
    ids = indexer_select(query, batch, cache.at(batch), 128)[0]
    assert not torch.isin(ids, torch.tensor(list(bad))).any()
    assert (ids >= 0).sum() == 98


def test_a_foreign_minus_zero_is_zero(gpu, sparse_cache, make_batch) -> None:
    """Rows of a peer that writes -0: they count as the same rows with 0, on FNUZ hardware as well."""
    batch = make_batch((399, 1))
    cache, query = filled(sparse_cache, Encoding.FP8, [400]), draw_query(1, 64)
    pages = cache.pages[:, : cache.layout.scale_offset]
    pages[:, ::3][cache.pages[:, : cache.layout.scale_offset : 3] != 0xFF] = 0
    expected = indexer_select(query, batch, cache.at(batch), 16)
    pages[:, ::3][pages[:, ::3] == 0] = 0x80
    paged = cache.at(batch)
    foreign = PagedCache(replace(paged.layout, foreign=True), paged.pages, paged.block_table, paged.slots)
    assert torch.equal(indexer_select(query, batch, foreign, 16), expected)


@ENCODINGS
def test_padding_and_early_tokens_select_nothing(gpu, sparse_cache, make_batch, encoding: Encoding) -> None:
    """Block 0 is NaN; a padded token and tokens before the first entry see nothing."""
    batch = make_batch((0, 3), (40, 1))
    batch.positions[3] = -1
    cache = sparse_cache(index_layout(encoding), [(0, 256), (0, 256)])
    assert (indexer_select(draw_query(4, 64), batch, cache.at(batch), 8) == -1).all()


@pytest.mark.parametrize("uniform", [None, 3], ids=["ragged", "padded-to-three-a-request"])
def test_tokens_behind_the_last_request_select_nothing(gpu, sparse_cache, make_batch, uniform: int | None) -> None:
    whole = make_batch((300, 3))
    batch = replace(whole, request=torch.tensor([0, 1, 1]), tokens_per_request=uniform)  # there is one request
    cache, query = filled(sparse_cache, Encoding.FP8, [303]), draw_query(3, 64)
    selected = indexer_select(query, batch, cache.at(whole), 8)
    assert (selected[0] >= 0).all()
    assert (selected[1:] == -1).all()


def test_an_empty_batch_launches_nothing(gpu, sparse_cache, make_batch) -> None:
    batch = make_batch((0, 0))
    cache = sparse_cache(index_layout(Encoding.FP8), [(0, 256)])
    assert indexer_select(draw_query(0, 64), batch, cache.at(batch), 8).shape == (0, 8)
    assert gpu.launches == []


def test_other_rows_are_refused(gpu, sparse_cache, make_batch) -> None:
    batch = make_batch((300, 1))
    cache = sparse_cache(index_layout(Encoding.BF16), [(0, 301)])
    with pytest.raises(ValueError, match="takes flat fp8 or mxfp4 index rows, got flat bf16 index rows"):
        indexer_select(draw_query(1, 64), batch, cache.at(batch), 8)
    cache = filled(sparse_cache, Encoding.FP8, [301])
    with pytest.raises(ValueError, match="top_k must be at most 8192, half a tile, got 8193"):
        indexer_select(draw_query(1, 64), batch, cache.at(batch), 8193)


LOADED = {"ubyte": 1, "ushort": 2, "dword": 4, "dwordx2": 8, "dwordx4": 16}


def loaded_bytes(by_opcode: dict[str, int]) -> int:
    """Bytes that 64 lanes of every executed global load ask for."""
    found = [(re.fullmatch(r"(?:global|buffer)_load_(\w+)", op), count) for op, count in by_opcode.items()]
    return sum(64 * LOADED[match[1]] * count for match, count in found if match)


@ENCODINGS
def test_drafts_of_a_request_read_its_keys_once(gpu, sparse_cache, make_batch, encoding: Encoding) -> None:
    """Bytes loaded for one more entry: its row, and scales for every wave; four drafts do not read it again."""
    per_key = {}
    for tokens in (1, 4):
        loads = []
        for prefix in (508, 1020):  # one program walks over 2 and over 4 pages
            batch = make_batch((prefix, tokens))
            cache, query = filled(sparse_cache, encoding, [prefix + tokens]), draw_query(tokens, 64)
            scores = torch.empty(tokens, cache.table.shape[1] * 64)
            with pytest.MonkeyPatch.context() as patch:
                patch.setattr(tuning, "programs", lambda *_: 1)
                score_entries(query, batch, cache.at(batch), 0, scores)
            loads.append(loaded_bytes(gpu.stats.by_opcode))
        per_key[tokens] = (loads[1] - loads[0]) / 128
    row = index_layout(encoding).row_bytes
    assert row <= per_key[1] <= 1.4 * row
    assert per_key[4] <= 1.5 * per_key[1]


MATRIX = r"v_mfma|wgmma\.mma_async|mma\.sync|tcgen05\.mma"
RANGES = {"decode": [(2000, 1), (300, 1)], "drafts": [(2000, 4)]}
BUILDS = [
    pytest.param(
        name,
        encoding,
        ranges,
        id=f"{name}-{encoding.value}-{ranges}",
        marks=[pytest.mark.slow] if name.startswith("sm") and ranges == "drafts" else [],
    )
    for name in ("gfx942", "gfx950", "sm90", "sm100")
    for encoding in (Encoding.FP8, Encoding.MXFP4)
    for ranges in RANGES
]


@pytest.mark.parametrize(("name", "encoding", "ranges"), BUILDS)
def test_the_machine_code(build, sparse_cache, make_batch, name: str, encoding: Encoding, ranges: str) -> None:
    """Matrix instructions are there, scaled ones on gfx950; nothing spills; keys come 16 bytes at a time."""
    batch = make_batch(*RANGES[ranges])
    cache = sparse_cache(index_layout(encoding), [(0, 80_000)] * len(RANGES[ranges]))
    query = draw_query(batch.num_tokens, 64)
    built = build(name, lambda: indexer_select(query, batch, cache.at(batch), 512))
    assert len(built) == 3
    for kernel in built:
        figures = budgets.figures(kernel)
        assert all(figures.get(field, 0) == 0 for field in ("spills", "scratch", "stack"))
        assert figures["shared"] <= arch.get(name).shared_bytes
        assert figures.get("code", 0) <= 32 * 1024
        assert kernel.count(r"v4\.b32|_load_dwordx4")
        if name.startswith("gfx"):
            assert kernel.count(r"(global|buffer)_load_(ubyte|ushort)") <= 2  # scales of mxfp4 rows
    assert built[0].count(MATRIX) >= 4
    if (name, encoding) == ("gfx950", Encoding.MXFP4):
        assert built[0].count("v_mfma_scale_f32_16x16x128_f8f6f4") == built[0].count("v_mfma")
