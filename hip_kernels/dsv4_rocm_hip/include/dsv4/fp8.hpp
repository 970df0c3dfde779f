// e4m3 bytes with e8m0 scales. The cache holds the OCP format; gfx942 converts FNUZ, where a byte means half the value.
#pragma once

#include "dsv4/bf16.hpp"

namespace dsv4 {

#if defined(__gfx950__)
inline constexpr bool kConvertsFnuz = false;
#else
inline constexpr bool kConvertsFnuz = true;
#endif

// The scale of an exponent byte, doubled where conversion halves the value.
DSV4_DEVICE float scale_of(std::uint32_t exponent) { return bits<float>((exponent + kConvertsFnuz) << 23); }

// 0x80 (OCP's -0, FNUZ's NaN) to 0x00 in each of four bytes; our own writers never store it.
DSV4_DEVICE int scrub(int bytes) {
  constexpr std::uint32_t kMagnitude = 0x7f7f7f7f;
  const auto x = static_cast<std::uint32_t>(bytes);
  const std::uint32_t carries = (x & kMagnitude) + kMagnitude;  // bit 7 where the magnitude is not zero
  return static_cast<int>((x & carries) | (x & kMagnitude));
}

// Two of four bytes times `scale`, exact in bf16: a power of two times e4m3.
template <bool Upper>
DSV4_DEVICE int dequantize2(int bytes, float scale) {
#if defined(__gfx950__)
  return bits<int>(__builtin_amdgcn_cvt_scalef32_pk_bf16_fp8(bytes, scale, Upper));
#else
  const float2 value = __builtin_amdgcn_cvt_pk_f32_fp8(bytes, Upper) * scale;
  return truncate2(value.x, value.y);
#endif
}

}  // namespace dsv4
