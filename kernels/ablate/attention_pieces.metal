// Ablations of decode attention. As attention_block.metal, of which the results are read alike, but
//   attention_long: a block of the context may have any number of tokens; it is passed over in pieces of MAX_BLOCK, with a
//   running maximum and sum. Grid (blocks, KV_HEADS, rows), 128 threads.
//   attention_head: a threadgroup has one query head: a key or value is read once for each head of a group.
//   Grid (blocks, QUERY_HEADS, rows), 128 threads.
#include <metal_stdlib>
#include "decode_params.h"
#include "fold.h"
#include "model.h"
#include "numbers.h"
using namespace metal;

constant constexpr uint PIECE_TOKENS = 256;

template <uint HEADS>
[[kernel, max_total_threads_per_threadgroup(128)]] void attention_pieces(
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
  constexpr uint SIMDS = 4, TOKENS = HEADS == 1 ? 8 : 4, OWN = 8;
  threadgroup float scores[PIECE_TOKENS * HEADS];
  threadgroup float maxima[SIMDS][HEADS], totals[SIMDS][HEADS];
  const uint row = group.z, packed_heads = QUERY_HEADS / KV_HEADS, first_token = group.x * p.block;
  const uint kv_head = HEADS == 1 ? group.y / packed_heads : group.y;
  const uint heads = HEADS == 1 ? 1 : packed_heads, first_head = group.y * heads;
  const uint slot = rows[row].slot;
  if (slot == NONE) return;
  const uint position = sequences[slot].position + rows[row].offset;
  if (first_token > position) return;
  const uint count = min(p.block, position + 1 - first_token);
  device const uint* block_pages = pages + slot * p.max_pages + first_token / PAGE;

  const uint head = thread_index % HEADS, dimension = simd * 64 + lane % 8 * OWN;
  float mixed[HEADS * OWN], peaks[HEADS], peak = -FLT_MAX, total = 0.0f;
#pragma unroll
  for (uint i = 0; i < HEADS * OWN; i++) mixed[i] = 0.0f;
#pragma unroll
  for (uint h = 0; h < HEADS; h++) peaks[h] = -FLT_MAX;
  for (uint base = 0; base < count; base += PIECE_TOKENS, block_pages += PIECE_TOKENS / PAGE) {
    const uint here = min(PIECE_TOKENS, count - base);
    {
      float4 low[HEADS], high[HEADS];
#pragma unroll
      for (uint h = 0; h < HEADS; h++) {
        const uint query = row * QUERY_HEADS + first_head + min(h, heads - 1);
        device const float4* source = (device const float4*)(q + query * HEAD + lane * 8);
        low[h] = source[0];
        high[h] = source[1];
      }
      for (uint token = simd * TOKENS; token < here; token += SIMDS * TOKENS) {
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
          for (uint h = 0; h < HEADS; h++)
            products[i * HEADS + h] = add_product(b, high[h], add_product(a, low[h], 0.0f));
        }
        const float score = fold<TOKENS * HEADS>(products, lane);
        constexpr uint LANES = 32 / (TOKENS * HEADS);
        if (lane % LANES == 0) scores[token * HEADS + lane / LANES] = score;
      }
    }
    threadgroup_barrier(mem_flags::mem_threadgroup);

    float highest = -FLT_MAX;
    for (uint token = thread_index / HEADS; token < here; token += 128 / HEADS)
      highest = max(highest, scores[token * HEADS + head]);
    for (ushort step = HEADS; step < 32; step *= 2) highest = max(highest, simd_shuffle_xor(highest, step));
    if (lane < HEADS) maxima[simd][lane] = highest;
    threadgroup_barrier(mem_flags::mem_threadgroup);
#pragma unroll
    for (uint h = 0; h < HEADS; h++) {
      const float next = max(max(peaks[h], max(maxima[0][h], maxima[1][h])), max(maxima[2][h], maxima[3][h]));
      const float factor = exp(peaks[h] - next);
      peaks[h] = next;
      if (h == head) {
        peak = next;
        total *= factor;
      }
#pragma unroll
      for (uint d = 0; d < OWN; d++) mixed[h * OWN + d] *= factor;
    }
    for (uint token = thread_index / HEADS; token < here; token += 128 / HEADS) {
      const float weight = exp(scores[token * HEADS + head] - peak);
      scores[token * HEADS + head] = weight;
      total += weight;
    }
    threadgroup_barrier(mem_flags::mem_threadgroup);

    for (uint first = 0; first < here; first += 16) {
      const ulong place = (ulong(block_pages[first / PAGE]) * KV_HEADS + kv_head) * PAGE + first % PAGE;
      device const half* value = values + place * HEAD + dimension;
      uint4 packed[4];
#pragma unroll
      for (uint i = 0; i < 4; i++) {
        const uint token = i * 4 + lane / 8;
        packed[i] = uint4(0u);
        if (first + token < here) packed[i] = *(device const uint4*)(value + token * HEAD);
      }
#pragma unroll
      for (uint i = 0; i < 4; i++) {
        const uint token = first + i * 4 + lane / 8;
        if (token >= here) continue;
        const float4 low = four_halves(packed[i].x, packed[i].y), high = four_halves(packed[i].z, packed[i].w);
#pragma unroll
        for (uint h = 0; h < HEADS; h++) {
          const float weight = scores[token * HEADS + h];
#pragma unroll
          for (uint d = 0; d < OWN; d++)
            mixed[h * OWN + d] = fma(d < 4 ? low[d % 4] : high[d % 4], weight, mixed[h * OWN + d]);
        }
      }
    }
    threadgroup_barrier(mem_flags::mem_threadgroup);  // the scores are used up
  }
  for (ushort step = HEADS; step < 32; step *= 2) total += simd_shuffle_xor(total, step);
  if (lane < HEADS) totals[simd][lane] = total;
  threadgroup_barrier(mem_flags::mem_threadgroup);
  // Over the lanes of one dimension: each keeps a quarter of the values.
  constexpr uint KEPT = HEADS * OWN / 4;
  fold_step<HEADS * OWN / 2>(mixed, 16, lane);
  fold_step<KEPT>(mixed, 8, lane);
#pragma unroll
  for (uint i = 0; i < KEPT; i += 2) {
    const uint value = lane / 8 * KEPT + i, own = value / OWN;
    if (own >= heads) continue;
    const ulong place = (ulong(row) * QUERY_HEADS + first_head + own) * p.blocks + group.x;
    *(device float2*)(sums + place * HEAD + dimension + value % OWN) = float2(mixed[i], mixed[i + 1]);
  }
  if (thread_index < heads) {
    const ulong place = (ulong(row) * QUERY_HEADS + first_head + thread_index) * p.blocks + group.x;
    weights[place * 2] = peak;
    weights[place * 2 + 1] = totals[0][head] + totals[1][head] + totals[2][head] + totals[3][head];
  }
}

template [[host_name("attention_long")]] [[kernel]] decltype(attention_pieces<8>) attention_pieces<8>;
template [[host_name("attention_head")]] [[kernel]] decltype(attention_pieces<1>) attention_pieces<1>;
