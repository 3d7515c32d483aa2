// Ablation of the dequantisation within tiles: the weights are written to memory as halves, then multiplied.
//
// dequantise: y = q · scale + bias as halves, in the order of rebuild().
// Grid {ceil(words / 256), 1, 1}, 256 threads: a word, eight weights, a thread.
#include <metal_stdlib>
#include <metal_simdgroup_matrix>
#include "half_product.h"
#include "model.h"
#include "prefill.h"
using namespace metal;

[[kernel, max_total_threads_per_threadgroup(256)]] void dequantise(
    device const uint* w [[buffer(0)]],         // [words]
    device const bfloat* scales [[buffer(1)]],  // [words / 8]
    device const bfloat* biases [[buffer(2)]],
    device half* y [[buffer(3)]],  // [words][8]
    constant DequantiseParams& p [[buffer(4)]],
    uint3 group [[threadgroup_position_in_grid]],
    uint thread_index [[thread_index_in_threadgroup]]) {
  const uint word = group.x * 256 + thread_index;
  if (word >= p.words) return;
  const uint of = word / (GROUP / 8);
  ((device uint4*)y)[word] = rebuild(w[word], float(scales[of]), float(biases[of]));
}

// gemm_half: y = x W^T; gemm_half_add: y += x W^T. As gemm_q4 with one matrix.
// Grid {ceil(rows / ROWS), ceil(outputs / 64), 1}, 128 threads. Names: gemm_half_32, _64 and gemm_half_add_32, _64.
template <uint ROWS, bool ADD>
[[kernel, max_total_threads_per_threadgroup(128)]] void gemm_half(
    device const half* w [[buffer(0)]],  // [outputs][inner]
    device const half* x [[buffer(1)]],  // [rows][inner]
    device float* y [[buffer(2)]],       // [rows][outputs]
    constant GemmAddParams& p [[buffer(3)]],
    uint3 group [[threadgroup_position_in_grid]],
    uint thread_index [[thread_index_in_threadgroup]],
    uint simd [[simdgroup_index_in_threadgroup]],
    uint lane [[thread_index_in_simdgroup]]) {
  using Shares = Product<ROWS, false>;
  constexpr uint WIDTH = Shares::TILE_COLUMNS / 4;  // of a strip, in float4
  threadgroup uint4 memory[(ROWS + PRODUCT_COLUMNS) * PRODUCT_STRIDE / 8];
  const uint row0 = group.x * ROWS, column0 = group.y * PRODUCT_COLUMNS;
  HalfSource<ROWS> source;
#pragma unroll
  for (uint i = 0; i < ROWS / 16; i++) {
    const uint row = min(row0 + thread_index / 8 + i * 16, p.rows - 1);
    source.x[i] = (device const uint4*)(x + row * p.inner) + thread_index % 8;
  }
  const uint own = min(column0 + thread_index / 2, p.outputs - 1);
  source.w = (device const uint4*)(w + ulong(own) * p.inner) + thread_index % 2 * 4;

  Shares shares(simd);
  multiply_halves<ROWS>(shares, source, p.inner, memory, thread_index);
  for (uint s = 0; s < Shares::STRIPS; s++) {
    threadgroup const float4* strip = (threadgroup const float4*)shares.strip(s, memory, simd);
    for (uint i = lane; i < TILE_STRIP * WIDTH; i += 32) {
      const uint row = row0 + shares.first_row + s * TILE_STRIP + i / WIDTH;
      const uint column = column0 + shares.first_column + i % WIDTH * 4;
      if (row >= p.rows || column >= p.outputs) continue;
      device float4* out = (device float4*)(y + row * p.outputs + column);
      *out = ADD ? *out + strip[i] : strip[i];
    }
  }
}

template [[host_name("gemm_half_32")]] [[kernel]] decltype(gemm_half<32, false>) gemm_half<32, false>;
template [[host_name("gemm_half_64")]] [[kernel]] decltype(gemm_half<64, false>) gemm_half<64, false>;
template [[host_name("gemm_half_add_32")]] [[kernel]] decltype(gemm_half<32, true>) gemm_half<32, true>;
template [[host_name("gemm_half_add_64")]] [[kernel]] decltype(gemm_half<64, true>) gemm_half<64, true>;
