// router.metal's product for many rows: logits[row] = (mlp.gate | shared_expert_gate) · (rms_norm(x[row]) · gain), both
// matrices 8-bit, all in fp32.
//
// A threadgroup makes 64 rows x 32 outputs. A step takes 32 columns: the rows times gain and the rebuilt weights lie side by
// side in threadgroup memory, rows 144 bytes apart so that neighbouring ones meet no bank twice; a thread multiplies four
// of either by each other, sixteen apart and eight apart. While they multiply, the next step's values are already on their
// way into registers. The norm's factor is applied to the finished sums.
//
// Grid {ceil((EXPERTS + 1) / 32), ceil(rows / 64), 1}, 128 threads.
#include <metal_stdlib>
#include "decode_params.h"
#include "model.h"
#include "quantized.h"
using namespace metal;

constant constexpr uint ROUTER_TILE_ROWS = 64;     // of a threadgroup
constant constexpr uint ROUTER_TILE_OUTPUTS = 32;  // of a threadgroup
constant constexpr uint ROUTER_COLUMNS = 32;       // of a step
constant constexpr uint ROUTER_STRIDE = (ROUTER_COLUMNS + 4) / 4;  // of staged rows, in float4

[[kernel, max_total_threads_per_threadgroup(128)]] void router_many(
    device const uint* w [[buffer(0)]],         // [EXPERTS][HIDDEN / 4]
    device const bfloat* scales [[buffer(1)]],  // [EXPERTS][HIDDEN / 64]
    device const bfloat* biases [[buffer(2)]],
    device const uint* shared_w [[buffer(3)]],  // the same with one row
    device const bfloat* shared_scales [[buffer(4)]],
    device const bfloat* shared_biases [[buffer(5)]],
    device const float* x [[buffer(6)]],     // [rows][HIDDEN]
    device const float* gain [[buffer(7)]],  // [HIDDEN]
    device float* logits [[buffer(8)]],      // [rows][EXPERTS + 1]
    constant CountParams& p [[buffer(9)]],
    uint3 group [[threadgroup_position_in_grid]],
    uint thread_index [[thread_index_in_threadgroup]]) {
  threadgroup float4 rows[ROUTER_TILE_ROWS * ROUTER_STRIDE];
  threadgroup float4 weights[ROUTER_TILE_OUTPUTS * ROUTER_STRIDE];
  threadgroup float factors[ROUTER_TILE_ROWS];
  // Rows and outputs past the end are computed from the last one's values and not stored.
  const uint row0 = group.y * ROUTER_TILE_ROWS, output0 = group.x * ROUTER_TILE_OUTPUTS;
  // A thread stages four columns of every 16th row, and eight weights of one output.
  const uint staged_row = thread_index / 8, staged_column = thread_index % 8;
  const uint output = min(output0 + thread_index / 4, EXPERTS);
  Matrix matrix = Matrix{shared_w, shared_scales, shared_biases};
  if (output < EXPERTS) matrix = rows_from<8>(Matrix{w, scales, biases}, output, HIDDEN);
  device const uint2* words = (device const uint2*)matrix.w + thread_index % 4;
  device const float4* from[4];
#pragma unroll
  for (uint i = 0; i < 4; i++)
    from[i] = (device const float4*)(x + min(row0 + staged_row + i * 16, p.count - 1) * HIDDEN) + staged_column;

  float sums[4][4], squares[4];
#pragma unroll
  for (uint r = 0; r < 4; r++) {
    squares[r] = 0.0f;
#pragma unroll
    for (uint o = 0; o < 4; o++) sums[r][o] = 0.0f;
  }
  float4 values[4];
#pragma unroll
  for (uint i = 0; i < 4; i++) values[i] = from[i][0];
  uint2 packed = words[0];
  float scale = float(matrix.scales[0]), bias = float(matrix.biases[0]);
  for (uint column = 0; column < HIDDEN; column += ROUTER_COLUMNS) {
    const float4 gains = ((device const float4*)gain)[column / 4 + staged_column];
#pragma unroll
    for (uint i = 0; i < 4; i++) {
      squares[i] += dot(values[i], values[i]);
      rows[(staged_row + i * 16) * ROUTER_STRIDE + staged_column] = values[i] * gains;
    }
    threadgroup float4* place = weights + thread_index / 4 * ROUTER_STRIDE + thread_index % 4 * 2;
    place[0] = fma(float4((uint4(packed.x) >> uint4(0, 8, 16, 24)) & 255u), float4(scale), float4(bias));
    place[1] = fma(float4((uint4(packed.y) >> uint4(0, 8, 16, 24)) & 255u), float4(scale), float4(bias));
    threadgroup_barrier(mem_flags::mem_threadgroup);
    const uint next = column + ROUTER_COLUMNS;
    if (next < HIDDEN) {
#pragma unroll
      for (uint i = 0; i < 4; i++) values[i] = from[i][next / 4];
      packed = words[next / 8];
      scale = float(matrix.scales[next / GROUP]);
      bias = float(matrix.biases[next / GROUP]);
    }
#pragma unroll
    for (uint k = 0; k < ROUTER_COLUMNS / 4; k++) {
      float4 left[4], right[4];
#pragma unroll
      for (uint i = 0; i < 4; i++) {
        left[i] = rows[(thread_index / 8 + i * 16) * ROUTER_STRIDE + k];
        right[i] = weights[(thread_index % 8 + i * 8) * ROUTER_STRIDE + k];
      }
#pragma unroll
      for (uint r = 0; r < 4; r++)
#pragma unroll
        for (uint o = 0; o < 4; o++) {
          sums[r][o] = fma(left[r].x, right[o].x, sums[r][o]);
          sums[r][o] = fma(left[r].y, right[o].y, sums[r][o]);
          sums[r][o] = fma(left[r].z, right[o].z, sums[r][o]);
          sums[r][o] = fma(left[r].w, right[o].w, sums[r][o]);
        }
    }
    threadgroup_barrier(mem_flags::mem_threadgroup);
  }
#pragma unroll
  for (uint i = 0; i < 4; i++) {
    float square = squares[i];
    for (ushort step = 1; step < 8; step *= 2) square += simd_shuffle_xor(square, step);
    if (staged_column == 0) factors[staged_row + i * 16] = rsqrt(square / float(HIDDEN) + EPSILON);
  }
  threadgroup_barrier(mem_flags::mem_threadgroup);
#pragma unroll
  for (uint r = 0; r < 4; r++) {
    const uint in_tile = thread_index / 8 + r * 16;
#pragma unroll
    for (uint o = 0; o < 4; o++) {
      const uint to = output0 + thread_index % 8 + o * 8;
      if (row0 + in_tile < p.count && to <= EXPERTS)
        logits[(row0 + in_tile) * (EXPERTS + 1) + to] = sums[r][o] * factors[in_tile];
    }
  }
}
