// Sparse-MLA decode: the largest hand-written kernel the emulator's tests run. One workgroup is 8 waves and 16 * HT
// heads; wave w owns channels 64 w .. 64 w + 63 of the output (w < 7: one fp8 scale group, w == 7: the bf16 rope part).
// Scores: wave w takes channels 128 (w & 3) of keys 16 (w >> 2). Key bytes go from global memory straight into the
// matrix operand; partial scores are summed over four waves through LDS. Values: the same bytes a second time, 4 keys x
// 4 channels a lane, dequantized in registers into the matrix operand.
#include <hip/hip_runtime.h>
typedef float f2 __attribute__((ext_vector_type(2)));
typedef float f4 __attribute__((ext_vector_type(4)));
typedef int i4 __attribute__((ext_vector_type(4)));
typedef int i2 __attribute__((ext_vector_type(2)));
typedef int i8v __attribute__((ext_vector_type(8)));
typedef short s4 __attribute__((ext_vector_type(4)));
typedef __bf16 b8 __attribute__((ext_vector_type(8)));
typedef __bf16 b2 __attribute__((ext_vector_type(2)));
typedef unsigned char u8;
typedef unsigned long long u64;
#ifndef HT
#define HT 4
#endif
#ifndef QK8
#define QK8 1  // 1: fp8 hi/lo QK, 0: bf16 QK with dequantized K
#endif
#define BK 32
#define NT (2 * HT)  // score tiles of 16 keys x 16 heads
#define NP 64
#define TH 16.0f
#define LOG2E 1.4426950408889634f

static __device__ __forceinline__ unsigned hi16(float a, float b) {
  return __builtin_amdgcn_perm(__float_as_uint(b), __float_as_uint(a), 0x07060302);
}  // exact truncation of two floats that fit bf16
static __device__ __forceinline__ unsigned rne2(float a, float b) {
#if defined(__gfx950__)
  b2 r;
  r[0] = (__bf16)a;
  r[1] = (__bf16)b;
  return __builtin_bit_cast(unsigned, r);
#else
  unsigned x = __float_as_uint(a), y = __float_as_uint(b);  // finite inputs only
  x += 0x7fff + ((x >> 16) & 1);
  y += 0x7fff + ((y >> 16) & 1);
  return __builtin_amdgcn_perm(y, x, 0x07060302);
#endif
}
static __device__ __forceinline__ f4 mfma_bf16(i4 a, i4 b, f4 c) {  // 32 deep
#if defined(__gfx950__)
  return __builtin_amdgcn_mfma_f32_16x16x32_bf16(__builtin_bit_cast(b8, a), __builtin_bit_cast(b8, b), c, 0, 0, 0);
#else
  i2 a0 = {a[0], a[1]}, a1 = {a[2], a[3]}, b0 = {b[0], b[1]}, b1 = {b[2], b[3]};
  c = __builtin_amdgcn_mfma_f32_16x16x16bf16_1k(__builtin_bit_cast(s4, a0), __builtin_bit_cast(s4, b0), c, 0, 0, 0);
  return __builtin_amdgcn_mfma_f32_16x16x16bf16_1k(__builtin_bit_cast(s4, a1), __builtin_bit_cast(s4, b1), c, 0, 0, 0);
#endif
}

template <class T>
static __device__ __forceinline__ T ldg(u64 a) {
  return *(const __attribute__((address_space(1))) T *)a;
}  // global_load, not flat_load (flat also counts as LDS traffic)

struct Lds {
  f4 s[NT][3][64];
  i2 p[NT][64];
  u64 row[2][BK], srow[2][BK];
  float bias[4][BK];
  float sc[2][8][BK];
  float m[2][16 * HT], l[2][16 * HT];
  int flag[2];
};

