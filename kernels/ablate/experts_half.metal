// Ablation of the dequantisation within tiles: experts_gemm over weights that `dequantise` wrote as halves, the shared
// expert's behind those of the others. Maps, grids, threads and results are those of experts_gemm.metal.
#include <metal_stdlib>
#include <metal_simdgroup_matrix>
#include "half_product.h"
#include "model.h"
#include "numbers.h"
#include "prefill.h"
using namespace metal;

template <uint ROWS>
[[kernel, max_total_threads_per_threadgroup(128)]] void experts_half_up(
    device const half* gate [[buffer(0)]],   // [EXPERTS + 1][EXPERT_WIDTH][HIDDEN]
    device const half* up [[buffer(1)]],     // the same
    device const half* x [[buffer(2)]],      // [rows][HIDDEN]
    device const uint* order [[buffer(3)]],  // [rows * RANKS]
    device const Block* map [[buffer(4)]],
    device half* hidden [[buffer(5)]],  // [rows * RANKS][EXPERT_WIDTH], by place
    uint3 group [[threadgroup_position_in_grid]],
    uint thread_index [[thread_index_in_threadgroup]],
    uint simd [[simdgroup_index_in_threadgroup]],
    uint lane [[thread_index_in_simdgroup]]) {
  using Shares = Product<ROWS, false>;
  constexpr uint PART = Shares::TILE_COLUMNS / 2;  // a SIMD-group's columns: so many of gate, then as many of up
  threadgroup uint4 memory[(ROWS + PRODUCT_COLUMNS) * PRODUCT_STRIDE / 8];
  const Block block = map[group.y];
  if (block.expert == NONE) return;
  HalfSource<ROWS> source;
#pragma unroll
  for (uint i = 0; i < ROWS / 16; i++) {
    const uint place = block.first + min(thread_index / 8 + i * 16, block.pairs - 1);
    source.x[i] = (device const uint4*)(x + order[place] / RANKS * HIDDEN) + thread_index % 8;
  }
  const uint column = thread_index / 2;
  const uint row = group.x * (PRODUCT_COLUMNS / 2) + column / (2 * PART) * PART + column % PART;
  device const half* matrix = column / PART % 2 == 0 ? gate : up;
  const ulong own = ulong(block.expert * EXPERT_WIDTH + row) * HIDDEN;
  source.w = (device const uint4*)(matrix + own) + thread_index % 2 * 4;

  Shares shares(simd);
  multiply_halves<ROWS>(shares, source, HIDDEN, memory, thread_index);
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

template [[host_name("experts_half_up_16")]] [[kernel]] decltype(experts_half_up<16>) experts_half_up<16>;
template [[host_name("experts_half_up_32")]] [[kernel]] decltype(experts_half_up<32>) experts_half_up<32>;

template <uint ROWS>
[[kernel, max_total_threads_per_threadgroup(128)]] void experts_half_down(
    device const half* w [[buffer(0)]],       // [EXPERTS + 1][HIDDEN][EXPERT_WIDTH]
    device const half* hidden [[buffer(1)]],  // [rows * RANKS][EXPERT_WIDTH], by place
    device const Block* map [[buffer(2)]],
    device half* y [[buffer(3)]],  // [rows * RANKS][HIDDEN], by place
    uint3 group [[threadgroup_position_in_grid]],
    uint thread_index [[thread_index_in_threadgroup]],
    uint simd [[simdgroup_index_in_threadgroup]],
    uint lane [[thread_index_in_simdgroup]]) {
  using Shares = Product<ROWS, false>;
  constexpr uint WIDTH = Shares::TILE_COLUMNS / 4;  // of a strip, in float4
  threadgroup uint4 memory[(ROWS + PRODUCT_COLUMNS) * PRODUCT_STRIDE / 8];
  const Block block = map[group.y];
  if (block.expert == NONE) return;
  HalfSource<ROWS> source;
#pragma unroll
  for (uint i = 0; i < ROWS / 16; i++) {
    const uint place = block.first + min(thread_index / 8 + i * 16, block.pairs - 1);
    source.x[i] = (device const uint4*)(hidden + place * EXPERT_WIDTH) + thread_index % 8;
  }
  const ulong own = ulong(block.expert * HIDDEN + group.x * PRODUCT_COLUMNS + thread_index / 2) * EXPERT_WIDTH;
  source.w = (device const uint4*)(w + own) + thread_index % 2 * 4;

  Shares shares(simd);
  multiply_halves<ROWS>(shares, source, EXPERT_WIDTH, memory, thread_index);
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

template [[host_name("experts_half_down_16")]] [[kernel]] decltype(experts_half_down<16>) experts_half_down<16>;
template [[host_name("experts_half_down_32")]] [[kernel]] decltype(experts_half_down<32>) experts_half_down<32>;
