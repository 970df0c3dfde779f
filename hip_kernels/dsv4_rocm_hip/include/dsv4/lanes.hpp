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

// `value` of the lane that the DPP control names; 0 where there is none, or where the row is not in `kRows`.
template <int kControl, int kRows = 0xf>
DSV4_DEVICE int moved(int value) {
  return __builtin_amdgcn_update_dpp(0, value, kControl, kRows, 0xf, false);
}

// Sum over this lane and those below it in its row of 16; every lane takes part.
DSV4_DEVICE int row_scan(int value) {
  value += moved<0x111>(value);  // row_shr:1, 2, 4, 8
  value += moved<0x112>(value);
  value += moved<0x114>(value);
  value += moved<0x118>(value);
  return value;
}

// Sum over this lane and those below it; every lane takes part.
DSV4_DEVICE int scan(int value) {
  value = row_scan(value);
  value += moved<0x142, 0xa>(value);  // the last lane of a row to the next row
  value += moved<0x143, 0xc>(value);  // lane 31 to the upper half
  return value;
}

}  // namespace dsv4
