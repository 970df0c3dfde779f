// The few names of the HIP device headers that the test kernels use, on compiler builtins alone.
#pragma once
#define __host__ __attribute__((host))
#define __device__ __attribute__((device))
#define __global__ __attribute__((global))
#define __shared__ __attribute__((shared))
#define __launch_bounds__(...) __attribute__((launch_bounds(__VA_ARGS__)))
#define __forceinline__ inline __attribute__((always_inline))
#define INFINITY __builtin_inff()
#define DSV4_DEVICE static __device__ __forceinline__

typedef unsigned long size_t;

namespace dsv4_test {
struct ThreadX {
  __device__ operator unsigned() const { return __builtin_amdgcn_workitem_id_x(); }
};
struct BlockX {
  __device__ operator unsigned() const { return __builtin_amdgcn_workgroup_id_x(); }
};
struct BlockY {
  __device__ operator unsigned() const { return __builtin_amdgcn_workgroup_id_y(); }
};
struct SizeX {
  __device__ operator unsigned() const { return __builtin_amdgcn_workgroup_size_x(); }
};
struct Thread {
  ThreadX x;
};
struct Block {
  BlockX x;
  BlockY y;
};
struct Size {
  SizeX x;
};
}  // namespace dsv4_test

static const __device__ dsv4_test::Thread threadIdx{};
static const __device__ dsv4_test::Block blockIdx{};
static const __device__ dsv4_test::Size blockDim{};

DSV4_DEVICE void __syncthreads() {
  __builtin_amdgcn_fence(__ATOMIC_RELEASE, "workgroup");
  __builtin_amdgcn_s_barrier();
  __builtin_amdgcn_fence(__ATOMIC_ACQUIRE, "workgroup");
}
DSV4_DEVICE unsigned lane_id() { return __builtin_amdgcn_mbcnt_hi(~0u, __builtin_amdgcn_mbcnt_lo(~0u, 0u)); }
DSV4_DEVICE float __shfl_xor(float v, int mask) {
  const int bits = __builtin_bit_cast(int, v);
  return __builtin_bit_cast(float, __builtin_amdgcn_ds_bpermute((lane_id() ^ mask) << 2, bits));
}
DSV4_DEVICE bool __any(int predicate) { return __builtin_amdgcn_ballot_w64(predicate != 0) != 0; }
DSV4_DEVICE float __uint_as_float(unsigned v) { return __builtin_bit_cast(float, v); }
DSV4_DEVICE unsigned __float_as_uint(float v) { return __builtin_bit_cast(unsigned, v); }
DSV4_DEVICE float fmaxf(float a, float b) { return __builtin_fmaxf(a, b); }
DSV4_DEVICE int max(int a, int b) { return a > b ? a : b; }
DSV4_DEVICE float expf(float a) { return __builtin_amdgcn_exp2f(a * 1.44269504088896340736f); }
