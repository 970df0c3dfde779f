// Softmax in powers of two against a reference that is raised only when it must be.
#pragma once

#include "dsv4/device.hpp"

namespace dsv4 {

inline constexpr float kLog2E = 1.4426950408889634f;
inline constexpr float kLowest = -1e30f;  // a reference below every score, yet finite: no inf - inf
inline constexpr float kSlack = 16.0f;  // a weight may pass 1 by 2^16: bf16 weights and fp32 sums have the range

DSV4_DEVICE float exp2(float x) { return __builtin_amdgcn_exp2f(x); }

// The reference a sink (a logit, of any size and sign) starts with.
DSV4_DEVICE float sink_reference(float sink) {
  return __builtin_fminf(max(sink * kLog2E, kLowest), -kLowest);
}
DSV4_DEVICE float sink_weight(float sink, float reference) { return exp2(sink * kLog2E - reference); }

// 1 / total, and 0 where there was nothing to sum.
DSV4_DEVICE float inverse_total(float total) { return total > 0 ? __builtin_amdgcn_rcpf(total) : 0.0f; }

}  // namespace dsv4
