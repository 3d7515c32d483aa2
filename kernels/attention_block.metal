// One block of the context of a row, one KV head with all its query heads (at most 8): softmax attention over the block's
// tokens up to the row's own position, unnormalised.
//
// grid (blocks, KV_HEADS, rows), 128 threads. q [rows][QUERY_HEADS][256], keys and values [pages][KV_HEADS][PAGE][256],
// pages [slots][max_pages]; sums [rows][QUERY_HEADS][blocks][256] = Σ e^(s − max)·v,
// weights [rows][QUERY_HEADS][blocks][2] = max, Σ e^(s − max). Nothing is written for blocks past the row's position, nor for
// rows that pad a plan.
#include <metal_stdlib>
#include "decode_params.h"
#include "fold.h"
#include "model.h"
#include "numbers.h"
using namespace metal;

constant constexpr uint MAX_BLOCK = 256;

[[kernel, max_total_threads_per_threadgroup(128)]] void attention_block(
    device const float* q [[buffer(0)]],
    device const half* keys [[buffer(1)]],
    device const half* values [[buffer(2)]],
    device const Row* rows [[buffer(3)]],
    device const Sequence* sequences [[buffer(4)]],
    device const uint* pages [[buffer(5)]],
    device float* sums [[buffer(6)]],
    device float* weights [[buffer(7)]],
    constant BlockParams& p [[buffer(8)]],
    uint3 group [[threadgroup_position_in_grid]],
    uint thread_index [[thread_index_in_threadgroup]],
    uint simd [[simdgroup_index_in_threadgroup]],
    uint lane [[thread_index_in_simdgroup]]) {
  constexpr uint HEADS = 8, SIMDS = 4, TOKENS = 4;  // tokens of a SIMD-group at a time
  threadgroup float4 scored[MAX_BLOCK][HEADS / 4];  // a score a head
  threadgroup float maxima[SIMDS][HEADS], totals[SIMDS][HEADS];
  threadgroup float* scores = (threadgroup float*)scored;
  const uint row = group.z, kv_head = group.y, heads = QUERY_HEADS / KV_HEADS, first_token = group.x * p.block;
  const uint slot = rows[row].slot;
  if (slot == NONE) return;
  const uint position = sequences[slot].position + rows[row].offset;
  if (first_token > position) return;
  const uint count = min(p.block, position + 1 - first_token);
  device const uint* block_pages = pages + slot * p.max_pages + first_token / PAGE;

  // Scores. A key is 16 bytes a lane; four tokens by eight heads make a sum a lane.
  {
    float4 low[HEADS], high[HEADS];
#pragma unroll
    for (uint head = 0; head < HEADS; head++) {
      // Heads beyond those there are repeat the last.
      const uint query = row * QUERY_HEADS + kv_head * heads + min(head, heads - 1);
      device const float4* source = (device const float4*)(q + query * HEAD + lane * 8);
      low[head] = source[0];
      high[head] = source[1];
    }
    for (uint token = simd * TOKENS; token < count; token += SIMDS * TOKENS) {
      const ulong place = (ulong(block_pages[token / PAGE]) * KV_HEADS + kv_head) * PAGE + token % PAGE;
      device const uint4* key = (device const uint4*)(keys + place * HEAD) + lane;
      uint4 packed[TOKENS];
#pragma unroll
      for (uint i = 0; i < TOKENS; i++) packed[i] = key[i * (HEAD / 8)];
      float products[TOKENS * HEADS];
#pragma unroll
      for (uint i = 0; i < TOKENS; i++) {
        const float4 a = four_halves(packed[i].x, packed[i].y), b = four_halves(packed[i].z, packed[i].w);
#pragma unroll
        for (uint head = 0; head < HEADS; head++)
          products[i * HEADS + head] = add_product(b, high[head], add_product(a, low[head], 0.0f));
      }
      scores[token * HEADS + lane] = fold<TOKENS * HEADS>(products, lane);
    }
  }

  // Softmax: threads of equal number modulo 8 share a head. A thread takes the scores that it wrote itself: no barrier.
  const uint head = thread_index % HEADS;
  float peak = -FLT_MAX;
  for (uint token = thread_index / HEADS; token < count; token += 16) peak = max(peak, scores[token * HEADS + head]);
  peak = max(peak, simd_shuffle_xor(peak, ushort(8)));
  peak = max(peak, simd_shuffle_xor(peak, ushort(16)));
  if (lane < HEADS) maxima[simd][lane] = peak;
  threadgroup_barrier(mem_flags::mem_threadgroup);
  peak = max(max(maxima[0][head], maxima[1][head]), max(maxima[2][head], maxima[3][head]));
  float total = 0.0f;
  for (uint token = thread_index / HEADS; token < count; token += 16) {
    const float weight = exp(scores[token * HEADS + head] - peak);
    scores[token * HEADS + head] = weight;
    total += weight;
  }
  total += simd_shuffle_xor(total, ushort(8));
  total += simd_shuffle_xor(total, ushort(16));
  if (lane < HEADS) totals[simd][lane] = total;
  threadgroup_barrier(mem_flags::mem_threadgroup);

  // Values. A SIMD-group has 64 of the dimensions, eight a lane, and four tokens at a time, one each eight lanes.
  constexpr uint OWN = 8;
  float mixed[HEADS * OWN];
#pragma unroll
  for (uint i = 0; i < HEADS * OWN; i++) mixed[i] = 0.0f;
  const uint dimension = simd * 64 + lane % 8 * OWN;
  for (uint first = 0; first < count; first += 16) {
    const ulong place = (ulong(block_pages[first / PAGE]) * KV_HEADS + kv_head) * PAGE + first % PAGE;
    device const half* value = values + place * HEAD + dimension;
    uint4 packed[4];
#pragma unroll
    for (uint i = 0; i < 4; i++) {
      const uint token = i * 4 + lane / 8;
      packed[i] = uint4(0u);
      if (first + token < count) packed[i] = *(device const uint4*)(value + token * HEAD);
    }
#pragma unroll
    for (uint i = 0; i < 4; i++) {
      const uint token = first + i * 4 + lane / 8;
      if (token >= count) continue;
      const float4 low = four_halves(packed[i].x, packed[i].y), high = four_halves(packed[i].z, packed[i].w);
      const float4 weights0 = scored[token][0], weights1 = scored[token][1];
#pragma unroll
      for (uint h = 0; h < HEADS; h++) {
        const float weight = h < 4 ? weights0[h % 4] : weights1[h % 4];
#pragma unroll
        for (uint d = 0; d < OWN; d++)
          mixed[h * OWN + d] = fma(d < 4 ? low[d % 4] : high[d % 4], weight, mixed[h * OWN + d]);
      }
    }
  }
  // Over the lanes of one dimension: each keeps two of the heads.
  fold_step<HEADS * OWN / 2>(mixed, 16, lane);
  fold_step<HEADS * OWN / 4>(mixed, 8, lane);
#pragma unroll
  for (uint i = 0; i < 2; i++) {
    const uint own = lane / 8 * 2 + i;
    if (own >= heads) continue;
    const ulong place = (ulong(row) * QUERY_HEADS + kv_head * heads + own) * p.blocks + group.x;
    device float4* out = (device float4*)(sums + place * HEAD + dimension);
    out[0] = float4(mixed[i * OWN], mixed[i * OWN + 1], mixed[i * OWN + 2], mixed[i * OWN + 3]);
    out[1] = float4(mixed[i * OWN + 4], mixed[i * OWN + 5], mixed[i * OWN + 6], mixed[i * OWN + 7]);
  }
  if (thread_index < heads) {
    const ulong place = (ulong(row) * QUERY_HEADS + kv_head * heads + thread_index) * p.blocks + group.x;
    weights[place * 2] = peak;
    weights[place * 2 + 1] = totals[0][head] + totals[1][head] + totals[2][head] + totals[3][head];
  }
}
