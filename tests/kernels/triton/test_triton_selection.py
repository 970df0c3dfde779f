"""From scores to ids in Triton: the same set as the reference's, on emulated devices, whatever the scores are."""

from collections.abc import Callable

import pytest
import torch

from dsv4_rocm.cache.addressing import TokenBatch
from dsv4_rocm.kernels.indexer_select import tuning
from dsv4_rocm.kernels.indexer_select.reference import top_entries
from dsv4_rocm.kernels.indexer_select.triton_selection import select_entries
from dsv4_rocm.testing import cdna

RATIO = 4
BEST = 3.0e38  # what lies behind the visible entries would win


def random(entries: int) -> torch.Tensor:
    return torch.randn(entries, generator=torch.Generator().manual_seed(entries))


def few_values(entries: int) -> torch.Tensor:
    """Four values, so that ties straddle every threshold."""
    return torch.randint(4, (entries,), generator=torch.Generator().manual_seed(1)).float()


def mixed_zeros(entries: int) -> torch.Tensor:
    """0 and -0 by turns, and a few negative scores."""
    scores = torch.tensor([0.0, -0.0]).repeat(entries // 2 + 1)[:entries]
    scores[::7] = -1.0
    return scores


def not_finite(entries: int) -> torch.Tensor:
    """Every third score is NaN of either sign, inf or -inf; denormal and extreme ones are between."""
    scores = random(entries)
    bad = torch.tensor([0x7FC00000, -0x400000, 0x7F800000, -0x800000, -1], dtype=torch.int32).view(torch.float32)
    scores[::3] = bad.repeat(entries)[: len(scores[::3])]
    scores[1], scores[2], scores[4] = 1e-45, -3.4028234e38, 3.4028234e38
    return scores


def clustered(entries: int) -> torch.Tensor:
    """Neighbouring floats: the threshold is decided by the last bits."""
    return (
        (torch.randint(50, (entries,), generator=torch.Generator().manual_seed(2)) + 0x3F800000)
        .int()
        .view(torch.float32)
    )


CASES: dict[str, tuple[Callable[[int], torch.Tensor], int, int]] = {
    # scores, visible entries, top_k
    "random": (random, 1500, 512),
    "one-more-than-top-k": (random, 513, 512),
    "as-many-as-top-k": (random, 512, 512),
    "fewer-than-top-k": (random, 511, 512),
    "one": (random, 1, 512),
    "none": (random, 0, 512),
    "top-1": (few_values, 700, 1),
    "top-k-not-a-power-of-two": (random, 900, 100),
    "all-equal": (torch.ones, 1000, 512),
    "few-values": (few_values, 1203, 512),
    "zeros-of-both-signs": (mixed_zeros, 999, 512),
    "not-finite": (not_finite, 1000, 512),
    "not-finite-fewer-than-top-k": (not_finite, 600, 512),
    "clustered": (clustered, 2048, 512),
    "past-the-small-tile": (few_values, 2049, 512),
    "whole-tile": (random, 16384, 1024),
    "two-tiles": (few_values, 16385, 512),
    "tiles-of-ties": (torch.ones, 40_000, 512),
    "tiles-not-finite": (not_finite, 33_000, 512),
    "tiles-and-odd-top-k": (random, 50_000, 100),
    "pro-1M": (random, 262_144, 1024),
}


def batch_of(visible: list[int], requests: int = 1) -> TokenBatch:
    positions = torch.tensor([RATIO * count + RATIO - 2 for count in visible])  # the last group is not closed
    return TokenBatch(positions, torch.tensor([0, len(visible)]).int(), torch.zeros(len(visible), dtype=torch.int64))


def select(scores: torch.Tensor, batch: TokenBatch, top_k: int, requests: int = 1) -> torch.Tensor:
    out = torch.empty((batch.num_tokens, top_k), dtype=torch.int32)
    words = tuning.candidate_words(scores.shape[1], top_k) * batch.num_tokens
    select_entries(scores, batch, 0, requests, RATIO, out, torch.empty(words, dtype=torch.int32))
    return out


def expected(scores: torch.Tensor, visible: int, top_k: int) -> torch.Tensor:
    """The reference's ids in ascending order, then -1."""
    ids = top_entries(scores[None, :visible], torch.tensor([visible]), top_k)[0]
    kept = ids[ids >= 0].sort().values
    return torch.cat([kept, kept.new_full((top_k - len(kept),), -1)])


@pytest.mark.parametrize("name", CASES)
def test_selects_what_the_reference_selects(gpu, name: str) -> None:
    draw, visible, top_k = CASES[name]
    scores = torch.full((1, -(-visible // 64) * 64 + 64), BEST)
    scores[0, :visible] = draw(visible)
    assert torch.equal(select(scores, batch_of([visible]), top_k)[0], expected(scores[0], visible, top_k))


def test_long_and_short_tokens_share_a_launch(gpu) -> None:
    """Tokens that need one tile are done in the first launch and left alone by the second."""
    visible = [40_000, 3, 0, 16_384, 2_048]
    scores = torch.full((5, 40_000), BEST)
    for line, count in enumerate(visible):
        scores[line, :count] = few_values(count)
    got = select(scores, batch_of(visible), 512)
    for line, count in enumerate(visible):
        assert torch.equal(got[line], expected(scores[line], count, 512))
    assert len(gpu.launches) == 2


def test_a_token_of_no_request_selects_nothing(gpu) -> None:
    batch = batch_of([100, 100, 100])
    batch.request[1:] = 1
    batch.positions[2] = -1
    got = select(random(192).repeat(3, 1), batch, 8)
    assert (got[0] >= 0).all()
    assert (got[1:] == -1).all()


@pytest.mark.slow
def test_a_third_launch_where_candidates_do_not_fit_a_tile(gpu) -> None:
    scores = few_values(70_016)[None]
    assert torch.equal(select(scores, batch_of([70_000]), 8192)[0], expected(scores[0], 70_000, 8192))
    assert len(gpu.launches) > 2


@pytest.mark.parametrize("schedule", ["reverse", "random:1"])
def test_waves_in_any_order_select_the_same(gpu, schedule: str) -> None:
    scores, batch = few_values(17_024)[None], batch_of([17_000])
    with cdna.device(gpu.arch, schedule=schedule):
        assert torch.equal(select(scores, batch, 512)[0], expected(scores[0], 17_000, 512))
