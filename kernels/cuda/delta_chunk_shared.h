// What a block of delta_chunks has in shared memory, how rows come there and how a triangle is inverted there.
#pragma once
#include "delta.h"
#include "delta_chunk.h"
#include "meetings.h"
#if defined(__CUDA_ARCH_FEAT_SM90_ALL) && LILY_VALUE_HEADS == 2 * LILY_KEY_HEADS

constant constexpr uint CHUNKS_THREADS = 256;
constant constexpr uint STAGED_STRIDE = DELTA_HEAD + 8;     // of rows of halves
constant constexpr uint TRIANGLE_STRIDE = DELTA_CHUNK + 8;    // of rows of floats
constant constexpr uint STAGED_HALVES = DELTA_CHUNK * STAGED_STRIDE;

struct ChunkShared {
  half keys[2][STAGED_HALVES];    // high, low
  half others[2][STAGED_HALVES];  // q, then v
  float triangles[2][DELTA_CHUNK * TRIANGLE_STRIDE];
  float2 logs[2][DELTA_CHUNK];          // G, and what a float leaves of it
  float betas[2][DELTA_CHUNK];
  float weights[2][DELTA_CHUNK];        // beta exp(G)
};
static_assert(sizeof(ChunkShared) == 108544, "as delta_chunks is launched with");

// Rows of a head, times `scale`, in two halves, by WARPS warps; from `rows` on they are 0.
template <uint WARPS>
LILY_INLINE void stage_split(const float* from, uint rows, float scale, half (&to)[2][STAGED_HALVES], uint simd, uint lane) {
#pragma unroll 8
  for (uint row = simd; row < DELTA_CHUNK; row += WARPS) {
    const uint column = lane * 4;
    float4 x = float4(0.0f);
    if (row < rows) x = *(const float4*)(from + row * delta_channels() + column);
    uint high[2], low[2];
    split(x.x * scale, x.y * scale, high[0], low[0]);
    split(x.z * scale, x.w * scale, high[1], low[1]);
    *(uint2*)(to[0] + row * STAGED_STRIDE + column) = uint2(high[0], high[1]);
    *(uint2*)(to[1] + row * STAGED_STRIDE + column) = uint2(low[0], low[1]);
  }
}

LILY_INLINE void load_split(const half (&from)[2][STAGED_HALVES], uint place, SplitFragment& to) {
  to.high.load(from[0] + place);
  to.low.load(from[1] + place);
}
LILY_INLINE void load_split_transposed(const half (&from)[2][STAGED_HALVES], uint place, SplitFragment& to) {
  to.high.load_transposed(from[0] + place);
  to.low.load_transposed(from[1] + place);
}

// Makes (I + A)^-1 of A in place by forward substitution, sixteen rows at a time; a thread has a column, whose entries above
// `first` are 0. Two warps have a head's columns and meet at a barrier of their own.
LILY_INLINE void invert(float* triangle, uint column, uint first, uint barrier) {
#pragma unroll 1
  for (uint base = 0; base < DELTA_CHUNK; base += 16) {
    const float* rows = triangle + base * TRIANGLE_STRIDE;
    float t[16];
#pragma unroll
    for (uint row = 0; row < 16; row++) t[row] = base + row == column ? 1.0f : 0.0f;
#pragma unroll 1
    for (uint i = first; i < base; i += 4) {
      float x[4];
#pragma unroll
      for (uint e = 0; e < 4; e++) x[e] = -triangle[(i + e) * TRIANGLE_STRIDE + column];
#pragma unroll
      for (uint row = 0; row < 16; row++) {
        const float4 a = *(const float4*)(rows + row * TRIANGLE_STRIDE + i);
        t[row] = fmaf(a.w, x[3], fmaf(a.z, x[2], fmaf(a.y, x[1], fmaf(a.x, x[0], t[row]))));
      }
    }
    if (base >= first) {
#pragma unroll
      for (uint i = 0; i < 16; i += 4) {
        float4 a[16];
#pragma unroll
        for (uint row = i + 1; row < 16; row++) a[row] = *(const float4*)(rows + row * TRIANGLE_STRIDE + base + i);
#pragma unroll
        for (uint e = 0; e < 4; e++)
#pragma unroll
          for (uint row = i + e + 1; row < 16; row++) t[row] = fmaf(-a[row][e], t[i + e], t[row]);
      }
    }
    meet(barrier, 64);  // none needs these rows of A any more
    if (base < first) continue;
#pragma unroll
    for (uint row = 0; row < 16; row++) triangle[(base + row) * TRIANGLE_STRIDE + column] = t[row];
  }
}
#endif
