// Sums over the lanes of a SIMD-group.
#pragma once
#include <metal_stdlib>
using namespace metal;

// A step of a fold: of 2·HALF values a lane keeps the upper half if its number has `bit`, else the lower, and adds what its
// partner, whose number differs in that bit, has of those. With HALF = 0 there is one value, which both keep.
template <uint HALF>
inline void fold_step(thread float* values, ushort bit, uint lane) {
  if (HALF == 0) {
    values[0] += metal::simd_shuffle_xor(values[0], bit);
    return;
  }
  const bool upper = (lane & bit) != 0;
#pragma unroll
  for (uint i = 0; i < HALF; i++) {
    const float low = values[i], high = values[i + HALF];
    values[i] = (upper ? high : low) + metal::simd_shuffle_xor(upper ? low : high, bit);
  }
}

// Sums COUNT values (a power of two) over the lanes; lane l returns the sum of value l / (32 / COUNT).
template <uint COUNT>
inline float fold(thread float* values, uint lane) {
  fold_step<COUNT / 2>(values, 16, lane);
  fold_step<COUNT / 4>(values, 8, lane);
  fold_step<COUNT / 8>(values, 4, lane);
  fold_step<COUNT / 16>(values, 2, lane);
  fold_step<COUNT / 32>(values, 1, lane);
  return values[0];
}
