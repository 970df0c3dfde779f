// Which keys a workgroup reads, and where their rows lie.
#pragma once

#include "dsv4/cache_layout.hpp"
#include "dsv4/device.hpp"
#include "params.hpp"

namespace dsv4::sparse_attention {

using cache::fp8::C128aEntries;
using cache::fp8::C4aEntries;
using cache::fp8::Swa;
using Row = Swa;  // rows of the three caches hold the same bytes, only pages differ
static_assert(Row::kDataBytes == C4aEntries::kDataBytes && Row::kDataBytes == C128aEntries::kDataBytes);
static_assert(Row::kScaleBytes == C4aEntries::kScaleBytes && Row::kScaleBytes == C128aEntries::kScaleBytes);
static_assert(Row::kRopeOffset == C4aEntries::kRopeOffset && Row::kRopeOffset == C128aEntries::kRopeOffset);

inline constexpr int kTileKeys = 32;

// The keys of the tokens of a workgroup: a span of positions and the entries closed before the last of them. A tile
// holds keys of one cache; tiles begin .. end - 1 are this split's.
struct KeyRange {
  int request = 0;
  int first = 0, last = -1;  // positions
  int entries = 0;           // entries that the last token sees
  int window_tiles = 0, tiles = 0;
  int begin = 0, end = 0;

  // Tiles past the end are asked for ahead of time: none of their keys counts, and all read the last window row.
  DSV4_MEMBER bool in_window(int tile) const { return tile < window_tiles || tile >= end; }
};

DSV4_DEVICE int position_of(const Params &params, int token) {
  return params.request[token] < params.requests ? static_cast<int>(params.positions[token]) : -1;
}

DSV4_DEVICE int visible_entries(const Params &params, int position) {
  if (params.entry_tokens == 0) return 0;
  const int end = position + 1;
  return params.entry_tokens == C4aEntries::kTokensPerRow ? end / C4aEntries::kTokensPerRow
                                                          : end / C128aEntries::kTokensPerRow;
}

DSV4_DEVICE int window_first(int position) { return max(position - (Swa::kWindow - 1), 0); }

// `tokens` neighbours of one request; padding among them sees nothing.
DSV4_DEVICE KeyRange key_range(const Params &params, int token, int tokens, int split) {
  KeyRange range;
  int lowest = 0x7fffffff;
  for (int i = 0; i < tokens; ++i) {
    const int position = position_of(params, token + i);
    if (position < 0) continue;
    lowest = min(lowest, position);
    range.last = max(range.last, position);
    range.request = static_cast<int>(params.request[token + i]);
  }
  if (range.last < 0) return range;
  range.first = window_first(lowest);
  range.entries = visible_entries(params, range.last);
  const int places = params.selected && range.entries > 0 ? params.top_k : range.entries;
  range.window_tiles = ceil_div(range.last + 1 - range.first, kTileKeys);
  range.tiles = range.window_tiles + ceil_div(places, kTileKeys);
  const int share = max((range.tiles * params.splits_reciprocal + 0xffff) >> 16, params.fewest_tiles);
  range.begin = min(split * share, range.tiles);
  range.end = min(range.begin + share, range.tiles);
  return range;
}

// Finds the row of one key a lane in three steps, each with a load that the next one waits for: id, block, address. It
// holds no reference to what it reads: a class that points into itself would stay in memory.
class RowFinder {
 public:
  std::uint64_t row, exponents;  // addresses
  float bias;                    // 0, or -inf for a key that does not count

  // A position or an entry; -1 where there is none.
  DSV4_MEMBER void load_id(const Params &params, const KeyRange &range, int token, int tile, int key) {
    const bool in_window = range.in_window(tile);
    const int place = (in_window ? tile : tile - range.window_tiles) * kTileKeys + key;
    next_ = tile < range.end ? place + (in_window ? range.first : 0) : -1;
    if (params.selected && !in_window)
      next_ = place < params.top_k ? params.selected[std::int64_t{token} * params.selected_stride + place] : -1;
  }

  // A missing key reads the last visible row, which needs no mask and holds no NaN.
  DSV4_MEMBER void load_block(const Params &params, const KeyRange &range, int tile) {
    const bool in_window = range.in_window(tile);
    const int last = in_window ? range.last : range.entries - 1;
    known_ = static_cast<std::uint32_t>(next_) <= static_cast<std::uint32_t>(last);
    id_ = known_ ? next_ : last;
    const auto table = in_window ? params.window_table : params.entries_table;
    const int columns = in_window ? params.window_columns : params.entries_columns;
    block_ = table[std::int64_t{range.request} * columns + (id_ >> page_shift(params, in_window))];
  }

  DSV4_MEMBER void find_address(const Params &params, const KeyRange &range, int tile) {
    const bool in_window = range.in_window(tile);
    const auto pages = in_window ? params.window : params.entries;
    const std::int64_t stride = in_window ? params.window_stride : params.entries_stride;
    const int inside = id_ & ((1 << page_shift(params, in_window)) - 1);
    const auto page = reinterpret_cast<std::uint64_t>(pages) + static_cast<std::uint32_t>(block_) * stride;
    row = page + inside * Row::kDataBytes;
    exponents = page + scales_start(params, in_window) + inside * Row::kScaleBytes;
    bias = known_ ? 0.0f : -__builtin_inff();
  }

 private:
  int next_, id_, block_;
  bool known_;

  DSV4_MEMBER static bool pages_of_64(const Params &params, bool in_window) {
    static_assert(Swa::kRowsPerPage == C4aEntries::kRowsPerPage && Swa::kScalesStart == C4aEntries::kScalesStart);
    return in_window || params.entry_tokens == C4aEntries::kTokensPerRow;
  }
  DSV4_MEMBER static int page_shift(const Params &params, bool in_window) {
    return pages_of_64(params, in_window) ? log2_of(Swa::kRowsPerPage) : log2_of(C128aEntries::kRowsPerPage);
  }
  DSV4_MEMBER static int scales_start(const Params &params, bool in_window) {
    return pages_of_64(params, in_window) ? Swa::kScalesStart : C128aEntries::kScalesStart;
  }
};

}  // namespace dsv4::sparse_attention
