// The heart of the products of many rows with 4-bit matrices: ROWS x 64 outputs of a threadgroup of four SIMD-groups.
//
// A step takes one group of weights (64 inner columns): the 64 x 64 weights are rebuilt as half in threadgroup memory,
// once for all rows, and the rows' 64 columns are laid beside them. While the SIMD-groups multiply, the next step's
// values are already on their way into registers.
#pragma once
#include "quantized.h"
#include "rebuild.h"
#include "tile.h"

constant constexpr uint PRODUCT_COLUMNS = 64;        // outputs of a threadgroup
constant constexpr uint PRODUCT_STRIDE = GROUP + 8;  // of the staged rows, in halves: spreads them over the banks

// What a thread stages: half of the weights of one of the 64 weight rows, and eight columns of every 16th row.
template <uint ROWS>
struct Source {
  device const uint4* x[ROWS / 16];
  device const uint4* w;
  device const bfloat* scales;
  device const bfloat* biases;

  // `matrix` begins with the thread's weight row.
  void weights(Matrix matrix, uint thread_index) {
    w = (device const uint4*)matrix.w + thread_index % 2;
    scales = matrix.scales;
    biases = matrix.biases;
  }
};

template <uint ROWS, bool TENSOR>
struct Product {
  // The SIMD-groups stand side by side for 16 rows, else two by two.
  static constant constexpr uint TILE_ROWS = ROWS == 64 ? 32 : 16;
  static constant constexpr uint TILE_COLUMNS = ROWS == 16 ? 16 : 32;
  static constant constexpr uint ACROSS = PRODUCT_COLUMNS / TILE_COLUMNS;
  static constant constexpr uint STRIPS = TILE_ROWS / TILE_STRIP;

  Tile<TENSOR, TILE_ROWS, TILE_COLUMNS> tile;
  uint first_row;  // of this SIMD-group's tile in the threadgroup's
  uint first_column;

  Product(uint simd) : first_row(simd / ACROSS * TILE_ROWS), first_column(simd % ACROSS * TILE_COLUMNS) {}

  // The whole inner dimension. `memory` is free again for all when it returns.
  void run(thread const Source<ROWS>& source, uint inner, threadgroup uint4* memory, uint thread_index) {
    threadgroup half* rows = (threadgroup half*)memory;
    threadgroup half* weights = rows + ROWS * PRODUCT_STRIDE;
    // This thread's places among the staged values.
    threadgroup uint4* row_place = (threadgroup uint4*)(rows + thread_index / 8 * PRODUCT_STRIDE) + thread_index % 8;
    threadgroup uint4* weight_place =
        (threadgroup uint4*)(weights + thread_index / 2 * PRODUCT_STRIDE) + thread_index % 2 * 4;
    tile.clear();
    uint4 x[ROWS / 16];
#pragma unroll
    for (uint i = 0; i < ROWS / 16; i++) x[i] = source.x[i][0];
    uint4 w = source.w[0];
    float scale = float(source.scales[0]), bias = float(source.biases[0]);
    for (uint step = 0; step < inner / GROUP; step++) {
#pragma unroll
      for (uint i = 0; i < ROWS / 16; i++) row_place[i * 16 * PRODUCT_STRIDE / 8] = staged_columns(x[i]);
#pragma unroll
      for (uint i = 0; i < 4; i++) weight_place[i] = rebuild(w[i], scale, bias);
      metal::threadgroup_barrier(metal::mem_flags::mem_threadgroup);
      if (step + 1 < inner / GROUP) {
#pragma unroll
        for (uint i = 0; i < ROWS / 16; i++) x[i] = source.x[i][(step + 1) * GROUP / 8];
        w = source.w[(step + 1) * GROUP / 32];
        scale = float(source.scales[step + 1]);
        bias = float(source.biases[step + 1]);
      }
      tile.multiply(rows + first_row * PRODUCT_STRIDE, weights + first_column * PRODUCT_STRIDE, PRODUCT_STRIDE, GROUP);
      metal::threadgroup_barrier(metal::mem_flags::mem_threadgroup);
    }
  }

  // Lays a strip of this SIMD-group's tile, [TILE_STRIP][TILE_COLUMNS], into its own part of `memory`, for its lanes to
  // read.
  threadgroup float* strip(uint index, threadgroup uint4* memory, uint simd) {
    threadgroup float* out = (threadgroup float*)memory + simd * TILE_STRIP * TILE_COLUMNS;
    if (index != 0) metal::simdgroup_barrier(metal::mem_flags::mem_threadgroup);  // the strip before has been read
    tile.store(index, out);
    metal::simdgroup_barrier(metal::mem_flags::mem_threadgroup);
    return out;
  }
};
