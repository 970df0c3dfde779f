"""Pages are the same on every architecture: what one writes the other reads, and every written byte is canonical."""

from collections.abc import Iterator
from contextlib import contextmanager

import pytest
import torch

from dsv4_rocm import arch
from dsv4_rocm.cache.layout import NOPE_DIM, Encoding, entries_layout, index_layout, state_layout, swa_layout
from dsv4_rocm.cache.rows import read_rows, write_rows
from dsv4_rocm.kernels.compress_insert.reference import compress_insert as reference_compress
from dsv4_rocm.kernels.compress_insert.triton_kernel import compress_insert
from dsv4_rocm.kernels.qnorm_rope_insert.triton_kernel import qnorm_rope_insert
from dsv4_rocm.kernels.rotary import rotary_frequencies
from dsv4_rocm.kernels.sparse_attention.triton_kernel import sparse_attention
from dsv4_rocm.model_spec import FLASH, LayerKind
from dsv4_rocm.testing import cdna
from dsv4_rocm.testing.cdna.program import ARCHES

PAIRS = [(writer, reader) for writer in ARCHES for reader in ARCHES if writer != reader]
NO_SINK = torch.full((8,), -torch.inf)
NOT_CANONICAL = torch.tensor([0x7F, 0x80, 0xFF], dtype=torch.uint8)
KINDS = {"c4a": LayerKind.C4A, "c128a": LayerKind.C128A}


@contextmanager
def on(name: str) -> Iterator[None]:
    with arch.override(name), cdna.device(name):
        yield


class Compressor:
    """Projections of one group, and the arguments of the op for a part of its tokens."""

    def __init__(self, make_cache, kind: LayerKind, layout, index: bool = False) -> None:
        generator = torch.Generator().manual_seed(0)
        self.kind, width = kind, kind.overlap * layout.channels
        self.values = torch.randn(kind.ratio, width, generator=generator)
        self.gates = torch.randn(kind.ratio, width, generator=generator) * 2
        self.ape = torch.randn(kind.ratio, width, generator=generator)
        self.norm = torch.rand(layout.channels, generator=generator).bfloat16() + 0.5
        self.state = make_cache(state_layout(kind, Encoding.FP8, index), tokens=kind.ratio)
        self.entries = make_cache(layout, tokens=256)

    def run(self, op, make_batch, first: int, count: int) -> None:
        part, batch = slice(first, first + count), make_batch((first, count))
        arguments = (self.values[part], self.gates[part], self.ape, self.norm, 1e-6)
        op(*arguments, rotary_frequencies(FLASH, self.kind), batch, self.state.at(batch), self.entries.at(batch))

    def entry(self) -> torch.Tensor:
        return read_rows(self.entries.layout, self.entries.pages, self.entries.rows(0, torch.tensor([0])))


@pytest.mark.parametrize(("writer", "reader"), PAIRS)
def test_window_keys(make_cache, make_batch, writer: str, reader: str) -> None:
    """The only key of a token comes back as it is: its weight is 1."""
    window, batch = make_cache(swa_layout(Encoding.FP8), tokens=64), make_batch((0, 1))
    query = torch.randn(1, 8, 512, generator=torch.Generator().manual_seed(1)).bfloat16()
    key = torch.randn(1, 512, generator=torch.Generator().manual_seed(2)).bfloat16() * 3
    frequencies, paged = rotary_frequencies(FLASH, LayerKind.SWA), window.at(batch)
    with on(writer):
        query = qnorm_rope_insert(query, key, batch.positions, frequencies, 1e-6, paged)
    with on(reader):
        output = sparse_attention(query, NO_SINK, 512**-0.5, batch, paged, None, None)
    stored = read_rows(window.layout, window.pages, window.rows(0, torch.tensor([0])))
    assert torch.equal(output[0].float(), stored.expand(8, -1))


