// Lanes of a wave among themselves: votes, ranks, scans.
#pragma once

#include <dsv4/device.hpp>

namespace dsv4 {

DSV4_DEVICE std::uint64_t ballot(bool predicate) { return __builtin_amdgcn_ballot_w64(predicate); }

// Set bits of `mask` below this lane.
DSV4_DEVICE int rank_in(std::uint64_t mask) {
  const auto low = static_cast<std::uint32_t>(mask), high = static_cast<std::uint32_t>(mask >> 32);
  return static_cast<int>(__builtin_amdgcn_mbcnt_hi(high, __builtin_amdgcn_mbcnt_lo(low, 0u)));
}

DSV4_DEVICE int count(std::uint64_t mask) { return __builtin_popcountll(mask); }

// Sum over this lane and those below; every lane takes part.
DSV4_DEVICE int scan(int value) {
  for (int distance = 1; distance < 64; distance *= 2) {
    const int below = __builtin_amdgcn_ds_bpermute((lane() - distance) << 2, value);
    value += lane() >= distance ? below : 0;
  }
  return value;
}

DSV4_DEVICE int sum(int value) {
  for (int distance = 32; distance > 0; distance /= 2)
    value += __builtin_amdgcn_ds_bpermute((lane() ^ distance) << 2, value);
  return value;
}

}  // namespace dsv4
