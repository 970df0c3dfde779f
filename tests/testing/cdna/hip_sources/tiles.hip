// One-wave matrix tiles and a softmax over rows: what the emulator's HIP tests run.
#include <hip/hip_runtime.h>

typedef float f32x4 __attribute__((ext_vector_type(4)));
typedef int i32x8 __attribute__((ext_vector_type(8)));

// d[16, 16] = a[16, depth] * b[16, depth]^T in fp8 (FNUZ on gfx942, OCP on gfx950)
extern "C" __global__ void __launch_bounds__(64)
    fp8_tile(const long *__restrict__ a, const long *__restrict__ b, float *__restrict__ d, int depth) {
  const int row = threadIdx.x % 16, group = threadIdx.x / 16;
  f32x4 acc = {0, 0, 0, 0};
  for (int k = 0; k < depth; k += 32) {
    const long left = a[(row * depth + k + 8 * group) / 8], right = b[(row * depth + k + 8 * group) / 8];
    acc = __builtin_amdgcn_mfma_f32_16x16x32_fp8_fp8(left, right, acc, 0, 0, 0);
  }
  for (int i = 0; i < 4; i++) d[(4 * group + i) * 16 + row] = acc[i];
}

#if defined(__gfx950__)
// fp8 x fp8, 16x16x128, one e8m0 scale byte a lane and operand
extern "C" __global__ void __launch_bounds__(64)
    scaled_tile(const int *__restrict__ a, const int *__restrict__ b, const unsigned char *__restrict__ a_scale,
                const unsigned char *__restrict__ b_scale, float *__restrict__ d) {
  const int row = threadIdx.x % 16, group = threadIdx.x / 16;
  i32x8 left, right;
  for (int i = 0; i < 8; i++) {  // two 16-byte chunks, one in each half of the depth
    const int k = (i / 4) * 64 + 16 * group + (i % 4) * 4;
    left[i] = a[(row * 128 + k) / 4];
    right[i] = b[(row * 128 + k) / 4];
  }
  f32x4 acc = {0, 0, 0, 0};
  acc = __builtin_amdgcn_mfma_scale_f32_16x16x128_f8f6f4(left, right, acc, 0, 0, 0, a_scale[row * 4 + group], 0,
                                                         b_scale[row * 4 + group]);
  for (int i = 0; i < 4; i++) d[(4 * group + i) * 16 + row] = acc[i];
}
#endif

// softmax of each row of x[rows, n]; 256 threads a row
extern "C" __global__ void __launch_bounds__(256)
    softmax_rows(const float *__restrict__ x, float *__restrict__ o, int n) {
  __shared__ float partial[4];
  const float *p = x + (size_t)blockIdx.x * n;
  float top = -INFINITY;
  for (int i = threadIdx.x; i < n; i += blockDim.x) top = fmaxf(top, p[i]);
  for (int s = 32; s; s >>= 1) top = fmaxf(top, __shfl_xor(top, s));
  if (threadIdx.x % 64 == 0) partial[threadIdx.x / 64] = top;
  __syncthreads();
  top = fmaxf(fmaxf(partial[0], partial[1]), fmaxf(partial[2], partial[3]));
  __syncthreads();
  float sum = 0;
  for (int i = threadIdx.x; i < n; i += blockDim.x) sum += expf(p[i] - top);
  for (int s = 32; s; s >>= 1) sum += __shfl_xor(sum, s);
  if (threadIdx.x % 64 == 0) partial[threadIdx.x / 64] = sum;
  __syncthreads();
  sum = partial[0] + partial[1] + partial[2] + partial[3];
  for (int i = threadIdx.x; i < n; i += blockDim.x) o[(size_t)blockIdx.x * n + i] = expf(p[i] - top) / sum;
}
