// attention_prefill for CUDA's matrix units: the same function and grid, but a block takes 64 queries, the work of two of
// the grid's threadgroups; the odd ones have nothing to do. So keys and values pass half as often.
//
// Of the eight warps, four stand for 16 queries each and two for halves: of the context tokens in the products with
// the keys, of the columns in the outputs. While the keys' products run, the values of the same tokens are on their way
// into shared memory, and the other way round.
#pragma once
#include "tile.h"

constant constexpr uint BLOCK_QUERIES = 64;
constant constexpr uint GRID_QUERIES = 32;  // of a threadgroup of the grid
constant constexpr uint CONTEXT = 32;       // tokens of the context at a time
constant constexpr uint CONTEXT_STRIDE = HEAD + 8;  // of staged rows, in halves
constant constexpr uint PROBABILITY_STRIDE = CONTEXT + 8;

// Sixteen bytes to shared memory, or zeros, that no register waits for.
LILY_INLINE void copy_async(half* to, const half* from, bool there) {
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;"
               :
               : "r"(uint(__cvta_generic_to_shared(to))), "l"(from), "r"(there ? 16 : 0)
               : "memory");
}
// Until but the last group of this thread's copies is there.
LILY_INLINE void wait_for_all_but_one() { asm volatile("cp.async.wait_group 1;" : : : "memory"); }

// The thread's part of 32 rows of keys or values, from `base` on, on its way into `tile`; rows from `end` on become 0.
LILY_INLINE void stage_context(const half* pool, const uint* table, uint kv_head, uint base, uint end, half* tile,
                               uint simd, uint lane) {
  const uint page = base < end ? table[base / PAGE] : 0;
  const half* from = pool + ((ulong(page) * KV_HEADS + kv_head) * PAGE + base % PAGE + simd) * HEAD + lane * 8;
  half* to = tile + simd * CONTEXT_STRIDE + lane * 8;
#pragma unroll
  for (uint i = 0; i < CONTEXT; i += 8) copy_async(to + i * CONTEXT_STRIDE, from + i * HEAD, base + simd + i < end);
  asm volatile("cp.async.commit_group;" : : : "memory");
}

