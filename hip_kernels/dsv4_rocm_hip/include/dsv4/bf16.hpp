// Packing pairs of fp32 values into a register of two bf16.
#pragma once

#include "dsv4/device.hpp"

namespace dsv4 {

// The upper halves of two registers: {low, high}.
DSV4_DEVICE int upper_halves(std::uint32_t low, std::uint32_t high) {
  return static_cast<int>(__builtin_amdgcn_perm(high, low, 0x07060302));
}
DSV4_DEVICE int lower_halves(std::uint32_t low, std::uint32_t high) {
  return static_cast<int>(__builtin_amdgcn_perm(high, low, 0x05040100));
}

// Exact for values that fit bf16.
DSV4_DEVICE int truncate2(float low, float high) {
  return upper_halves(bits<std::uint32_t>(low), bits<std::uint32_t>(high));
}

// To nearest; finite values. Ties go to even, on CDNA3 (no such instruction) away from zero, which takes half the work.
DSV4_DEVICE int round2(float low, float high) {
#if defined(__gfx950__)
  return bits<int>(Vector<bf16, 2>{static_cast<bf16>(low), static_cast<bf16>(high)});
#else
  return upper_halves(bits<std::uint32_t>(low) + 0x8000, bits<std::uint32_t>(high) + 0x8000);
#endif
}

DSV4_DEVICE float low_float(int pair) { return bits<float>(pair << 16); }
DSV4_DEVICE float high_float(int pair) { return bits<float>(pair & static_cast<int>(0xffff0000)); }

}  // namespace dsv4
