// Rows of activations as the pieces that byte_tiles.h multiplies, in shared memory, and what their sums are multiplied by.
#pragma once
#include "early.h"

#ifdef __CUDA_ARCH_FEAT_SM90_ALL

constant constexpr uint PIECES_OF_FLOAT = 4;

template <uint ROWS, uint COLUMNS, uint WARPS>
struct ByteRows {
  uint4 pieces[ROWS][PIECES_OF_FLOAT][COLUMNS / 16];
  float totals[ROWS][COLUMNS / GROUP];
  float2 squares[ROWS][WARPS];
};

// What a row's sums are multiplied by: pieces by `unit` 2^(-8 piece), the whole by `norm`.
struct ByteScale {
  float unit;
  float norm;
};

// The row's norm, from registers.
template <uint ROWS> LILY_INLINE float norm_of(const ByteScale (&scales)[ROWS], uint row) {
  float norm = scales[0].norm;
#pragma unroll
  for (uint r = 1; r < ROWS; r++) norm = r == row ? scales[r].norm : norm;
  return norm;
}

// Bytes of four numbers, by their place in the number, the highest first.
LILY_INLINE void pieces_of(uint a, uint b, uint c, uint d, uint (&pieces)[PIECES_OF_FLOAT]) {
  const uint low0 = __byte_perm(a, b, 0x5140), low1 = __byte_perm(c, d, 0x5140);
  const uint high0 = __byte_perm(a, b, 0x7362), high1 = __byte_perm(c, d, 0x7362);
  pieces[3] = __byte_perm(low0, low1, 0x5410);
  pieces[2] = __byte_perm(low0, low1, 0x7632);
  pieces[1] = __byte_perm(high0, high1, 0x5410);
  pieces[0] = __byte_perm(high0, high1, 0x7632);
}

// Stages the rows, eight columns a thread, and waits for scales and biases: x(row, column, i) is float4 number i of them, which
// are multiplied by the gains.
template <uint BITS, bool NORM, uint ROWS, uint COLUMNS, uint WARPS, class X>
LILY_INLINE void stage_bytes(ByteRows<ROWS, COLUMNS, WARPS>& staged, ByteScale (&scales)[ROWS], float4 gain0, float4 gain1, X x) {
  static_assert(COLUMNS / 8 <= WARPS * 32, "eight columns a thread");
  const uint thread_index = threadIdx.x, warp = thread_index / 32, lane = thread_index % 32, column = thread_index * 8;
  const bool own = column < COLUMNS;
  float4 values[ROWS][2];
#pragma unroll
  for (uint row = 0; row < ROWS; row++)
#pragma unroll
    for (uint i = 0; i < 2; i++) values[row][i] = own ? x(row, column, i) : float4(0.0f);
#pragma unroll
  for (uint row = 0; row < ROWS; row++) {
    float square = add_product(values[row][1], values[row][1], add_product(values[row][0], values[row][0], 0.0f));
    if (NORM) values[row][0] *= gain0, values[row][1] *= gain1;
    float size = add_product(values[row][1], values[row][1], add_product(values[row][0], values[row][0], 0.0f));
    if (NORM) square = simd_sum(square);
    size = simd_sum(size);
    if (lane == 0) staged.squares[row][warp] = float2(square, size);
  }
  __syncthreads();
#pragma unroll
  for (uint row = 0; row < ROWS; row++) {
    float square = 0.0f, size = 0.0f;
#pragma unroll
    for (uint i = 0; i < WARPS; i++) square += staged.squares[row][i].x, size += staged.squares[row][i].y;
    const int exponent = (int(as_type<uint>(size) >> 23) - 127 + 2) >> 1;
    const float up = as_type<float>(uint(127 + 30 - exponent) << 23);
    scales[row].unit = as_type<float>(uint(127 - 6 + exponent) << 23);
    scales[row].norm = NORM ? rsqrt(square / float(COLUMNS) + EPSILON) : 1.0f;
    if (!(size <= FLT_MAX)) scales[row].norm = as_type<float>(0x7fc00000u);
    uint numbers[8];
    float total = 0.0f;
#pragma unroll
    for (uint i = 0; i < 8; i++) {
      const float value = values[row][i / 4][i % 4];
      numbers[i] = (uint(__float2int_rn(value * up)) + 0x00808080u) ^ 0x00808080u;
      total = __fadd_rn(total, value);  // in no product: every kernel is to have the same bits
    }
    total += simd_shuffle_xor(total, ushort(1));
    total += simd_shuffle_xor(total, ushort(2));
    total += simd_shuffle_xor(total, ushort(4));
    if (!own) continue;
    if (lane % 8 == 0) staged.totals[row][column / GROUP] = total;
    uint first[PIECES_OF_FLOAT], second[PIECES_OF_FLOAT];
    if (BITS == 4) {  // as weights lie in a word: the even ones, the odd ones
      pieces_of(numbers[0], numbers[2], numbers[4], numbers[6], first);
      pieces_of(numbers[1], numbers[3], numbers[5], numbers[7], second);
    } else {
      pieces_of(numbers[0], numbers[1], numbers[2], numbers[3], first);
      pieces_of(numbers[4], numbers[5], numbers[6], numbers[7], second);
    }
#pragma unroll
    for (uint piece = 0; piece < PIECES_OF_FLOAT; piece++)
      ((uint2*)staged.pieces[row][piece])[thread_index] = uint2(first[piece], second[piece]);
  }
  leave_copies<0>();
  __syncthreads();
}
#endif
