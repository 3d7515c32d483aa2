// y[row] = W · (rms_norm(x[row]) · gain), W being up to four matrices one above the other.
//
// grid (ceil((outputs0 + outputs1 + outputs2 + outputs3) / PROJECT_OUTPUTS), 1, 1), 256 threads; ROWS rows of x and y, padding included.
// w [outputs][HIDDEN/8], scales and biases [outputs][HIDDEN/64], x [ROWS][HIDDEN], gain [HIDDEN],
// y [ROWS][outputs0 + outputs1 + outputs2 + outputs3].
#include <metal_stdlib>
#include "decode_params.h"
#include "few_rows.h"
#include "model.h"
using namespace metal;

constant constexpr uint PROJECT_OUTPUTS = 32;  // of a threadgroup

template <uint ROWS>
[[kernel, max_total_threads_per_threadgroup(256)]] void project_norm(
    device const uint* w0 [[buffer(0)]],
    device const bfloat* scales0 [[buffer(1)]],
    device const bfloat* biases0 [[buffer(2)]],
    device const uint* w1 [[buffer(3)]],
    device const bfloat* scales1 [[buffer(4)]],
    device const bfloat* biases1 [[buffer(5)]],
    device const uint* w2 [[buffer(6)]],
    device const bfloat* scales2 [[buffer(7)]],
    device const bfloat* biases2 [[buffer(8)]],
    device const uint* w3 [[buffer(9)]],
    device const bfloat* scales3 [[buffer(10)]],
    device const bfloat* biases3 [[buffer(11)]],
    device const float* x [[buffer(12)]],
    device const float* gain [[buffer(13)]],
    device float* y [[buffer(14)]],
    constant ProjectParams& p [[buffer(15)]],
    uint3 group [[threadgroup_position_in_grid]],
    uint thread_index [[thread_index_in_threadgroup]],
    uint simd [[simdgroup_index_in_threadgroup]],
    uint lane [[thread_index_in_simdgroup]]) {
  constexpr uint SIMDS = 8, OUTPUTS = PROJECT_OUTPUTS / SIMDS, CHUNKS = ROWS <= 2 ? 2 : 1;
  threadgroup float4 staged[staged_rows(ROWS) * CHUNKS * PIECES];
  threadgroup float totals[staged_rows(ROWS) * CHUNKS * 32];
  threadgroup float squares[ROWS * SIMDS];
  const uint total = p.outputs0 + p.outputs1 + p.outputs2 + p.outputs3;
  // SIMD-groups past the end repeat the last outputs and write nothing: barriers need them.
  const uint wanted = (group.x * SIMDS + simd) * OUTPUTS, first = min(wanted, total - OUTPUTS);
  Matrix matrix = Matrix{w0, scales0, biases0};
  uint row = first;
  if (row >= p.outputs0) {
    matrix = Matrix{w1, scales1, biases1};
    row -= p.outputs0;
    if (row >= p.outputs1) {
      matrix = Matrix{w2, scales2, biases2};
      row -= p.outputs1;
      if (row >= p.outputs2) {
        matrix = Matrix{w3, scales3, biases3};
        row -= p.outputs2;
      }
    }
  }
  Rows<ROWS> rows;
#pragma unroll
  for (uint i = 0; i < ROWS; i++) rows.x[i] = x + i * HIDDEN;
  const float sum = few_rows_product<4, ROWS, OUTPUTS, CHUNKS, SIMDS, true>(
      rows_from<4>(matrix, row, HIDDEN), rows_from<4>(matrix, row + OUTPUTS / 2, HIDDEN), HIDDEN, rows, gain, staged,
      totals, squares, simd, lane);
  constexpr uint LANES = 32 / (ROWS * OUTPUTS);
  const uint place = lane / LANES;
  if (wanted < total && lane % LANES == 0) y[place / OUTPUTS * total + first + place % OUTPUTS] = sum;
}

template [[host_name("project_norm_1")]] [[kernel]] decltype(project_norm<1>) project_norm<1>;
template [[host_name("project_norm_2")]] [[kernel]] decltype(project_norm<2>) project_norm<2>;
template [[host_name("project_norm_4")]] [[kernel]] decltype(project_norm<4>) project_norm<4>;
template [[host_name("project_norm_8")]] [[kernel]] decltype(project_norm<8>) project_norm<8>;
