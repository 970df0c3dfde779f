// Exact top-k of rows of scores: of each 8,192 scores by a workgroup that holds them in registers, then, for longer
// rows, of what those kept. Equal scores by lowest id; a score that is not finite is never taken; -0 equals 0.
#include "params.hpp"
#include "radix.hpp"

namespace dsv4::topk {

constexpr int kSegment = 8192;
constexpr int kGroups = 128;  // of a segment, 64 scores each
constexpr int kCandidates = 4096;
using Merged = Held<8>;  // 32 segments of 1,024 keys
using Maxima = Held<1>;  // 32 segments of 128

DSV4_DEVICE std::uint32_t ordered(float score) {
  const auto word = bits<std::uint32_t>(score == 0.0f ? 0.0f : score);
  const bool finite = (word & 0x7f800000u) != 0x7f800000u;
  return finite ? word ^ (static_cast<std::uint32_t>(static_cast<int>(word) >> 31) | 0x80000000u) : 0;
}

DSV4_DEVICE int visible(const Params& p, int row) {
  const int seen = (static_cast<int>(p.positions[row]) + 1) / p.ratio;
  return p.request[row] < p.requests ? min(seen, p.width) : 0;
}

using Segment = Held<kSegment / kThreads / 4>;

DSV4_DEVICE Segment load_segment(Global<const float> scores, int end) {
  Segment held;
  held.load((Global<const std::uint32_t>)scores, end);
#pragma unroll
  for (Keys4& four : held.key)
#pragma unroll
    for (int c = 0; c < 4; ++c) four[c] = ordered(bits<float>(four[c]));
  // what lies behind the end was loaded as 0.0
  if (end < kSegment) held.cut(end);
  return held;
}

// The highest keys of kGroups groups that make up a segment.
DSV4_DEVICE void store_maxima(const Segment& held, Global<std::uint32_t> maxima) {
  std::uint32_t highest = 0;
#pragma unroll
  for (const Keys4& four : held.key)
#pragma unroll
    for (int c = 0; c < 4; ++c) highest = four[c] > highest ? four[c] : highest;
#pragma unroll
  for (int distance = 1; distance < kThreads / kGroups; distance *= 2) {
    const std::uint32_t other = __builtin_amdgcn_ds_bpermute((lane() ^ distance) << 2, highest);
    highest = other > highest ? other : highest;
  }
  if (thread() % (kThreads / kGroups) == 0) maxima[thread() / (kThreads / kGroups)] = highest;
}

DSV4_DEVICE void pad(Global<std::int32_t> out, int kept, int k) {
  for (int slot = kept + thread(); slot < k; slot += kThreads) out[slot] = -1;
}

// Workgroup (row, segment). Short rows end here.
DSV4_KERNEL(kThreads, 4) topk_segment(Params p) {
  DSV4_SHARED Scratch scratch;
  const int row = __builtin_amdgcn_workgroup_id_x(), segment = __builtin_amdgcn_workgroup_id_y();
  const int seen = visible(p, row), start = segment * kSegment;
  if (segment > 0 && start >= seen) return;
  const int end = min(seen - start, kSegment);
  const auto held = load_segment(p.scores + row * p.stride + start, end);
  const Threshold threshold = end <= p.k ? Threshold{0, 0} : find_threshold(held, p.k, scratch);
  const Slots slots = find_slots(held, threshold, scratch);
  if (seen <= kSegment) {
    const auto out = p.out + static_cast<std::int64_t>(row) * p.k;
    take(held, threshold, slots, [&](int slot, int place, std::uint32_t) { out[slot] = place; });
    pad(out, slots.total, p.k);
    return;
  }
  const std::int64_t part = static_cast<std::int64_t>(row) * p.segments + segment;
  const auto keys = p.keys + part * p.k;
  const auto ids = p.ids + part * p.k;
  store_maxima(held, p.maxima + part * kGroups);
  take(held, threshold, slots, [&](int slot, int place, std::uint32_t key) {
    keys[slot] = key;
    ids[slot] = start + place;
  });
  for (int slot = slots.total + thread(); slot < p.k; slot += kThreads) keys[slot] = 0;
}

struct Candidates {
  union {
    std::uint32_t key[kCandidates];
    Keys4 keys[kCandidates / 4];
  };
  std::uint16_t place[kCandidates];
};

// The best of candidates in LDS.
template <class Put>
DSV4_DEVICE int take_candidates(const Candidates& candidates, int found, int k, Scratch& scratch, Put&& put) {
  static_assert(kCandidates == Held<1>::kKeys);
  Held<1> held;
  held.key[0] = Keys4{0, 0, 0, 0};
  if (4 * thread() < found) held.key[0] = candidates.keys[thread()];
  held.cut(found);
  const Threshold threshold = find_threshold(held, k, scratch);
  const Slots slots = find_slots(held, threshold, scratch);
  take(held, threshold, slots, [&](int slot, int place, std::uint32_t) { put(slot, candidates.place[place]); });
  return slots.total;
}

// Workgroup (row): the best of what the segments of a long row kept. k groups have their highest key at or above the
// k-th of the highest keys, so no key below that bound is among the best; what is left nearly always fits the LDS.
DSV4_KERNEL(kThreads, 4) topk_merge(Params p) {
  DSV4_SHARED Scratch scratch;
  DSV4_SHARED Candidates candidates;
  const int row = __builtin_amdgcn_workgroup_id_x();
  const int seen = visible(p, row);
  if (seen <= kSegment) return;
  const std::int64_t part = static_cast<std::int64_t>(row) * p.segments;
  const int parts = ceil_div(seen, kSegment), count = parts * p.k;
  const auto keys = p.keys + part * p.k;
  const auto ids = p.ids + part * p.k;
  const auto out = p.out + static_cast<std::int64_t>(row) * p.k;
  const auto put = [&](int slot, int place) { out[slot] = ids[place]; };

  Merged held;
  int found = kCandidates + 1;
  if (count <= Merged::kKeys) {
    held.load(keys, count);
    Maxima maxima;
    maxima.load(p.maxima + part * kGroups, min(parts * kGroups, Maxima::kKeys));  // fewer groups give a bound too
    const std::uint32_t bound = find_threshold(maxima, p.k, scratch).key;
    const Threshold open{bound, bound ? p.k : 0};  // of many that equal the bound the first k will do
    const Slots slots = find_slots(held, open, scratch);
    found = slots.total;
    if (found <= kCandidates)
      take(held, open, slots, [&](int slot, int place, std::uint32_t key) {
        candidates.key[slot] = key;
        candidates.place[slot] = static_cast<std::uint16_t>(place);
      });
    barrier();
  }
  int kept;
  if (found <= kCandidates) {
    kept = take_candidates(candidates, found, p.k, scratch, put);
  } else {
    const Stored stored{keys, count};
    const Threshold threshold = find_threshold(stored, p.k, scratch);
    const Slots slots = find_slots(stored, threshold, scratch);
    take(stored, threshold, slots, [&](int slot, int place, std::uint32_t) { put(slot, place); });
    kept = slots.total;
  }
  pad(out, kept, p.k);
}

}  // namespace dsv4::topk
