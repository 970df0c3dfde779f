"""sparse_attention in HIP against attention in fp64 over the same rows, on emulated gfx942 and gfx950."""

import math
import runpy
import time
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from dsv4_rocm import arch
from dsv4_rocm.cache.layout import Encoding, swa_layout
from dsv4_rocm.kernels.sparse_attention.hip_binding import plan, sparse_attention
from dsv4_rocm.kernels.sparse_attention.reference import sparse_attention as reference
from dsv4_rocm.model_spec import LayerKind
from dsv4_rocm.testing import cdna

# One list of cases, and one bound, for every implementation of the op.
SHARED = runpy.run_path(str(Path(__file__).parents[1] / "kernels/triton/test_triton_sparse_attention.py"))
Scene, CASES, SLOW, STEP = SHARED["Scene"], SHARED["CASES"], SHARED["SLOW"], SHARED["STEP"]
bound, relative_error = SHARED["bound"], SHARED["relative_error"]

SHARING = {
    # kind, heads, ranges, splits, kernel
    "flash-tp4-c128a-4-tokens": (LayerKind.C128A, 16, [(254, 4)], 1, "sparse_attention_64_sharing"),
    "flash-tp8-c128a-5-tokens-split-2": (LayerKind.C128A, 8, [(254, 5), (126, 5)], 2, "sparse_attention_64_sharing"),
    "flash-tp8-swa-2-tokens": (LayerKind.SWA, 8, [(126, 2), (0, 2)], 1, "sparse_attention_16_sharing"),
}
SLOW_SHARING = {
    "flash-tp2-swa-2-tokens": (LayerKind.SWA, 32, [(126, 2), (3, 2)], 1, "sparse_attention_64_sharing"),
    "flash-tp8-c128a-4-tokens": (LayerKind.C128A, 8, [(381, 4)], 1, "sparse_attention_32_sharing"),
    "6-heads-8-tokens": (LayerKind.C128A, 6, [(125, 8)], 1, "sparse_attention_64_sharing"),
    "groups-of-4-of-8-tokens": (LayerKind.C128A, 16, [(1020, 8), (3, 8)], 1, "sparse_attention_64_sharing"),
}


def compare(gpu, scene, splits: int | None, kernel: str = "") -> None:
    got = sparse_attention(*scene.arguments(), splits=splits)
    assert got.isfinite().all()
    expected = scene.expected()
    assert relative_error(got, expected) <= bound(splits or 7)
    assert relative_error(got[..., -64:], expected[..., -64:]) <= bound(splits or 7)
    name, stats = gpu.launches[0]
    assert len(gpu.launches) == (2 if splits and splits > 1 else 1)
    assert name.startswith(kernel)
    assert any("mfma" in op for op in stats.by_opcode)
    assert all(stats.conflict_clocks == 0 for _, stats in gpu.launches)


@pytest.mark.parametrize("name", CASES)
def test_equals_attention_in_fp64(gpu, sparse_cache, make_batch, name: str) -> None:
    kind, heads, top_k, ranges, splits = CASES[name]
    compare(gpu, Scene(sparse_cache, make_batch(*ranges), kind, heads, top_k), splits)


@pytest.mark.slow
@pytest.mark.parametrize("name", SLOW)
def test_equals_attention_in_fp64_at_size(gpu, sparse_cache, make_batch, name: str) -> None:
    kind, heads, top_k, ranges, splits = SLOW[name]
    compare(gpu, Scene(sparse_cache, make_batch(*ranges), kind, heads, top_k), splits)


@pytest.mark.parametrize("name", SHARING)
def test_tokens_of_a_request_share_keys(gpu, sparse_cache, make_batch, name: str) -> None:
    kind, heads, ranges, splits, kernel = SHARING[name]
    compare(gpu, Scene(sparse_cache, make_batch(*ranges), kind, heads), splits, kernel)


@pytest.mark.slow
@pytest.mark.parametrize("name", SLOW_SHARING)
def test_tokens_of_a_request_share_keys_at_size(gpu, sparse_cache, make_batch, name: str) -> None:
    kind, heads, ranges, splits, kernel = SLOW_SHARING[name]
    compare(gpu, Scene(sparse_cache, make_batch(*ranges), kind, heads), splits, kernel)


def test_sharing_reads_each_key_once(gpu, sparse_cache, make_batch) -> None:
    """Four tokens of a request read at most a tile more than one, and not four times as much."""
    moved = []
    for tokens in (1, 4):
        scene = Scene(sparse_cache, make_batch((252, tokens)), LayerKind.SWA, 16)
        sparse_attention(*scene.arguments(), splits=1)
        # ids, rows and scales; queries and results are the tokens' own
        moved.append(gpu.stats.memory_bytes - 2 * 2 * 16 * 512 * tokens)
    assert moved[1] <= 1.5 * moved[0]


@pytest.mark.parametrize("tokens", [1, 3])
def test_large_scores(gpu, sparse_cache, make_batch, tokens: int) -> None:
    """Scores that rise by more than 2^16 from tile to tile: the reference of the weights must follow."""
    scene = Scene(sparse_cache, make_batch((300, tokens)), LayerKind.C128A, 16, gain=6.0)
    scene.query *= 8
    compare(gpu, scene, 1)


