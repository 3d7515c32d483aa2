// Products with 4-bit matrices for many rows. gemm_q4: y = x W^T, W up to four matrices one below the other;
// gemm_q4_add: y += x W^T. A threadgroup makes ROWS x 64 outputs, as product.h has it.
//
// Grid {ceil(rows / ROWS), sum over the matrices of ceil(outputs / 64), 1}, 128 threads: neighbours in the grid share
// weights. Names: gemm_q4_16, _32, _64 and gemm_q4_add_16, _32, _64; those of 32 and 64 also with _tensor.
#include <metal_stdlib>
#include <metal_simdgroup_matrix>
#include "model.h"
#include "prefill.h"
#include "product.h"
using namespace metal;

// Computes a threadgroup's outputs and stores them: rows from row0 on, columns of `matrix` from column0 on. `y` begins
// with the matrix's first column; its rows are `pitch` apart.
template <uint ROWS, bool ADD, bool TENSOR>
inline void gemm_q4_tile(Matrix matrix, device const half* x, device float* y, uint rows, uint inner, uint outputs,
                         uint pitch, uint row0, uint column0, threadgroup uint4* memory, uint thread_index, uint simd,
                         uint lane) {
  using Shares = Product<ROWS, TENSOR>;
  constexpr uint WIDTH = Shares::TILE_COLUMNS / 4;  // of a strip, in float4
  // Rows and columns past the end are computed from the last one's values and not stored.
  Source<ROWS> source;
#pragma unroll
  for (uint i = 0; i < ROWS / 16; i++) {
    const uint row = min(row0 + thread_index / 8 + i * 16, rows - 1);
    source.x[i] = (device const uint4*)(x + row * inner) + thread_index % 8;
  }
  source.weights(rows_from<4>(matrix, min(column0 + thread_index / 2, outputs - 1), inner), thread_index);

  Shares shares(simd);
  shares.run(source, inner, memory, thread_index);
  for (uint s = 0; s < Shares::STRIPS; s++) {
    threadgroup const float4* strip = (threadgroup const float4*)shares.strip(s, memory, simd);
    for (uint i = lane; i < TILE_STRIP * WIDTH; i += 32) {
      const uint row = row0 + shares.first_row + s * TILE_STRIP + i / WIDTH;
      const uint column = column0 + shares.first_column + i % WIDTH * 4;
      if (row >= rows || column >= outputs) continue;
      device float4* out = (device float4*)(y + row * pitch + column);
      *out = ADD ? *out + strip[i] : strip[i];
    }
  }
}

inline uint tiles_of(uint outputs) {
  return (outputs + PRODUCT_COLUMNS - 1) / PRODUCT_COLUMNS;
}

template <uint ROWS, bool TENSOR>
[[kernel, max_total_threads_per_threadgroup(128)]] void gemm_q4(
    device const uint* w0 [[buffer(0)]],         // [outputs0][inner / 8], 16-byte aligned
    device const bfloat* scales0 [[buffer(1)]],  // [outputs0][inner / 64]
    device const bfloat* biases0 [[buffer(2)]],  // [outputs0][inner / 64]
    device const uint* w1 [[buffer(3)]],
    device const bfloat* scales1 [[buffer(4)]],
    device const bfloat* biases1 [[buffer(5)]],
    device const uint* w2 [[buffer(6)]],
    device const bfloat* scales2 [[buffer(7)]],
    device const bfloat* biases2 [[buffer(8)]],
    device const uint* w3 [[buffer(9)]],
    device const bfloat* scales3 [[buffer(10)]],
    device const bfloat* biases3 [[buffer(11)]],
    device const half* x [[buffer(12)]],  // [rows][inner]
    device float* y [[buffer(13)]],       // [rows][outputs0 | outputs1 | outputs2 | outputs3]
    constant GemmParams& p [[buffer(14)]],
    uint3 group [[threadgroup_position_in_grid]],
    uint thread_index [[thread_index_in_threadgroup]],
    uint simd [[simdgroup_index_in_threadgroup]],
    uint lane [[thread_index_in_simdgroup]]) {
  threadgroup uint4 memory[(ROWS + PRODUCT_COLUMNS) * PRODUCT_STRIDE / 8];
  const uint pitch = p.outputs0 + p.outputs1 + p.outputs2 + p.outputs3;
  // The matrix of this threadgroup, and its tile there.
  Matrix matrix = Matrix{w0, scales0, biases0};
  uint outputs = p.outputs0, before = 0, tile = group.y;
  if (tile >= tiles_of(outputs)) {
    tile -= tiles_of(outputs);
    before += outputs;
    outputs = p.outputs1;
    matrix = Matrix{w1, scales1, biases1};
    if (tile >= tiles_of(outputs)) {
      tile -= tiles_of(outputs);
      before += outputs;
      outputs = p.outputs2;
      matrix = Matrix{w2, scales2, biases2};
      if (tile >= tiles_of(outputs)) {
        tile -= tiles_of(outputs);
        before += outputs;
        outputs = p.outputs3;
        matrix = Matrix{w3, scales3, biases3};
      }
    }
  }
  gemm_q4_tile<ROWS, false, TENSOR>(matrix, x, y + before, p.rows, p.inner, outputs, pitch, group.x * ROWS,
                                    tile * PRODUCT_COLUMNS, memory, thread_index, simd, lane);
}

