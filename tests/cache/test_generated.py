"""Files written from the layouts: up to date, valid C++, and true to what the writer of rows does."""

import shutil
import subprocess
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from dsv4_rocm.cache import generated, layout_docs
from dsv4_rocm.cache.layout import Encoding, TileOrder
from dsv4_rocm.cache.rows import encode_rows
from dsv4_rocm.cache.segments import all_layouts, segments

ROOT = Path(__file__).resolve().parents[2]
HEADER = "hip_kernels/dsv4_rocm_hip/include/dsv4/cache_layout.hpp"
LAYOUTS = {(encoding, name): layout for encoding in Encoding for name, layout in all_layouts(encoding).items()}
every_layout = pytest.mark.parametrize("key", LAYOUTS, ids=lambda key: f"{key[1]}-{key[0].value}")
COMPILER = shutil.which("c++") or shutil.which("clang++")


def test_committed_files_are_what_the_layouts_say():
    assert not generated.stale(ROOT), "run `make docs`"


def test_a_changed_layout_makes_them_stale(monkeypatch, tmp_path):
    assert sorted(generated.write(tmp_path)) == sorted(generated.FILES)
    assert not generated.stale(tmp_path)
    (tmp_path / HEADER).write_text((tmp_path / HEADER).read_text().replace("37440", "37376"))
    assert generated.stale(tmp_path) == [HEADER]
    assert generated.write(tmp_path) == [HEADER]
    monkeypatch.setattr("dsv4_rocm.cache.layout.PAGE_ALIGNMENT", 512)
    assert generated.stale(tmp_path) == list(generated.FILES)


def compiles(source, tmp_path):
    (tmp_path / "check.cpp").write_text(source)
    command = [COMPILER, "-std=c++17", "-Wall", "-Wextra", "-Werror", "-fsyntax-only", "-I", (ROOT / HEADER).parents[1]]
    return subprocess.run([*command, tmp_path / "check.cpp"], capture_output=True, text=True)


@pytest.mark.skipif(COMPILER is None, reason="no C++ compiler")
def test_header_has_the_numbers_of_the_layouts(tmp_path):
    checks = ["#include <dsv4/cache_layout.hpp>"]
    for (encoding, name), layout in LAYOUTS.items():
        struct = f"dsv4::cache::{encoding.value}::{name}"
        last = layout.rows_per_page - 1
        values = {
            "kChannels": layout.channels,
            "kTokensPerPage": layout.tokens_per_page,
            "kTokensPerRow": layout.tokens_per_row,
            "kRowsPerPage": layout.rows_per_page,
            "kWindow": layout.window or 0,
            "kScalesStart": layout.scale_offset,
            "kPageBytes": layout.page_bytes,
            "kPaddedPageBytes": layout.padded_page_bytes,
            f"data_offset({last})": layout.data_offset(last, 0),
            f"scale_offset({last})": layout.scale_offset + last * layout.scale_bytes,
        }
        values |= {f"k{one.name.capitalize()}Offset": one.offset for one in segments(layout)}
        values |= {f"k{one.name.capitalize()}Count": one.count for one in segments(layout)}
        checks += [f"static_assert({struct}::{member} == {value});" for member, value in values.items()]
    done = compiles("\n".join(checks) + "\n", tmp_path)
    assert done.returncode == 0, done.stderr
    wrong = compiles("\n".join([*checks, "static_assert(dsv4::cache::fp8::Index::kDataBytes == 127);"]), tmp_path)
    assert "static assertion failed" in wrong.stderr


