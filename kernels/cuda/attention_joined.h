// How the pieces of a context come together in prefill attention, here and in attention_prefill_join: in their order, by the same
// operations, so that it makes no difference where.
#pragma once
#include "attention_warpgroup.h"
#ifdef __CUDA_ARCH_FEAT_SM90_ALL

constant constexpr uint PIECE_PAGES = 128;  // an even number
static_assert(PIECE_PAGES % 2 == 0, "pages lie in the tiles of even and of odd ones");

// A query's maximum and sum, of the pieces so far.
struct Joined {
  float highest, sum;

  // With one more; gives what the outputs before and those of that one are to be multiplied by. One that the query sees nothing of
  // has -FLT_MAX, and so 0.
  LILY_INLINE float2 add(const Joined& other) {
    const float peak = fmaxf(highest, other.highest);
    const float2 factors = float2(exp2_fast((highest - peak) * LOG2_E), exp2_fast((other.highest - peak) * LOG2_E));
    highest = peak;
    sum = fmaf(other.sum, factors.y, sum * factors.x);
    return factors;
  }
};

LILY_INLINE float join(float before, float other, float2 factors) { return fmaf(other, factors.y, before * factors.x); }

// Of all four lanes that have a query.
LILY_INLINE float sum_of_lanes(float sum) {
  sum += metal::simd_shuffle_xor(sum, 1);
  return sum + metal::simd_shuffle_xor(sum, 2);
}

// A lane's outputs of its query `r` with those at `before`.
LILY_INLINE void join_halves(float (&outputs)[128], uint r, const float* before, float2 factors) {
#pragma unroll
  for (uint n = 0; n < HEAD / 8; n++) {
    float2 x;
    asm volatile("ld.global.v2.f32 {%0, %1}, [%2];" : "=f"(x.x), "=f"(x.y) : "l"(before + n * 8) : "memory");
    outputs[n * 4 + r * 2] = join(x.x, outputs[n * 4 + r * 2], factors);
    outputs[n * 4 + r * 2 + 1] = join(x.y, outputs[n * 4 + r * 2 + 1], factors);
  }
}

LILY_INLINE half gated_half(float output, float factor, float gate) {
  return saturated_half(output * factor * sigmoid_fast(gate));
}
#endif
