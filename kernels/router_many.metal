// router.metal's product for many rows: logits[row] = (mlp.gate | shared_expert_gate) · (rms_norm(x[row]) · gain), both
// matrices 8-bit, all in fp32.
//
// A threadgroup makes 64 rows x 32 outputs or, of few rows, so that there are enough of them, 16 x 8. A step takes PARTS x 32
// columns: the rows times gain and the rebuilt weights lie side by side in threadgroup memory, rows 16 bytes more apart so that
// neighbouring ones meet no bank twice; a thread multiplies ROWS / 16 rows by OUTPUTS / 8 outputs, sixteen apart and eight apart.
// While they multiply, the next step's values are already on their way into registers. The norm's factor is applied to the
// finished sums. Each is added up in the order of the columns, by whichever kernel.
//
// router_many_64, router_many_16 (HIDDEN a multiple of 128): grid {ceil((EXPERTS + 1) / OUTPUTS), ceil(rows / ROWS), 1},
// 128 threads.
#include <metal_stdlib>
#include "decode_params.h"
#include "model.h"
#include "quantized.h"
using namespace metal;

template <uint ROWS, uint OUTPUTS, uint PARTS>
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
  static_assert(OUTPUTS * PARTS == 32, "a thread stages eight weights");
  constexpr uint OWN = ROWS / 16, ACROSS = OUTPUTS / 8;  // rows and outputs of a thread
  constexpr uint STRIDE = (PARTS * 32 + 4) / 4;          // of staged rows, in float4
  constexpr uint STAGERS = PARTS * 4;                    // threads that stage an output's weights
  threadgroup float4 rows[ROWS * STRIDE];
  threadgroup float4 weights[OUTPUTS * STRIDE];
  threadgroup float factors[ROWS];
  // Rows and outputs past the end are computed from the last one's values and not stored.
  const uint row0 = group.y * ROWS, output0 = group.x * OUTPUTS;
  // A thread stages four columns of each part of every 16th row, and eight weights of one output.
  const uint staged_row = thread_index / 8, staged_column = thread_index % 8;
  const uint output = min(output0 + thread_index / STAGERS, EXPERTS);
  Matrix matrix = Matrix{shared_w, shared_scales, shared_biases};
  if (output < EXPERTS) matrix = rows_from<8>(Matrix{w, scales, biases}, output, HIDDEN);
  device const uint2* words = (device const uint2*)matrix.w + thread_index % STAGERS;
  device const float4* from[OWN];
#pragma unroll
  for (uint i = 0; i < OWN; i++)
    from[i] = (device const float4*)(x + min(row0 + staged_row + i * 16, p.count - 1) * HIDDEN) + staged_column;

  float sums[OWN][ACROSS], squares[OWN];
#pragma unroll
  for (uint r = 0; r < OWN; r++) {
    squares[r] = 0.0f;
#pragma unroll
    for (uint o = 0; o < ACROSS; o++) sums[r][o] = 0.0f;
  }
  device const float4* gains_from = (device const float4*)gain + staged_column;
  float4 values[OWN][PARTS], gains[PARTS];
#pragma unroll
  for (uint part = 0; part < PARTS; part++) {
#pragma unroll
    for (uint i = 0; i < OWN; i++) values[i][part] = from[i][part * 8];
    gains[part] = gains_from[part * 8];
  }
  const uint group0 = thread_index % STAGERS / 8;  // of the weights in a step
  uint2 packed = words[0];
  float scale = float(matrix.scales[group0]), bias = float(matrix.biases[group0]);
  for (uint column = 0; column < HIDDEN; column += PARTS * 32) {
#pragma unroll
    for (uint part = 0; part < PARTS; part++) {
#pragma unroll
      for (uint i = 0; i < OWN; i++) {
        squares[i] += dot(values[i][part], values[i][part]);
        rows[(staged_row + i * 16) * STRIDE + part * 8 + staged_column] = values[i][part] * gains[part];
      }
    }
    threadgroup float4* place = weights + thread_index / STAGERS * STRIDE + thread_index % STAGERS * 2;
    place[0] = fma(float4((uint4(packed.x) >> uint4(0, 8, 16, 24)) & 255u), float4(scale), float4(bias));
    place[1] = fma(float4((uint4(packed.y) >> uint4(0, 8, 16, 24)) & 255u), float4(scale), float4(bias));
    threadgroup_barrier(mem_flags::mem_threadgroup);
    const uint next = column + PARTS * 32;
    if (next < HIDDEN) {
#pragma unroll
      for (uint part = 0; part < PARTS; part++) {
#pragma unroll
        for (uint i = 0; i < OWN; i++) values[i][part] = from[i][next / 4 + part * 8];
        gains[part] = gains_from[next / 4 + part * 8];
      }
      packed = words[next / 8];
      scale = float(matrix.scales[next / GROUP + group0]);
      bias = float(matrix.biases[next / GROUP + group0]);
    }
#pragma unroll
    for (uint k = 0; k < PARTS * 8; k++) {
      float4 left[OWN], right[ACROSS];
#pragma unroll
      for (uint i = 0; i < OWN; i++) left[i] = rows[(thread_index / 8 + i * 16) * STRIDE + k];
#pragma unroll
      for (uint i = 0; i < ACROSS; i++) right[i] = weights[(thread_index % 8 + i * 8) * STRIDE + k];
#pragma unroll
      for (uint r = 0; r < OWN; r++)
#pragma unroll
        for (uint o = 0; o < ACROSS; o++) {
          sums[r][o] = fma(left[r].x, right[o].x, sums[r][o]);
          sums[r][o] = fma(left[r].y, right[o].y, sums[r][o]);
          sums[r][o] = fma(left[r].z, right[o].z, sums[r][o]);
          sums[r][o] = fma(left[r].w, right[o].w, sums[r][o]);
        }
    }
    threadgroup_barrier(mem_flags::mem_threadgroup);
  }
#pragma unroll
  for (uint i = 0; i < OWN; i++) {
    float square = squares[i];
    for (ushort step = 1; step < 8; step *= 2) square += simd_shuffle_xor(square, step);
    if (staged_column == 0) factors[staged_row + i * 16] = rsqrt(square / float(HIDDEN) + EPSILON);
  }
  threadgroup_barrier(mem_flags::mem_threadgroup);
#pragma unroll
  for (uint r = 0; r < OWN; r++) {
    const uint in_tile = thread_index / 8 + r * 16;
#pragma unroll
    for (uint o = 0; o < ACROSS; o++) {
      const uint to = output0 + thread_index % 8 + o * 8;
      if (row0 + in_tile < p.count && to <= EXPERTS)
        logits[(row0 + in_tile) * (EXPERTS + 1) + to] = sums[r][o] * factors[in_tile];
    }
  }
}

template [[host_name("router_many_64")]] [[kernel]] decltype(router_many<64, 32, 1>) router_many<64, 32, 1>;
template [[host_name("router_many_16")]] [[kernel]] decltype(router_many<16, 8, 4>) router_many<16, 8, 4>;
