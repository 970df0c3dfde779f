// Exact selection of the k largest of many 32-bit keys by one workgroup: the threshold by radix, then the ids in order.
// 0 is no key. Wave w sees keys w * n / 16 .. of n, a lane four neighbours at a time, so order by id is order by wave,
// step and lane.
#pragma once

#include <dsv4/lanes.hpp>

namespace dsv4::topk {

constexpr int kThreads = 1024;
constexpr int kWaves = kThreads / 64;
constexpr int kStep = 256;  // keys of a wave at a time
constexpr int kBins = 2048;
constexpr int kFewLanes = 16;
constexpr int kPasses = 3;  // of 11, 11 and 10 bits
using Keys4 = Vector<std::uint32_t, 4>;

struct Scratch {
  union {
    int bins[kBins];
    int2 pairs[kThreads];
  };
  int above[kWaves];
  int equal[kWaves];
  int bin[kPasses];         // what each pass found: the bin of the k-th key
  int better[kPasses];      // and how many keys are in bins above
};

// Everything above `key` is taken, and the first `ties` keys that equal it.
struct Threshold {
  std::uint32_t key;
  int ties;
};

DSV4_DEVICE Keys4 load_keys(Global<const std::uint32_t> keys, int step, int end) {
  typedef std::uint32_t Unaligned __attribute__((ext_vector_type(4), aligned(4)));
  const int first = step + 4 * lane();
  if (step + kStep <= end) return *(Global<const Unaligned>)(keys + first);
  Keys4 out = {0, 0, 0, 0};
#pragma unroll
  for (int c = 0; c < 4; ++c)
    if (first + c < end) out[c] = keys[first + c];
  return out;
}

// Keys in registers.
template <int kSteps>
struct Held {
  static constexpr int kKeys = kThreads * 4 * kSteps;
  Keys4 key[kSteps];

  DSV4_MEMBER void load(Global<const std::uint32_t> keys, int end) {
#pragma unroll
    for (int step = 0; step < kSteps; ++step) key[step] = load_keys(keys, (wave() * kSteps + step) * kStep, end);
  }

  // What lies from `end` on is no key.
  DSV4_MEMBER void cut(int end) {
#pragma unroll
    for (int step = 0; step < kSteps; ++step)
#pragma unroll
      for (int c = 0; c < 4; ++c)
        if ((wave() * kSteps + step) * kStep + 4 * lane() + c >= end) key[step][c] = 0;
  }

  template <class F>
  DSV4_MEMBER void each(F&& f) const {
#pragma unroll
    for (int step = 0; step < kSteps; ++step) f((wave() * kSteps + step) * kStep + 4 * lane(), key[step]);
  }
};

// Keys in memory, read anew each time; several loads are under way at once.
struct Stored {
  Global<const std::uint32_t> keys;
  int count;

