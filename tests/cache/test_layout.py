"""Byte numbers of the caches, and the refusal of writers and readers that disagree."""

import dataclasses

import pytest
import torch

from dsv4_rocm.cache.layout import Encoding, TileOrder, entries_layout, index_layout, state_layout, swa_layout
from dsv4_rocm.cache.rows import read_rows
from dsv4_rocm.model_spec import LayerKind

LAYOUTS = {
    # layout, rows per page, row bytes, page bytes, padded page bytes
    "swa": (swa_layout(Encoding.FP8), 64, 584, 37_376, 37_440),
    "c4a": (entries_layout(LayerKind.C4A, Encoding.FP8), 64, 584, 37_376, 37_440),
    "c128a": (entries_layout(LayerKind.C128A, Encoding.FP8), 2, 584, 1_168, 1_728),
    "index": (index_layout(Encoding.FP8), 64, 132, 8_448, 8_640),
    "index-mxfp4": (index_layout(Encoding.MXFP4), 64, 68, 4_352, 4_608),
    "c4a-state": (state_layout(LayerKind.C4A, Encoding.FP8), 4, 8_192, 32_768, 32_832),
    "c128a-state": (state_layout(LayerKind.C128A, Encoding.FP8), 8, 4_096, 32_768, 32_832),
    "index-state": (state_layout(LayerKind.C4A, Encoding.FP8, index=True), 4, 2_048, 8_192, 8_640),
    "swa-bf16": (swa_layout(Encoding.BF16), 64, 1_024, 65_536, 65_536),
    "index-bf16": (index_layout(Encoding.BF16), 64, 256, 16_384, 16_384),
    "c4a-fp32": (entries_layout(LayerKind.C4A, Encoding.FP32), 64, 2_048, 131_072, 131_072),
}


@pytest.mark.parametrize("name", LAYOUTS)
def test_byte_numbers(name: str) -> None:
    layout, rows, row, page, padded = LAYOUTS[name]
    assert (layout.rows_per_page, layout.row_bytes, layout.page_bytes, layout.padded_page_bytes) == (
        rows,
        row,
        page,
        padded,
    )


def test_scales_follow_the_data_of_all_rows() -> None:
    assert index_layout(Encoding.FP8).scale_offset == 8_192
    assert swa_layout(Encoding.FP8).scale_offset == 64 * 576


@pytest.mark.parametrize(("row", "byte", "flat", "tiled"), [(0, 16, 16, 256), (1, 0, 128, 16), (17, 33, 2209, 2577)])
def test_data_offset(row: int, byte: int, flat: int, tiled: int) -> None:
    layout = index_layout(Encoding.FP8)
    assert layout.data_offset(row, byte) == flat
    assert dataclasses.replace(layout, order=TileOrder.TILED_16X16).data_offset(row, byte) == tiled


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"order": TileOrder.TILED_16X16}, "order flat against tiled-16x16"),
        ({"rotated": True}, "rotated False against True"),
        ({"foreign": True}, "foreign False against True"),
        ({"encoding": Encoding.BF16}, "encoding fp8 against bf16"),
    ],
)
def test_disagreement_is_refused_by_name(change: dict, named: str) -> None:
    writer = index_layout(Encoding.FP8)
    with pytest.raises(ValueError, match=f"compress_insert and indexer_select disagree .* {named}"):
        writer.require_same(dataclasses.replace(writer, **change), "compress_insert", "indexer_select")
    writer.require_same(index_layout(Encoding.FP8), "compress_insert", "indexer_select")


def test_a_flat_reader_refuses_a_tiled_page() -> None:
    layout = dataclasses.replace(index_layout(Encoding.FP8), order=TileOrder.TILED_16X16)
    with pytest.raises(ValueError, match="tiled-16x16 order cannot be read"):
        read_rows(layout, torch.zeros(1, layout.page_bytes, dtype=torch.uint8), torch.tensor([0]))


def test_rotating_one_side_only_loses_a_needle() -> None:
    """Why `rotated` is part of the layout: 4,096 random keys, one of them close to the query."""
    generator = torch.Generator().manual_seed(0)
    keys, query = torch.randn(4096, 128, generator=generator), torch.randn(128, generator=generator)
    keys[1234] = query * 0.7 + torch.randn(128, generator=generator) * 0.7
    hadamard = torch.ones(1, 1)
    while hadamard.shape[0] < 128:
        hadamard = torch.cat([torch.cat([hadamard, hadamard], 1), torch.cat([hadamard, -hadamard], 1)])
    hadamard = hadamard / 128**0.5

    def rank(query: torch.Tensor, keys: torch.Tensor) -> int:
        scores = keys @ query
        return int((scores > scores[1234]).sum()) + 1

    assert rank(query, keys) == rank(hadamard @ query, keys @ hadamard) == 1
    assert rank(query, keys @ hadamard) > 10
