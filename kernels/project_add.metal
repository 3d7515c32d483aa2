// x[row] += W · input[row].
//
// grid (HIDDEN / ADD_OUTPUTS, 1, 1), 256 threads; ROWS rows of input and x, padding included. w [HIDDEN][inner/8], scales and biases
// [HIDDEN][inner/64], input [ROWS][inner], x [ROWS][HIDDEN].
#include <metal_stdlib>
#include "decode_params.h"
#include "few_rows.h"
#include "model.h"
using namespace metal;

constant constexpr uint ADD_OUTPUTS = 16;  // of a threadgroup

template <uint ROWS>
[[kernel, max_total_threads_per_threadgroup(256)]] void project_add(
    device const uint* w [[buffer(0)]],
    device const bfloat* scales [[buffer(1)]],
    device const bfloat* biases [[buffer(2)]],
    device const float* input [[buffer(3)]],
    device float* x [[buffer(4)]],
    constant ProjectAddParams& p [[buffer(5)]],
    uint3 group [[threadgroup_position_in_grid]],
    uint thread_index [[thread_index_in_threadgroup]],
    uint simd [[simdgroup_index_in_threadgroup]],
    uint lane [[thread_index_in_simdgroup]]) {
  constexpr uint SIMDS = 8, OUTPUTS = ADD_OUTPUTS / SIMDS, CHUNKS = 4 / staged_rows(ROWS);
  threadgroup float4 staged[4 * PIECES];
  threadgroup float totals[4 * 32];
  const uint first = (group.x * SIMDS + simd) * OUTPUTS;
  Rows<ROWS> rows;
#pragma unroll
  for (uint i = 0; i < ROWS; i++) rows.x[i] = input + i * p.inner;
  const Matrix matrix = Matrix{w, scales, biases};
  const float sum = few_rows_product<4, ROWS, OUTPUTS, CHUNKS, SIMDS, false>(
      rows_from<4>(matrix, first, p.inner), rows_from<4>(matrix, first + 1, p.inner), p.inner, rows, input, staged, totals,
      totals, simd, lane);
  constexpr uint LANES = 32 / (ROWS * OUTPUTS);
  const uint place = lane / LANES;
  if (lane % LANES == 0) x[place / OUTPUTS * HIDDEN + first + place % OUTPUTS] += sum;
}

template [[host_name("project_add_1")]] [[kernel]] decltype(project_add<1>) project_add<1>;
template [[host_name("project_add_2")]] [[kernel]] decltype(project_add<2>) project_add<2>;
template [[host_name("project_add_4")]] [[kernel]] decltype(project_add<4>) project_add<4>;
template [[host_name("project_add_8")]] [[kernel]] decltype(project_add<8>) project_add<8>;
