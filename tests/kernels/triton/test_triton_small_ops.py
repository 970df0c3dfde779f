"""The memory-bound ops in Triton against the reference, on emulated gfx942 and gfx950."""

import pytest
import torch

from dsv4_rocm.cache.addressing import PagedCache
from dsv4_rocm.cache.layout import Encoding, index_layout, swa_layout
from dsv4_rocm.kernels.indexer_query import tuning as query_tuning
from dsv4_rocm.kernels.indexer_query.reference import indexer_query as reference_indexer_query
from dsv4_rocm.kernels.indexer_query.triton_kernel import indexer_query
from dsv4_rocm.kernels.inv_rope_quant.reference import inv_rope_quant as reference_inv_rope
from dsv4_rocm.kernels.inv_rope_quant.triton_kernel import inv_rope_quant
from dsv4_rocm.kernels.qnorm_rope_insert.reference import qnorm_rope_insert as reference_qnorm
from dsv4_rocm.kernels.qnorm_rope_insert.triton_kernel import qnorm_rope_insert
from dsv4_rocm.kernels.rotary import rotary_frequencies
from dsv4_rocm.model_spec import FLASH, LayerKind
from dsv4_rocm.testing.bench import budgets

FREQUENCIES = rotary_frequencies(FLASH, LayerKind.SWA)
POSITIONS = torch.tensor([0, 1, 127, 65_537, 1_048_575, -1])
FLIPS = 2.0**-10  # share of values that fp32 rounding may carry over the middle between two codes
HEADS = {"flash-tp8": 8, "flash-tp1": 64, "odd-heads": 6}


