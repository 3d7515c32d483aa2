// DeltaNet's output gate: y = half(o / sqrt(mean(o^2) + EPSILON) * gain * silu(z)), per value head of 128.
//
// Grid {ceil(VALUE_HEADS / 4), rows, 1}, 128 threads: a SIMD-group a head of a row, 16 bytes a lane.
#include <metal_stdlib>
#include "delta.h"
#include "model.h"
#include "numbers.h"
using namespace metal;

[[kernel, max_total_threads_per_threadgroup(128)]] void gated_norm(
    device const float* o [[buffer(0)]],          // [rows][VALUE_HEADS][128]
    device const float* projected [[buffer(1)]],  // [rows][qkv | z | a | b], of which z is read
    device const float* gain [[buffer(2)]],       // [128]
    device half* y [[buffer(3)]],                 // [rows][VALUE_HEADS][128]
    uint3 group [[threadgroup_position_in_grid]],
    uint simd [[simdgroup_index_in_threadgroup]],
    uint lane [[thread_index_in_simdgroup]]) {
  const uint head = group.x * 4 + simd;
  if (head >= VALUE_HEADS) return;
  const uint at = (group.y * VALUE_HEADS + head) * DELTA_HEAD;
  const float4 x = ((device const float4*)(o + at))[lane];
  const float4 z = ((device const float4*)(projected + group.y * delta_width() + delta_channels() + head * DELTA_HEAD))[lane];
  const float scale = rsqrt(simd_sum(dot(x, x)) / float(DELTA_HEAD) + EPSILON);
  ((device half4*)(y + at))[lane] = saturated_half4(x * scale * ((device const float4*)gain)[lane] * silu4(z));
}
