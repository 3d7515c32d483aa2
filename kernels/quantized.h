// Affine quantised weights: w = q · scale + bias, q of 4 or 8 bits, a scale and a bias for GROUP neighbouring columns.
//
// A packed word keeps its weights where they are: masked, weight i of the word is q·2^(BITS·i), an exact float, and the
// activation that meets it was multiplied by 2^(−BITS·i) beforehand. So a weight costs one AND, one conversion and one
// multiply-add; no shift. Biases are folded: Σ (q·scale + bias)·x = scale·Σ q·x + bias·Σ x.
#pragma once
#include <metal_stdlib>
#include "model.h"
using namespace metal;

// A matrix, or its rows from one on.
struct Matrix {
  device const uint* w;
  device const bfloat* scales;
  device const bfloat* biases;
};

// The rows of a matrix of `columns` columns from `row` on.
template <uint BITS>
inline Matrix rows_from(Matrix matrix, uint row, uint columns) {
  const ulong groups = ulong(row) * (columns / GROUP);
  return Matrix{matrix.w + groups * (GROUP * BITS / 32), matrix.scales + groups, matrix.biases + groups};
}

// What activations 4·piece to 4·piece + 3 of a lane are multiplied by before they meet masked weights.
template <uint BITS>
inline float4 place_values(uint piece) {
  if (BITS == 8) return float4(1.0f, 1.0f / 256.0f, 1.0f / 65536.0f, 1.0f / 16777216.0f);
  const float4 low = float4(1.0f, 1.0f / 16.0f, 1.0f / 256.0f, 1.0f / 4096.0f);
  return (piece & 1u) == 0u ? low : low * (1.0f / 65536.0f);
}

inline float4 low_nibbles(uint word) {
  return float4(float(word & 0xfu), float(word & 0xf0u), float(word & 0xf00u), float(word & 0xf000u));
}

inline float4 high_nibbles(uint word) {
  return float4(float(word & 0xf0000u), float(word & 0xf00000u), float(word & 0xf000000u), float(word & 0xf0000000u));
}

inline float4 bytes_of(uint word) {
  return float4(float(word & 0xffu), float(word & 0xff00u), float(word & 0xff0000u), float(word & 0xff000000u));
}
