// Which experts a row has, found out by one warp of each block that needs it.
#pragma once

#ifdef __CUDA_ARCH_FEAT_SM90_ALL

// Two of a list, the larger first.
LILY_INLINE void in_order(ulong& first, ulong& second) {
  const ulong larger = first < second ? second : first, smaller = first < second ? first : second;
  first = larger, second = smaller;
}

// As it is in the second-level cache, which is all that holds what a kernel has written before this one has waited for its end.
LILY_INLINE float fresh(const float* from) {
  float value;
  asm volatile("ld.relaxed.gpu.global.f32 %0, [%1];" : "=f"(value) : "l"(from) : "memory");
  return value;
}

// What top_experts() gives for CHOSEN: each lane sorts its own, then the warp takes the first of them all, as often as it needs.
LILY_INLINE Choice top_experts_quickly(const float* logits, uint lane) {
  constexpr uint OWN = MAX_EXPERTS / 32;
  static_assert(OWN == 8 && CHOSEN <= 32);
  ulong own[OWN];  // key, and ~expert, so that of equal ones the lowest number is the largest
#pragma unroll
  for (uint i = 0; i < OWN; i++) {
    const uint expert = i * 32 + lane, key = expert < EXPERTS ? metal::max(order_key(fresh(logits + expert)), 1u) : 0u;
    own[i] = ulong(key) << 32 | ~expert;
  }
  constexpr unsigned char PAIRS_IN_ORDER[19][2] = {{0, 1}, {2, 3}, {4, 5}, {6, 7}, {0, 2}, {1, 3}, {4, 6}, {5, 7}, {1, 2}, {5, 6},
                                                   {0, 4}, {1, 5}, {2, 6}, {3, 7}, {2, 4}, {3, 5}, {1, 2}, {3, 4}, {5, 6}};
#pragma unroll
  for (uint i = 0; i < 19; i++) in_order(own[PAIRS_IN_ORDER[i][0]], own[PAIRS_IN_ORDER[i][1]]);
  uint own_expert = 0, own_key = 0;
#pragma unroll
  for (uint r = 0; r < CHOSEN; r++) {
    const uint first = uint(own[0] >> 32), key = __reduce_max_sync(~0u, first);
    const uint place = __reduce_max_sync(~0u, first == key ? uint(own[0]) : 0u);
    own_expert = lane == r ? ~place : own_expert;
    own_key = lane == r ? key : own_key;
    const bool taken = first == key && uint(own[0]) == place;
#pragma unroll
    for (uint i = 0; i + 1 < OWN; i++) own[i] = taken ? own[i + 1] : own[i];
    own[OWN - 1] = taken ? 0 : own[OWN - 1];
  }
  const float logit = key_value(own_key), peak = simd_broadcast(logit, ushort(0));
  const float part = lane < CHOSEN ? metal::exp(logit - peak) : 0.0f;
  return Choice{own_expert, part / simd_sum(part)};
}

// Lane r < RANKS: a row's expert of that rank and its weight, the shared one the last.
LILY_INLINE Choice rank_of_row(const float* logits, uint lane) {
  const float shared_logit = fresh(logits + EXPERTS);
  const Choice own = top_experts_quickly(logits, lane);
  return lane == CHOSEN ? Choice{EXPERTS, sigmoid(shared_logit)} : own;
}
#endif
