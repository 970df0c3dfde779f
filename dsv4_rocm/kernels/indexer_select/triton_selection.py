"""The second step of indexer_select in Triton: from fp32 scores to the ids of the exact best.

A workgroup keeps the best of up to `tuning.TILE` scores, which stay in registers. Where a token has more, each tile
gives its best as candidates, and a launch more chooses among them.
"""

# Triton has no types for what a kernel takes.
# mypy: disable-error-code="no-untyped-def"

import torch
import triton
import triton.language as tl
from torch import Tensor

from dsv4_rocm.cache.addressing import TokenBatch
from dsv4_rocm.kernels.indexer_select import tuning
from dsv4_rocm.kernels.triton_common import require_gpu

UNUSABLE = tl.constexpr(-(2**31))  # below every finite score


@triton.jit
def _ordered(bits):
    """int32 in the order of the scores with these bits; UNUSABLE for what is not finite. -0 and 0 are equal."""
    bits = tl.where(bits == -(2**31), 0, bits)
    return tl.where((bits & 0x7F800000) == 0x7F800000, UNUSABLE, bits ^ ((bits >> 31) & 0x7FFFFFFF))


@triton.jit
def _load_ordered(scores_ptr, place, count, ORDERED: tl.constexpr):
    """Scores as integers in their order; UNUSABLE from `count` on."""
    aligned = tl.cdiv(count, 16) * 16  # memory goes on so far, and 16 bytes at a time stay whole
    score = tl.load(scores_ptr + place, mask=place < aligned, other=0)
    if not ORDERED:
        score = _ordered(score)
    return tl.where(place < count, score, UNUSABLE)


@triton.jit
def _threshold(score, TOP_K: tl.constexpr):
    """The TOP_K-th best score, and how many scores of that value to keep; everything usable where there are fewer."""
    threshold = tl.full((), UNUSABLE, tl.int32)
    ties = tl.full((), 0, tl.int32)
    if tl.sum((score > UNUSABLE).to(tl.int32), 0) > TOP_K:
        # The largest value that TOP_K scores reach, between the least and the greatest score.
        threshold = tl.min(tl.where(score > UNUSABLE, score, 2**31 - 1), 0)
        above = tl.max(score, 0)
        while threshold < above:
            span = above.to(tl.uint32, bitcast=True) - threshold.to(tl.uint32, bitcast=True)
            middle = above - (span >> 1).to(tl.int32, bitcast=True)
            reach = tl.sum((score >= middle).to(tl.int32), 0)
            threshold = tl.where(reach >= TOP_K, middle, threshold)
            above = tl.where(reach > TOP_K, above, tl.where(reach == TOP_K, middle, middle - 1))
        ties = TOP_K - tl.sum((score > threshold).to(tl.int32), 0)
    return threshold, ties


@triton.jit(do_not_specialize=["first", "requests"])
def select_entries_kernel(
    scores_ptr,  # int32 [tokens of the round, width]: bits of fp32 at level 0, ordered from there on
    ids_ptr,  # int32 [tokens of the round, width], or anything at level 0
    positions_ptr,  # int64 [tokens]
    request_ptr,  # int64 [tokens]
    out_ptr,  # int32 [tokens, TOP_K]
    candidates_ptr,  # int32 [tokens of the round, tiles, PLACES], ordered scores
    candidate_ids_ptr,  # int32 [tokens of the round, tiles, PLACES]
    first,
    requests,
    entries,  # scores of a token at level 0
    width,  # scores of a token at this level
    LEVEL: tl.constexpr,
    TOP_K: tl.constexpr,
    PLACES: tl.constexpr,
    TILE: tl.constexpr,
    SMALL_TILE: tl.constexpr,
    RATIO: tl.constexpr,
):
    line = tl.program_id(0).to(tl.int64)
    token = first + line
    owned = tl.load(request_ptr + token).to(tl.int32) < requests
    visible = tl.where(owned, (tl.load(positions_ptr + token).to(tl.int32) + 1) // RATIO, 0)
    count = tl.minimum(visible, entries)
    pending = count >= 0
    for _ in tl.static_range(LEVEL):
        pending = pending & (count > TILE)
        count = tl.cdiv(count, TILE) * PLACES
    start = tl.program_id(1) * TILE
    if pending & ((start < count) | (start == 0)):
        final = count <= TILE
        scores_ptr += line * width
        if (LEVEL == 0) & (count <= SMALL_TILE):
            threshold, ties = _threshold(_load_ordered(scores_ptr, tl.arange(0, SMALL_TILE), count, LEVEL > 0), TOP_K)
        else:
            threshold, ties = _threshold(_load_ordered(scores_ptr, start + tl.arange(0, TILE), count, LEVEL > 0), TOP_K)
        target_ptr = out_ptr + token * TOP_K
        places = (line * tl.num_programs(1) + tl.program_id(1)) * PLACES
        if not final:
            target_ptr = candidate_ids_ptr + places
        candidates_ptr += places
        # Everything above the threshold and the first `ties` at it. One scan counts both, in 16 bits each.
        counted = tl.full((), 0, tl.int32)
        for step in range(start, tl.minimum(start + TILE, count), SMALL_TILE):
            place = step + tl.arange(0, SMALL_TILE)
            score = _load_ordered(scores_ptr, place, count, LEVEL > 0)
            better, tie = score > threshold, score == threshold
            flags = better.to(tl.int32) + (tie.to(tl.int32) << 16)
            seen = counted + tl.cumsum(flags, 0)
            counted += tl.sum(flags, 0)
            tie_rank = seen >> 16
            take = better | (tie & (tie_rank <= ties))
            target = (seen & 0xFFFF) + tl.minimum(tie_rank, ties) - 1
            ids = place
            if LEVEL > 0:
                ids = tl.load(ids_ptr + line * width + place, mask=take, other=0)
            tl.store(target_ptr + target, ids, mask=take)
            if not final:
                tl.store(candidates_ptr + target, score, mask=take)
        kept = (counted & 0xFFFF) + tl.minimum(counted >> 16, ties)
        spare = tl.arange(0, PLACES)
        if final:
            tl.store(target_ptr + spare, -1, mask=(spare >= kept) & (spare < TOP_K))
        else:
            tl.store(candidates_ptr + spare, UNUSABLE, mask=spare >= kept)


def select_entries(
    scores: Tensor, batch: TokenBatch, first: int, requests: int, ratio: int, out: Tensor, candidates: Tensor
) -> None:
    """See `rounds.SelectEntries`; ids come out in ascending order.

    One launch, and one more for every factor of `TILE / top_k` that the scores of a token go beyond `TILE`.
    """
    (tokens, width), top_k = scores.shape, out.shape[1]
    places = tuning.places(top_k)
    level, line, values, ids = 0, width, scores.view(torch.int32), scores.view(torch.int32)
    while True:
        tiles = triton.cdiv(line, tuning.TILE)
        size = tokens * tiles * places if tiles > 1 else 0
        next_values, next_ids, candidates = candidates[:size], candidates[size : 2 * size], candidates[2 * size :]
        select_entries_kernel[tokens, tiles](
            values,
            ids,
            batch.positions,
            batch.request,
            out,
            next_values,
            next_ids,
            first,
            requests,
            width,
            line,
            LEVEL=level,
            TOP_K=top_k,
            PLACES=places,
            TILE=tuning.TILE,
            SMALL_TILE=tuning.SMALL_TILE,
            RATIO=ratio,
            num_warps=tuning.SELECT_THREADS // require_gpu().wave_size,
        )
        if tiles == 1:
            return
        level, line, values, ids = level + 1, tiles * places, next_values, next_ids