@pytest.mark.parametrize("sharing", [False, True], ids=["alone", "sharing"])
def test_padding_and_no_keys(gpu, sparse_cache, make_batch, sharing: bool) -> None:
    """A token at -1 gets zero, also with sinks of +-inf; nothing behind its slots is read (block 0 is NaN)."""
    kind = LayerKind.SWA if sharing else LayerKind.C4A
    batch = make_batch((30, 2))
    scene = Scene(sparse_cache, batch, kind, 16, 0 if sharing else 16)
    batch.positions[1] = -1
    for sink in (0.0, -math.inf, math.inf):
        scene.sink = torch.full((16,), sink)
        for splits in (1, 2):
            got = sparse_attention(*scene.arguments(), splits=splits)
            assert torch.equal(got[1], torch.zeros_like(got[1]))
            if sink == math.inf:
                assert torch.equal(got[0], torch.zeros_like(got[0]))
            else:
                assert relative_error(got[0], scene.expected()[0]) <= bound(splits)


@pytest.mark.parametrize("sharing", [False, True], ids=["alone", "sharing"])
def test_tokens_behind_the_last_request_get_zero(gpu, sparse_cache, make_batch, sharing: bool) -> None:
    batch = make_batch((30, 2))
    scene = Scene(sparse_cache, batch, LayerKind.SWA if sharing else LayerKind.C4A, 16, 0 if sharing else 16)
    arguments = scene.arguments()
    scene.batch.request[1] = 1  # there is one request
    got = sparse_attention(*arguments, splits=1)
    assert got[0].count_nonzero() > 0
    assert torch.equal(got[1], torch.zeros_like(got[1]))


@pytest.mark.parametrize("ids", [[-1] * 8, [10**6, -1, -(2**31), 2**31 - 1, 8, 9, -5, -1], []], ids=str)
def test_ids_that_are_not_visible_do_not_count(gpu, sparse_cache, make_batch, ids: list[int]) -> None:
    scene = Scene(sparse_cache, make_batch((31, 1)), LayerKind.C4A, 16, 8)
    scene.selected = torch.tensor([ids], dtype=torch.int32)
    compare(gpu, scene, 1)


def test_rows_of_a_foreign_writer(gpu, sparse_cache, make_batch) -> None:
    """A peer's -0 is the byte 0x80, a NaN to FNUZ hardware: the result is that of a zero, bit for bit."""
    scene = Scene(sparse_cache, make_batch((300, 1)), LayerKind.C4A, 16, 16)
    results = []
    for zero, foreign in ((0x00, False), (0x80, True)):
        for cache in (scene.window, scene.entries):
            cache.layout = replace(cache.layout, foreign=foreign)
            rows = cache.pages[:, : cache.layout.scale_offset].view(-1, cache.layout.rows_per_page, 576)
            rows[..., :448:7] = zero
        results.append(sparse_attention(*scene.arguments(), splits=1))
    assert results[0].isfinite().all()
    assert torch.equal(*results)
    assert gpu.launches[-1][0] == "sparse_attention_16" + "_foreign" * (gpu.arch == "gfx942")


def test_without_frequencies_nothing_is_turned(gpu, sparse_cache, make_batch) -> None:
    scene = Scene(sparse_cache, make_batch((31, 1)), LayerKind.C4A, 16, 8)
    scene.frequencies = None
    compare(gpu, scene, 1)


def test_other_dtypes_take_part_as_bf16(gpu, sparse_cache, make_batch) -> None:
    scene = Scene(sparse_cache, make_batch((31, 1)), LayerKind.C4A, 16, 8)
    expected = sparse_attention(*scene.arguments())
    scene.query = scene.query.float()
    got = sparse_attention(*scene.arguments())
    assert got.dtype == torch.float32
    assert torch.equal(got, expected.float())


def test_requests_that_are_dealt_to_one_l2(gpu, sparse_cache, make_batch) -> None:
    """Nine requests of two tokens with sets of their own: eight are dealt out in turn, the ninth is not."""
    scene = Scene(sparse_cache, make_batch(*[(23 + 3 * k, 2) for k in range(9)]), LayerKind.C4A, 16, 8)
    compare(gpu, scene, 1)


def test_the_reference_agrees(gpu, sparse_cache, make_batch) -> None:
    scene = Scene(sparse_cache, make_batch((140, 2)), LayerKind.C4A, 6, 16)
    got, expected = sparse_attention(*scene.arguments()), reference(*scene.arguments())
    assert relative_error(got, expected.double()) <= bound(7) + STEP


@pytest.mark.parametrize("sharing", [False, True], ids=["alone", "sharing"])
@pytest.mark.parametrize("schedule", ["reverse", "random:1"])
def test_waves_in_any_order_give_the_same_bits(gpu, sparse_cache, make_batch, schedule: str, sharing: bool) -> None:
    if sharing:
        scene = Scene(sparse_cache, make_batch((254, 2)), LayerKind.C128A, 16)
    else:
        scene = Scene(sparse_cache, make_batch((140, 1)), LayerKind.C4A, 16, 16)
    expected = sparse_attention(*scene.arguments())
    with cdna.device(gpu.arch, schedule=schedule):
        assert torch.equal(sparse_attention(*scene.arguments()), expected)


