// x[row] += Σ_ranks weight · W_down hidden[row][rank], the shared expert last.
//
// grid (HIDDEN / DOWN_OUTPUTS, rows, 1), 256 threads. down_* [EXPERTS][HIDDEN] rows of EXPERT_WIDTH columns, shared_*
// [HIDDEN] rows, hidden and choices as experts_up wrote them, x [rows][HIDDEN]. Rows that pad a plan are passed over.
#include <metal_stdlib>
#include "few_rows.h"
#include "model.h"
using namespace metal;

constant constexpr uint DOWN_OUTPUTS = 16;  // of a threadgroup

[[kernel, max_total_threads_per_threadgroup(256)]] void experts_down(
    device const uint* down_w [[buffer(0)]],
    device const bfloat* down_scales [[buffer(1)]],
    device const bfloat* down_biases [[buffer(2)]],
    device const uint* shared_w [[buffer(3)]],
    device const bfloat* shared_scales [[buffer(4)]],
    device const bfloat* shared_biases [[buffer(5)]],
    device const float* hidden [[buffer(6)]],
    device const Choice* choices [[buffer(7)]],
    device const Row* rows [[buffer(8)]],
    device float* x [[buffer(9)]],
    uint3 group [[threadgroup_position_in_grid]],
    uint thread_index [[thread_index_in_threadgroup]],
    uint simd [[simdgroup_index_in_threadgroup]],
    uint lane [[thread_index_in_simdgroup]]) {
  constexpr uint SIMDS = 8, OUTPUTS = DOWN_OUTPUTS / SIMDS, OWN = 16;  // columns of a lane
  threadgroup float4 staged[RANKS][OWN / 4][32];
  threadgroup float totals[RANKS][32];
  const uint row = group.y;
  if (rows[row].slot == NONE) return;
  const uint first = (group.x * SIMDS + simd) * OUTPUTS;
  const bool active = lane * OWN < EXPERT_WIDTH;

  // The packed weights of all ranks set out together.
  uint2 words[RANKS][OUTPUTS];
  float scale[RANKS][OUTPUTS], bias[RANKS][OUTPUTS];
#pragma unroll
  for (uint rank = 0; rank < RANKS; rank++) {
    const uint expert = rank < CHOSEN ? choices[row * RANKS + rank].expert : 0;
    const Matrix stacked = rank < CHOSEN ? Matrix{down_w, down_scales, down_biases}
                                         : Matrix{shared_w, shared_scales, shared_biases};
    const Matrix matrix = rows_from<4>(stacked, expert * HIDDEN + first, EXPERT_WIDTH);
#pragma unroll
    for (uint output = 0; output < OUTPUTS; output++) {
      const uint place = output * EXPERT_WIDTH + lane * OWN;
      words[rank][output] = active ? *(device const uint2*)(matrix.w + place / 8) : uint2(0u);
      scale[rank][output] = active ? float(matrix.scales[place / GROUP]) : 0.0f;
      bias[rank][output] = active ? float(matrix.biases[place / GROUP]) : 0.0f;
    }
  }

  // Meanwhile the hidden values, times their expert's weight, in the order in which lanes read them.
  for (uint rank = simd; rank < RANKS; rank += SIMDS) {
    const float weight = choices[row * RANKS + rank].weight;
    device const float4* source = (device const float4*)(hidden + (row * RANKS + rank) * EXPERT_WIDTH);
#pragma unroll
    for (uint step = 0; step < OWN / 4; step++) {
      const uint i = step * 32 + lane;
      float4 value = float4(0.0f);
      if (i * 4 < EXPERT_WIDTH) value = source[i] * weight;
      float total = value.x + value.y + value.z + value.w;
      total += simd_shuffle_xor(total, ushort(1));
      total += simd_shuffle_xor(total, ushort(2));
      staged[rank][i % 4][i / 4] = value * place_values<4>(i);
      if (i % 4 == 0) totals[rank][i / 4] = total;
    }
  }
  threadgroup_barrier(mem_flags::mem_threadgroup);

  float sums[OUTPUTS];
#pragma unroll
  for (uint output = 0; output < OUTPUTS; output++) sums[output] = 0.0f;
#pragma unroll
  for (uint rank = 0; rank < RANKS; rank++) {
    const float4 a = staged[rank][0][lane], b = staged[rank][1][lane], c = staged[rank][2][lane], d = staged[rank][3][lane];
    const float total = totals[rank][lane];
#pragma unroll
    for (uint output = 0; output < OUTPUTS; output++) {
      const uint2 word = words[rank][output];
      const float half_way = add_product(high_nibbles(word.x), b, add_product(low_nibbles(word.x), a, 0.0f));
      const float product = add_product(high_nibbles(word.y), d, add_product(low_nibbles(word.y), c, half_way));
      sums[output] = fma(scale[rank][output], product, fma(bias[rank][output], total, sums[output]));
    }
  }
  const float sum = fold<OUTPUTS>(sums, lane);
  if (lane % 16 == 0) x[row * HIDDEN + first + lane / 16] += sum;
}
