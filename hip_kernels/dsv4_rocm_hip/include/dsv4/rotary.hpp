// Turning channel pairs back by position * frequency.
#pragma once

#include "dsv4/device.hpp"

namespace dsv4 {

struct Turn {
  float sine, cosine;
};

// Sine and cosine of the fp32 product, as model and reference define the angle. The instructions take turns: a / 2 pi
// is kept with its rounding error, since a quarter of a million turns leave few bits for the fraction.
DSV4_DEVICE Turn turn_at(int position, float frequency) {
  constexpr float kTurns = 0.15915494f, kTurnsRest = 6.4206383e-9f;  // 1 / 2 pi in two parts
  const float angle = static_cast<float>(position) * frequency;
  const float turns = angle * kTurns;
  const float error = __builtin_fmaf(angle, kTurnsRest, __builtin_fmaf(angle, kTurns, -turns));
  const float fraction = __builtin_amdgcn_fractf(turns) + error;
  return {__builtin_amdgcn_sinf(fraction), __builtin_amdgcn_cosf(fraction)};
}

DSV4_DEVICE void turn_back(Turn turn, float &even, float &odd) {
  const float x = even;
  even = x * turn.cosine + odd * turn.sine;
  odd = odd * turn.cosine - x * turn.sine;
}

}  // namespace dsv4
