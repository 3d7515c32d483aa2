// attention_prepare that begins while the kernel before runs: gains, places and the rotation are there when that ends. Same
// arguments, same order of sums.
#include "early.h"

#ifdef __CUDA_ARCH_FEAT_SM90_ALL

extern "C" __global__ void __launch_bounds__(128)
    lily_attention_prepare_early(const float* q_gate, const float* k, const float* v, const float* q_gain, const float* k_gain,
                                 const uint* turns, const Row* rows, const Sequence* sequences, const uint* pages, half* keys,
                                 half* values, float* q, const PrepareParams p) {
  const uint lane = threadIdx.x % 32, head = blockIdx.x * 4 + threadIdx.x / 32, row = blockIdx.y, slot = rows[row].slot;
  let_later_begin();
  if (slot == NONE || head >= QUERY_HEADS + 2 * KV_HEADS) {
    wait_for_earlier();
    return;
  }
  const bool is_query = head < QUERY_HEADS, is_key = !is_query && head < QUERY_HEADS + KV_HEADS;
  const uint kv_head = (head - QUERY_HEADS) % KV_HEADS, position = sequences[slot].position + rows[row].offset;
  const float* source = (is_query ? q_gate + head * 2 * HEAD : (is_key ? k : v) + kv_head * HEAD) + ulong(row) * p.stride + lane * 4;
  const float* gain = (is_query ? q_gain : k_gain) + lane * 4;
  const float4 low_gain = *(const float4*)gain, high_gain = *(const float4*)(gain + HEAD / 2);
  float2 turn[4];  // the rotated dimensions are in the low half of lanes 0 to 15
#pragma unroll
  for (uint i = 0; i < 4; i++) {
    const uint pair = lane % 8 * 4 + i;
    turn[i] = cosine_and_sine(revolution(turns[pair * 2], turns[pair * 2 + 1], position));
  }
  const ulong page = is_query ? 0 : pages[slot * p.max_pages + position / PAGE];
  wait_for_earlier();

  float4 low = *(const float4*)source, high = *(const float4*)(source + HEAD / 2);
  if (is_query || is_key) {
    const float factor = rsqrt(simd_sum(add_product(high, high, add_product(low, low, 0.0f))) / float(HEAD) + EPSILON);
    low *= low_gain * factor;
    high *= high_gain * factor;
    float4 turned;
#pragma unroll
    for (uint i = 0; i < 4; i++) {
      const float partner = simd_shuffle_xor(low[i], ushort(8));
      turned[i] = low[i] * turn[i].x + (lane < 8 ? -partner : partner) * turn[i].y;
    }
    if (lane < ROTARY / 4) low = turned;
  }
  if (is_query) {
    float* out = q + (ulong(row) * QUERY_HEADS + head) * HEAD + lane * 4;
    *(float4*)out = low * 0.0625f;
    *(float4*)(out + HEAD / 2) = high * 0.0625f;
  } else {
    half* out = (is_key ? keys : values) + ((page * KV_HEADS + kv_head) * PAGE + position % PAGE) * HEAD + lane * 4;
    *(half4*)out = saturated_half4(low);
    *(half4*)(out + HEAD / 2) = saturated_half4(high);
  }
}
#endif
