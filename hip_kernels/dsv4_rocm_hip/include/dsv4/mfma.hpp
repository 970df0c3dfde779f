// Matrix instructions. D[m][n] += sum_k A[m][k] B[k][n]: a lane holds row m (column n) = lane % 16 of A (of B), and of
// D the four rows 4 (lane / 16) .. of column lane % 16.
#pragma once

#include "dsv4/device.hpp"

namespace dsv4 {

// 16 x 16 x 32 in bf16. Which k a lane's 8 values belong to does not matter as long as A and B agree.
DSV4_DEVICE float4 mfma_bf16(int4 a, int4 b, float4 d) {
#if defined(__gfx950__)
  using Operand = Vector<bf16, 8>;
  return __builtin_amdgcn_mfma_f32_16x16x32_bf16(bits<Operand>(a), bits<Operand>(b), d, 0, 0, 0);
#else
  using Operand = Vector<short, 4>;
  d = __builtin_amdgcn_mfma_f32_16x16x16bf16_1k(bits<Operand>(a.xy), bits<Operand>(b.xy), d, 0, 0, 0);
  return __builtin_amdgcn_mfma_f32_16x16x16bf16_1k(bits<Operand>(a.zw), bits<Operand>(b.zw), d, 0, 0, 0);
#endif
}

}  // namespace dsv4
