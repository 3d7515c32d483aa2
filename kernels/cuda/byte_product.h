// What byte_tiles.h multiplies with: the tensor cores' products of bytes, and what becomes of their sums.
#pragma once
#ifdef __CUDA_ARCH_FEAT_SM90_ALL

// sums [16][8] += a [16][32] b [32][8], bytes, those of a without a sign.
LILY_INLINE void add_byte_product(int (&sums)[4], uint a0, uint a1, uint a2, uint a3, uint b0, uint b1) {
  asm("mma.sync.aligned.m16n8k32.row.col.s32.u8.s8.s32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
      : "+r"(sums[0]), "+r"(sums[1]), "+r"(sums[2]), "+r"(sums[3]) : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(b0), "r"(b1));
}

// The same as it begins: sums = start + a b.
LILY_INLINE void begin_byte_product(int (&sums)[4], int start, uint a0, uint a1, uint a2, uint a3, uint b0, uint b1) {
  asm("mma.sync.aligned.m16n8k32.row.col.s32.u8.s8.s32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%10, %10, %10, %10};"
      : "=r"(sums[0]), "=r"(sums[1]), "=r"(sums[2]), "=r"(sums[3])
      : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(b0), "r"(b1), "r"(start));
}
// As an integer, what a whole number of less than 23 bits is added to; as a float, what is taken away again: no conversion, which
// is slow.
constant constexpr float WHOLE = 12582912.0f;  // 1.5 2^23
LILY_INLINE float whole_number(int sum) { return as_type<float>(uint(sum)) - WHOLE; }

LILY_INLINE float low_bfloat(uint pair) { return as_type<float>(pair << 16); }
LILY_INLINE float high_bfloat(uint pair) { return as_type<float>(pair & 0xffff0000u); }
#endif
