// Causal attention of many rows over the paged keys and values, their own among them (of attention_prepare):
//   y = half(softmax(q K^T) V * sigmoid(gate)), per query head; q already has the factor 1 / sqrt(HEAD).
//
// A threadgroup takes 32 queries that share a KV head, 32 / (QUERY_HEADS / KV_HEADS) tokens with all query heads of it,
// and passes once over the context, 32 tokens at a time (Dao et al., "FlashAttention", 2022): a running maximum and sum
// a query in fp32, probabilities in half, outputs in fp32 in registers. No memory grows with the context.
//
// Grid {ceil((rows of the longest segment - first) / tokens of a threadgroup), KV_HEADS, segments}, 256 threads;
// threadgroups past their segment's end have nothing to do.
#include <metal_stdlib>
#include <metal_simdgroup_matrix>
#include "model.h"
#include "numbers.h"
#include "prefill.h"
using namespace metal;

constant constexpr uint QUERIES = 32;               // of a threadgroup
constant constexpr uint CONTEXT = 32;               // tokens of the context at a time
constant constexpr uint CONTEXT_STRIDE = HEAD + 8;  // of staged rows, in halves
constant constexpr uint SCORE_STRIDE = CONTEXT + 4;
constant constexpr uint PROBABILITY_STRIDE = CONTEXT + 8;

// Multiplies each row of the outputs by its factor. Matrices of one type lie alike in the lanes, wherever that may be.
inline void scale_rows(thread simdgroup_matrix<float, 8, 8>* outputs, threadgroup const float* factors) {
  simdgroup_matrix<float, 8, 8> factor;
  simdgroup_load(factor, factors, 8);
#pragma unroll
  for (uint n = 0; n < HEAD / 16; n++) {
    outputs[n].thread_elements()[0] *= factor.thread_elements()[0];
    outputs[n].thread_elements()[1] *= factor.thread_elements()[1];
  }
}