template <bool QR, bool VR>
static __device__ __forceinline__ void body(Lds &L, const __bf16 *__restrict__ q, const u8 *__restrict__ wp,
                                            const u8 *__restrict__ ep, const int *__restrict__ widx,
                                            const int *__restrict__ eidx, const int *__restrict__ bt,
                                            const float *__restrict__ sink, __bf16 *__restrict__ out,
                                            const u8 *__restrict__ zero, float sm_scale, int W, int K, u64 page, int H,
                                            int w) {
  const int l = threadIdx.x & 63, r = l & 15, g = l >> 4;
  const int ds = w & 3, kh = w >> 2, ht0 = ds % HT;
  const bool reducer = ds < HT;
  const int ntile = (W + K) / BK;
  i4 qa[HT][2][2];
  float mref[HT];
  for (int hs = 0; hs < HT; hs++) {
    int h = ((hs + ht0) % HT) * 16 + r;
    for (int ch = 0; ch < 2; ch++) {
      const i4 *qp = (const i4 *)(q + (size_t)h * 512 + 128 * ds + 64 * ch + 16 * g);
      i4 x0 = qp[0], x1 = qp[1];
      if (!QK8 || (QR && ch)) {
        qa[hs][ch][0] = x0;
        qa[hs][ch][1] = x1;
        continue;
      }
      for (int k = 0; k < 4; k++) {
        int hi = 0, lo = 0;
        for (int c = 0; c < 2; c++) {
          int x = k < 2 ? x0[2 * k + c] : x1[2 * (k - 2) + c];
          float a = __uint_as_float((unsigned)x << 16) * 8.0f, b = __uint_as_float(x & 0xffff0000u) * 8.0f;
          if (c == 0)
            hi = __builtin_amdgcn_cvt_pk_fp8_f32(a, b, hi, false);
          else
            hi = __builtin_amdgcn_cvt_pk_fp8_f32(a, b, hi, true);
          f2 t = c == 0 ? __builtin_amdgcn_cvt_pk_f32_fp8(hi, false) : __builtin_amdgcn_cvt_pk_f32_fp8(hi, true);
          if (c == 0)
            lo = __builtin_amdgcn_cvt_pk_fp8_f32(a - t[0], b - t[1], lo, false);
          else
            lo = __builtin_amdgcn_cvt_pk_fp8_f32(a - t[0], b - t[1], lo, true);
        }
        qa[hs][ch][0][k] = hi;
        qa[hs][ch][1][k] = lo;
      }
    }
    mref[hs] = fmaxf(sink[h] * LOG2E, -1e30f);
  }
  f4 acc[HT][4];
  for (int i = 0; i < HT; i++)
    for (int c = 0; c < 4; c++) acc[i][c] = f4{0, 0, 0, 0};
  float lsum = 0;
  const float qs = sm_scale * LOG2E;
  int nidx = -1;
  int nbt = 0;
  auto fetch_idx = [&](int t) {
    if (VR) {
      int n = t * BK + (l & 31);
      nidx = t >= ntile ? -1 : n < W ? widx[n] : eidx[n - W];
    }
  };
  auto fetch_bt = [&](int t) {
    if (VR) {
      int b = max(nidx, 0) / NP;
      nbt = t * BK < W ? b : bt[b];
    }
  };
  auto prep = [&](int t) {
    if (VR && l < BK) {
      bool ok = nidx >= 0;
      const u8 *base = (t * BK < W ? wp : ep) + (u64)(unsigned)nbt * page;
      int o = nidx % NP;
      L.row[t & 1][l] = (u64)(ok ? base + o * 576 : zero);
      L.srow[t & 1][l] = (u64)(ok ? base + NP * 576 + o * 8 : zero);
      L.bias[t & 3][l] = ok ? 0.f : -INFINITY;
    }
  };
  i4 kr[QR ? 3 : 2];
  int vr[2][4][VR ? 2 : 1];
  unsigned scb = 0;
  auto load_k = [&](int b) {
    u64 p = L.row[b][kh * 16 + r] + (unsigned)(128 * ds + 16 * g);
    kr[0] = ldg<i4>(p);
    if (QR) {
      p += 16 * g;
      kr[1] = ldg<i4>(p + 64);
      kr[QR ? 2 : 0] = ldg<i4>(p + 80);
    } else
      kr[1] = ldg<i4>(p + 64);
  };
  auto load_v = [&](int b) {
    for (int kt = 0; kt < 2; kt++)
      for (int j = 0; j < 4; j++) {
        u64 p = L.row[b][kt * 16 + 4 * g + j] + (unsigned)(VR ? 448 + 8 * r : 64 * w + 4 * r);
        if (VR) {
          i2 x = ldg<i2>(p);
          vr[kt][j][0] = x[0];
          vr[kt][j][VR ? 1 : 0] = x[1];
        } else
          vr[kt][j][0] = ldg<int>(p);
      }
  };
  auto load_sc = [&](int b) {
    if (!VR) scb = ldg<u8>(L.srow[b][l & 31] + w);
  };
#if defined(__gfx942__)
  const int inc = QK8 ? 1 - 3 : 1;  // FNUZ reads half the value; q carries 2^3 when split hi/lo
#else
  const int inc = 0;
#endif
  auto store_sc = [&](int b) {
    if (!VR && l < BK) L.sc[b][w][l] = __uint_as_float((scb + inc) << 23);
  };
  fetch_idx(0);
  fetch_bt(0);
  prep(0);
  fetch_idx(1);
  fetch_bt(1);
  prep(1);
  fetch_idx(2);
  fetch_bt(2);
  if (threadIdx.x < 2) L.flag[threadIdx.x] = 0;
  __syncthreads();
  load_sc(0);
  store_sc(0);
  load_k(0);
  load_v(0);
  __syncthreads();
  for (int t = 0; t < ntile; t++) {
    load_sc((t + 1) & 1);
    // ---- a: partial scores, 16 keys x 128 channels
    f4 own;
    f4 s0, s1;
    int e0 = 0, e1 = 0;
#if defined(__gfx950__)
    e0 = __float_as_uint(L.sc[t & 1][2 * ds][kh * 16 + r]) >> 23;
    if (!QR) e1 = __float_as_uint(L.sc[t & 1][2 * ds + 1][kh * 16 + r]) >> 23;
#else
    s0 = *(const f4 *)&L.sc[t & 1][2 * ds][kh * 16 + 4 * g];
    if (!QR) s1 = *(const f4 *)&L.sc[t & 1][2 * ds + 1][kh * 16 + 4 * g];
#endif
    i4 kd[2][2];
    if (!QK8) {
#if defined(__gfx950__)
      float fs[2] = {__uint_as_float(e0 << 23), __uint_as_float(e1 << 23)};
#endif
      for (int ch = 0; ch < (QR ? 1 : 2); ch++)
        for (int i = 0; i < 4; i++) {
#if defined(__gfx950__)
          kd[ch][i / 2][(i % 2) * 2] =
              __builtin_bit_cast(int, __builtin_amdgcn_cvt_scalef32_pk_bf16_fp8(kr[ch][i], fs[ch], false));
          kd[ch][i / 2][(i % 2) * 2 + 1] =
              __builtin_bit_cast(int, __builtin_amdgcn_cvt_scalef32_pk_bf16_fp8(kr[ch][i], fs[ch], true));
#else
          f2 x = __builtin_amdgcn_cvt_pk_f32_fp8(kr[ch][i], false),
             y = __builtin_amdgcn_cvt_pk_f32_fp8(kr[ch][i], true);
          kd[ch][i / 2][(i % 2) * 2] = hi16(x[0], x[1]);
          kd[ch][i / 2][(i % 2) * 2 + 1] = hi16(y[0], y[1]);
#endif
        }
    }
    for (int hs = 0; hs < HT; hs++) {
      f4 a = {0, 0, 0, 0};
      if (!QK8) {
        a = mfma_bf16(kd[0][0], qa[hs][0][0], a);
        a = mfma_bf16(kd[0][1], qa[hs][0][1], a);
#if defined(__gfx950__)
        if (QR) {
          a = mfma_bf16(kr[1], qa[hs][1][0], a);
          a = mfma_bf16(kr[QR ? 2 : 0], qa[hs][1][1], a);
        } else {
          a = mfma_bf16(kd[1][0], qa[hs][1][0], a);
          a = mfma_bf16(kd[1][1], qa[hs][1][1], a);
        }
#else
        if (QR) {
          a *= s0;
          a = mfma_bf16(kr[1], qa[hs][1][0], a);
          a = mfma_bf16(kr[QR ? 2 : 0], qa[hs][1][1], a);
        } else {
          f4 b = {0, 0, 0, 0};
          b = mfma_bf16(kd[1][0], qa[hs][1][0], b);
          b = mfma_bf16(kd[1][1], qa[hs][1][1], b);
          a = a * s0 + b * s1;
        }
#endif
      } else {
#if defined(__gfx950__)
        for (int ch = 0; ch < 2; ch++) {
          if (QR && ch) {
            a = mfma_bf16(kr[1], qa[hs][1][0], a);
            a = mfma_bf16(kr[QR ? 2 : 0], qa[hs][1][1], a);
            continue;
          }
          i8v ka, qb;
          for (int i = 0; i < 4; i++) {
            ka[i] = kr[ch][i];
            ka[i + 4] = kr[ch][i];
            qb[i] = qa[hs][ch][0][i];
            qb[i + 4] = qa[hs][ch][1][i];
          }
          a = __builtin_amdgcn_mfma_scale_f32_16x16x128_f8f6f4(ka, qb, a, 0, 0, 0, ch ? e1 : e0, 0, 124);
        }
#else
        f4 b = {0, 0, 0, 0};
        for (int i = 0; i < 2; i++)
          for (int o = 0; o < 2; o++) {
            i2 ka = {kr[0][2 * i], kr[0][2 * i + 1]}, qb = {qa[hs][0][o][2 * i], qa[hs][0][o][2 * i + 1]};
            a = __builtin_amdgcn_mfma_f32_16x16x32_fp8_fp8(__builtin_bit_cast(long, ka), __builtin_bit_cast(long, qb),
                                                           a, 0, 0, 0);
          }
        if (QR) {
          a *= s0;
          a = mfma_bf16(kr[1], qa[hs][1][0], a);
          a = mfma_bf16(kr[QR ? 2 : 0], qa[hs][1][1], a);
        } else {
          for (int i = 0; i < 2; i++)
            for (int o = 0; o < 2; o++) {
              i2 ka = {kr[1][2 * i], kr[1][2 * i + 1]}, qb = {qa[hs][1][o][2 * i], qa[hs][1][o][2 * i + 1]};
              b = __builtin_amdgcn_mfma_f32_16x16x32_fp8_fp8(__builtin_bit_cast(long, ka), __builtin_bit_cast(long, qb),
                                                             b, 0, 0, 0);
            }
          a = a * s0 + b * s1;
        }
#endif
      }
      int ht = (hs + ht0) % HT, rk = (ds - ht - 1) & 3;
      if (hs == 0) {
        own = a;
        if (HT < 4 && rk < 3) L.s[kh * HT + ht][rk][l] = a;
      } else if (HT == 4 || rk < 3)
        L.s[kh * HT + ht][rk][l] = a;
    }
    __syncthreads();
    // ---- c: reduce own tile, softmax against a lazily raised reference
    float x[4];
    const int mt = kh * HT + ht0;
    if (reducer) {
      own += (L.s[mt][0][l] + L.s[mt][1][l]) + L.s[mt][2][l];
      f4 bias = *(const f4 *)&L.bias[t & 3][kh * 16 + 4 * g];
      for (int i = 0; i < 4; i++) x[i] = own[i] * qs + (bias[i] - mref[0]);
      float mx = fmaxf(fmaxf(x[0], x[1]), fmaxf(x[2], x[3]));
      float p[4];
      for (int i = 0; i < 4; i++) p[i] = __builtin_amdgcn_exp2f(x[i]);
      L.p[mt][l] = i2{(int)rne2(p[0], p[1]), (int)rne2(p[2], p[3])};
      if (__builtin_expect(__any(mx > TH), 0))
        L.flag[t & 1] = 1;
      else
        lsum += (p[0] + p[1]) + (p[2] + p[3]);
    }
    prep(t + 2);
    store_sc((t + 1) & 1);
    if (threadIdx.x == 0) L.flag[(t + 1) & 1] = 0;
    __syncthreads();
    if (__builtin_expect(__builtin_amdgcn_readfirstlane(L.flag[t & 1]),
                         0)) {  // rare: some score passed the reference by 2^16
      if (reducer) {
        float mx = fmaxf(fmaxf(x[0], x[1]), fmaxf(x[2], x[3]));
        if (!__any(mx > TH))
          lsum -= (__builtin_amdgcn_exp2f(x[0]) + __builtin_amdgcn_exp2f(x[1])) +
                  (__builtin_amdgcn_exp2f(x[2]) + __builtin_amdgcn_exp2f(x[3]));
        mx = fmaxf(mx, __shfl_xor(mx, 16));
        mx = fmaxf(mx, __shfl_xor(mx, 32));
        if (l < 16) L.m[kh][ht0 * 16 + l] = mx;
      }
      __syncthreads();
      for (int hs = 0; hs < HT; hs++) {
        int h = ((hs + ht0) % HT) * 16 + r;
        float d = fmaxf(fmaxf(L.m[0][h], L.m[1][h]), 0.f), al = __builtin_amdgcn_exp2f(-d);
        float old = mref[hs];
        mref[hs] += d;
        for (int c = 0; c < 4; c++) acc[hs][c] *= al;
        if (hs == 0 && reducer) {
          lsum *= al;
          f4 bias = *(const f4 *)&L.bias[t & 3][kh * 16 + 4 * g];
          float p[4];
          for (int i = 0; i < 4; i++) {
            p[i] = __builtin_amdgcn_exp2f(own[i] * qs + (bias[i] - mref[0]));
            lsum += p[i];
          }
          L.p[mt][l] = i2{(int)rne2(p[0], p[1]), (int)rne2(p[2], p[3])};
        }
      }
      __syncthreads();
    }
    // ---- e: PV, 64 channels x 32 keys
    load_k((t + 1) & 1);
    fetch_idx(t + 3);
    i4 va[4];
    for (int kt = 0; kt < 2; kt++) {
      if (VR) {
        for (int c = 0; c < 4; c++)
          for (int j = 0; j < 2; j++)
            va[c][2 * kt + j] = __builtin_amdgcn_perm(vr[kt][2 * j + 1][VR ? c / 2 : 0], vr[kt][2 * j][VR ? c / 2 : 0],
                                                      c & 1 ? 0x07060302 : 0x05040100);
      } else {
        f4 sc = *(const f4 *)&L.sc[t & 1][w][kt * 16 + 4 * g];
#if defined(__gfx950__)
        unsigned x[4][2];
        for (int j = 0; j < 4; j++) {
          x[j][0] = __builtin_bit_cast(unsigned, __builtin_amdgcn_cvt_scalef32_pk_bf16_fp8(vr[kt][j][0], sc[j], false));
          x[j][1] = __builtin_bit_cast(unsigned, __builtin_amdgcn_cvt_scalef32_pk_bf16_fp8(vr[kt][j][0], sc[j], true));
        }
        for (int c = 0; c < 4; c++)
          for (int j = 0; j < 2; j++)
            va[c][2 * kt + j] =
                __builtin_amdgcn_perm(x[2 * j + 1][c / 2], x[2 * j][c / 2], c & 1 ? 0x07060302 : 0x05040100);
#else
        f2 x[4][2];
        for (int j = 0; j < 4; j++) {
          x[j][0] = __builtin_amdgcn_cvt_pk_f32_fp8(vr[kt][j][0], false) * sc[j];
          x[j][1] = __builtin_amdgcn_cvt_pk_f32_fp8(vr[kt][j][0], true) * sc[j];
        }
        for (int c = 0; c < 4; c++)
          for (int j = 0; j < 2; j++) va[c][2 * kt + j] = hi16(x[2 * j][c / 2][c & 1], x[2 * j + 1][c / 2][c & 1]);
#endif
      }
    }
    load_v((t + 1) & 1);
    for (int hs = 0; hs < HT; hs++) {
      int ht = (hs + ht0) % HT;
      i2 p0 = L.p[ht][l], p1 = L.p[HT + ht][l];
      i4 pb = {p0[0], p0[1], p1[0], p1[1]};
      for (int c = 0; c < 4; c++) acc[hs][c] = mfma_bf16(va[c], pb, acc[hs][c]);
    }
    fetch_bt(t + 3);
  }
  if (reducer) {
    lsum += __shfl_xor(lsum, 16);
    lsum += __shfl_xor(lsum, 32);
    if (l < 16) L.l[kh][ht0 * 16 + l] = lsum;
  }
  __syncthreads();
#if defined(__gfx942__)
  const float vs = VR || !QK8 ? 1.0f : 8.0f;
#else
  const float vs = 1.0f;
#endif
  for (int hs = 0; hs < HT; hs++) {
    int h = ((hs + ht0) % HT) * 16 + r;
    float den = L.l[0][h] + L.l[1][h] + __builtin_amdgcn_exp2f(sink[h] * LOG2E - mref[hs]);
    float inv = den > 0 ? vs / den : 0.f;
    i4 o[2];
    for (int i = 0; i < 4; i++)
      for (int c = 0; c < 2; c++)
        o[i / 2][(i % 2) * 2 + c] = rne2(acc[hs][2 * c][i] * inv, acc[hs][2 * c + 1][i] * inv);
    i4 *op = (i4 *)(out + (size_t)h * 512 + 64 * w + 16 * g);
    op[0] = o[0];
    op[1] = o[1];
  }
}

