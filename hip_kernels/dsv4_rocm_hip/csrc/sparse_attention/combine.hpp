// Joins the results of splits, the sink among them: a wave takes one head of a token, a lane eight channels.
#pragma once

#include "dsv4/bf16.hpp"
#include "dsv4/cache_layout.hpp"
#include "dsv4/rotary.hpp"
#include "dsv4/softmax.hpp"
#include "params.hpp"

namespace dsv4::sparse_attention {

inline constexpr int kCombinedHeads = 4;  // of a workgroup
inline constexpr int kLaneChannels = kChannels / 64;

DSV4_DEVICE void combine(const CombineParams &params) {
  const int token = static_cast<int>(__builtin_amdgcn_workgroup_id_x());
  const int head = static_cast<int>(__builtin_amdgcn_workgroup_id_y()) * kCombinedHeads + wave();
  if (head >= params.heads) return;
  const int channel = lane() * kLaneChannels;
  float reference = sink_reference(params.sink[head]);
  float total = sink_weight(params.sink[head], reference);
  float sum[kLaneChannels] = {};
  for (int split = 0; split < params.splits; ++split) {
    const std::int64_t cell = (std::int64_t{split} * params.tokens + token) * params.heads + head;
    const float2 part = params.parts[cell];
    if (!(part.y > 0)) continue;
    const float above = max(reference, part.x);
    const float fade = exp2(reference - above), weight = part.y * exp2(part.x - above);
    const auto values = *reinterpret_cast<Global<const int4>>(params.partial + cell * kChannels + channel);
    for (int i = 0; i < kLaneChannels; i += 2) {
      sum[i] = sum[i] * fade + low_float(values[i / 2]) * weight;
      sum[i + 1] = sum[i + 1] * fade + high_float(values[i / 2]) * weight;
    }
    total = total * fade + weight;
    reference = above;
  }
  const float inverse = inverse_total(total);
  for (float &value : sum) value *= inverse;
  if (params.frequencies && channel >= cache::fp8::Swa::kNopeCount) {
    const int position = static_cast<int>(params.positions[token]);
    const int pair = (channel - cache::fp8::Swa::kNopeCount) / 2;
    for (int i = 0; i < kLaneChannels; i += 2)
      turn_back(turn_at(position, params.frequencies[pair + i / 2]), sum[i], sum[i + 1]);
  }
  int4 packed;
  for (int i = 0; i < kLaneChannels; i += 2) packed[i / 2] = round2(sum[i], sum[i + 1]);
  const std::int64_t cell = std::int64_t{token} * params.heads + head;
  *reinterpret_cast<Global<int4>>(params.out + cell * kChannels + channel) = packed;
}

}  // namespace dsv4::sparse_attention
