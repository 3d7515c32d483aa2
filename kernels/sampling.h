// What the two halves of a draw share, and the searches of the second.
#pragma once
#include "model.h"
#include "numbers.h"
using namespace metal;

// A block of the vocabulary under one draw. Tokens past the vocabulary and logits that are NaN are not in it.
struct BlockSummary {
  uint best_key;    // largest key of an adjusted logit; 0: no token of the block may be drawn
  uint best_token;  // the first token that has it
  float raw_peak;   // largest raw logit
  float raw_sum;    // Σ e^(raw − raw_peak)
  uint finite;      // 1 if a raw logit that may be drawn is finite
};

inline BlockSummary empty_summary() {
  return BlockSummary{0u, NONE, -FLT_MAX, 0.0f, 0u};
}

// Of two blocks together, `a` having the lower tokens.
inline BlockSummary joined(BlockSummary a, BlockSummary b) {
  const bool later = b.best_key > a.best_key;
  const float peak = metal::max(a.raw_peak, b.raw_peak);
  const float sum = a.raw_sum * metal::exp(a.raw_peak - peak) + b.raw_sum * metal::exp(b.raw_peak - peak);
  return BlockSummary{later ? b.best_key : a.best_key, later ? b.best_token : a.best_token, peak, sum, a.finite | b.finite};
}

// Of the blocks of all the threadgroup's threads together, the same in all of them. `parts` holds one a SIMD-group.
inline BlockSummary joined_by_all(BlockSummary own, threadgroup BlockSummary* parts, uint simds, uint simd, uint lane) {
  const uint key = metal::simd_max(own.best_key);
  const uint token = metal::simd_min(own.best_key == key ? own.best_token : NONE);
  const float peak = metal::simd_max(own.raw_peak);
  const float sum = metal::simd_sum(own.raw_sum * metal::exp(own.raw_peak - peak));
  const uint finite = metal::simd_max(own.finite);
  if (lane == 0) parts[simd] = BlockSummary{key, token, peak, sum, finite};
  metal::threadgroup_barrier(metal::mem_flags::mem_threadgroup);
  BlockSummary all = parts[0];
  for (uint i = 1; i < simds; i++) all = joined(all, parts[i]);
  return all;
}

inline uint sample_blocks_of_vocabulary() {
  return (VOCABULARY + SAMPLE_BLOCK - 1) / SAMPLE_BLOCK;
}

// The `counter`-th number in [0, 1) of a stream, 24 bits of Philox4x32-10 (Salmon et al., 2011), as lily_backend::uniform.
inline float uniform_number(uint seed_low, uint seed_high, uint counter_low, uint counter_high) {
  uint a = counter_low, b = counter_high, c = 0, d = 0;
  for (uint round = 0; round < 10; round++) {
    const ulong first = ulong(0xd2511f53u) * a, second = ulong(0xcd9e8d57u) * c;
    a = uint(second >> 32) ^ b ^ seed_low;
    b = uint(second);
    c = uint(first >> 32) ^ d ^ seed_high;
    d = uint(first);
    seed_low += 0x9e3779b9u;
    seed_high += 0xbb67ae85u;
  }
  return float(a >> 8) * (1.0f / 16777216.0f);
}
