// hidden[row][rank] = silu(W_gate n) · W_up n, n = rms_norm(x[row]) · gain, for the row's chosen experts (ranks 0 to 7) and
// the shared one (rank 8); choices[row][rank] says which and with what weight.
//
// grid (EXPERT_WIDTH / UP_OUTPUTS, RANKS, rows), 256 threads. gate_* and up_* [EXPERTS][EXPERT_WIDTH] rows of HIDDEN
// columns, shared_* [EXPERT_WIDTH] rows, x [rows][HIDDEN], gain [HIDDEN], logits [rows][EXPERTS + 1] of the router,
// hidden [rows][RANKS][EXPERT_WIDTH], choices [rows][RANKS]. Rows that pad a plan are passed over.
#include <metal_stdlib>
#include "few_rows.h"
#include "model.h"
#include "numbers.h"
#include "top_experts.h"
using namespace metal;

constant constexpr uint UP_OUTPUTS = 16;  // of a threadgroup

[[kernel, max_total_threads_per_threadgroup(256)]] void experts_up(
    device const uint* gate_w [[buffer(0)]],
    device const bfloat* gate_scales [[buffer(1)]],
    device const bfloat* gate_biases [[buffer(2)]],
    device const uint* up_w [[buffer(3)]],
    device const bfloat* up_scales [[buffer(4)]],
    device const bfloat* up_biases [[buffer(5)]],
    device const uint* shared_gate_w [[buffer(6)]],
    device const bfloat* shared_gate_scales [[buffer(7)]],
    device const bfloat* shared_gate_biases [[buffer(8)]],
    device const uint* shared_up_w [[buffer(9)]],
    device const bfloat* shared_up_scales [[buffer(10)]],
    device const bfloat* shared_up_biases [[buffer(11)]],
    device const float* x [[buffer(12)]],
    device const float* gain [[buffer(13)]],
    device const float* logits [[buffer(14)]],
    device const Row* rows [[buffer(15)]],
    device float* hidden [[buffer(16)]],
    device Choice* choices [[buffer(17)]],
    uint3 group [[threadgroup_position_in_grid]],
    uint thread_index [[thread_index_in_threadgroup]],
    uint simd [[simdgroup_index_in_threadgroup]],
    uint lane [[thread_index_in_simdgroup]]) {
  constexpr uint SIMDS = 8, OWN = UP_OUTPUTS / SIMDS, OUTPUTS = 2 * OWN, CHUNKS = 2;  // gate and up
  threadgroup float4 staged[CHUNKS * PIECES];
  threadgroup float totals[CHUNKS * 32];
  threadgroup float squares[SIMDS];
  const uint row = group.z, rank = group.y;
  if (rows[row].slot == NONE) return;
  // The threadgroups that report need all the chosen for the softmax, others none after their own.
  const bool reports = group.x == 0;
  Matrix gate = Matrix{shared_gate_w, shared_gate_scales, shared_gate_biases};
  Matrix up = Matrix{shared_up_w, shared_up_scales, shared_up_biases};
  device const float* row_logits = logits + row * (EXPERTS + 1);
  Choice choice = Choice{EXPERTS, sigmoid(row_logits[EXPERTS])};
  if (rank < CHOSEN) {
    choice = top_expert(row_logits, rank, reports ? CHOSEN : rank + 1, lane);
    gate = rows_from<4>(Matrix{gate_w, gate_scales, gate_biases}, choice.expert * EXPERT_WIDTH, HIDDEN);
    up = rows_from<4>(Matrix{up_w, up_scales, up_biases}, choice.expert * EXPERT_WIDTH, HIDDEN);
  }
  const uint first = (group.x * SIMDS + simd) * OWN;
  Rows<1> source;
  source.x[0] = x + row * HIDDEN;
  const float sum = few_rows_product<4, 1, OUTPUTS, CHUNKS, SIMDS, true>(
      rows_from<4>(gate, first, HIDDEN), rows_from<4>(up, first, HIDDEN), HIDDEN, source, gain, staged, totals, squares,
      simd, lane);
  const float partner = simd_shuffle_xor(sum, ushort(16));  // lanes 0 to 15 have the gates, 16 to 31 the ups
  if (lane < 16 && lane % 8 == 0)
    hidden[(row * RANKS + rank) * EXPERT_WIDTH + first + lane / 8] = silu(sum) * partner;
  if (reports && simd == 0 && lane == 0) choices[row * RANKS + rank] = choice;
}
