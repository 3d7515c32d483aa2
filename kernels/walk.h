// A draw by its random number: the blocks weighed, then the walk to the token.
#pragma once
#include "candidates.h"
using namespace metal;

// Of each block: what its kept keys above the edge weigh, and how many equal the edge.
inline void weigh(thread const Candidates& all, Kept kept, threadgroup float* masses, threadgroup float* equals) {
  for (uint block = all.simd; block < all.blocks; block += all.simds) {
    float mass = 0.0f, equal = 0.0f;
    for (uint step = 0; step < SAMPLE_BLOCK / 128 && all.block_keys[block] >= metal::max(kept.edge, 1u); step++) {
      const uint4 four = all.keys[block * (SAMPLE_BLOCK / 4) + step * 32 + all.lane];
#pragma unroll
      for (uint i = 0; i < 4; i++) {
        mass += four[i] > kept.edge ? all.admitted(kept, four[i]) : 0.0f;
        equal += four[i] == kept.edge ? 1.0f : 0.0f;
      }
    }
    mass = metal::simd_sum(mass);
    equal = metal::simd_sum(equal);
    if (all.lane == 0) {
      masses[block] = mass;
      equals[block] = equal;
    }
  }
}

// The token at which the kept weights, added up in order of ids, first pass `number` (in [0, 1)) of their sum; for one
// SIMD-group. Where rounding leaves a hair, the last token with any weight.
inline uint walk(thread const Candidates& all, Kept kept, threadgroup const float* masses, threadgroup const float* equals,
                 float number) {
  const float each = kept.equals > 0.0f ? all.admitted(kept, kept.edge) : 0.0f;
  float total = 0.0f, before = 0.0f;
  for (uint block = 0; block < all.blocks; block++) {
    total += masses[block] + each * metal::clamp(kept.equals - before, 0.0f, equals[block]);
    before += equals[block];
  }
  // The block.
  float left = number * total, own = 0.0f, own_before = 0.0f;
  uint chosen = NONE;
  before = 0.0f;
  for (uint block = 0; block < all.blocks; block++) {
    const float mass = masses[block] + each * metal::clamp(kept.equals - before, 0.0f, equals[block]);
    if (mass > 0.0f) {
      chosen = block;
      own = mass;
      own_before = before;
      if (left < mass) break;
      left -= mass;
    }
    before += equals[block];
  }
  if (chosen == NONE) return NONE;
  left = metal::min(left, own);
  // The token in it.
  uint last = 0;
  for (uint step = 0; step < SAMPLE_BLOCK / 128; step++) {
    const uint place = chosen * (SAMPLE_BLOCK / 4) + step * 32 + all.lane;
    const uint4 four = all.keys[place];
    float equal = 0.0f;
#pragma unroll
    for (uint i = 0; i < 4; i++) equal += four[i] == kept.edge ? 1.0f : 0.0f;
    float rank = own_before + metal::simd_prefix_exclusive_sum(equal);
    float4 weights;
#pragma unroll
    for (uint i = 0; i < 4; i++) {
      const bool at_edge = four[i] == kept.edge;
      weights[i] = four[i] > kept.edge ? all.admitted(kept, four[i]) : (at_edge && rank < kept.equals ? each : 0.0f);
      rank += at_edge ? 1.0f : 0.0f;
    }
    const float sum = weights.x + weights.y + weights.z + weights.w;
    float reached = metal::simd_prefix_exclusive_sum(sum);
    uint found = NONE, any = 0;
#pragma unroll
    for (uint i = 0; i < 4; i++) {
      reached += weights[i];
      if (weights[i] > 0.0f) any = place * 4 + i;
      if (weights[i] > 0.0f && reached > left) found = metal::min(found, place * 4 + i);
    }
    found = metal::simd_min(found);
    if (found != NONE) return found;
    last = metal::max(last, metal::simd_max(any));
    left -= metal::simd_sum(sum);
    own_before += metal::simd_sum(equal);
  }
  return last;
}
