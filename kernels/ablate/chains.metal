// Ablation of the fused chains of a decode step of one row: what project_norm, project_add, experts_up and delta_step do in
// one kernel each, as kernels of their own. (delta_step's recurrence is then delta_prepare and delta_scan.)
//
// norm_row: y = x / sqrt(mean(x^2) + EPSILON) * gain. Grid {1, 1, 1}, 256 threads.
#include <metal_stdlib>
#include "chains.h"
#include "delta.h"
#include "few_rows.h"
#include "model.h"
#include "numbers.h"
#include "top_experts.h"
using namespace metal;

constant constexpr uint CHAIN_THREADS = 256;

[[kernel, max_total_threads_per_threadgroup(256)]] void norm_row(
    device const float* x [[buffer(0)]],     // [HIDDEN]
    device const float* gain [[buffer(1)]],  // [HIDDEN]
    device float* y [[buffer(2)]],           // [HIDDEN]
    uint thread_index [[thread_index_in_threadgroup]],
    uint simd [[simdgroup_index_in_threadgroup]],
    uint lane [[thread_index_in_simdgroup]]) {
  threadgroup float squares[CHAIN_THREADS / 32];
  float square = 0.0f;
  for (uint i = thread_index; i < HIDDEN; i += CHAIN_THREADS) square = fma(x[i], x[i], square);
  square = simd_sum(square);
  if (lane == 0) squares[simd] = square;
  threadgroup_barrier(mem_flags::mem_threadgroup);
  square = 0.0f;
  for (uint i = 0; i < CHAIN_THREADS / 32; i++) square += squares[i];
  const float factor = rsqrt(square / float(HIDDEN) + EPSILON);
  for (uint i = thread_index; i < HIDDEN; i += CHAIN_THREADS) y[i] = x[i] * factor * gain[i];
}

// add_row: x += y. Grid {ceil(HIDDEN / 256), 1, 1}, 256 threads.
[[kernel, max_total_threads_per_threadgroup(256)]] void add_row(
    device const float* y [[buffer(0)]],  // [HIDDEN]
    device float* x [[buffer(1)]],        // [HIDDEN]
    uint3 group [[threadgroup_position_in_grid]],
    uint thread_index [[thread_index_in_threadgroup]]) {
  const uint i = group.x * CHAIN_THREADS + thread_index;
  if (i < HIDDEN) x[i] += y[i];
}

// product_row: y = W x. A threadgroup makes 8 * OUTPUTS outputs, W having a multiple of OUTPUTS.
// Grid {ceil(outputs / (8 * OUTPUTS)), 1, 1}, 256 threads. Names: product_row_4 as project_norm_1 has its outputs and columns,
// product_row_2 as project_add_1.
template <uint OUTPUTS, uint CHUNKS>
[[kernel, max_total_threads_per_threadgroup(256)]] void product_row(
    device const uint* w [[buffer(0)]],  // [outputs][inner / 8]
    device const bfloat* scales [[buffer(1)]],
    device const bfloat* biases [[buffer(2)]],
    device const float* x [[buffer(3)]],  // [inner]
    device float* y [[buffer(4)]],        // [outputs]
    constant ProductRowParams& p [[buffer(5)]],
    uint3 group [[threadgroup_position_in_grid]],
    uint simd [[simdgroup_index_in_threadgroup]],
    uint lane [[thread_index_in_simdgroup]]) {
  constexpr uint SIMDS = CHAIN_THREADS / 32, LANES = 32 / OUTPUTS;
  threadgroup float4 staged[CHUNKS * PIECES];
  threadgroup float totals[CHUNKS * 32];
  const uint wanted = (group.x * SIMDS + simd) * OUTPUTS, first = min(wanted, p.outputs - OUTPUTS);
  const Matrix matrix = Matrix{w, scales, biases};
  Rows<1> rows;
  rows.x[0] = x;
  const float sum = few_rows_product<4, 1, OUTPUTS, CHUNKS, SIMDS, false>(
      rows_from<4>(matrix, first, p.inner), rows_from<4>(matrix, first + OUTPUTS / 2, p.inner), p.inner, rows, x, staged,
      totals, totals, simd, lane);
  if (wanted < p.outputs && lane % LANES == 0) y[first + lane / LANES] = sum;
}

template [[host_name("product_row_4")]] [[kernel]] decltype(product_row<4, 2>) product_row<4, 2>;
template [[host_name("product_row_2")]] [[kernel]] decltype(product_row<2, 4>) product_row<2, 4>;

