// Arguments of the sparse_attention kernels. The host lays the same struct out from `hip_binding.py`.
#pragma once

#include "dsv4/device.hpp"

namespace dsv4::sparse_attention {

inline constexpr int kChannels = 512;

struct Params {
  Global<const bf16> query;                // [tokens, heads, 512], tokens `query_stride` values apart
  Global<const float> sink;                // [heads], logits
  Global<const std::int64_t> positions;    // [tokens], -1 for padding
  Global<const std::int64_t> request;      // [tokens], `requests` and more for padding
  Global<const std::uint8_t> window;       // pages of cache::fp8::Swa, `window_stride` bytes apart
  Global<const std::int32_t> window_table;  // [requests, window_columns], a page each
  Global<const std::uint8_t> entries;       // pages of C4aEntries or C128aEntries, `entries_stride` bytes apart
  Global<const std::int32_t> entries_table;  // [requests, entries_columns], a page each
  Global<const std::int32_t> selected;       // [tokens, top_k], entry ids; null: all visible entries
  Global<const float> frequencies;           // [32], to turn the result back; null: leave it
  Global<bf16> out;                          // [splits, tokens, heads, 512]; with splits, of the split's keys only
  Global<float2> parts;  // [splits, tokens, heads], {reference, total} of the weights; null: one split
  std::int64_t query_stride;
  std::int64_t window_stride;
  std::int64_t entries_stride;
  std::int32_t window_columns;
  std::int32_t entries_columns;
  std::int32_t selected_stride;
  std::int32_t top_k;
  std::int32_t entry_tokens;  // 4 or 128 tokens an entry, 0 without entries
  std::int32_t requests;
  std::int32_t tokens;
  std::int32_t heads;
  std::int32_t group_tokens;      // tokens of a workgroup, all of one request
  std::int32_t request_groups;    // such groups of a request, where all have the same number, else 1
  std::int32_t heads_reciprocal;  // ceil(2^16 / heads)
  std::int32_t splits_reciprocal;  // ceil(2^16 / splits)
  std::int32_t fewest_tiles;       // of 32 keys, that a split takes
  float scale;
};

struct CombineParams {
  Global<const bf16> partial;            // [splits, tokens, heads, 512], undefined where the total is 0
  Global<const float2> parts;            // [splits, tokens, heads], {reference, total}
  Global<const float> sink;              // [heads], logits
  Global<const std::int64_t> positions;  // [tokens]
  Global<const float> frequencies;       // [32], or null
  Global<bf16> out;                      // [tokens, heads, 512]
  std::int32_t splits;
  std::int32_t tokens;
  std::int32_t heads;
};

}  // namespace dsv4::sparse_attention
