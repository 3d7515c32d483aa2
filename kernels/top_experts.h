// A row's choice of experts.
#pragma once
#include "model.h"
#include "numbers.h"
using namespace metal;

// The `count` largest of a row's EXPERTS logits, equals by ascending number: lane r returns the expert of rank r and its weight,
// the softmax over those `count`, which for all CHOSEN is the softmax over all experts, renormalised. The whole SIMD-group
// takes part. NaN ranks last: whatever the logits, the ranks are different experts.
inline Choice top_experts(device const float* logits, uint count, uint lane) {
  constexpr uint OWN = MAX_EXPERTS / 32;
  uint keys[OWN];
#pragma unroll
  for (uint i = 0; i < OWN; i++) {
    const uint expert = i * 32 + lane;
    keys[i] = expert < EXPERTS ? metal::max(order_key(logits[expert]), 1u) : 0u;
  }
  uint own_expert = 0, own_key = 0;  // lane r: of rank r
  for (uint r = 0; r < count; r++) {
    uint best = 0, at = 0;
#pragma unroll
    for (uint i = 0; i < OWN; i++) {
      at = keys[i] > best ? i * 32 + lane : at;
      best = metal::max(keys[i], best);
    }
    const uint key = metal::simd_max(best);
    const uint expert = metal::simd_min(best == key ? at : NONE);
    if (lane == r) {
      own_expert = expert;
      own_key = key;
    }
#pragma unroll
    for (uint i = 0; i < OWN; i++) keys[i] = i * 32 + lane == expert ? 0u : keys[i];
  }
  const float logit = key_value(own_key), peak = metal::simd_broadcast(logit, ushort(0));
  const float part = lane < count ? metal::exp(logit - peak) : 0.0f;
  return Choice{own_expert, part / metal::simd_sum(part)};
}

// The one of the given rank among them, the same for each lane.
inline Choice top_expert(device const float* logits, uint rank, uint count, uint lane) {
  const Choice own = top_experts(logits, count, lane);
  return Choice{metal::simd_broadcast(own.expert, ushort(rank)), metal::simd_broadcast(own.weight, ushort(rank))};
}
