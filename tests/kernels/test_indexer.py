"""indexer_query and indexer_select: scores, visibility, ties, and the boundary where selection begins."""

from collections.abc import Callable

import pytest
import torch

from dsv4_rocm.cache.layout import Encoding, index_layout
from dsv4_rocm.cache.rows import read_rows, write_rows
from dsv4_rocm.kernels.indexer_query.op import IndexQuery
from dsv4_rocm.kernels.indexer_query.reference import indexer_query
from dsv4_rocm.kernels.indexer_select.reference import indexer_select, top_entries
from dsv4_rocm.kernels.rotary import rotary_frequencies, rotate
from dsv4_rocm.model_spec import FLASH, LayerKind
from dsv4_rocm.number_formats import dequantize_mxfp4, e4m3_decode, hadamard, quantize_mxfp4

FREQUENCIES = rotary_frequencies(FLASH, LayerKind.C4A)
HEADS = 16


def index_cache(make_cache, entries: int, encoding: Encoding, requests: int = 1):
    cache = make_cache(index_layout(encoding), requests=requests, tokens=4 * entries + 256)
    for request in range(requests):
        keys = torch.randn(entries, 128, generator=torch.Generator().manual_seed(request))
        write_rows(cache.layout, cache.pages, cache.rows(request, torch.arange(entries)), keys)
    return cache


def index_query(batch, encoding: Encoding) -> IndexQuery:
    generator = torch.Generator().manual_seed(7)
    query = torch.randn(batch.num_tokens, HEADS, 128, generator=generator)
    weights = torch.randn(batch.num_tokens, HEADS, generator=generator)
    return indexer_query(query, weights, batch.positions, FREQUENCIES, index_layout(encoding))


@pytest.mark.parametrize("encoding", [Encoding.FP32, Encoding.FP8, Encoding.MXFP4])
def test_query_keeps_its_value(make_batch, encoding: Encoding) -> None:
    """Values times folded weights are the rotated query times its weight, up to rounding."""
    batch = make_batch((1000, 6))
    generator = torch.Generator().manual_seed(7)
    raw = torch.randn(6, HEADS, 128, generator=generator)
    weights = torch.randn(6, HEADS, generator=generator)
    query = index_query(batch, encoding)
    quantized = encoding is not Encoding.FP32
    values = e4m3_decode(query.values) if quantized else query.values
    turned = rotate(raw, batch.positions, FREQUENCIES)
    turned = hadamard(turned) if encoding is Encoding.MXFP4 else turned
    expected = turned * weights[..., None] / (128**0.5 * HEADS**0.5)
    step = 2.0**-4 if quantized else 1e-6
    smallest = (weights.abs() * 2.0**-8)[..., None] if quantized else 1e-6
    assert ((values * query.weights[..., None] - expected).abs() <= expected.abs() * step + smallest).all()


@pytest.mark.parametrize("encoding", [Encoding.FP32, Encoding.FP8, Encoding.MXFP4])
def test_selects_the_best_visible_entries(make_cache, make_batch, encoding: Encoding) -> None:
    batch = make_batch((0, 40), (395, 5), (0, 3))
    cache, query, top_k = index_cache(make_cache, 100, encoding, requests=3), index_query(batch, encoding), 8
    selected = indexer_select(query, batch, cache.at(batch), top_k)
    values = (query.values if encoding is Encoding.FP32 else e4m3_decode(query.values)).double()
    for t in range(batch.num_tokens):
        visible = (int(batch.positions[t]) + 1) // 4
        keys = read_rows(cache.layout, cache.pages, cache.rows(int(batch.request[t]), torch.arange(visible))).double()
        scores = (torch.relu(values[t] @ keys.T) * query.weights[t, :, None].double()).sum(0)
        best = set(scores.topk(min(top_k, visible)).indices.tolist())
        assert set(selected[t].tolist()) - {-1} == best
        assert (selected[t] >= 0).sum() == min(top_k, visible)


@pytest.mark.parametrize("position", range(2043, 2053))
def test_everything_is_selected_up_to_the_boundary(make_cache, make_batch, position: int) -> None:
    """Flash keeps 512 entries: up to 2,048 tokens nothing is dropped, past it exactly the surplus is."""
    batch = make_batch((position, 1))
    cache = index_cache(make_cache, 520, Encoding.FP8)
    selected = indexer_select(index_query(batch, Encoding.FP8), batch, cache.at(batch), 512)[0]
    visible = (position + 1) // 4
    chosen = selected[selected >= 0]
    assert len(set(chosen.tolist())) == len(chosen) == min(visible, 512)
    assert int(chosen.max()) < visible


def test_scores_that_are_not_finite_are_never_kept() -> None:
    scores = torch.tensor([[torch.nan, 1.0, torch.inf, 2.0]])
    assert top_entries(scores, torch.tensor([4]), 3).tolist() == [[3, 1, -1]]


def test_ties_go_to_the_lowest_entry() -> None:
    scores = torch.tensor([[1.0, 0.0, -0.0, 0.0, 2.0]])
    assert top_entries(scores, torch.tensor([5]), 3).tolist() == [[4, 0, 1]]
    assert top_entries(scores, torch.tensor([2]), 3).tolist() == [[0, 1, -1]]


def test_poisoned_blocks_do_not_matter(make_cache, make_batch) -> None:
    """A padded token and a token before the first entry select nothing; block 0 is NaN."""
    batch = make_batch((0, 3))
    batch.positions[2] = -1
    cache = index_cache(make_cache, 4, Encoding.FP8)
    assert (indexer_select(index_query(batch, Encoding.FP8), batch, cache.at(batch), 4) == -1).all()


def recall(outliers: int, rotated: bool) -> float:
    """Share of the fp32 top 512 of 4,096 random keys that mxfp4 keys keep, queries exact."""
    generator = torch.Generator().manual_seed(outliers)
    keys, query = torch.randn(4096, 128, generator=generator), torch.randn(HEADS, 128, generator=generator)
    weights = torch.rand(HEADS, 1, generator=generator)
    if outliers:
        keys[:, torch.randperm(128, generator=generator)[:outliers]] *= 10
    turned = hadamard(keys) if rotated else keys
    stored = dequantize_mxfp4(*quantize_mxfp4(turned))
    stored = hadamard(stored) if rotated else stored

    def best(keys: torch.Tensor) -> set[int]:
        return set((torch.relu(query @ keys.T) * weights).sum(0).topk(512).indices.tolist())

    return len(best(keys) & best(stored)) / 512


def test_rotation_pays_where_channels_stick_out(record_property: Callable[[str, object], None]) -> None:
    found = {(n, rotated): recall(n, rotated) for n in (0, 8) for rotated in (False, True)}
    for (outliers, rotated), share in found.items():
        record_property(f"recall, {outliers} outlier channels, {'rotated' if rotated else 'plain'}", round(share, 3))
    assert found[8, True] > found[8, False] + 0.03
    assert abs(found[0, True] - found[0, False]) < 0.03
    assert min(found.values()) > 0.8
