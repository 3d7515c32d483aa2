// Ablation of the state in registers: delta_scan.metal with the state in device memory. Every two tokens it is read whole and
// written whole; all else, arguments, grid and threads too, is as there.
#include <metal_stdlib>
#include "delta.h"
#include "model.h"
using namespace metal;

constant constexpr uint MEMORY_TOKENS = 8;  // staged at a time
constant constexpr uint MEMORY_ROWS = 32;   // rows v of a threadgroup

// Adds up what the eight lanes of a row have.
inline float eight_lanes_sum(float x) {
  x += simd_shuffle_xor(x, 1);
  x += simd_shuffle_xor(x, 2);
  return x + simd_shuffle_xor(x, 4);
}

[[kernel, max_total_threads_per_threadgroup(128)]] void delta_scan_memory(
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
  threadgroup float4 queries[2][MEMORY_TOKENS][DELTA_HEAD / 4];
  threadgroup float4 keys[2][MEMORY_TOKENS][DELTA_HEAD / 4];
  threadgroup float values[2][MEMORY_TOKENS][MEMORY_ROWS];
  threadgroup float2 gates[2][MEMORY_TOKENS];
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
  const uint home = (head * DELTA_HEAD + group.x * MEMORY_ROWS + v) * DELTA_HEAD / 4 + slice;

  for (uint first = 0, buffer = 0; first < segment.rows + MEMORY_TOKENS; first += MEMORY_TOKENS, buffer ^= 1) {
    // The tokens from `first` on are on their way while those before them are computed, and then staged.
    float4 next_q[MEMORY_TOKENS / 4], next_k[MEMORY_TOKENS / 4];
    float next_v[MEMORY_TOKENS / 4];
    float2 next_gates[MEMORY_TOKENS / 4];
#pragma unroll
    for (uint i = 0; i < MEMORY_TOKENS / 4; i++) {
      if (first + i * 4 + simd >= segment.rows) break;
      const uint row = segment.first_row + first + i * 4 + simd;
      device const float* from = convolved + row * channels;
      next_q[i] = ((device const float4*)(from + key_head * DELTA_HEAD))[lane];
      next_k[i] = ((device const float4*)(from + (KEY_HEADS + key_head) * DELTA_HEAD))[lane];
      next_v[i] = from[(2 * KEY_HEADS + head) * DELTA_HEAD + group.x * MEMORY_ROWS + lane];
      next_gates[i] = float2(decay[row * VALUE_HEADS + head], beta[row * VALUE_HEADS + head]);
    }
    for (uint t = 0; first != 0 && t < MEMORY_TOKENS; t += 2) {
      const uint token = first - MEMORY_TOKENS + t;
      if (token >= segment.rows) break;
      const bool both = token + 1 < segment.rows;  // else the second changes nothing: k = 0, decay 1
      device const float4* held = states + (token == 0 ? flip : flip ^ 1) * half_of_states + home;
      float4 s[2][4];
#pragma unroll
      for (uint r = 0; r < 2; r++)
#pragma unroll
        for (uint j = 0; j < 4; j++) s[r][j] = held[r * DELTA_HEAD / 4 + j * 8];
      float4 q[2][4], k[2][4];
      float of_k[2][2], of_q[2][2], qk[2] = {0.0f, 0.0f}, kk = 0.0f, second_of_first = 0.0f;
#pragma unroll
      for (uint i = 0; i < 2; i++)
#pragma unroll
        for (uint r = 0; r < 2; r++) of_k[i][r] = of_q[i][r] = 0.0f;
#pragma unroll
      for (uint j = 0; j < 4; j++) {
#pragma unroll
        for (uint i = 0; i < 2; i++) {
          q[i][j] = queries[buffer ^ 1][t + i][slice + j * 8];
          k[i][j] = keys[buffer ^ 1][t + i][slice + j * 8];
          if (i == 1 && !both) q[i][j] = k[i][j] = float4(0.0f);
          qk[i] += dot(q[i][j], k[i][j]);
#pragma unroll
          for (uint r = 0; r < 2; r++) {
            of_k[i][r] += dot(s[r][j], k[i][j]);
            of_q[i][r] += dot(s[r][j], q[i][j]);
          }
        }
        kk += dot(k[1][j], k[0][j]);
        second_of_first += dot(q[1][j], k[0][j]);
      }
      qk[0] = eight_lanes_sum(qk[0]);
      qk[1] = eight_lanes_sum(qk[1]);
      kk = eight_lanes_sum(kk);
      second_of_first = eight_lanes_sum(second_of_first);
      const float2 gate = gates[buffer ^ 1][t];
      const float2 second = both ? gates[buffer ^ 1][t + 1] : float2(1.0f, 0.0f);
      float2 out[2];
#pragma unroll
      for (uint r = 0; r < 2; r++) {
        // All products are of the state before the pair, so that none waits for another.
        const float v0 = values[buffer ^ 1][t][v + r], v1 = both ? values[buffer ^ 1][t + 1][v + r] : 0.0f;
        const float u0 = gate.y * (v0 - gate.x * eight_lanes_sum(of_k[0][r]));
        const float u1 = second.y * (v1 - second.x * (gate.x * eight_lanes_sum(of_k[1][r]) + u0 * kk));
        out[0][r] = gate.x * eight_lanes_sum(of_q[0][r]) + u0 * qk[0];
        out[1][r] = second.x * (gate.x * eight_lanes_sum(of_q[1][r]) + u0 * second_of_first) + u1 * qk[1];
#pragma unroll
        for (uint j = 0; j < 4; j++)
          states[(flip ^ 1) * half_of_states + home + r * DELTA_HEAD / 4 + j * 8] =
              fma(s[r][j], float4(gate.x * second.x), fma(k[0][j], float4(second.x * u0), u1 * k[1][j]));
      }
      const uint to = ((segment.first_row + token) * VALUE_HEADS + head) * DELTA_HEAD + group.x * MEMORY_ROWS + v;
      if (slice == 0) {
        *(device float2*)(o + to) = out[0];
        if (both) *(device float2*)(o + to + VALUE_HEADS * DELTA_HEAD) = out[1];
      }
    }
#pragma unroll
    for (uint i = 0; i < MEMORY_TOKENS / 4; i++) {
      const uint t = i * 4 + simd;
      if (first + t >= segment.rows) break;
      queries[buffer][t][lane] = next_q[i];
      keys[buffer][t][lane] = next_k[i];
      values[buffer][t][lane] = next_v[i];
      if (lane == 0) gates[buffer][t] = next_gates[i];
    }
    threadgroup_barrier(mem_flags::mem_threadgroup);
  }
}