extern "C" __global__ void __launch_bounds__(512, 2)
    mla_decode(const __bf16 *__restrict__ q, const u8 *__restrict__ wp, const u8 *__restrict__ ep,
               const int *__restrict__ widx, const int *__restrict__ eidx, const int *__restrict__ bt,
               const float *__restrict__ sink, __bf16 *__restrict__ out, const u8 *__restrict__ zero, float sm_scale,
               int W, int K, int MAXB, u64 page, int H) {
  __shared__ Lds L;
  int t = blockIdx.x, hb = blockIdx.y * 16 * HT, w = __builtin_amdgcn_readfirstlane(threadIdx.x >> 6);
  q += ((size_t)t * H + hb) * 512;
  out += ((size_t)t * H + hb) * 512;
  widx += (size_t)t * W;
  eidx += (size_t)t * K;
  bt += (size_t)t * MAXB;
  sink += hb;
  if (w == 7)
    body<true, true>(L, q, wp, ep, widx, eidx, bt, sink, out, zero, sm_scale, W, K, page, H, w);
  else if (w == 3)
    body<true, false>(L, q, wp, ep, widx, eidx, bt, sink, out, zero, sm_scale, W, K, page, H, w);
  else
    body<false, false>(L, q, wp, ep, widx, eidx, bt, sink, out, zero, sm_scale, W, K, page, H, w);
}
