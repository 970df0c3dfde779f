"""qnorm_rope_insert: the norm, the rotation and the rows that land in the cache."""

import torch

from dsv4_rocm.cache.addressing import PagedCache
from dsv4_rocm.cache.layout import Encoding, swa_layout
from dsv4_rocm.cache.rows import read_rows
from dsv4_rocm.kernels.qnorm_rope_insert.reference import qnorm_rope_insert
from dsv4_rocm.kernels.rotary import rotary_frequencies
from dsv4_rocm.model_spec import FLASH, LayerKind

FREQUENCIES = rotary_frequencies(FLASH, LayerKind.C4A)


def rotated(x: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
    """Complex multiplication of the last 64 channels, pairs as (real, imaginary)."""
    angle = (positions.float()[:, None] * FREQUENCIES).double()
    turn = torch.polar(torch.ones_like(angle), angle)
    pairs = torch.view_as_complex(x[..., -64:].double().unflatten(-1, (32, 2)).contiguous())
    turned = torch.view_as_real(pairs * turn.view(len(positions), *[1] * (x.ndim - 2), 32)).flatten(-2)
    return torch.cat([x[..., :-64].double(), turned], -1)


def test_queries_and_keys(make_cache, make_batch) -> None:
    generator = torch.Generator().manual_seed(0)
    batch = make_batch((0, 5), (1_048_570, 3))
    window = make_cache(swa_layout(Encoding.FP32), requests=1, tokens=64)
    query, key = torch.randn(8, 4, 512, generator=generator), torch.randn(8, 512, generator=generator)
    slots = torch.arange(8) + 64
    got = qnorm_rope_insert(
        query, key, batch.positions, FREQUENCIES, 1e-6, PagedCache(window.layout, window.pages, window.table, slots)
    )
    normed = query.double() / (query.double().square().mean(-1, keepdim=True) + 1e-6).sqrt()
    torch.testing.assert_close(got.double(), rotated(normed, batch.positions), rtol=1e-5, atol=2e-6)
    stored = read_rows(window.layout, window.pages, slots)
    torch.testing.assert_close(stored.double(), rotated(key, batch.positions), rtol=1e-5, atol=2e-6)


def test_padding_writes_nothing(make_cache, make_batch) -> None:
    batch = make_batch((3, 2))
    window = make_cache(swa_layout(Encoding.FP8), tokens=64)
    before = window.pages.clone()
    slots = torch.full((2,), -1)
    paged = PagedCache(window.layout, window.pages, window.table, slots)
    query = qnorm_rope_insert(torch.ones(2, 4, 512), torch.ones(2, 512), batch.positions, FREQUENCIES, 1e-6, paged)
    assert torch.equal(window.pages, before)
    assert query.isfinite().all()
