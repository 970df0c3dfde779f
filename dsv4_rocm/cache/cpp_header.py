"""The C++ twin of the cache layouts: text of include/dsv4/cache_layout.hpp."""

from collections.abc import Iterator

from dsv4_rocm.cache.layout import BLOCK_TOKENS, FP8_GROUP, PAGE_ALIGNMENT, CacheLayout, Encoding, TileOrder
from dsv4_rocm.cache.segments import Segment, all_layouts, segments

_HEAD = """\
// The bytes of every cache. Generated from dsv4_rocm/cache/layout.py by `make docs`; do not edit.
#pragma once

#include <cstdint>

namespace dsv4::cache {

"""


def render() -> str:
    """The header: a struct for each cache in a namespace for each encoding."""
    constants = {"kBlockTokens": BLOCK_TOKENS, "kPageAlignment": PAGE_ALIGNMENT, "kFp8Group": FP8_GROUP}
    lines = [f"inline constexpr int {name} = {value};" for name, value in constants.items()]
    for encoding in Encoding:
        lines += ["", f"namespace {encoding.value} {{"]
        for name, layout in all_layouts(encoding).items():
            lines += ["", *_struct(name, layout)]
        lines += ["", f"}}  // namespace {encoding.value}"]
    return _HEAD + "\n".join(lines) + "\n\n}  // namespace dsv4::cache\n"


def _struct(name: str, layout: CacheLayout) -> Iterator[str]:
    if layout.order is not TileOrder.FLAT:
        raise ValueError(f"{name}: rows in {layout.order.value} order have no C++ twin yet")
    tokens = "a token" if layout.tokens_per_row == 1 else f"{layout.tokens_per_row} tokens"
    yield f"struct {name} {{  // a row for {tokens}"
    numbers = {
        "kChannels": layout.channels,
        "kTokensPerPage": layout.tokens_per_page,
        "kTokensPerRow": layout.tokens_per_row,
        "kRowsPerPage": layout.rows_per_page,
        "kWindow": layout.window or 0,
        "kDataBytes": layout.data_bytes,
        "kScaleBytes": layout.scale_bytes,
        "kScalesStart": layout.scale_offset,
        "kPageBytes": layout.page_bytes,
        "kPaddedPageBytes": layout.padded_page_bytes,
    }
    for key, value in numbers.items():
        note = "  // everything is kept" if (key, value) == ("kWindow", 0) else ""
        yield f"  static constexpr int {key} = {value};{note}"
    for segment in segments(layout):
        yield from _segment(segment)
    yield "  // Bytes from the start of a page to the data and to the scales of a row."
    yield "  static constexpr std::int64_t data_offset(int row) { return std::int64_t{row} * kDataBytes; }"
    yield "  static constexpr std::int64_t scale_offset(int row) {"
    yield "    return kScalesStart + std::int64_t{row} * kScaleBytes;"
    yield "  }"
    yield "};"
    yield f"static_assert({name}::scale_offset({name}::kRowsPerPage) == {name}::kPageBytes);"
    yield f"static_assert({name}::kPageBytes <= {name}::kPaddedPageBytes);"


def _segment(segment: Segment) -> Iterator[str]:
    constant = f"k{segment.name.capitalize()}"
    where = "scales" if segment.in_scales else "data"
    yield f"  static constexpr int {constant}Offset = {segment.offset};  // in a row's {where}: {segment.dtype}"
    yield f"  static constexpr int {constant}Count = {segment.count};"
