// The product of a quantised matrix and a few rows through the tensor cores' products of bytes: exact, in whole numbers.
//
// A row's activations become 32-bit numbers X = round(x 2^(30 - e)), 2^e being at least the row's Euclidean norm, and these four
// signed bytes: X = 2^24 p0 + 2^16 p1 + 2^8 p2 + p3. The weights q of a group are bytes as they are, so that sum q p is exact
// however it is added up; the pieces come together in sum += scale (sum q p) 2^(e - 6 - 8 piece), the bias times the group's sum
// of x beside it. So a 4-bit weight costs half an instruction, and the error is that of a sum of floats.
#pragma once
#include "byte_tiles.h"

#ifdef __CUDA_ARCH_FEAT_SM90_ALL

// The widths that the kernels are made for; step/bytes.rs takes them for no other model.
#if LILY_HIDDEN == 2048 && LILY_EXPERT_WIDTH == 512 && LILY_QUERY_HEADS * 256 <= 4096 && LILY_VALUE_HEADS * 128 <= 4096
#define LILY_BYTES
#endif

// What a kernel of them is given at launch: step/bytes.rs knows it as well.
template <class Tiles, class Staged, uint SUMS>
constexpr uint GIVEN_BYTES = Tiles::BYTES + sizeof(Staged) + SUMS * sizeof(float);

// What all warps have of an output.
template <uint WARPS, uint TILES, uint ROWS>
LILY_INLINE float sum_of_warps(float (*sums)[TILES][ROWS][TILE_OUTPUTS], uint slot, uint row, uint output) {
  float sum = 0.0f;
#pragma unroll
  for (uint warp = 0; warp < WARPS; warp++) sum += sums[warp][slot][row][output];
  return sum;
}
#endif