template <uint ROWS, bool TENSOR>
[[kernel, max_total_threads_per_threadgroup(128)]] void gemm_q4_add(
    device const uint* w [[buffer(0)]],         // [outputs][inner / 8], 16-byte aligned
    device const bfloat* scales [[buffer(1)]],  // [outputs][inner / 64]
    device const bfloat* biases [[buffer(2)]],  // [outputs][inner / 64]
    device const half* x [[buffer(3)]],         // [rows][inner]
    device float* y [[buffer(4)]],              // [rows][outputs]
    constant GemmAddParams& p [[buffer(5)]],
    uint3 group [[threadgroup_position_in_grid]],
    uint thread_index [[thread_index_in_threadgroup]],
    uint simd [[simdgroup_index_in_threadgroup]],
    uint lane [[thread_index_in_simdgroup]]) {
  threadgroup uint4 memory[(ROWS + PRODUCT_COLUMNS) * PRODUCT_STRIDE / 8];
  gemm_q4_tile<ROWS, true, TENSOR>(Matrix{w, scales, biases}, x, y, p.rows, p.inner, p.outputs, p.outputs,
                                   group.x * ROWS, group.y * PRODUCT_COLUMNS, memory, thread_index, simd, lane);
}

template [[host_name("gemm_q4_16")]] [[kernel]] decltype(gemm_q4<16, false>) gemm_q4<16, false>;
template [[host_name("gemm_q4_32")]] [[kernel]] decltype(gemm_q4<32, false>) gemm_q4<32, false>;
template [[host_name("gemm_q4_64")]] [[kernel]] decltype(gemm_q4<64, false>) gemm_q4<64, false>;
template [[host_name("gemm_q4_add_16")]] [[kernel]] decltype(gemm_q4_add<16, false>) gemm_q4_add<16, false>;
template [[host_name("gemm_q4_add_32")]] [[kernel]] decltype(gemm_q4_add<32, false>) gemm_q4_add<32, false>;
template [[host_name("gemm_q4_add_64")]] [[kernel]] decltype(gemm_q4_add<64, false>) gemm_q4_add<64, false>;
#if __METAL_VERSION__ >= 400
template [[host_name("gemm_q4_32_tensor")]] [[kernel]] decltype(gemm_q4<32, true>) gemm_q4<32, true>;
template [[host_name("gemm_q4_64_tensor")]] [[kernel]] decltype(gemm_q4<64, true>) gemm_q4<64, true>;
template [[host_name("gemm_q4_add_32_tensor")]] [[kernel]] decltype(gemm_q4_add<32, true>) gemm_q4_add<32, true>;
template [[host_name("gemm_q4_add_64_tensor")]] [[kernel]] decltype(gemm_q4_add<64, true>) gemm_q4_add<64, true>;
#endif
