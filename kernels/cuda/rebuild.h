// rebuild.h for CUDA, where a conversion costs as much as four multiply-adds, and these work on two halves at once.
//
// A nibble q under the exponent of 1024 is the half 1024 + q or, four bits higher, 1024 + 16 q: one exact multiply-add
// makes q of it, a second q scale + bias. Two nibbles of a word that lie 16 bits apart go together, weights 0 and 4, 1 and 5,
// and so on: rows are staged in that order too, and sums do not mind.
#pragma once

LILY_INLINE uint multiply_add_halves(uint a, uint b, uint c) {
  uint result;
  asm("fma.rn.f16x2 %0, %1, %2, %3;" : "=r"(result) : "r"(a), "r"(b), "r"(c));
  return result;
}

// Two halves, the first in the low one.
LILY_INLINE uint two_halves(float low, float high) {
  uint both;
  asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(both) : "f"(high), "f"(low));
  return both;
}

LILY_INLINE uint4 rebuild(uint word, float scale, float bias) {
  constexpr uint EXPONENT = 0x64006400u, ONE = 0x3c003c00u, LESS_1024 = 0xe400e400u;  // 1024, 1 and -1024, twice
  constexpr uint SIXTEENTH = 0x2c002c00u, LESS_64 = 0xd400d400u;                      // 1/16 and -64
  const uint scales = two_halves(scale, scale), biases = two_halves(bias, bias), high = word >> 8;
  const uint low_0 = (word & 0x000f000fu) | EXPONENT, low_1 = (word & 0x00f000f0u) | EXPONENT;
  const uint high_0 = (high & 0x000f000fu) | EXPONENT, high_1 = (high & 0x00f000f0u) | EXPONENT;
  return uint4(multiply_add_halves(multiply_add_halves(low_0, ONE, LESS_1024), scales, biases),
               multiply_add_halves(multiply_add_halves(low_1, SIXTEENTH, LESS_64), scales, biases),
               multiply_add_halves(multiply_add_halves(high_0, ONE, LESS_1024), scales, biases),
               multiply_add_halves(multiply_add_halves(high_1, SIXTEENTH, LESS_64), scales, biases));
}

// Eight halves in the order 0 4, 1 5, 2 6, 3 7.
LILY_INLINE uint4 staged_columns(uint4 x) {
  return uint4(__byte_perm(x.x, x.z, 0x5410), __byte_perm(x.x, x.z, 0x7632), __byte_perm(x.y, x.w, 0x5410),
               __byte_perm(x.y, x.w, 0x7632));
}