def test_mxfp4_pairs_and_exponents_are_where_the_writer_puts_them():
    """Before rotation: a group of 32 channels is 16 bytes of pairs, the even channel low, under one exponent."""
    layout = replace(all_layouts(Encoding.MXFP4)["Index"], rotated=False)
    pairs, exponents = segments(layout)
    assert (pairs.count, exponents.count) == (64, 4)
    for channel in (0, 1, 31, 32, 127):
        bytes_moved, scales_moved, written = effect_of_a_channel(layout, channel)
        group = channel // 32
        assert scales_moved == {group}
        assert bytes_moved == set(range(group * 16, group * 16 + 16))
        assert written[channel // 2] >> 4 * (channel % 2) & 15 == 5  # 100 is 3 times 32, rounded


@pytest.mark.parametrize(
    "key", [key for key in LAYOUTS if not LAYOUTS[key].rotated], ids=lambda key: "-".join(map(str, key))
)
def test_segments_are_where_the_writer_puts_the_values(key):
    """Changing one channel changes bytes of its own value; of an e4m3 value also its scale, and so its group."""
    layout = LAYOUTS[key]
    parts = segments(layout)
    scale_part = next((one for one in parts if one.in_scales), None)
    first = 0
    for part in (one for one in parts if not one.in_scales):
        width = part.num_bytes // part.count
        for local in (0, 1, part.count // 2, part.count - 1):
            bytes_moved, scales_moved, written = effect_of_a_channel(layout, first + local)
            start = part.offset + local * width
            if part.dtype != "e4m3":
                assert bytes_moved
                assert bytes_moved <= set(range(start, start + width))
                assert not scales_moved
                continue
            group_size = part.count // scale_part.count
            group, scale_width = local // group_size, scale_part.num_bytes // scale_part.count
            assert scales_moved
            assert {byte // scale_width for byte in scales_moved} == {group}
            in_group = range(part.offset + group * group_size, part.offset + (group + 1) * group_size)
            assert bytes_moved <= set(in_group)
            assert start == max(in_group, key=lambda byte: written[byte])
        first += part.count
    assert first == layout.channels


def effect_of_a_channel(layout, channel):
    """Bytes of the data and of the scales that change when one of many ones becomes 100, and the new data."""
    values = torch.ones(2, layout.channels)
    values[1, channel] = 100.0
    data, scales = encode_rows(layout, values)
    moved = [set(torch.where(part[0] != part[1])[0].tolist()) for part in (data, scales)]
    return *moved, data[1].tolist()


def test_the_last_scale_byte_of_a_key_row_is_zero():
    layout = all_layouts(Encoding.FP8)["Swa"]
    pad = segments(layout)[-1]
    _, scales = encode_rows(layout, torch.randn(5, layout.channels))
    assert (pad.dtype, pad.offset) == ("zero", layout.scale_bytes - 1)
    assert not scales[:, pad.offset].any()


def test_a_row_that_nobody_described_is_refused():
    layout = all_layouts(Encoding.FP8)["Index"]
    with pytest.raises(ValueError, match="index rows in fp8: the data have 64 bytes, the known segments fill 128"):
        segments(replace(layout, data_bytes=64))


def test_a_tiled_layout_has_no_header(monkeypatch):
    from dsv4_rocm.cache import cpp_header

    tiled = replace(all_layouts(Encoding.FP8)["Index"], order=TileOrder.TILED_16X16)
    monkeypatch.setattr(cpp_header, "all_layouts", lambda encoding: {"Index": tiled})
    with pytest.raises(ValueError, match="Index: rows in tiled-16x16 order have no C"):
        cpp_header.render()


@every_layout
def test_document_shows_every_layout(key):
    encoding, _ = key
    layout = LAYOUTS[key]
    text = layout_docs.render()
    section = text[text.index(f"## {encoding.value} ") :]
    (row,) = [line for line in section[: section.index("\n\nA row")].splitlines() if f"| {layout.kind.value} |" in line]
    cells = [cell.strip() for cell in row.strip("|").split("|")]
    assert cells[3:6] == [str(layout.tokens_per_page), str(layout.rows_per_page), f"{layout.row_bytes:,}"]
    assert cells[-2:] == [f"{layout.page_bytes:,}", f"{layout.padded_page_bytes:,}"]