[[kernel, max_total_threads_per_threadgroup(256)]] void attention_prefill(
    device const float* q [[buffer(0)]],          // [rows][QUERY_HEADS][HEAD]: normalised, turned, scaled
    device const float* projected [[buffer(1)]],  // [rows][QUERY_HEADS times q HEAD, gate HEAD | k | v]: the gates
    device const half* keys [[buffer(2)]],        // [pages][KV_HEADS][PAGE][HEAD]
    device const half* values [[buffer(3)]],
    device const uint* pages [[buffer(4)]],  // [slots][max_pages]
    device const Segment* segments [[buffer(5)]],
    device const Sequence* sequences [[buffer(6)]],
    device half* y [[buffer(7)]],  // [rows][QUERY_HEADS][HEAD]
    constant AttentionPrefillParams& p [[buffer(8)]],
    uint3 group [[threadgroup_position_in_grid]],
    uint thread_index [[thread_index_in_threadgroup]],
    uint simd [[simdgroup_index_in_threadgroup]],
    uint lane [[thread_index_in_simdgroup]]) {
  // Queries at first, then keys and values in turn, at last the outputs.
  threadgroup uint4 staged[CONTEXT * CONTEXT_STRIDE / 8];
  threadgroup float4 scores[2][QUERIES * SCORE_STRIDE / 4];  // sums over either half of the columns
  threadgroup half4 probabilities[QUERIES * PROBABILITY_STRIDE / 4];
  threadgroup float factors[QUERIES * 8];  // a query's factor eight times: a matrix for each eight queries
  const Segment segment = segments[group.z];
  const uint heads = QUERY_HEADS / KV_HEADS;
  const uint place = p.first + group.x * (QUERIES / heads);  // of the first query in the segment
  if (segment.slot == NONE || place >= segment.rows) return;
  const uint row = segment.first_row + place;
  const uint tokens = min(QUERIES / heads, segment.rows - place);
  const uint position = sequences[segment.slot].position + place;
  const uint end = position + tokens;  // of the context
  device const uint* table = pages + segment.slot * p.max_pages;

  // A SIMD-group has eight queries and half of the columns, both of the products with the keys and of the outputs.
  const uint eight = simd / 2, part = simd % 2;
  threadgroup const half* columns = (threadgroup const half*)staged + part * (HEAD / 2);
  threadgroup float* score_rows = (threadgroup float*)scores[part] + eight * 8 * SCORE_STRIDE;
  threadgroup const half* probability_rows = (threadgroup const half*)probabilities + eight * 8 * PROBABILITY_STRIDE;
  for (uint i = simd; i < QUERIES; i += 8) {
    const uint token = min(i / heads, tokens - 1);
    const uint head = group.y * heads + i % heads;
    device const float4* from = (device const float4*)(q + ((row + token) * QUERY_HEADS + head) * HEAD);
    const half4 a = saturated_half4(from[lane * 2]), b = saturated_half4(from[lane * 2 + 1]);
    staged[i * CONTEXT_STRIDE / 8 + lane] = uint4(as_type<uint2>(a), as_type<uint2>(b));
  }
  threadgroup_barrier(mem_flags::mem_threadgroup);
  simdgroup_matrix<half, 8, 8> queries[HEAD / 16];
#pragma unroll
  for (uint n = 0; n < HEAD / 16; n++)
    simdgroup_load(queries[n], columns + eight * 8 * CONTEXT_STRIDE + n * 8, CONTEXT_STRIDE);
  simdgroup_matrix<float, 8, 8> outputs[HEAD / 16];
#pragma unroll
  for (uint n = 0; n < HEAD / 16; n++) outputs[n] = make_filled_simdgroup_matrix<float, 8, 8>(0.0f);
  threadgroup_barrier(mem_flags::mem_threadgroup);

  // For the softmax, eight lanes have a query, four tokens each.
  const uint query = thread_index / 8, column = thread_index % 8 * 4;
  const uint last = min(position + query / heads, end - 1);  // the last token that it sees
  float highest = -FLT_MAX, sum = 0.0f;
  uint4 k[4], v[4];
  for (uint i = 0; i < 4; i++)
    k[i] = ((device const uint4*)keys)[((table[0] * KV_HEADS + group.y) * PAGE + simd + i * 8) * (HEAD / 8) + lane];
  for (uint base = 0; base < end; base += CONTEXT) {
    for (uint i = 0; i < 4; i++) staged[(simd + i * 8) * CONTEXT_STRIDE / 8 + lane] = k[i];
    threadgroup_barrier(mem_flags::mem_threadgroup);
    const uint from = ((table[base / PAGE] * KV_HEADS + group.y) * PAGE + base % PAGE + simd) * (HEAD / 8) + lane;
    // What lies past the end of the context may be anything, even NaN.
    for (uint i = 0; i < 4; i++)
      v[i] = base + simd + i * 8 < end ? ((device const uint4*)values)[from + i * 8 * (HEAD / 8)] : uint4(0);
    simdgroup_matrix<float, 8, 8> products[CONTEXT / 8];
#pragma unroll
    for (uint t = 0; t < CONTEXT / 8; t++) products[t] = make_filled_simdgroup_matrix<float, 8, 8>(0.0f);
#pragma unroll
    for (uint n = 0; n < HEAD / 16; n++) {
#pragma unroll
      for (uint t = 0; t < CONTEXT / 8; t++) {
        simdgroup_matrix<half, 8, 8> right;
        simdgroup_load(right, columns + t * 8 * CONTEXT_STRIDE + n * 8, CONTEXT_STRIDE, ulong2(0), true);
        simdgroup_multiply_accumulate(products[t], queries[n], right, products[t]);
      }
    }
#pragma unroll
    for (uint t = 0; t < CONTEXT / 8; t++) simdgroup_store(products[t], score_rows + t * 8, SCORE_STRIDE);
    threadgroup_barrier(mem_flags::mem_threadgroup);

    for (uint i = 0; i < 4; i++) staged[(simd + i * 8) * CONTEXT_STRIDE / 8 + lane] = v[i];
    const uint next = base + CONTEXT;
    if (next < end) {
      const uint at = ((table[next / PAGE] * KV_HEADS + group.y) * PAGE + next % PAGE + simd) * (HEAD / 8) + lane;
      for (uint i = 0; i < 4; i++) k[i] = ((device const uint4*)keys)[at + i * 8 * (HEAD / 8)];
    }
    const uint at_score = (query * SCORE_STRIDE + column) / 4;
    float4 score = scores[0][at_score] + scores[1][at_score];
    for (uint i = 0; i < 4; i++) score[i] = base + column + i <= last ? score[i] : -FLT_MAX;
    float peak = max(max(score.x, score.y), max(score.z, score.w));
    for (ushort step = 1; step < 8; step *= 2) peak = max(peak, simd_shuffle_xor(peak, step));
    peak = max(peak, highest);
    const float factor = exp(highest - peak);
    highest = peak;
    half4 probability;
    for (uint i = 0; i < 4; i++) probability[i] = base + column + i <= last ? half(exp(score[i] - peak)) : half(0.0f);
    const float4 rounded = float4(probability);
    sum = sum * factor + (rounded.x + rounded.y + rounded.z + rounded.w);
    probabilities[(query * PROBABILITY_STRIDE + column) / 4] = probability;
    factors[thread_index] = factor;
    threadgroup_barrier(mem_flags::mem_threadgroup);

    scale_rows(outputs, factors + eight * 64);
    for (uint t = 0; t < CONTEXT / 8; t++) {
      simdgroup_matrix<half, 8, 8> left;
      simdgroup_load(left, probability_rows + t * 8, PROBABILITY_STRIDE);
#pragma unroll
      for (uint n = 0; n < HEAD / 16; n++) {
        simdgroup_matrix<half, 8, 8> right;
        simdgroup_load(right, columns + t * 8 * CONTEXT_STRIDE + n * 8, CONTEXT_STRIDE);
        simdgroup_multiply_accumulate(outputs[n], left, right, outputs[n]);
      }
    }
    threadgroup_barrier(mem_flags::mem_threadgroup);
  }

  for (ushort step = 1; step < 8; step *= 2) sum += simd_shuffle_xor(sum, step);
  factors[thread_index] = 1.0f / sum;
  threadgroup_barrier(mem_flags::mem_threadgroup);
  scale_rows(outputs, factors + eight * 64);
  const uint pitch = (2 * QUERY_HEADS + 2 * KV_HEADS) * HEAD;
  threadgroup float* strip = (threadgroup float*)staged + simd * 8 * 32;  // eight queries, 32 columns
#pragma unroll
  for (uint s = 0; s < HEAD / 2 / 32; s++) {
#pragma unroll
    for (uint n = 0; n < 4; n++) simdgroup_store(outputs[s * 4 + n], strip + n * 8, 32);
    simdgroup_barrier(mem_flags::mem_threadgroup);
    for (uint i = lane; i < 8 * 32 / 4; i += 32) {
      const uint of = eight * 8 + i / 8;
      const uint token = of / heads, head = group.y * heads + of % heads;
      const uint d = part * (HEAD / 2) + s * 32 + i % 8 * 4;
      if (token >= tokens) continue;
      const float4 gate = *(device const float4*)(projected + (row + token) * pitch + (head * 2 + 1) * HEAD + d);
      *(device half4*)(y + ((row + token) * QUERY_HEADS + head) * HEAD + d) =
          saturated_half4(((threadgroup const float4*)strip)[i] * sigmoid4(gate));
    }
    simdgroup_barrier(mem_flags::mem_threadgroup);
  }
}
