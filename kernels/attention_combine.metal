// y[row][head] = Σ_blocks e^(max_b − max)·sums_b / Σ_blocks e^(max_b − max)·weight_b · sigmoid(gate).
//
// grid (QUERY_HEADS, rows, 1), 256 threads. sums and weights as attention_block wrote them with the same params; q_gate
// as attention_prepare reads it; y [rows][QUERY_HEADS·256].
#include <metal_stdlib>
#include "decode_params.h"
#include "model.h"
#include "numbers.h"
using namespace metal;

[[kernel, max_total_threads_per_threadgroup(256)]] void attention_combine(
    device const float* sums [[buffer(0)]],
    device const float* weights [[buffer(1)]],
    device const float* q_gate [[buffer(2)]],
    device const Row* rows [[buffer(3)]],
    device const Sequence* sequences [[buffer(4)]],
    device float* y [[buffer(5)]],
    constant CombineParams& p [[buffer(6)]],
    uint3 group [[threadgroup_position_in_grid]],
    uint thread_index [[thread_index_in_threadgroup]],
    uint simd [[simdgroup_index_in_threadgroup]],
    uint lane [[thread_index_in_simdgroup]]) {
  constexpr uint SIMDS = 8;
  threadgroup float factors[HEAD];  // of as many blocks
  threadgroup float partial[SIMDS];
  const uint head = group.x, row = group.y, slot = rows[row].slot;
  if (slot == NONE) return;
  const uint count = (sequences[slot].position + rows[row].offset) / p.block + 1;
  const ulong first = (ulong(row) * QUERY_HEADS + head) * p.blocks;
  device const float2* weight = (device const float2*)(weights + first * 2);
  float peak = -FLT_MAX;
  for (uint block = thread_index; block < count; block += HEAD) peak = max(peak, weight[block].x);
  peak = simd_max(peak);
  if (lane == 0) partial[simd] = peak;
  threadgroup_barrier(mem_flags::mem_threadgroup);
  for (uint i = 0; i < SIMDS; i++) peak = max(peak, partial[i]);

  float total = 0.0f, sum = 0.0f;
  for (uint chunk = 0; chunk < count; chunk += HEAD) {
    threadgroup_barrier(mem_flags::mem_threadgroup);  // the factors before are used up; so is `partial`
    if (chunk + thread_index < count) {
      const float2 own = weight[chunk + thread_index];
      factors[thread_index] = exp(own.x - peak);
      total += own.y * factors[thread_index];
    }
    threadgroup_barrier(mem_flags::mem_threadgroup);
    device const float* block_sums = sums + (first + chunk) * HEAD + thread_index;
    const uint blocks = min(HEAD, count - chunk);
#pragma unroll 4
    for (uint block = 0; block < blocks; block++) sum = fma(factors[block], block_sums[block * HEAD], sum);
  }
  total = simd_sum(total);
  if (lane == 0) partial[simd] = total;
  threadgroup_barrier(mem_flags::mem_threadgroup);
  total = 0.0f;
  for (uint i = 0; i < SIMDS; i++) total += partial[i];
  const float gate = q_gate[ulong(row) * p.stride + head * 2 * HEAD + HEAD + thread_index];
  y[(row * QUERY_HEADS + head) * HEAD + thread_index] = sum / total * sigmoid(gate);
}
