// Per head: q ← rope(rms_norm(q) · gain) / 16, k ← rope(rms_norm(k) · gain); k and v go to their place in the pages.
//
// grid ((QUERY_HEADS + 2·KV_HEADS + 3) / 4, rows, 1), 128 threads: a SIMD-group a head.
// q_gate [rows][QUERY_HEADS·(256 q | 256 gate)], k and v [rows][KV_HEADS·256], pieces of one row of `stride` floats; gains [256],
// turns [32][2]: revolutions a token of each rotated pair, θ^(−pair/32) / 2π as a fraction of 64 bits, high word first,
// pages [slots][max_pages], keys and values [pages][KV_HEADS][PAGE][256], q [rows][QUERY_HEADS][256].
#include <metal_stdlib>
#include "decode_params.h"
#include "model.h"
#include "numbers.h"
using namespace metal;

[[kernel, max_total_threads_per_threadgroup(128)]] void attention_prepare(
    device const float* q_gate [[buffer(0)]],
    device const float* k [[buffer(1)]],
    device const float* v [[buffer(2)]],
    device const float* q_gain [[buffer(3)]],
    device const float* k_gain [[buffer(4)]],
    device const uint* turns [[buffer(5)]],
    device const Row* rows [[buffer(6)]],
    device const Sequence* sequences [[buffer(7)]],
    device const uint* pages [[buffer(8)]],
    device half* keys [[buffer(9)]],
    device half* values [[buffer(10)]],
    device float* q [[buffer(11)]],
    constant PrepareParams& p [[buffer(12)]],
    uint3 group [[threadgroup_position_in_grid]],
    uint simd [[simdgroup_index_in_threadgroup]],
    uint lane [[thread_index_in_simdgroup]]) {
  const uint head = group.x * 4 + simd, row = group.y;
  const uint slot = rows[row].slot;
  if (slot == NONE || head >= QUERY_HEADS + 2 * KV_HEADS) return;
  const bool is_query = head < QUERY_HEADS, is_key = !is_query && head < QUERY_HEADS + KV_HEADS;
  const uint kv_head = (head - QUERY_HEADS) % KV_HEADS;
  device const float* of_head = is_query ? q_gate + head * 2 * HEAD : (is_key ? k : v) + kv_head * HEAD;
  device const float* source = of_head + ulong(row) * p.stride;
  const uint position = sequences[slot].position + rows[row].offset;
  // A lane has dimensions 4·lane and 128 + 4·lane on: the rotated ones are in the low half of lanes 0 to 15.
  float4 low = *(device const float4*)(source + lane * 4);
  float4 high = *(device const float4*)(source + HEAD / 2 + lane * 4);
  if (is_query || is_key) {
    device const float* gain = is_query ? q_gain : k_gain;
    const float factor = rsqrt(simd_sum(add_product(high, high, add_product(low, low, 0.0f))) / float(HEAD) + EPSILON);
    low *= *(device const float4*)(gain + lane * 4) * factor;
    high *= *(device const float4*)(gain + HEAD / 2 + lane * 4) * factor;
    float4 turned;
#pragma unroll
    for (uint i = 0; i < 4; i++) {
      const float partner = simd_shuffle_xor(low[i], ushort(8));
      const uint pair = lane % 8 * 4 + i;
      const float2 turn = cosine_and_sine(revolution(turns[pair * 2], turns[pair * 2 + 1], position));
      turned[i] = low[i] * turn.x + (lane < 8 ? -partner : partner) * turn.y;
    }
    if (lane < ROTARY / 4) low = turned;
  }
  if (is_query) {
    device float* out = q + (ulong(row) * QUERY_HEADS + head) * HEAD + lane * 4;
    *(device float4*)out = low * 0.0625f;
    *(device float4*)(out + HEAD / 2) = high * 0.0625f;
  } else {
    const ulong page = pages[slot * p.max_pages + position / PAGE];
    device half* out = (is_key ? keys : values) + ((page * KV_HEADS + kv_head) * PAGE + position % PAGE) * HEAD + lane * 4;
    *(device half4*)out = saturated_half4(low);
    *(device half4*)(out + HEAD / 2) = saturated_half4(high);
  }
}
