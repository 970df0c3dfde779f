"""indexer_select in Triton: the exact best of its own scores, and those scores against fp64, on emulated devices."""

import pytest
import torch

from dsv4_rocm.cache.layout import Encoding, index_layout
from dsv4_rocm.cache.rows import read_rows, write_rows
from dsv4_rocm.kernels.indexer_query.op import IndexQuery
from dsv4_rocm.kernels.indexer_select import tuning
from dsv4_rocm.kernels.indexer_select.reference import index_scores, top_entries
from dsv4_rocm.kernels.indexer_select.triton_kernel import indexer_select
from dsv4_rocm.number_formats import e4m3_decode, e4m3_encode
from dsv4_rocm.testing import cdna

LAYOUT = index_layout(Encoding.FP8)


def filled(sparse_cache, ends: list[int], seed: int = 0):
    """An index cache with the entries of requests that are `ends` tokens long."""
    cache = sparse_cache(LAYOUT, [(0, end) for end in ends])
    generator = torch.Generator().manual_seed(seed)
    for request, end in enumerate(ends):
        keys = torch.randn(end // 4, 128, generator=generator)
        write_rows(LAYOUT, cache.pages, cache.rows(request, torch.arange(end // 4)), keys)
    return cache


def draw_query(tokens: int, heads: int) -> IndexQuery:
    generator = torch.Generator().manual_seed(1)
    values = e4m3_encode(torch.randn(tokens, heads, 128, generator=generator) * 8)
    return IndexQuery(values, torch.randn(tokens, heads, generator=generator) * 0.1)


def scores_of(cache, batch, query: IndexQuery, t: int) -> tuple[torch.Tensor, torch.Tensor]:
    """fp64 scores of a token's visible entries, and a bound on the error of fp32 sums in any order."""
    visible = (int(batch.positions[t]) + 1) // 4
    keys = read_rows(LAYOUT, cache.pages, cache.rows(int(batch.request[t]), torch.arange(visible))).double()
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
    "draft-verify-4": (64, 64, [(700, 4)]),
    "prefill-chunk-mixed": (64, 16, [(60, 9), (0, 6), (255, 1)]),
    "few-heads": (4, 16, [(300, 2)]),
}


@pytest.mark.parametrize("name", CASES)
def test_selects_the_best(gpu, sparse_cache, make_batch, name: str) -> None:
    heads, top_k, ranges = CASES[name]
    batch = make_batch(*ranges)
    cache, query = filled(sparse_cache, [a + b for a, b in ranges]), draw_query(batch.num_tokens, heads)
    require_best(cache, batch, query, indexer_select(query, batch, cache.at(batch), top_k), top_k)
    assert len(gpu.launches) == 2
    assert any("mfma" in op for op in gpu.launches[0][1].by_opcode)


@pytest.mark.slow
def test_selects_512_of_many(gpu, sparse_cache, make_batch) -> None:
    batch = make_batch((40_000, 1))
    cache, query = filled(sparse_cache, [40_001]), draw_query(1, 64)
    require_best(cache, batch, query, indexer_select(query, batch, cache.at(batch), 512), 512)


def test_rounds_give_the_same(gpu, sparse_cache, make_batch, monkeypatch: pytest.MonkeyPatch) -> None:
    batch = make_batch((100, 20))
    cache, query = filled(sparse_cache, [120]), draw_query(20, 64)
    whole = indexer_select(query, batch, cache.at(batch), 16)
    monkeypatch.setattr(tuning, "WORKSPACE_BYTES", 1)
    assert torch.equal(indexer_select(query, batch, cache.at(batch), 16), whole)
    assert len(gpu.launches) == 2 + 2 * 3


@pytest.mark.parametrize("schedule", ["reverse", "random:1"])
def test_waves_in_any_order_select_the_same(gpu, sparse_cache, make_batch, schedule: str) -> None:
    batch = make_batch((1100, 1))
    cache, query = filled(sparse_cache, [1101]), draw_query(1, 64)
    expected = indexer_select(query, batch, cache.at(batch), 64)
    with cdna.device(gpu.arch, schedule=schedule):
        assert torch.equal(indexer_select(query, batch, cache.at(batch), 64), expected)


def test_ties_go_to_the_lowest_entry(gpu, sparse_cache, make_batch) -> None:
    """Three values of keys, many times each: the selection equals the reference's on the same scores."""
    batch = make_batch((1200, 1))
    cache, query = filled(sparse_cache, [1201]), draw_query(1, 64)
    keys = torch.randn(3, 128, generator=torch.Generator().manual_seed(3))
    choice = torch.randint(3, (300,), generator=torch.Generator().manual_seed(4))
    write_rows(LAYOUT, cache.pages, cache.rows(0, torch.arange(300)), keys[choice])
    exact, _ = scores_of(cache, batch, query, 0)
    expected = top_entries(exact[None].float(), torch.tensor([300]), 128)[0].sort().values
    assert torch.equal(indexer_select(query, batch, cache.at(batch), 128)[0], expected)


def test_zeros_of_both_signs_tie(gpu, sparse_cache, make_batch) -> None:
    """No product is positive: every score is 0 or -0, and the lowest ids win."""
    batch = make_batch((399, 1))
    cache, query = filled(sparse_cache, [400]), draw_query(1, 64)
    write_rows(LAYOUT, cache.pages, cache.rows(0, torch.arange(100)), torch.full((100, 128), -1.0))
    query.values.copy_(e4m3_encode(torch.ones(1, 64, 128)))
    assert indexer_select(query, batch, cache.at(batch), 8)[0].tolist() == list(range(8))


def test_scores_that_are_not_finite_are_never_kept(gpu, sparse_cache, make_batch) -> None:
    batch = make_batch((399, 1))
    cache, query = filled(sparse_cache, [400]), draw_query(1, 64)
    bad = torch.tensor([0, 17, 99])
    slots = cache.rows(0, bad)
    scale = LAYOUT.scale_offset + slots % LAYOUT.rows_per_page * LAYOUT.scale_bytes
    for page, byte, value in zip(slots // LAYOUT.rows_per_page, scale, (torch.nan, torch.inf, -torch.inf), strict=True):
        cache.pages[page, byte : byte + 4] = torch.tensor([value]).view(torch.uint8)
    for top_k in (8, 128):
        ids = indexer_select(query, batch, cache.at(batch), top_k)[0]
        assert not torch.isin(ids, bad).any()
        assert (ids >= 0).sum() == min(top_k, 97)


def test_padding_and_early_tokens_select_nothing(gpu, sparse_cache, make_batch) -> None:
    """Block 0 is NaN; a padded token and tokens before the first entry see nothing."""
    batch = make_batch((0, 3), (40, 1))
    batch.positions[3] = -1
    cache = sparse_cache(LAYOUT, [(0, 256), (0, 256)])
    assert (indexer_select(draw_query(4, 64), batch, cache.at(batch), 8) == -1).all()


def test_tokens_behind_the_last_request_select_nothing(gpu, sparse_cache, make_batch) -> None:
    batch = make_batch((300, 3))
    batch.request[1:] = 1  # there is one request
    cache, query = filled(sparse_cache, [303]), draw_query(3, 64)
    selected = indexer_select(query, batch, cache.at(make_batch((300, 3))), 8)
    assert (selected[0] >= 0).all()
    assert (selected[1:] == -1).all()


def test_an_empty_batch_launches_nothing(gpu, sparse_cache, make_batch) -> None:
    batch = make_batch((0, 0))
    cache = sparse_cache(LAYOUT, [(0, 256)])
    assert indexer_select(draw_query(0, 64), batch, cache.at(batch), 8).shape == (0, 8)
    assert gpu.launches == []
