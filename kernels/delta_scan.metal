// DeltaNet's recurrence over the tokens of each segment, in fp32; per value head, with S [128 v][128 k]:
//   S = decay * S;  u = beta * (v - S k);  S = S + u k^T;  o = S q.
// The state is read from [flip] and, when all tokens are done, written to [flip ^ 1].
//
// Memory: the state stays in registers from the first token to the last. A SIMD-group holds 8 rows v: four pairs by
// eight slices of k, 2 x 16 values a lane. q, k, v, decay and beta pass through threadgroup memory, 8 tokens at a
// time, while the 8 before are computed.
// Grid {4, VALUE_HEADS, segments}, 128 threads: 32 rows v of a head.
#include <metal_stdlib>
#include "delta.h"
#include "model.h"
using namespace metal;

constant constexpr uint SCAN_TOKENS = 8;  // staged at a time
constant constexpr uint SCAN_ROWS = 32;   // rows v of a threadgroup

// Adds up what the eight lanes of a row have.
inline float sum_of_eight(float x) {
  x += simd_shuffle_xor(x, 1);
  x += simd_shuffle_xor(x, 2);
  return x + simd_shuffle_xor(x, 4);
}

[[kernel, max_total_threads_per_threadgroup(128)]] void delta_scan(
    device const float* convolved [[buffer(0)]],  // [rows][channels], of delta_prepare
    device const float* decay [[buffer(1)]],      // [rows][VALUE_HEADS]
    device const float* beta [[buffer(2)]],       // [rows][VALUE_HEADS]
    device const Segment* segments [[buffer(3)]],
    device const Sequence* sequences [[buffer(4)]],
    device float* state [[buffer(5)]],  // [slots][2][VALUE_HEADS][128 v][128 k]: reads [flip], writes [flip ^ 1]
    device float* o [[buffer(6)]],      // [rows][VALUE_HEADS][128]
    uint3 group [[threadgroup_position_in_grid]],
    uint thread_index [[thread_index_in_threadgroup]],
    uint simd [[simdgroup_index_in_threadgroup]],
    uint lane [[thread_index_in_simdgroup]]) {
  threadgroup float4 queries[2][SCAN_TOKENS][DELTA_HEAD / 4];
  threadgroup float4 keys[2][SCAN_TOKENS][DELTA_HEAD / 4];
  threadgroup float values[2][SCAN_TOKENS][SCAN_ROWS];
  threadgroup float2 gates[2][SCAN_TOKENS];
  const Segment segment = segments[group.z];
  if (segment.slot == NONE || segment.rows == 0) return;
  const uint head = group.y;
  const uint key_head = head / (VALUE_HEADS / KEY_HEADS);
  const uint channels = delta_channels();
  const uint flip = sequences[segment.slot].flip;
  const uint slice = lane % 8;             // of k: four values of every 32
  const uint v = simd * 8 + lane / 8 * 2;  // the first of this lane's two rows, in the threadgroup
  device float4* states = (device float4*)state + segment.slot * 2 * VALUE_HEADS * DELTA_HEAD * DELTA_HEAD / 4;
  const uint half_of_states = VALUE_HEADS * DELTA_HEAD * DELTA_HEAD / 4;
  const uint home = (head * DELTA_HEAD + group.x * SCAN_ROWS + v) * DELTA_HEAD / 4 + slice;

  float4 s[2][4];
#pragma unroll
  for (uint r = 0; r < 2; r++)
#pragma unroll
    for (uint j = 0; j < 4; j++) s[r][j] = states[flip * half_of_states + home + r * DELTA_HEAD / 4 + j * 8];

  for (uint first = 0, buffer = 0; first < segment.rows + SCAN_TOKENS; first += SCAN_TOKENS, buffer ^= 1) {
    // Stages the tokens from `first` on, then computes those before them.
    for (uint t = simd; t < SCAN_TOKENS; t += 4) {
      if (first + t >= segment.rows) break;
      const uint row = segment.first_row + first + t;
      device const float* from = convolved + row * channels;
      queries[buffer][t][lane] = ((device const float4*)(from + key_head * DELTA_HEAD))[lane];
      keys[buffer][t][lane] = ((device const float4*)(from + (KEY_HEADS + key_head) * DELTA_HEAD))[lane];
      values[buffer][t][lane] = from[(2 * KEY_HEADS + head) * DELTA_HEAD + group.x * SCAN_ROWS + lane];
      if (lane == 0) gates[buffer][t] = float2(decay[row * VALUE_HEADS + head], beta[row * VALUE_HEADS + head]);
    }
    for (uint t = 0; first != 0 && t < SCAN_TOKENS; t++) {
      const uint token = first - SCAN_TOKENS + t;
      if (token >= segment.rows) break;
      float4 q[4], k[4];
      float of_k[2] = {0.0f, 0.0f}, of_q[2] = {0.0f, 0.0f}, qk = 0.0f;
#pragma unroll
      for (uint j = 0; j < 4; j++) {
        q[j] = queries[buffer ^ 1][t][slice + j * 8];
        k[j] = keys[buffer ^ 1][t][slice + j * 8];
        qk += dot(q[j], k[j]);
#pragma unroll
        for (uint r = 0; r < 2; r++) {
          of_k[r] += dot(s[r][j], k[j]);
          of_q[r] += dot(s[r][j], q[j]);
        }
      }
      qk = sum_of_eight(qk);
      const float alpha = gates[buffer ^ 1][t].x;
      float2 out;
#pragma unroll
      for (uint r = 0; r < 2; r++) {
        // S q after the step is alpha S q + u (k q): both products are of the state before, so neither waits.
        const float u = gates[buffer ^ 1][t].y * (values[buffer ^ 1][t][v + r] - alpha * sum_of_eight(of_k[r]));
        out[r] = alpha * sum_of_eight(of_q[r]) + u * qk;
#pragma unroll
        for (uint j = 0; j < 4; j++) s[r][j] = fma(s[r][j], float4(alpha), u * k[j]);
      }
      const uint to = ((segment.first_row + token) * VALUE_HEADS + head) * DELTA_HEAD + group.x * SCAN_ROWS + v;
      if (slice == 0) *(device float2*)(o + to) = out;
    }
    threadgroup_barrier(mem_flags::mem_threadgroup);
  }
#pragma unroll
  for (uint r = 0; r < 2; r++)
#pragma unroll
    for (uint j = 0; j < 4; j++) states[(flip ^ 1) * half_of_states + home + r * DELTA_HEAD / 4 + j * 8] = s[r][j];
}