static __device__ __forceinline__ void attention_prefill(
    const float* q, const float* projected, const half* keys, const half* values, const uint* pages,
    const Segment* segments, const Sequence* sequences, half* y, const AttentionPrefillParams& p, uint3 group,
    uint thread_index, uint simd, uint lane) {
  __shared__ uint4 staged[2][CONTEXT * CONTEXT_STRIDE / 8];  // queries at first, then keys and values
  __shared__ uint4 probabilities[BLOCK_QUERIES * PROBABILITY_STRIDE / 8];
  __shared__ float shared_peaks[2][BLOCK_QUERIES], shared_sums[2][BLOCK_QUERIES];
  if (group.x % (BLOCK_QUERIES / GRID_QUERIES) != 0) return;
  const Segment segment = segments[group.z];
  const uint heads = QUERY_HEADS / KV_HEADS;
  const uint place = p.first + group.x * (GRID_QUERIES / heads);  // of the first query in the segment
  if (segment.slot == NONE || place >= segment.rows) return;
  const uint row = segment.first_row + place;
  // The groups behind the grid's last one are another dispatch's.
  const uint groups = metal::min(BLOCK_QUERIES / GRID_QUERIES, gridDim.x - group.x);
  const uint tokens = metal::min(groups * (GRID_QUERIES / heads), segment.rows - place);
  const uint position = sequences[segment.slot].position + place;
  const uint end = position + tokens;  // of the context
  const uint* table = pages + segment.slot * p.max_pages;
  half* key_tile = (half*)staged[0];
  half* value_tile = (half*)staged[1];
  const uint sixteen = simd / 2, part = simd % 2;

  for (uint i = simd; i < BLOCK_QUERIES; i += 8) {
    const uint token = metal::min(i / heads, tokens - 1), head = group.y * heads + i % heads;
    const float4* from = (const float4*)(q + (ulong(row + token) * QUERY_HEADS + head) * HEAD);
    const half4 a = saturated_half4(from[lane * 2]), b = saturated_half4(from[lane * 2 + 1]);
    staged[0][i * CONTEXT_STRIDE / 8 + lane] = uint4(metal::as_type<uint2>(a), metal::as_type<uint2>(b));
  }
  __syncthreads();
  Fragment queries[HEAD / 16];
#pragma unroll
  for (uint n = 0; n < HEAD / 16; n++)
    queries[n].load(key_tile + sixteen * 16 * CONTEXT_STRIDE + n * 16 + left_place(lane, CONTEXT_STRIDE));
  __syncthreads();

  stage_context(keys, table, group.y, 0, end, key_tile, simd, lane);
  stage_context(values, table, group.y, 0, end, value_tile, simd, lane);
  Sums outputs[HEAD / 16];
#pragma unroll
  for (uint n = 0; n < HEAD / 16; n++)
#pragma unroll
    for (uint e = 0; e < 4; e++) outputs[n].values[e] = 0.0f;
  // A lane has two queries, eight apart.
  const uint first_query = sixteen * 16 + lane / 4;
  float highest[2] = {-FLT_MAX, -FLT_MAX}, sum[2] = {0.0f, 0.0f};
  uint last[2];
#pragma unroll
  for (uint r = 0; r < 2; r++) last[r] = metal::min(position + (first_query + r * 8) / heads, end - 1);
  const half* key_place = key_tile + part * 16 * CONTEXT_STRIDE + right_place(lane, CONTEXT_STRIDE);
  const half* value_place = value_tile + part * (HEAD / 2) + left_place(lane, CONTEXT_STRIDE);
  half* probability = (half*)probabilities + sixteen * 16 * PROBABILITY_STRIDE;

  for (uint base = 0; base < end; base += CONTEXT) {
    wait_for_all_but_one();  // the keys
    __syncthreads();
    Sums scores[2] = {};
#pragma unroll
    for (uint n = 0; n < HEAD / 16; n++) {
      Fragment right;
      right.load(key_place + n * 16);
      scores[0].add_product(queries[n], right.words[0], right.words[1]);
      scores[1].add_product(queries[n], right.words[2], right.words[3]);
    }
    float peak[2];
#pragma unroll
    for (uint r = 0; r < 2; r++) {
      peak[r] = -FLT_MAX;
#pragma unroll
      for (uint j = 0; j < 4; j++) {
        float& score = scores[j / 2].values[r * 2 + j % 2];
        const uint token = base + part * 16 + j / 2 * 8 + lane % 4 * 2 + j % 2;
        score = token <= last[r] ? score : -FLT_MAX;
        peak[r] = metal::max(peak[r], score);
      }
      peak[r] = metal::max(peak[r], metal::simd_shuffle_xor(peak[r], 1));
      peak[r] = metal::max(peak[r], metal::simd_shuffle_xor(peak[r], 2));
      if (lane % 4 == 0) shared_peaks[part][first_query + r * 8] = peak[r];
    }
    __syncthreads();  // all have the peaks, and are done with the keys
    stage_context(keys, table, group.y, base + CONTEXT, end, key_tile, simd, lane);
#pragma unroll
    for (uint r = 0; r < 2; r++) {
      const uint query = first_query + r * 8;
      const float now = metal::max(highest[r], metal::max(shared_peaks[0][query], shared_peaks[1][query]));
      const float factor = __expf(highest[r] - now);
      highest[r] = now;
      sum[r] *= factor;
#pragma unroll
      for (uint j = 0; j < 2; j++) {
        const float low = scores[j].values[r * 2], high = scores[j].values[r * 2 + 1];
        const half2 pair = half2(half(low == -FLT_MAX ? 0.0f : __expf(low - now)),
                                 half(high == -FLT_MAX ? 0.0f : __expf(high - now)));
        sum[r] += float(pair.x) + float(pair.y);
        *(uint*)(probability + (lane / 4 + r * 8) * PROBABILITY_STRIDE + part * 16 + j * 8 + lane % 4 * 2) = metal::as_type<uint>(pair);
      }
      if (__any_sync(lily_cuda::ALL_LANES, factor != 1.0f)) {
#pragma unroll
        for (uint n = 0; n < HEAD / 16; n++) {
          outputs[n].values[r * 2] *= factor;
          outputs[n].values[r * 2 + 1] *= factor;
        }
      }
    }
    wait_for_all_but_one();  // the values; the next keys may still be on their way
    __syncthreads();
#pragma unroll
    for (uint t = 0; t < CONTEXT; t += 16) {
      Fragment left;
      left.load(probability + t + left_place(lane, PROBABILITY_STRIDE));
#pragma unroll
      for (uint n = 0; n < HEAD / 32; n++) {
        Fragment right;
        right.load_transposed(value_place + t * CONTEXT_STRIDE + n * 16);
        outputs[n * 2].add_product(left, right.words[0], right.words[1]);
        outputs[n * 2 + 1].add_product(left, right.words[2], right.words[3]);
      }
    }
    __syncthreads();
    stage_context(values, table, group.y, base + CONTEXT, end, value_tile, simd, lane);
  }

#pragma unroll
  for (uint r = 0; r < 2; r++) {
    sum[r] += metal::simd_shuffle_xor(sum[r], 1);
    sum[r] += metal::simd_shuffle_xor(sum[r], 2);
    if (lane % 4 == 0) shared_sums[part][first_query + r * 8] = sum[r];
  }
  __syncthreads();
  const uint pitch = (2 * QUERY_HEADS + 2 * KV_HEADS) * HEAD;
#pragma unroll
  for (uint r = 0; r < 2; r++) {
    const uint query = first_query + r * 8, token = query / heads, head = group.y * heads + query % heads;
    if (token >= tokens) continue;
    const float factor = 1.0f / (shared_sums[0][query] + shared_sums[1][query]);
    const uint d = part * (HEAD / 2) + lane % 4 * 2;
    const float* gates = projected + ulong(row + token) * pitch + (head * 2 + 1) * HEAD + d;
    half* out = y + (ulong(row + token) * QUERY_HEADS + head) * HEAD + d;
#pragma unroll
    for (uint n = 0; n < HEAD / 16; n++) {
      const float2 gate = *(const float2*)(gates + n * 8);
      *(half2*)(out + n * 8) = half2(saturated_half(outputs[n].values[r * 2] * factor * sigmoid(gate.x)),
                                     saturated_half(outputs[n].values[r * 2 + 1] * factor * sigmoid(gate.y)));
    }
  }
}
