"""Rows written and read back in packed pools: values, bytes, neighbours, addresses."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from dsv4_rocm.cache.layout import CacheLayout, Encoding, entries_layout, index_layout, state_layout, swa_layout
from dsv4_rocm.cache.rows import encode_rows, read_rows, write_rows, zero_pages
from dsv4_rocm.model_spec import LayerKind
from dsv4_rocm.number_formats import hadamard

ALL = {
    "swa-fp8": swa_layout(Encoding.FP8),
    "c128a-fp8": entries_layout(LayerKind.C128A, Encoding.FP8),
    "index-fp8": index_layout(Encoding.FP8),
    "index-mxfp4": index_layout(Encoding.MXFP4),
    "swa-bf16": swa_layout(Encoding.BF16),
    "index-bf16": index_layout(Encoding.BF16),
    "c4a-fp32": entries_layout(LayerKind.C4A, Encoding.FP32),
    "c4a-state": state_layout(LayerKind.C4A, Encoding.FP8),
}
POISON = 0xFF  # an fp32 NaN, an e4m3 NaN and an e8m0 NaN


def pool(layout: CacheLayout, blocks: int, stride: int | None = None) -> torch.Tensor:
    stride = stride or layout.padded_page_bytes + 64
    memory = torch.full((blocks * stride,), POISON, dtype=torch.uint8)
    return memory.as_strided((blocks, layout.page_bytes), (stride, 1))


def values(layout: CacheLayout, rows: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(rows, layout.channels, generator=torch.Generator().manual_seed(seed))


def stored(layout: CacheLayout, x: torch.Tensor) -> torch.Tensor:
    return hadamard(x) if layout.rotated else x


def tolerance(layout: CacheLayout, x: torch.Tensor) -> torch.Tensor:
    if layout.encoding is Encoding.MXFP4:
        scale = x.unflatten(-1, (-1, 32)).abs().amax(-1, keepdim=True) * 2 / 6
        return torch.maximum(x.abs() / 4, (scale / 4).expand(-1, -1, 32).flatten(-2))
    if layout.encoding is Encoding.FP32:
        return torch.zeros_like(x)
    half_step = 2.0**-8  # of bf16, which fp8 keys pass through
    if layout.encoding is Encoding.FP8:
        half_step += 2.0**-4
    smallest_step = 2.0**-9 * 2.0**-6  # of subnormal e4m3 values at the scale of these rows
    return x.abs() * half_step + smallest_step


@pytest.mark.parametrize("name", ALL)
def test_what_is_written_is_read(name: str) -> None:
    layout = ALL[name]
    pages, x = pool(layout, 5), values(layout, 6)
    slots = torch.tensor([4, 0, 1, 2, 3, 9]) % (5 * layout.rows_per_page)
    write_rows(layout, pages, slots, x)
    got, x = read_rows(layout, pages, slots), stored(layout, x)
    assert ((got - x).abs() <= tolerance(layout, x)).all()
    assert torch.equal(read_rows(layout, pages, slots[3:4])[0], got[3]), "one row alone reads as in a batch"


@pytest.mark.parametrize("name", [name for name, layout in ALL.items() if not layout.rotated])
def test_reading_and_writing_again_changes_no_byte(name: str) -> None:
    layout = ALL[name]
    pages, slots = pool(layout, 2), torch.tensor([1, 0])
    write_rows(layout, pages, slots, values(layout, 2))
    before = pages.clone()
    write_rows(layout, pages, slots, read_rows(layout, pages, slots))
    assert torch.equal(pages, before)


@pytest.mark.parametrize("name", ALL)
def test_a_negative_slot_writes_nothing(name: str) -> None:
    layout = ALL[name]
    pages = pool(layout, 2)
    write_rows(layout, pages, torch.tensor([-1, -1]), values(layout, 2))
    assert (pages == POISON).all()


@given(st.integers(0, 2**31), st.sampled_from(["swa-fp8", "index-fp8", "c128a-fp8"]), st.floats(-30, 30))
@settings(max_examples=60, deadline=None)
def test_fp8_writers_are_canonical(seed: int, name: str, log_scale: float) -> None:
    layout = ALL[name]
    data, _ = encode_rows(layout, values(layout, 4, seed) * 2.0**log_scale)
    e4m3 = data[:, : 448 if layout.channels == 512 else 128]
    assert not torch.isin(e4m3, torch.tensor([0x7F, 0x80, 0xFF], dtype=torch.uint8)).any()


def test_main_row_bytes() -> None:
    """One row by hand: 448 e4m3, 64 bf16, seven e8m0 exponents and a zero."""
    row = torch.zeros(1, 512)
    row[0, 0], row[0, 64], row[0, 448] = 1.0, 100.0, 1.0
    data, scales = encode_rows(ALL["swa-fp8"], row)
    assert data.shape == (1, 576)
    assert scales.tolist() == [[127 - 8, 127 - 2, *[127 - 22] * 5, 0]]
    assert data[0, 0].item() == 0x78  # 1.0 / 2^-8 = 256
    assert data[0, 448:450].tolist() == [0x80, 0x3F]  # 1.0 in bf16


def test_physical_row_in_a_packed_span() -> None:
    """A pool whose pages of 64 rows start 256 rows apart: slot 64 + 3 is physical row 256 + 3."""
    layout = ALL["c4a-fp32"]
    pages = pool(layout, 3, stride=256 * layout.row_bytes)
    write_rows(layout, pages, torch.tensor([64 + 3]), torch.ones(1, 512))
    rows = pages.as_strided((3 * 256 - 192, layout.row_bytes), (layout.row_bytes, 1)).view(torch.float32)
    assert (rows == 1.0).all(1).nonzero().flatten().tolist() == [256 + 3]


def test_zeroing_a_block_touches_its_rows_only() -> None:
    """Four caches share blocks of 149,760 bytes; zeroing one block of each leaves padding and neighbours alone."""
    layout, blocks, stride = ALL["swa-fp8"], 100, 4 * 37_440
    memory = torch.full((blocks * stride,), POISON, dtype=torch.uint8)
    for cache in range(4):
        pages = memory.as_strided((blocks, layout.page_bytes), (stride, 1), cache * layout.padded_page_bytes)
        zero_pages(layout, pages, torch.tensor([7]))
    zeros = (memory == 0).nonzero().flatten()
    starts = [7 * stride + offset for offset in (0, 37_440, 74_880, 112_320)]
    assert zeros.tolist() == [start + byte for start in starts for byte in range(37_376)]


def test_addresses_pass_32_bits() -> None:
    """Block 2,143 of a Flash pool starts past 2^31; the view is of memory that is never touched elsewhere."""
    layout, stride = ALL["index-fp8"], 1_002_240
    assert 2143 * stride > 2**31 > 2142 * stride
    memory = torch.empty(2144 * stride, dtype=torch.uint8)  # reserved by the system, touched in two pages only
    pages = memory.as_strided((2144, layout.page_bytes), (stride, 1))
    x = values(layout, 2)
    slots = torch.tensor([2143, 2142]) * layout.rows_per_page
    write_rows(layout, pages, slots, x)
    assert ((read_rows(layout, pages, slots) - x).abs() <= tolerance(layout, x)).all()
    last = memory[2143 * stride : 2143 * stride + layout.data_bytes]
    assert torch.equal(last, encode_rows(layout, x[:1])[0][0])