// choose_experts: the row's choices. Grid {1, 1, 1}, 32 threads.
[[kernel, max_total_threads_per_threadgroup(32)]] void choose_experts(
    device const float* logits [[buffer(0)]],  // [EXPERTS + 1]
    device Choice* choices [[buffer(1)]],      // [RANKS]
    uint lane [[thread_index_in_simdgroup]]) {
  const Choice own = top_experts(logits, CHOSEN, lane);
  if (lane < CHOSEN) choices[lane] = own;
  if (lane == CHOSEN) choices[lane] = Choice{EXPERTS, sigmoid(logits[EXPERTS])};
}

// product_chosen: y[rank] = W_expert x. Grid {EXPERT_WIDTH / 32, RANKS, 1}, 256 threads.
[[kernel, max_total_threads_per_threadgroup(256)]] void product_chosen(
    device const uint* w [[buffer(0)]],  // [EXPERTS][EXPERT_WIDTH][HIDDEN / 8]
    device const bfloat* scales [[buffer(1)]],
    device const bfloat* biases [[buffer(2)]],
    device const uint* shared_w [[buffer(3)]],  // [EXPERT_WIDTH][HIDDEN / 8]
    device const bfloat* shared_scales [[buffer(4)]],
    device const bfloat* shared_biases [[buffer(5)]],
    device const float* x [[buffer(6)]],         // [HIDDEN]
    device const Choice* choices [[buffer(7)]],  // [RANKS]
    device float* y [[buffer(8)]],               // [RANKS][EXPERT_WIDTH]
    uint3 group [[threadgroup_position_in_grid]],
    uint simd [[simdgroup_index_in_threadgroup]],
    uint lane [[thread_index_in_simdgroup]]) {
  constexpr uint SIMDS = CHAIN_THREADS / 32, OUTPUTS = 4, CHUNKS = 2;
  threadgroup float4 staged[CHUNKS * PIECES];
  threadgroup float totals[CHUNKS * 32];
  const uint rank = group.y, first = (group.x * SIMDS + simd) * OUTPUTS;
  Matrix matrix = Matrix{shared_w, shared_scales, shared_biases};
  if (rank < CHOSEN)
    matrix = rows_from<4>(Matrix{w, scales, biases}, choices[rank].expert * EXPERT_WIDTH, HIDDEN);
  Rows<1> rows;
  rows.x[0] = x;
  const float sum = few_rows_product<4, 1, OUTPUTS, CHUNKS, SIMDS, false>(
      rows_from<4>(matrix, first, HIDDEN), rows_from<4>(matrix, first + OUTPUTS / 2, HIDDEN), HIDDEN, rows, x, staged, totals,
      totals, simd, lane);
  if (lane % 8 == 0) y[rank * EXPERT_WIDTH + first + lane / 8] = sum;
}

// swiglu: hidden = silu(gate) * up. Grid {ceil(RANKS * EXPERT_WIDTH / 256), 1, 1}, 256 threads.
[[kernel, max_total_threads_per_threadgroup(256)]] void swiglu(
    device const float* gate [[buffer(0)]],  // [RANKS][EXPERT_WIDTH], as all
    device const float* up [[buffer(1)]],
    device float* hidden [[buffer(2)]],
    uint3 group [[threadgroup_position_in_grid]],
    uint thread_index [[thread_index_in_threadgroup]]) {
  const uint i = group.x * CHAIN_THREADS + thread_index;
  if (i < RANKS * EXPERT_WIDTH) hidden[i] = silu(gate[i]) * up[i];
}

// gated_norm_row: gated_norm.metal with fp32 results. Grid {ceil(VALUE_HEADS / 4), 1, 1}, 128 threads.
[[kernel, max_total_threads_per_threadgroup(128)]] void gated_norm_row(
    device const float* o [[buffer(0)]],          // [VALUE_HEADS][128]
    device const float* projected [[buffer(1)]],  // qkv | z | a | b
    device const float* gain [[buffer(2)]],       // [128]
    device float* y [[buffer(3)]],                // [VALUE_HEADS][128]
    uint3 group [[threadgroup_position_in_grid]],
    uint simd [[simdgroup_index_in_threadgroup]],
    uint lane [[thread_index_in_simdgroup]]) {
  const uint head = group.x * 4 + simd;
  if (head >= VALUE_HEADS) return;
  const float4 x = ((device const float4*)(o + head * DELTA_HEAD))[lane];
  const float4 z = ((device const float4*)(projected + delta_channels() + head * DELTA_HEAD))[lane];
  const float factor = rsqrt(simd_sum(dot(x, x)) / float(DELTA_HEAD) + EPSILON);
  ((device float4*)(y + head * DELTA_HEAD))[lane] = x * factor * ((device const float4*)gain)[lane] * silu4(z);
}