def bf16_steps(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """Distance in representable bf16 values."""
    codes = (x.contiguous().view(torch.int16).int() for x in (a, b))
    left, right = (torch.where(code < 0, -32768 - code, code) for code in codes)
    return (left - right).abs()


def byte_steps(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """Distance in representable e4m3 values."""
    left, right = (torch.where(x >= 128, 128 - x.int(), x.int()) for x in (a, b))
    return (left - right).abs()


def require_rare_steps(steps: torch.Tensor) -> None:
    assert steps.max() <= 1
    assert steps.sum() <= 1 + FLIPS * steps.numel()


def draw(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed)).bfloat16()


def window(make_cache, slots: torch.Tensor) -> PagedCache:
    cache = make_cache(swa_layout(Encoding.FP8), tokens=128)
    return PagedCache(cache.layout, cache.pages, cache.table, slots)


@pytest.mark.parametrize("heads", HEADS.values(), ids=HEADS)
def test_qnorm_rope_insert(gpu, make_cache, heads: int) -> None:
    query, key = draw(6, heads, 512) * 3, draw(6, 512, seed=1)
    key[1] = 0
    slots = torch.tensor([64, 127, -1, 65, 191, -1])
    ours, theirs = window(make_cache, slots), window(make_cache, slots)
    got = qnorm_rope_insert(query, key, POSITIONS, FREQUENCIES, 1e-6, ours)
    expected = reference_qnorm(query, key, POSITIONS, FREQUENCIES, 1e-6, theirs)
    require_rare_steps(bf16_steps(got, expected))
    require_rare_steps(byte_steps(ours.pages, theirs.pages))
    scales = swa_layout(Encoding.FP8).scale_offset
    assert torch.equal(ours.pages[:, scales:], theirs.pages[:, scales:])
    assert len(gpu.launches) == 1


@pytest.mark.parametrize("heads", HEADS.values(), ids=HEADS)
def test_inv_rope_quant(gpu, heads: int) -> None:
    output = draw(6, heads, 520)[..., :512]  # rows of a wider matrix
    output[0, 0, 128:256] = 0
    got = inv_rope_quant(output, POSITIONS, FREQUENCIES, heads // 2)
    expected = reference_inv_rope(output, POSITIONS, FREQUENCIES, heads // 2)
    require_rare_steps(byte_steps(got.values, expected.values))
    assert not (got.values == 0x80).any()
    assert torch.equal(got.scales, expected.scales)
    assert len(gpu.launches) == 1


@pytest.mark.parametrize("encoding", [Encoding.FP8, Encoding.MXFP4], ids=["fp8", "mxfp4-rotated"])
@pytest.mark.parametrize("heads", HEADS.values(), ids=HEADS)
def test_indexer_query(gpu, heads: int, encoding: Encoding) -> None:
    query, weights = draw(6, heads, 128), torch.randn(6, heads, generator=torch.Generator().manual_seed(2))
    query[0, 0] = 0
    index = index_layout(encoding)
    got = indexer_query(query, weights, POSITIONS, FREQUENCIES, index)
    expected = reference_indexer_query(query, weights, POSITIONS, FREQUENCIES, index)
    require_rare_steps(byte_steps(got.values, expected.values))
    assert not (got.values == 0x80).any()
    assert torch.equal(got.weights, expected.weights)
    assert len(gpu.launches) == 1


def test_window_keys_of_many_tokens(gpu, make_cache) -> None:
    """A program stores the keys of several tokens; those without a slot and those past the end store nothing."""
    tokens = 9
    key, positions = draw(tokens, 512, seed=3), torch.arange(tokens) + 1_048_567
    slots = torch.tensor([70, -1, 64, 191, 65, 127, -1, 128, 66])
    ours, theirs = window(make_cache, slots), window(make_cache, slots)
    query = draw(tokens, 1, 512)
    qnorm_rope_insert(query, key, positions, FREQUENCIES, 1e-6, ours)
    reference_qnorm(query, key, positions, FREQUENCIES, 1e-6, theirs)
    require_rare_steps(byte_steps(ours.pages, theirs.pages))


def test_indexer_query_of_many_tokens(gpu, monkeypatch: pytest.MonkeyPatch) -> None:
    """From some tokens on a program takes all heads of one."""
    monkeypatch.setattr(query_tuning, "MANY_TOKENS", 2)
    query, weights, index = draw(2, 64, 128), torch.ones(2, 64), index_layout(Encoding.MXFP4)
    got = indexer_query(query, weights, POSITIONS[3:5], FREQUENCIES, index)
    expected = reference_indexer_query(query, weights, POSITIONS[3:5], FREQUENCIES, index)
    require_rare_steps(byte_steps(got.values, expected.values))
    assert torch.equal(got.weights, expected.weights)


def test_empty_batches_launch_nothing(gpu, make_cache) -> None:
    nothing, positions = torch.zeros(0, 8, 512).bfloat16(), POSITIONS[:0]
    rows = window(make_cache, POSITIONS[:0])
    assert qnorm_rope_insert(nothing, nothing[:, 0], positions, FREQUENCIES, 1e-6, rows).shape == (0, 8, 512)
    assert inv_rope_quant(nothing, positions, FREQUENCIES, 2).values.shape == (0, 2, 2048)
    index = index_layout(Encoding.FP8)
    assert indexer_query(nothing[..., :128], torch.zeros(0, 8), positions, FREQUENCIES, index).weights.shape == (0, 8)
    assert gpu.launches == []


def test_what_is_not_supported_is_refused(gpu, make_cache) -> None:
    query, slots = draw(1, 8, 512), torch.tensor([64])
    cache = make_cache(swa_layout(Encoding.BF16), tokens=128)
    rows = PagedCache(cache.layout, cache.pages, cache.table, slots)
    with pytest.raises(ValueError, match="takes flat, unrotated fp8 rows, got flat bf16 swa rows"):
        qnorm_rope_insert(query, query[:, 0], POSITIONS[:1], FREQUENCIES, 1e-6, rows)
    with pytest.raises(ValueError, match="query must be contiguous in its last dimension"):
        indexer_query(
            draw(1, 128, 8).transpose(1, 2), torch.zeros(1, 8), POSITIONS[:1], FREQUENCIES, index_layout(Encoding.FP8)
        )


ARCHES = ["gfx942", "gfx950", "sm90", "sm100"]


@pytest.mark.parametrize("name", ARCHES)
def test_memory_is_accessed_in_whole_pieces(build, make_cache, name: str) -> None:
    """No byte and no 16-bit value goes alone, also not of the window's rows and of their scales."""
    query, key, positions = draw(4, 64, 512), draw(4, 512), POSITIONS[:4]
    rows = window(make_cache, torch.tensor([64, 65, 66, -1]))

    def launch() -> None:
        qnorm_rope_insert(query, key, positions, FREQUENCIES, 1e-6, rows)
        for encoding in (Encoding.FP8, Encoding.MXFP4):
            indexer_query(key.view(4, 4, 128), torch.zeros(4, 4), positions, FREQUENCIES, index_layout(encoding))

    built = build(name, launch)
    assert len(built) == 3
    for kernel in built:
        figures = budgets.figures(kernel)
        assert all(figures.get(field, 0) == 0 for field in ("spills", "scratch", "stack"))
        if name.startswith("gfx"):
            assert kernel.count(r"(global|buffer)_load_dwordx4")
            assert kernel.count(r"(global|buffer)_store_dwordx[24]")
            assert kernel.count(r"(global|buffer)_(load|store)_(u?byte|u?short|sbyte|sshort)") == 0
        else:
            assert kernel.count(r"ld\.global\.\S*v4\.b32")
            assert kernel.count(r"(ld|st)\.global\.\S*[bus](8|16)\b") == 0


def test_the_host_is_refused() -> None:
    with pytest.raises(ValueError, match="need an AMD or NVIDIA GPU, not host"):
        inv_rope_quant(draw(1, 8, 512), POSITIONS[:1], FREQUENCIES, 2)
