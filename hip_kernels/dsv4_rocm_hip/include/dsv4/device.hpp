// The device as kernels see it: vector types, lanes, barriers, global memory. Compiler builtins only.
#pragma once

#include <cstdint>

#define DSV4_DEVICE static inline __attribute__((device, always_inline))
#define DSV4_MEMBER inline __attribute__((device, always_inline))
// `waves` a SIMD must hold: a lane then has at most 512 / waves registers.
#define DSV4_KERNEL(threads, waves)                                                                             \
  extern "C" __attribute__((global, amdgpu_flat_work_group_size(threads, threads), amdgpu_waves_per_eu(waves))) \
  void
#define DSV4_SHARED static __attribute__((shared))

namespace dsv4 {

using bf16 = __bf16;
template <class T, int N>
using Vector = T __attribute__((ext_vector_type(N)));
using float2 = Vector<float, 2>;
using float4 = Vector<float, 4>;
using int2 = Vector<int, 2>;
using int4 = Vector<int, 4>;

// Pointers of kernel arguments say where they point: else the compiler must use flat instructions, which also count
// as LDS traffic.
template <class T>
using Global = T __attribute__((address_space(1))) *;

template <class To, class From>
DSV4_DEVICE To bits(From value) {
  return __builtin_bit_cast(To, value);
}
template <class T>
DSV4_DEVICE T load(std::uint64_t address) {
  return *reinterpret_cast<Global<const T>>(address);
}

DSV4_DEVICE int thread() { return static_cast<int>(__builtin_amdgcn_workitem_id_x()); }
DSV4_DEVICE int lane() { return thread() & 63; }
DSV4_DEVICE int wave() { return __builtin_amdgcn_readfirstlane(thread() >> 6); }  // in a scalar register
DSV4_DEVICE int uniform(int value) { return __builtin_amdgcn_readfirstlane(value); }
DSV4_DEVICE bool any(bool predicate) { return __builtin_amdgcn_ballot_w64(predicate) != 0; }
DSV4_DEVICE bool unlikely(bool condition) { return __builtin_expect(condition, false); }

DSV4_DEVICE void barrier() {
  __builtin_amdgcn_fence(__ATOMIC_RELEASE, "workgroup");
  __builtin_amdgcn_s_barrier();
  __builtin_amdgcn_fence(__ATOMIC_ACQUIRE, "workgroup");
}

DSV4_DEVICE float from_lane_xor(float value, int mask) {
  return bits<float>(__builtin_amdgcn_ds_bpermute((lane() ^ mask) << 2, bits<int>(value)));
}
DSV4_DEVICE float max(float a, float b) { return __builtin_fmaxf(a, b); }
DSV4_DEVICE int max(int a, int b) { return a > b ? a : b; }
DSV4_DEVICE int min(int a, int b) { return a < b ? a : b; }
constexpr int ceil_div(int a, int b) { return (a + b - 1) / b; }
constexpr int log2_of(int power) { return power == 1 ? 0 : 1 + log2_of(power / 2); }

}  // namespace dsv4
