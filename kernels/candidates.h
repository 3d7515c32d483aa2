// The tokens that a draw may take.
//
// Tokens are ordered by descending key, equals by ascending id. What top-k and top-p keep is a beginning of that order, so
// it is told by a key and by how many of that key's tokens are kept: a search over keys finds it, nothing is sorted. Each
// step of the search cuts the range to a quarter with one pass over the blocks whose largest key is in question.
#pragma once
#include "sampling.h"
using namespace metal;

// The kept: keys above `edge`, the first `equals` tokens of `edge` itself; of these those that weigh at least `least`.
struct Kept {
  uint edge;
  float equals;
  float least;
};

// A draw's keys as all SIMD-groups of a threadgroup see them. Every thread calls the same functions and gets the same
// results.
struct Candidates {
  device const uint4* keys;            // [blocks][SAMPLE_BLOCK / 4]
  threadgroup const uint* block_keys;  // the largest of each block
  threadgroup uint4* scratch;          // [simds]
  uint blocks;
  float peak;  // the largest logit
  float inverse_temperature;
  uint simds, simd, lane;

  // e^((logit − peak) / temperature)
  float weight(uint key) const {
    const float exponent = (key_value(key) - peak) * inverse_temperature;
    return metal::exp(exponent < -100.0f ? -100.0f : exponent);
  }

  // The weight of a key that is not below the edge, 0 if min-p drops it.
  float admitted(Kept kept, uint key) const {
    const float own = weight(key);
    return own >= kept.least ? own : 0.0f;
  }

  // How many keys are at least edge.x, edge.y, edge.z (ascending), or, if `mass`, what they weigh; w: how many equal edge.x.
  float4 reaching(uint3 edge, bool mass) const {
    float4 parts = float4(0.0f);
    for (uint block = simd; block < blocks; block += simds) {
      if (block_keys[block] < edge.x) continue;
      for (uint step = 0; step < SAMPLE_BLOCK / 128; step++) {
        const uint4 four = keys[block * (SAMPLE_BLOCK / 4) + step * 32 + lane];
#pragma unroll
        for (uint i = 0; i < 4; i++) {
          const float value = mass ? weight(four[i]) : 1.0f;
          parts += float4(four[i] >= edge.x ? value : 0.0f, four[i] >= edge.y ? value : 0.0f,
                          four[i] >= edge.z ? value : 0.0f, four[i] == edge.x ? 1.0f : 0.0f);
        }
      }
    }
    metal::threadgroup_barrier(metal::mem_flags::mem_threadgroup);  // the scratch is free
    parts = float4(metal::simd_sum(parts.x), metal::simd_sum(parts.y), metal::simd_sum(parts.z), metal::simd_sum(parts.w));
    if (lane == 0) scratch[simd] = as_type<uint4>(parts);
    metal::threadgroup_barrier(metal::mem_flags::mem_threadgroup);
    parts = float4(0.0f);
    for (uint i = 0; i < simds; i++) parts += as_type<float4>(scratch[i]);
    return parts;
  }

  // The largest key in [low, high] such that the keys from it on reach `target` in number or weight; `low` is known to.
  uint search(float target, uint low, uint high, bool mass) const {
    while (low < high) {
      const uint quarter = (high - low) / 4 + 1;
      const uint3 edge = uint3(low + quarter, low + 2 * quarter, low + 3 * quarter);
      const float4 found = reaching(edge, mass);
      const uint quarters = found.z >= target ? 3 : (found.y >= target ? 2 : (found.x >= target ? 1 : 0));
      low += quarters * quarter;
      high = quarters == 3 ? high : metal::min(high, low + quarter - 1);
    }
    return low;
  }

  // The top_k-th of the blocks' largest keys, from which the search for the top_k sets out; 0 if there are fewer
  // blocks. The first to use the scratch.
  uint floor_of(uint top_k) const {
    const uint block = simd * 32 + lane;
    uint low = 0, better = 0;
    for (uint other = 0; block < blocks && other < blocks; other++)
      better += block_keys[other] > block_keys[block] || (block_keys[other] == block_keys[block] && other < block) ? 1 : 0;
    if (block < blocks && better + 1 == top_k) low = block_keys[block];
    low = metal::simd_max(low);
    if (lane == 0) scratch[simd].x = low;
    metal::threadgroup_barrier(metal::mem_flags::mem_threadgroup);
    for (uint i = 0; i < simds; i++) low = metal::max(low, scratch[i].x);
    return low;
  }

  // What top-k and top-p leave; min-p is kept for the weights.
  Kept cut(uint top_k, float top_p, float min_p, uint best_key) const {
    Kept kept = Kept{0u, 0.0f, min_p};
    if (top_k > 0) {
      uint low = floor_of(top_k);
      bool fewer = false;
      if (low == 0) {
        low = 1;
        fewer = reaching(uint3(1u), false).x <= float(top_k);
      }
      if (!fewer) {
        kept.edge = search(float(top_k), low, best_key, false);
        const float4 found = reaching(uint3(kept.edge, kept.edge + 1, kept.edge + 1), false);
        kept.equals = float(top_k) - found.y;
      }
    }
    if (top_p < 1.0f) {
      const uint next = kept.edge + 1;
      const float4 whole = reaching(uint3(metal::max(kept.edge, 1u), next, next), true);
      const float total = whole.y + kept.equals * weight(kept.edge), target = top_p * total;
      const uint edge = search(target, metal::max(kept.edge, 1u), best_key, true);
      const float4 found = reaching(uint3(edge, edge + 1, edge + 1), true);
      const float there = edge == kept.edge ? kept.equals : found.w, each = weight(edge);
      const float needed = each > 0.0f ? metal::ceil((target - found.y) / each) : there;
      kept.edge = edge;
      kept.equals = metal::clamp(needed, 1.0f, there);
    }
    return kept;
  }
};