  template <class F>
  DSV4_MEMBER void each(F&& f) const {
    constexpr int kAhead = 4;
    const int chunk = ceil_div(count, kWaves * kStep) * kStep;
    const int start = wave() * chunk, end = min(start + chunk, count);
    for (int group = start; group < end; group += kAhead * kStep) {
      Keys4 key[kAhead];
#pragma unroll
      for (int a = 0; a < kAhead; ++a) key[a] = load_keys(keys, group + a * kStep, end);
#pragma unroll
      for (int a = 0; a < kAhead; ++a)
        if (group + a * kStep < end) f(group + a * kStep + 4 * lane(), key[a]);
    }
  }
};

DSV4_DEVICE void add(int* bin, int value) {
  __hip_atomic_fetch_add(bin, value, __ATOMIC_RELAXED, __HIP_MEMORY_SCOPE_WORKGROUP);
}

// Count a digit of each lane. Scores share their leading bits, and the LDS takes adds to one bin one after another: of
// many lanes those with the digit of the first are added as one.
DSV4_DEVICE void add_digit(int* bins, int digit, bool counts) {
  const std::uint64_t all = ballot(counts);
  if (all == 0) return;
  if (count(all) > kFewLanes) {
    const int leader = __builtin_ctzll(all);
    const int common = __builtin_amdgcn_readlane(digit, leader);
    counts &= digit != common;
    const int same = count(all) - count(ballot(counts));
    if (lane() == leader) add(bins + common, same);
  }
  if (counts) add(bins + digit, 1);
}

// A number of each wave, summed over the waves before this one and over all.
struct WaveSum {
  int before, total;
};
DSV4_DEVICE WaveSum sum_of_waves(const int* of_waves) {
  static_assert(kWaves == 16, "a row of lanes adds them up");
  const int up_to = row_scan(of_waves[lane() % kWaves]);
  const int total = __builtin_amdgcn_readlane(up_to, kWaves - 1);
  return {wave() ? __builtin_amdgcn_readlane(up_to, wave() - 1) : 0, total};
}

// Count the digits `key >> shift & (2^width - 1)` of the keys from `low` to `low + size - 1`; find the bin that holds the
// `wanted`-th of them from the top. Bin 0 where there are fewer.
template <class Keys>
DSV4_DEVICE void find_bin(const Keys& keys, int pass, int shift, int width, std::uint32_t low, std::uint32_t size,
                          int wanted, Scratch& scratch) {
  scratch.pairs[thread()] = int2{0, 0};
  barrier();
  keys.each([&](int, Keys4 key) {
#pragma unroll
    for (int c = 0; c < 4; ++c)
      add_digit(scratch.bins, static_cast<int>(__builtin_amdgcn_ubfe(key[c], shift, width)), key[c] - low < size);
  });
  barrier();
  const int top = kBins - 1 - 2 * thread();  // two bins a thread, from the top
  const int2 pair = scratch.pairs[kThreads - 1 - thread()];
  const int first = pair[1], both = pair[0] + pair[1];
  const int up_to = scan(both);
  if (lane() == 63) scratch.above[wave()] = up_to;
  barrier();
  const int better = sum_of_waves(scratch.above).before + up_to - both;
  if (better < wanted && better + both >= wanted) {
    const bool second = better + first < wanted;
    scratch.bin[pass] = second ? top - 1 : top;
    scratch.better[pass] = second ? better + first : better;
  }
  barrier();
}

// The threshold of the k best keys; (0, 0), which takes every key, where there are no more than k.
template <class Keys>
DSV4_DEVICE Threshold find_threshold(const Keys& keys, int k, Scratch& scratch) {
  if (thread() < kPasses) scratch.bin[thread()] = scratch.better[thread()] = 0;
  std::uint32_t low = 1, size = ~0u;  // 0 is no key
  int wanted = k, shift = 32;
#pragma unroll 1
  for (int pass = 0; pass < kPasses; ++pass) {
    const int width = pass < 2 ? 11 : 10;
    shift -= width;
    find_bin(keys, pass, shift, width, low, size, wanted, scratch);
    low = (pass ? low : 0) + (static_cast<std::uint32_t>(uniform(scratch.bin[pass])) << shift);
    if (low == 0) return {0, 0};
    size = 1u << shift;
    wanted -= uniform(scratch.better[pass]);
  }
  return {low, wanted};
}

// Where the taken keys of this wave go.
struct Slots {
  int first;  // slot of the first one
  int ties;   // keys that equal the threshold in the waves before
  int total;  // taken by all waves
};

template <class Keys>
DSV4_DEVICE Slots find_slots(const Keys& keys, Threshold threshold, Scratch& scratch) {
  int above = 0, equal = 0;
  keys.each([&](int, Keys4 key) {
#pragma unroll
    for (int c = 0; c < 4; ++c) {
      above += count(ballot(key[c] > threshold.key));
      equal += count(ballot(key[c] == threshold.key));
    }
    // Each step is counted before the next: the votes of all of them do not fit the scalar registers.
    asm volatile("" : "+s"(above), "+s"(equal));
  });
  if (lane() == 0) {
    scratch.above[wave()] = above;
    scratch.equal[wave()] = equal;
  }
  barrier();
  const WaveSum higher = sum_of_waves(scratch.above), ties = sum_of_waves(scratch.equal);
  return {higher.before + min(ties.before, threshold.ties), ties.before, higher.total + min(ties.total, threshold.ties)};
}

// Hand every key that is taken to `put(slot, place, key)`, slots in the order of places.
template <class Keys, class Put>
DSV4_DEVICE void take(const Keys& keys, Threshold threshold, Slots slots, Put&& put) {
  // Or the compiler keeps the votes of find_slots.
  asm volatile("" : "+s"(threshold.key));
  keys.each([&](int place, Keys4 key) {
    bool taken[4], equal = false;
#pragma unroll
    for (int c = 0; c < 4; ++c) {
      taken[c] = key[c] > threshold.key;
      equal |= key[c] == threshold.key;
    }
    if (slots.ties < threshold.ties && any(equal)) {
      int tie = slots.ties;  // equal keys before this one
#pragma unroll
      for (int c = 0; c < 4; ++c) {
        const std::uint64_t mask = ballot(key[c] == threshold.key);
        tie += rank_in(mask);
        slots.ties += count(mask);
      }
#pragma unroll
      for (int c = 0; c < 4; ++c) {
        const bool equals = key[c] == threshold.key;
        taken[c] |= equals && tie < threshold.ties;
        tie += equals;
      }
    }
    if (!any(taken[0] | taken[1] | taken[2] | taken[3])) return;
    int slot = slots.first;
#pragma unroll
    for (int c = 0; c < 4; ++c) {
      const std::uint64_t mask = ballot(taken[c]);
      slot += rank_in(mask);
      slots.first += count(mask);
    }
#pragma unroll
    for (int c = 0; c < 4; ++c)
      if (taken[c]) put(slot++, place + c, key[c]);
  });
}

}  // namespace dsv4::topk
