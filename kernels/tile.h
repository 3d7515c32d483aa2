// A SIMD-group's share of a matrix product, in fp32: on every Apple GPU through simdgroup_matrix, on those with matrix
// units (M5) through Metal 4's tensor operations. Neither asks where in a SIMD-group an element lies.
#pragma once
#if __METAL_VERSION__ >= 400
#include <metal_tensor>
#include <MetalPerformancePrimitives/MetalPerformancePrimitives.h>
#endif

constant constexpr uint TILE_STRIP = 16;  // rows of a tile that are stored at a time

template <bool TENSOR, uint ROWS, uint COLUMNS>
struct Tile;

template <uint ROWS, uint COLUMNS>
struct Tile<false, ROWS, COLUMNS> {
  metal::simdgroup_matrix<float, 8, 8> sums[ROWS / 8][COLUMNS / 8];

  void clear() {
#pragma unroll
    for (uint i = 0; i < ROWS / 8; i++)
#pragma unroll
      for (uint j = 0; j < COLUMNS / 8; j++) sums[i][j] = metal::make_filled_simdgroup_matrix<float, 8, 8>(0.0f);
  }

  // sums += a b^T, with a [ROWS][inner] and b [COLUMNS][inner], both with rows `stride` apart.
  void multiply(threadgroup const half* a, threadgroup const half* b, uint stride, uint inner) {
    for (uint k = 0; k < inner; k += 8) {
      metal::simdgroup_matrix<half, 8, 8> left[ROWS / 8];
#pragma unroll
      for (uint i = 0; i < ROWS / 8; i++) metal::simdgroup_load(left[i], a + i * 8 * stride + k, stride);
#pragma unroll
      for (uint j = 0; j < COLUMNS / 8; j++) {
        metal::simdgroup_matrix<half, 8, 8> right;
        metal::simdgroup_load(right, b + j * 8 * stride + k, stride, ulong2(0), true);
#pragma unroll
        for (uint i = 0; i < ROWS / 8; i++)
          metal::simdgroup_multiply_accumulate(sums[i][j], left[i], right, sums[i][j]);
      }
    }
  }

  // Rows strip * TILE_STRIP and following, to out [TILE_STRIP][COLUMNS].
  void store(uint strip, threadgroup float* out) {
#pragma unroll
    for (uint i = 0; i < ROWS / 8; i++) {
      if (i / (TILE_STRIP / 8) != strip) continue;  // the registers' numbers must be constants
#pragma unroll
      for (uint j = 0; j < COLUMNS / 8; j++)
        metal::simdgroup_store(sums[i][j], out + i % (TILE_STRIP / 8) * 8 * COLUMNS + j * 8, COLUMNS);
    }
  }
};

#if __METAL_VERSION__ >= 400
template <uint ROWS, uint COLUMNS>
struct Tile<true, ROWS, COLUMNS> {
  // One operation makes 16 x 32 outputs from 16 inner columns.
  static_assert(ROWS % TILE_STRIP == 0 && COLUMNS == 32, "pieces of 16 x 32");
  static constant constexpr uint PIECES = ROWS / TILE_STRIP;
  using Descriptor = mpp::tensor_ops::matmul2d_descriptor;
  using Operation = mpp::tensor_ops::matmul2d<
      Descriptor(16, 32, 16, false, true, true, Descriptor::mode::multiply_accumulate), metal::execution_simdgroup>;
  using Left = decltype(Operation().template get_left_input_cooperative_tensor<half, half, float>());
  using Right = decltype(Operation().template get_right_input_cooperative_tensor<half, half, float>());
  using Sums = decltype(Operation().template get_destination_cooperative_tensor<Left, Right, float>());
  Sums sums[PIECES];

  void clear() {
#pragma unroll
    for (uint i = 0; i < PIECES; i++)
#pragma unroll
      for (int e = 0; e < sums[i].get_capacity(); e++) sums[i][e] = 0.0f;
  }

  void multiply(threadgroup const half* a, threadgroup const half* b, uint stride, uint inner) {
    Operation operation;
    for (uint k = 0; k < inner; k += 16) {
      Right right;
#pragma unroll
      for (int e = 0; e < right.get_capacity(); e++) {
        auto at = right.get_multidimensional_index(e);  // transposed: (inner, column)
        right[e] = b[at[1] * stride + k + at[0]];
      }
#pragma unroll
      for (uint i = 0; i < PIECES; i++) {
        Left left;
#pragma unroll
        for (int e = 0; e < left.get_capacity(); e++) {
          auto at = left.get_multidimensional_index(e);  // (inner, row)
          left[e] = a[(i * TILE_STRIP + at[1]) * stride + k + at[0]];
        }
        operation.run(left, right, sums[i]);
      }
    }
  }

  void store(uint strip, threadgroup float* out) {
#pragma unroll
    for (uint i = 0; i < PIECES; i++) {
      if (i != strip) continue;
#pragma unroll
      for (int e = 0; e < sums[i].get_capacity(); e++) {
        auto at = sums[i].get_multidimensional_index(e);  // (column, row)
        out[at[1] * COLUMNS + at[0]] = sums[i][e];
      }
    }
  }
};
#endif