@pytest.mark.parametrize(("writer", "reader"), PAIRS)
@pytest.mark.parametrize("name", KINDS)
def test_entries(make_cache, make_batch, name: str, writer: str, reader: str) -> None:
    """A query along the entry, beside window keys of zeros, gives the entry back: the others' weights vanish."""
    kind = KINDS[name]
    made = Compressor(make_cache, kind, entries_layout(kind, Encoding.FP8))
    with on(writer):
        made.run(compress_insert, make_batch, 0, kind.ratio)
    stored = made.entry()
    window, batch = make_cache(swa_layout(Encoding.FP8), tokens=128), make_batch((kind.ratio - 1, 1))
    rows = window.rows(0, torch.arange(kind.ratio))
    write_rows(window.layout, window.pages, rows, torch.zeros(kind.ratio, 512))
    query = (8 * stored).bfloat16().expand(1, 8, 512).contiguous()
    selected = torch.zeros(1, 8, dtype=torch.int32) - 1
    selected[0, 3] = 0
    with on(reader):
        caches = window.at(batch), made.entries.at(batch)
        output = sparse_attention(
            query, NO_SINK, 512**-0.5, batch, *caches, selected if kind is LayerKind.C4A else None
        )
    assert torch.equal(output[0].float(), stored.expand(8, -1))


@pytest.mark.parametrize(("writer", "reader"), PAIRS)
def test_states(make_cache, make_batch, writer: str, reader: str) -> None:
    """State of three tokens by one architecture, the fourth and the entry by the other: the reference's entry."""
    layout = index_layout(Encoding.FP8)
    made, expected = (Compressor(make_cache, LayerKind.C4A, layout, index=True) for _ in range(2))
    with on(writer):
        made.run(compress_insert, make_batch, 0, 3)
    with on(reader):
        made.run(compress_insert, make_batch, 3, 1)
    expected.run(reference_compress, make_batch, 0, 4)
    assert torch.equal(made.state.pages, expected.state.pages)
    got, wanted = made.entry(), expected.entry()
    assert (got != wanted).sum() <= 1  # fp32 rounding may carry a value over the middle between two codes
    torch.testing.assert_close(got, wanted, rtol=0.125, atol=0)


HOSTILE = torch.tensor([0.0, -0.0, 1e-30, -1e-30, -1e-7, 447.0, 449.0, -464.0, 1e30, -1e30, 3e-39, -1.0])


@pytest.mark.parametrize("name", ["swa", "c4a", "index"])
def test_every_byte_is_canonical(gpu, make_cache, make_batch, name: str) -> None:
    """Values that are zero, vanish or overflow beside others, in every order: no -0 and no NaN is written."""
    generator = torch.Generator().manual_seed(0)
    if name == "swa":
        cache, batch = make_cache(swa_layout(Encoding.FP8), tokens=64), make_batch((0, 16))
        key = HOSTILE[torch.randint(12, (16, 512), generator=generator)].bfloat16()
        query, frequencies = torch.ones(16, 8, 512).bfloat16(), rotary_frequencies(FLASH, LayerKind.SWA)
        qnorm_rope_insert(query, key, batch.positions, frequencies, 1e-6, cache.at(batch))
        rows = torch.arange(16)
    else:
        layout = entries_layout(LayerKind.C4A, Encoding.FP8) if name == "c4a" else index_layout(Encoding.FP8)
        made = Compressor(make_cache, LayerKind.C4A, layout, name == "index")
        made.norm = HOSTILE[torch.randint(12, (layout.channels,), generator=generator)]
        made.run(compress_insert, make_batch, 0, 4)
        cache, rows = made.entries, torch.arange(1)
    slot = cache.rows(0, rows)
    width = min(NOPE_DIM, cache.layout.channels)
    start = slot % cache.layout.rows_per_page * cache.layout.data_bytes
    written = cache.pages[(slot // cache.layout.rows_per_page)[:, None], start[:, None] + torch.arange(width)]
    assert not torch.isin(written, NOT_CANONICAL).any()
    assert ((written & 0x7F) >= 0x78).any()  # 256 and more: some fill the range
    assert (written == 0).any()
