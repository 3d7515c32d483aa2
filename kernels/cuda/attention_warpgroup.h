// The parts of attention_prefill_warpgroup: queries into shared memory, copies of pages, the products of a page, and the
// softmax that goes along with them.
#pragma once
#include "attention_products.h"
#ifdef __CUDA_ARCH_FEAT_SM90_ALL

constant constexpr uint WARPGROUP_QUERIES = 64;   // of a warpgroup
constant constexpr uint WARPGROUP_BLOCK = 2 * WARPGROUP_QUERIES;
constant constexpr uint QUERY_SLAB = WARPGROUP_BLOCK * SLAB_COLUMNS * 2;     // bytes: 64 columns of all queries
constant constexpr uint QUERY_TILE = HEAD / SLAB_COLUMNS * QUERY_SLAB;

// A lane's two queries, eight apart.
struct Softmax {
  float highest[2], sum[2];
  uint last[2];  // the last token that each sees

  // Scores of tokens `base` and on become probabilities, rounded to halves; what older sums are to be multiplied by goes to
  // `factors`.
  LILY_INLINE void probabilities(float (&scores)[32], uint base, uint lane, float (&factors)[2]) {
    if (base + PAGE > last[0] + 1) {  // the lower of the two
#pragma unroll
      for (uint i = 0; i < 32; i++)
        if (base + i / 4 * 8 + lane % 4 * 2 + i % 2 > last[i / 2 % 2]) scores[i] = -FLT_MAX;
    }
#pragma unroll
    for (uint r = 0; r < 2; r++) {
      float peak = highest[r], other = scores[r * 2];
#pragma unroll
      for (uint i = 1; i < 15; i += 2) {
        peak = fmaxf(peak, scores[i / 2 * 4 + r * 2 + 1]);
        other = fmaxf(other, scores[(i + 1) / 2 * 4 + r * 2]);
      }
      peak = fmaxf(peak, fmaxf(other, scores[28 + r * 2 + 1]));
      peak = fmaxf(peak, metal::simd_shuffle_xor(peak, 1));
      peak = fmaxf(peak, metal::simd_shuffle_xor(peak, 2));
      factors[r] = exp2_fast((highest[r] - peak) * LOG2_E);
      highest[r] = peak;
      // Finite too where the query sees nothing of a piece: then its maximum stays -FLT_MAX.
      const float offset = fmaxf(peak, -FLT_MAX / 2) * -LOG2_E;
      float added = 0.0f;
#pragma unroll
      for (uint j = 0; j < 8; j++) {
        // Of -FLT_MAX exactly 0.
        float& low = scores[j * 4 + r * 2];
        float& high = scores[j * 4 + r * 2 + 1];
        const half2 pair = metal::as_type<half2>(
            two_halves(exp2_fast(fmaf(low, LOG2_E, offset)), exp2_fast(fmaf(high, LOG2_E, offset))));
        low = float(pair.x);
        high = float(pair.y);
        added += low + high;
      }
      sum[r] = sum[r] * factors[r] + added;
    }
  }
};

// The copies of one of four warps: every second page of keys or of values, from `first` on; rows from `end` on become 0.
LILY_INLINE void copy_pages(const half* pool, const uint* table, uint kv_head, uint first, uint end, uint tile,
                            PhaseBarrier& full, PhaseBarrier& empty, uint lane) {
  uint round = 0;
  for (uint base = first * PAGE; base < end; base += 2 * PAGE, round++) {
    const half* from = pool + (ulong(table[base / PAGE]) * KV_HEADS + kv_head) * (PAGE * HEAD) + lane * 8;
    const uint there = end - base;
    if (round > 0) empty.wait(round - 1);
#pragma unroll
    for (uint r = 0; r < 8; r++) {
      const uint to = tile + lane / 8 * TILE_SLAB + r * 128 + (lane % 8 ^ r) * 16;
#pragma unroll
      for (uint i = 0; i < PAGE; i += 8) copy_16(to + i * 128, from + (i + r) * HEAD, i + r < there);
    }
    wait_for_copies();
    copies_are_for_products();
    full.arrive();
  }
}

// Queries from `first_query` on as halves into shared memory; those past the last token repeat it.
LILY_INLINE void stage_queries(const float* q, uint row, uint tokens, uint kv_head, uint first_query, uchar* memory,
                               uint lane) {
  const uint heads = QUERY_HEADS / KV_HEADS;
  float4 low[16], high[16];
#pragma unroll
  for (uint i = 0; i < 16; i++) {
    const uint query = first_query + i, token = metal::min(query / heads, tokens - 1);
    const float* from = q + (ulong(row + token) * QUERY_HEADS + kv_head * heads + query % heads) * HEAD + lane * 8;
    low[i] = four_floats(from);
    high[i] = four_floats(from + 4);
  }
#pragma unroll
  for (uint i = 0; i < 16; i++)
    *(uint4*)(memory + lane / 8 * QUERY_SLAB + (first_query + i) * 128 + (lane % 8 ^ i % 8) * 16) =
        uint4(metal::as_type<uint2>(saturated_half4(low[i])), metal::as_type<uint2>(saturated_half4(high[i])));
  copies_are_for_products();
}

// The scores of a page: products of a warpgroup's queries with its keys.
LILY_INLINE void multiply_keys(float (&scores)[32], ulong queries, ulong keys) {
#pragma unroll
  for (uint k = 0; k < HEAD; k += 16)
    multiply_64(scores, queries + (k / SLAB_COLUMNS * QUERY_SLAB + k % SLAB_COLUMNS * 2) / 16,
                keys + (k / SLAB_COLUMNS * TILE_SLAB + k % SLAB_COLUMNS * 2) / 16, k > 0);
  commit_products();
}
// Once the products with the values before are done: registers that products in flight read must not change.
LILY_INLINE void pack(const float (&probabilities)[32], uint (&pairs)[PROBABILITY_WORDS]) {
#pragma unroll
  for (uint i = 0; i < PROBABILITY_WORDS; i++) pairs[i] = two_halves(probabilities[i * 2], probabilities[i * 2 + 1]);
}
LILY_INLINE void add_values(float (&outputs)[128], const uint (&pairs)[PROBABILITY_WORDS], ulong values) {
#pragma unroll
  for (uint t = 0; t < PAGE; t += 16) add_product_256(outputs, pairs + t / 4, values + t * SLAB_COLUMNS * 2 / 16);
  commit_products();
}
#endif
