// The experts' products for many rows, grouped by expert as route_sort has it; the shared expert is one more.
// The tiles are those of gemm_q4; a threadgroup whose record of the map is NONE has nothing to do.
//
// experts_gemm_up: hidden[place] = half(silu(W_gate x) * (W_up x)), x the row of the pair at that place.
// Grid {EXPERT_WIDTH / 32, blocks of the map, 1}, 128 threads: 32 columns of gate and the same 32 of up side by side.
// Names: experts_gemm_up_16, experts_gemm_up_32, experts_gemm_up_32_tensor (the map must be cut for as many pairs).
#include <metal_stdlib>
#include <metal_simdgroup_matrix>
#include "model.h"
#include "numbers.h"
#include "prefill.h"
#include "product.h"
using namespace metal;

template <uint ROWS, bool TENSOR>
[[kernel, max_total_threads_per_threadgroup(128)]] void experts_gemm_up(
    device const uint* gate_w [[buffer(0)]],         // [EXPERTS][EXPERT_WIDTH][HIDDEN / 8], 16-byte aligned, as all w
    device const bfloat* gate_scales [[buffer(1)]],  // [EXPERTS][EXPERT_WIDTH][HIDDEN / 64]
    device const bfloat* gate_biases [[buffer(2)]],
    device const uint* up_w [[buffer(3)]],
    device const bfloat* up_scales [[buffer(4)]],
    device const bfloat* up_biases [[buffer(5)]],
    device const uint* shared_gate_w [[buffer(6)]],  // [EXPERT_WIDTH][HIDDEN / 8]
    device const bfloat* shared_gate_scales [[buffer(7)]],
    device const bfloat* shared_gate_biases [[buffer(8)]],
    device const uint* shared_up_w [[buffer(9)]],
    device const bfloat* shared_up_scales [[buffer(10)]],
    device const bfloat* shared_up_biases [[buffer(11)]],
    device const half* x [[buffer(12)]],      // [rows][HIDDEN]
    device const uint* order [[buffer(13)]],  // [rows * RANKS]
    device const Block* map [[buffer(14)]],
    device half* hidden [[buffer(15)]],  // [rows * RANKS][EXPERT_WIDTH], by place
    uint3 group [[threadgroup_position_in_grid]],
    uint thread_index [[thread_index_in_threadgroup]],
    uint simd [[simdgroup_index_in_threadgroup]],
    uint lane [[thread_index_in_simdgroup]]) {
  using Shares = Product<ROWS, TENSOR>;
  constexpr uint PART = Shares::TILE_COLUMNS / 2;  // a SIMD-group's columns: so many of gate, then as many of up
  threadgroup uint4 memory[(ROWS + PRODUCT_COLUMNS) * PRODUCT_STRIDE / 8];
  const Block block = map[group.y];
  if (block.expert == NONE) return;

  Source<ROWS> source;
#pragma unroll
  for (uint i = 0; i < ROWS / 16; i++) {
    const uint place = block.first + min(thread_index / 8 + i * 16, block.pairs - 1);
    source.x[i] = (device const uint4*)(x + order[place] / RANKS * HIDDEN) + thread_index % 8;
  }
  const uint column = thread_index / 2;
  const uint row = group.x * (PRODUCT_COLUMNS / 2) + column / (2 * PART) * PART + column % PART;
  Matrix gate = Matrix{gate_w, gate_scales, gate_biases}, up = Matrix{up_w, up_scales, up_biases};
  if (block.expert == EXPERTS) {
    gate = Matrix{shared_gate_w, shared_gate_scales, shared_gate_biases};
    up = Matrix{shared_up_w, shared_up_scales, shared_up_biases};
  }
  const uint first = block.expert == EXPERTS ? 0 : block.expert * EXPERT_WIDTH;
  source.weights(rows_from<4>(column / PART % 2 == 0 ? gate : up, first + row, HIDDEN), thread_index);

  Shares shares(simd);
  shares.run(source, HIDDEN, memory, thread_index);
  for (uint s = 0; s < Shares::STRIPS; s++) {
    threadgroup const float4* strip = (threadgroup const float4*)shares.strip(s, memory, simd);
    for (uint i = lane; i < TILE_STRIP * PART / 4; i += 32) {
      const uint in_strip = i / (PART / 4), at = i % (PART / 4);
      const uint pair = shares.first_row + s * TILE_STRIP + in_strip;
      if (pair >= block.pairs) continue;
      const uint to = group.x * (PRODUCT_COLUMNS / 2) + shares.first_column / 2 + at * 4;
      *(device half4*)(hidden + (block.first + pair) * EXPERT_WIDTH + to) =
          saturated_half4(silu4(strip[in_strip * (PART / 2) + at]) * strip[in_strip * (PART / 2) + PART / 4 + at]);
    }
  }
}

