// RMSNorm of many rows, for the matrix tiles: y = half(x / sqrt(mean(x^2) + EPSILON) * gain).
//
// Memory: a SIMD-group reads a row twice in 16-byte pieces, the second time from the cache, and writes 8-byte pieces.
// Grid {ceil(rows / 4), 1, 1}, 128 threads: a SIMD-group a row.
#include <metal_stdlib>
#include "model.h"
#include "numbers.h"
using namespace metal;

[[kernel, max_total_threads_per_threadgroup(128)]] void rms_norm(
    device const float* x [[buffer(0)]],     // [rows][HIDDEN]
    device const float* gain [[buffer(1)]],  // [HIDDEN]
    device half* y [[buffer(2)]],            // [rows][HIDDEN]
    constant CountParams& p [[buffer(3)]],
    uint3 group [[threadgroup_position_in_grid]],
    uint simd [[simdgroup_index_in_threadgroup]],
    uint lane [[thread_index_in_simdgroup]]) {
  const uint row = group.x * 4 + simd;
  if (row >= p.count) return;
  device const float4* from = (device const float4*)(x + row * HIDDEN);
  float squares = 0.0f;
  for (uint i = lane; i < HIDDEN / 4; i += 32) squares += dot(from[i], from[i]);
  const float scale = rsqrt(simd_sum(squares) / float(HIDDEN) + EPSILON);
  for (uint i = lane; i < HIDDEN / 4; i += 32) {
    const float4 v = from[i] * scale * ((device const float4*)gain)[i];
    ((device half4*)(y + row * HIDDEN))[i] = saturated_half4(v);
  }
}
