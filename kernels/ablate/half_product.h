// product.h over weights that lie in memory as halves already, in the order in which rebuild() makes them.
#pragma once
#include "product.h"

struct DequantiseParams {
  uint words;  // of eight weights
};

// What a thread stages: half of the columns of one of the 64 weight rows, and eight columns of every 16th row.
template <uint ROWS>
struct HalfSource {
  device const uint4* x[ROWS / 16];
  device const uint4* w;
};

// As Product::run, a step being 64 inner columns of both.
template <uint ROWS>
inline void multiply_halves(thread Product<ROWS, false>& shares, thread const HalfSource<ROWS>& source, uint inner,
                            threadgroup uint4* memory, uint thread_index) {
  threadgroup half* rows = (threadgroup half*)memory;
  threadgroup half* weights = rows + ROWS * PRODUCT_STRIDE;
  threadgroup uint4* row_place = (threadgroup uint4*)(rows + thread_index / 8 * PRODUCT_STRIDE) + thread_index % 8;
  threadgroup uint4* weight_place =
      (threadgroup uint4*)(weights + thread_index / 2 * PRODUCT_STRIDE) + thread_index % 2 * 4;
  shares.tile.clear();
  uint4 x[ROWS / 16], w[4];
#pragma unroll
  for (uint i = 0; i < ROWS / 16; i++) x[i] = source.x[i][0];
#pragma unroll
  for (uint i = 0; i < 4; i++) w[i] = source.w[i];
  for (uint step = 0; step < inner / GROUP; step++) {
#pragma unroll
    for (uint i = 0; i < ROWS / 16; i++) row_place[i * 16 * PRODUCT_STRIDE / 8] = staged_columns(x[i]);
#pragma unroll
    for (uint i = 0; i < 4; i++) weight_place[i] = w[i];
    metal::threadgroup_barrier(metal::mem_flags::mem_threadgroup);
    if (step + 1 < inner / GROUP) {
#pragma unroll
      for (uint i = 0; i < ROWS / 16; i++) x[i] = source.x[i][(step + 1) * GROUP / 8];
#pragma unroll
      for (uint i = 0; i < 4; i++) w[i] = source.w[(step + 1) * GROUP / 8 + i];
    }
    shares.tile.multiply(rows + shares.first_row * PRODUCT_STRIDE, weights + shares.first_column * PRODUCT_STRIDE,
                         PRODUCT_STRIDE, GROUP);
    metal::threadgroup_barrier(metal::mem_flags::mem_threadgroup);
  }
}
