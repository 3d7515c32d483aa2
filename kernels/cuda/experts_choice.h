// Which experts a row has, found out by one warp of each block that needs it.
#pragma once

#ifdef __CUDA_ARCH_FEAT_SM90_ALL

// What top_experts() gives for CHOSEN, the warp's largest in one instruction.
LILY_INLINE Choice top_experts_quickly(const float* logits, uint lane) {
  constexpr uint OWN = MAX_EXPERTS / 32;
  uint keys[OWN];
#pragma unroll
  for (uint i = 0; i < OWN; i++) {
    const uint expert = i * 32 + lane;
    keys[i] = expert < EXPERTS ? metal::max(order_key(logits[expert]), 1u) : 0u;
  }
  uint own_expert = 0, own_key = 0;
#pragma unroll
  for (uint r = 0; r < CHOSEN; r++) {
    uint best[OWN], at[OWN];
#pragma unroll
    for (uint i = 0; i < OWN; i++) best[i] = keys[i], at[i] = i * 32 + lane;
#pragma unroll
    for (uint step = 1; step < OWN; step *= 2)
#pragma unroll
      for (uint i = 0; i < OWN; i += 2 * step) {
        at[i] = best[i + step] > best[i] ? at[i + step] : at[i];
        best[i] = metal::max(best[i + step], best[i]);
      }
    const uint key = __reduce_max_sync(~0u, best[0]), expert = __reduce_min_sync(~0u, best[0] == key ? at[0] : NONE);
    own_expert = lane == r ? expert : own_expert;
    own_key = lane == r ? key : own_key;
#pragma unroll
    for (uint i = 0; i < OWN; i++) keys[i] = i * 32 + lane == expert ? 0u : keys[i];
  }
  const float logit = key_value(own_key), peak = simd_broadcast(logit, ushort(0));
  const float part = lane < CHOSEN ? metal::exp(logit - peak) : 0.0f;
  return Choice{own_expert, part / simd_sum(part)};
}
#endif