template [[host_name("experts_gemm_up_16")]] [[kernel]] decltype(experts_gemm_up<16, false>) experts_gemm_up<16, false>;
template [[host_name("experts_gemm_up_32")]] [[kernel]] decltype(experts_gemm_up<32, false>) experts_gemm_up<32, false>;

// experts_gemm_down: y[place] = half(W_down hidden[place]).
// Grid {HIDDEN / 64, blocks of the map, 1}, 128 threads. Names as above.
template <uint ROWS, bool TENSOR>
[[kernel, max_total_threads_per_threadgroup(128)]] void experts_gemm_down(
    device const uint* w [[buffer(0)]],         // [EXPERTS][HIDDEN][EXPERT_WIDTH / 8]
    device const bfloat* scales [[buffer(1)]],  // [EXPERTS][HIDDEN][EXPERT_WIDTH / 64]
    device const bfloat* biases [[buffer(2)]],
    device const uint* shared_w [[buffer(3)]],  // [HIDDEN][EXPERT_WIDTH / 8]
    device const bfloat* shared_scales [[buffer(4)]],
    device const bfloat* shared_biases [[buffer(5)]],
    device const half* hidden [[buffer(6)]],  // [rows * RANKS][EXPERT_WIDTH], by place
    device const Block* map [[buffer(7)]],
    device half* y [[buffer(8)]],  // [rows * RANKS][HIDDEN], by place
    uint3 group [[threadgroup_position_in_grid]],
    uint thread_index [[thread_index_in_threadgroup]],
    uint simd [[simdgroup_index_in_threadgroup]],
    uint lane [[thread_index_in_simdgroup]]) {
  using Shares = Product<ROWS, TENSOR>;
  constexpr uint WIDTH = Shares::TILE_COLUMNS / 4;  // of a strip, in float4
  threadgroup uint4 memory[(ROWS + PRODUCT_COLUMNS) * PRODUCT_STRIDE / 8];
  const Block block = map[group.y];
  if (block.expert == NONE) return;

  Source<ROWS> source;
#pragma unroll
  for (uint i = 0; i < ROWS / 16; i++) {
    const uint place = block.first + min(thread_index / 8 + i * 16, block.pairs - 1);
    source.x[i] = (device const uint4*)(hidden + place * EXPERT_WIDTH) + thread_index % 8;
  }
  Matrix matrix = Matrix{w, scales, biases};
  if (block.expert == EXPERTS) matrix = Matrix{shared_w, shared_scales, shared_biases};
  const uint first = block.expert == EXPERTS ? 0 : block.expert * HIDDEN;
  const uint row = first + group.x * PRODUCT_COLUMNS + thread_index / 2;
  source.weights(rows_from<4>(matrix, row, EXPERT_WIDTH), thread_index);

  Shares shares(simd);
  shares.run(source, EXPERT_WIDTH, memory, thread_index);
  for (uint s = 0; s < Shares::STRIPS; s++) {
    threadgroup const float4* strip = (threadgroup const float4*)shares.strip(s, memory, simd);
    for (uint i = lane; i < TILE_STRIP * WIDTH; i += 32) {
      const uint pair = shares.first_row + s * TILE_STRIP + i / WIDTH;
      if (pair >= block.pairs) continue;
      const uint at = group.x * PRODUCT_COLUMNS + shares.first_column + i % WIDTH * 4;
      *(device half4*)(y + (block.first + pair) * HIDDEN + at) = saturated_half4(strip[i]);
    }
  }
}

template [[host_name("experts_gemm_down_16")]] [[kernel]]
decltype(experts_gemm_down<16, false>) experts_gemm_down<16, false>;
template [[host_name("experts_gemm_down_32")]] [[kernel]]
decltype(experts_gemm_down<32, false>) experts_gemm_down<32, false>;
#if __METAL_VERSION__ >= 400
template [[host_name("experts_gemm_up_32_tensor")]] [[kernel]]
decltype(experts_gemm_up<32, true>) experts_gemm_up<32, true>;
template [[host_name("experts_gemm_down_32_tensor")]] [[kernel]]
decltype(experts_gemm_down<32, true>) experts_gemm_down<32, true>;
#endif