@pytest.mark.slow
@pytest.mark.parametrize("schedule", ["forward", "reverse", "random:1", "random:2"])
def test_64_rows_in_any_order_of_waves(gpu, sparse_cache, make_batch, schedule: str) -> None:
    """Rising scores too, so that waves meet on the slow path."""
    scene = Scene(sparse_cache, make_batch((500, 1)), LayerKind.C4A, 64, 64, gain=6.0)
    scene.query *= 8
    expected = sparse_attention(*scene.arguments(), splits=2)
    with cdna.device(gpu.arch, schedule=schedule):
        assert torch.equal(sparse_attention(*scene.arguments(), splits=2), expected)


def test_real_sizes_in_a_minute(gpu, sparse_cache, make_batch) -> None:
    """64 heads with 640 keys and 128 heads with 1,152 keys, one token each."""
    start = time.perf_counter()
    for heads, top_k in ((64, 512), (128, 1024)):
        scene = Scene(sparse_cache, make_batch((4 * top_k, 1)), LayerKind.C4A, heads, top_k)
        got = sparse_attention(*scene.arguments(), splits=1)
        assert relative_error(got, scene.expected()) <= bound()
    assert time.perf_counter() - start < 60


def test_an_empty_batch_launches_nothing(gpu, sparse_cache, make_batch) -> None:
    scene = Scene(sparse_cache, make_batch((31, 1)), LayerKind.C4A, 16, 8)
    arguments = list(scene.arguments())
    arguments[0], arguments[3], arguments[6] = scene.query[:0], make_batch((0, 0)), scene.selected[:0]
    assert sparse_attention(*arguments).shape == (0, 16, 512)
    assert gpu.launches == []


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (lambda a: a.__setitem__(0, a[0].transpose(0, 1)), "heads of a token must be contiguous"),
        (lambda a: a.__setitem__(6, a[6].repeat(1, 2)[:, ::2]), "ids of a token must be contiguous"),
        (lambda a: a.__setitem__(4, replace(a[4], layout=swa_layout(Encoding.FP32))), "takes flat, unrotated fp8 rows"),
        (lambda a: a.__setitem__(4, replace(a[4], pages=a[4].pages[:, 8:])), "multiples of 16 bytes"),
    ],
    ids=["strides", "ids", "encoding", "alignment"],
)
def test_what_is_not_supported_is_refused(gpu, sparse_cache, make_batch, spoil, message: str) -> None:
    arguments = list(Scene(sparse_cache, make_batch((31, 2)), LayerKind.C4A, 16, 8).arguments())
    spoil(arguments)
    with pytest.raises(ValueError, match=message):
        sparse_attention(*arguments)
    assert gpu.launches == []


@pytest.mark.parametrize(
    ("heads", "tokens", "splits", "ratio"),
    [
        (64, 1, 4, 2.5),
        (64, 8, 1, 1.6),
        (64, 64, 1, 1.2),
        (64, 4096, 1, 1.0),
        (8, 1, 6, 2.5),
        (8, 8, 6, 1.6),
        (8, 64, 3, 1.2),
    ],
)
def test_splits_fill_the_chip_within_their_bytes(heads: int, tokens: int, splits: int, ratio: float) -> None:
    """Flash TP1 and TP8, 640 keys; the second read of a key counts as a hit in L1."""
    row = swa_layout(Encoding.FP8)
    chosen = plan(arch.GFX942, tokens, heads, 1, True, 640, row)
    assert chosen.splits == splits
    query = 2 * heads * 512
    needed = 640 * row.row_bytes + 2 * query
    moved = needed + (splits - 1) * query + (splits > 1) * splits * 2 * (query + 8 * heads)
    assert moved / needed <= ratio


@pytest.mark.parametrize(
    ("heads", "tokens", "selected", "expected"),
    [
        (64, 1, True, (64, 1, 1)),
        (128, 1, True, (64, 1, 2)),
        (8, 1, True, (16, 1, 1)),
        (64, 4, False, (64, 1, 1)),  # no room for a second token
        (16, 4, True, (16, 1, 1)),  # sets of their own
        (16, 4, False, (64, 4, 1)),
        (16, 8, False, (64, 4, 1)),
        (16, 5, False, (16, 1, 1)),  # 80 rows, and 5 does not divide
        (8, 8, False, (64, 8, 1)),
        (8, 3, False, (32, 3, 1)),
    ],
)
def test_plan(heads: int, tokens: int, selected: bool, expected: tuple[int, int, int]) -> None:
    chosen = plan(arch.GFX950, 4096 * tokens, heads, tokens, selected, 640, swa_layout(Encoding.FP8))
    assert (chosen.rows, chosen.group_tokens, chosen.head_blocks) == expected
