// logits[row] = (mlp.gate | shared_expert_gate) · (rms_norm(x[row]) · gain), both matrices 8-bit.
//
// grid ((EXPERTS + ROUTER_OUTPUTS) / ROUTER_OUTPUTS, (rows + ROWS − 1) / ROWS, 1), 128 threads: any number of rows, ROWS at a time.
// w [EXPERTS][HIDDEN/4], scales and biases [EXPERTS][HIDDEN/64], shared_* the same with one row, x [rows][HIDDEN],
// gain [HIDDEN], logits [rows][EXPERTS + 1].
#include <metal_stdlib>
#include "few_rows.h"
#include "model.h"
using namespace metal;

constant constexpr uint ROUTER_OUTPUTS = 8;  // of a threadgroup

template <uint ROWS>
[[kernel, max_total_threads_per_threadgroup(128)]] void router(
    device const uint* w [[buffer(0)]],
    device const bfloat* scales [[buffer(1)]],
    device const bfloat* biases [[buffer(2)]],
    device const uint* shared_w [[buffer(3)]],
    device const bfloat* shared_scales [[buffer(4)]],
    device const bfloat* shared_biases [[buffer(5)]],
    device const float* x [[buffer(6)]],
    device const float* gain [[buffer(7)]],
    device float* logits [[buffer(8)]],
    constant CountParams& p [[buffer(9)]],
    uint3 group [[threadgroup_position_in_grid]],
    uint thread_index [[thread_index_in_threadgroup]],
    uint simd [[simdgroup_index_in_threadgroup]],
    uint lane [[thread_index_in_simdgroup]]) {
  constexpr uint SIMDS = 4, OUTPUTS = ROUTER_OUTPUTS / SIMDS, CHUNKS = ROWS <= 2 ? 2 : 1;
  threadgroup float4 staged[staged_rows(ROWS) * CHUNKS * PIECES];
  threadgroup float totals[staged_rows(ROWS) * CHUNKS * 32];
  threadgroup float squares[ROWS * SIMDS];
  // EXPERTS is even: the last SIMD-group at work has the shared expert's gate twice and writes it once.
  const uint first = (group.x * SIMDS + simd) * OUTPUTS;
  Matrix low = Matrix{shared_w, shared_scales, shared_biases}, high = low;
  if (first < EXPERTS) {
    const Matrix all = Matrix{w, scales, biases};
    low = rows_from<8>(all, first, HIDDEN);
    high = rows_from<8>(all, first + 1, HIDDEN);
  }
  Rows<ROWS> rows;
#pragma unroll
  for (uint i = 0; i < ROWS; i++) rows.x[i] = x + min(group.y * ROWS + i, p.count - 1) * HIDDEN;
  const float sum = few_rows_product<8, ROWS, OUTPUTS, CHUNKS, SIMDS, true>(low, high, HIDDEN, rows, gain, staged, totals,
                                                                            squares, simd, lane);
  constexpr uint LANES = 32 / (ROWS * OUTPUTS);
  const uint place = lane / LANES, row = group.y * ROWS + place / OUTPUTS, output = first + place % OUTPUTS;
  if (lane % LANES == 0 && row < p.count && output <= EXPERTS) logits[row * (EXPERTS + 1) + output] = sum;
}

template [[host_name("router_1")]] [[kernel]] decltype(router<1>) router<1>;
template [[host_name("router_2")]] [[kernel]] decltype(router<2>) router<2>;
template [[host_name("router_4")]] [[kernel]] decltype(router<4>) router<4>;
template [[host_name("router_8")]] [[kernel]] decltype(router<8>) router<8>;
