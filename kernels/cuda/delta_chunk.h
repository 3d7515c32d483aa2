// What the two kernels of DeltaNet's chunked recurrence share: numbers as two halves, and how a chunk's factors lie in memory.
//
// A float is the sum of two halves, high = half(x) and low = half(x - high), 22 bits together; of a product's four terms the
// three that matter are made, the small ones in sums of their own: matrix units cut what they add up, so the fewer large
// terms the better.
//
// Factors are stored as matrix units want them: blocks of 16 x 16, each as 32 lanes' words of the high and then of the low
// halves, 1,024 bytes; a lane reads 16 bytes and no bank is met twice. Of a chunk:
//   per key head    16 q [4 of t][8 of k], 16 k transposed [8 of k][4 of t];
//   per value head  16 W [4 of t][8 of k], 256 P [4 of t][4 of i], U0 [8 of v][8 of t] as sums of 16 x 8, 16 bytes a lane,
//                   64 of exp(G_t), 64 of exp(G_63 - G_t).
#pragma once
#include "model.h"
#include "rebuild.h"
#include "tile.h"
#if defined(__CUDA_ARCH_FEAT_SM90_ALL) && LILY_VALUE_HEADS == 2 * LILY_KEY_HEADS

constant constexpr uint DELTA_CHUNK = 64;                                // tokens
constant constexpr float CHUNK_SCALE = 16.0f;                      // of q and k: the low halves of small numbers keep their bits
constant constexpr float WEIGHTS_UNSCALE = 1.0f / (CHUNK_SCALE * CHUNK_SCALE);  // of products of both
constant constexpr uint BLOCK_PLACES = 64;                         // of 16 bytes, of a 16 x 16 block: 32 high, 32 low
constant constexpr uint FACTOR_PLACES = 4 * 8 * BLOCK_PLACES;      // q, k or W of a chunk
constant constexpr uint WEIGHTS_PLACES = 4 * 4 * BLOCK_PLACES;     // P
constant constexpr uint KEY_PLACES = 2 * FACTOR_PLACES;            // of a key head
constant constexpr uint VALUE_PLACES = 2 * FACTOR_PLACES + WEIGHTS_PLACES + 2 * DELTA_CHUNK / 4;  // of a value head
constant constexpr uint OF_WEIGHTS = FACTOR_PLACES;                // where in a value head's they begin
constant constexpr uint OF_VALUES = FACTOR_PLACES + WEIGHTS_PLACES;
constant constexpr uint OF_DECAYS = OF_VALUES + FACTOR_PLACES;

// Where the factors of a segment's chunk begin: no two chunks of a step meet.
LILY_INLINE ulong chunk_place(const Segment& segment, uint index, uint chunk) {
  return ulong(segment.first_row / DELTA_CHUNK + index + chunk) * (KEY_HEADS * KEY_PLACES + VALUE_HEADS * VALUE_PLACES);
}
LILY_INLINE ulong key_place(uint key_head) { return ulong(key_head) * KEY_PLACES; }
LILY_INLINE ulong value_place(uint head) { return ulong(KEY_HEADS) * KEY_PLACES + ulong(head) * VALUE_PLACES; }

// Two numbers as words of high and of low halves, both kept finite.
LILY_INLINE void split(float a, float b, uint& high, uint& low) {
  asm("cvt.rn.satfinite.f16x2.f32 %0, %1, %2;" : "=r"(high) : "f"(b), "f"(a));
  const float rest_a = a - metal::Binary16::widen(ushort(high & 0xffffu));
  const float rest_b = b - metal::Binary16::widen(ushort(high >> 16));
  asm("cvt.rn.satfinite.f16x2.f32 %0, %1, %2;" : "=r"(low) : "f"(rest_b), "f"(rest_a));
}

// A fragment in two halves.
struct SplitFragment {
  Fragment high, low;

  // A block's, from a lane's place in it.
  LILY_INLINE void read(const uint4* place) {
    const uint4 a = place[0], b = place[32];
    high.words[0] = a.x, high.words[1] = a.y, high.words[2] = a.z, high.words[3] = a.w;
    low.words[0] = b.x, low.words[1] = b.y, low.words[2] = b.z, low.words[3] = b.w;
  }
  LILY_INLINE void write(uint4* place) const {
    place[0] = uint4(high.words[0], high.words[1], high.words[2], high.words[3]);
    place[32] = uint4(low.words[0], low.words[1], low.words[2], low.words[3]);
  }
};

struct SplitSums {
  Sums large, small;

  LILY_INLINE void clear() { large = small = Sums{}; }
  LILY_INLINE float value(uint i) const { return large.values[i] + small.values[i]; }

  // += a b^T; of b words `n` and the next.
  LILY_INLINE void add_product(const SplitFragment& a, const SplitFragment& b, uint n) {
    large.add_product(a.high, b.high.words[n], b.high.words[n + 1]);
    small.add_product(a.high, b.low.words[n], b.low.words[n + 1]);
    small.add_product(a.low, b.high.words[n], b.high.words[n + 1]);
  }
};

// sums[i][n] += a[i] b^T for the two times eight columns of b. The matrix unit takes some time to a sum: so no two products in
// a row have the same.
template <uint rows>
LILY_INLINE void add_products(const SplitFragment (&a)[rows], const SplitFragment& b, SplitSums (&sums)[rows][2]) {
#pragma unroll
  for (uint i = 0; i < rows * 2; i++)
    sums[i / 2][i % 2].large.add_product(a[i / 2].high, b.high.words[i % 2 * 2], b.high.words[i % 2 * 2 + 1]);
#pragma unroll
  for (uint i = 0; i < rows * 2; i++)
    sums[i / 2][i % 2].small.add_product(a[i / 2].high, b.low.words[i % 2 * 2], b.low.words[i % 2 * 2 + 1]);
#pragma unroll
  for (uint i = 0; i < rows * 2; i++)
    sums[i / 2][i % 2].small.add_product(a[i / 2].low, b.high.words[i % 2 * 2], b.high.words[i % 2 * 2 + 1]);
}
template <uint rows>
LILY_INLINE void clear(SplitSums (&sums)[rows][2]) {
#pragma unroll
  for (uint i = 0; i < rows * 2; i++) sums[i / 2][i % 2].large = sums[i / 2][i % 2].small = Sums{};
}

// A 16 x 16 block of two sums of 16 x 8, as a left factor: their registers are those it wants. As a right one, [columns]
// [inner], words 1 and 2 change places.
LILY_INLINE void split_left(const float (&first)[4], const float (&second)[4], SplitFragment& out) {
#pragma unroll
  for (uint i = 0; i < 2; i++) {
    split(first[i * 2], first[i * 2 + 1], out.high.words[i], out.low.words[i]);
    split(second[i * 2], second[i * 2 + 1], out.high.words[i + 2], out.low.words[i + 2]);
  }
}
LILY_INLINE void split_right(const float (&first)[4], const float (&second)[4], SplitFragment& out) {
#pragma unroll
  for (uint i = 0; i < 2; i++) {
    split(first[i * 2], first[i * 2 + 1], out.high.words[i * 2], out.low.words[i * 2]);
    split(second[i * 2], second[i * 2 + 1], out.high.words[i * 2 + 1], out.low.words[i * 2 + 1]);
  }
}
#endif
