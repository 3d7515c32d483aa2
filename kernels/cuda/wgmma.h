// A warpgroup's matrix products on Hopper: sums [64][TOKENS] += a b^T, with a in registers and b in shared memory.
// Nothing else does 64 rows an instruction, and nothing else runs while a warp does something else.
#pragma once
#ifdef __CUDA_ARCH_FEAT_SM90_ALL

// Said by each thread that wrote what the tensor cores read next, by ordinary or asynchronous copies, before the barrier.
LILY_INLINE void copies_are_for_products() { asm volatile("fence.proxy.async.shared::cta;" : : : "memory"); }
// Registers given to products from here on are written.
LILY_INLINE void begin_products() { asm volatile("wgmma.fence.sync.aligned;" : : : "memory"); }
LILY_INLINE void commit_products() { asm volatile("wgmma.commit_group.sync.aligned;" : : : "memory"); }
LILY_INLINE void wait_for_products() { asm volatile("wgmma.wait_group.sync.aligned 0;" : : : "memory"); }
// Keeps the compiler from reading sums before a wait: they are written behind its back.
template <uint N>
LILY_INLINE void sums_are_written(float (&sums)[N]) {
#pragma unroll
  for (uint i = 0; i < N; i++) asm volatile("" : "+f"(sums[i]) : : "memory");
}

// Rows of 64 halves, 128 bytes each, whose 16-byte pieces are exchanged so that eight rows meet all banks: piece c of row r
// lies at c ^ (r % 8). The tile begins at a multiple of 1,024 bytes; 16 columns on is 32 bytes, as address and descriptor go.
LILY_INLINE ulong descriptor_of(const void* tile) {
  constexpr ulong EXCHANGED_128 = 1ul << 62, EIGHT_ROWS = 1024 / 16;
  const ulong address = __cvta_generic_to_shared(tile);
  return EXCHANGED_128 | EIGHT_ROWS << 32 | 1ul << 16 | (address & 0x3ffff) >> 4;
}

// A thread's share of 64 x TOKENS sums: rows 16 warp + lane / 4 and 8 more, tokens 8 j + lane % 4 * 2 and the next:
// sums[4 j], [4 j + 1] of the first row, [4 j + 2], [4 j + 3] of the second.
template <uint TOKENS>
struct WarpgroupSums;

template <>
struct WarpgroupSums<64> {
  float sums[32];

  LILY_INLINE void add_product(uint4 a, ulong b) {
    asm volatile(
        "{.reg .pred p; setp.ne.b32 p, 1, 0; wgmma.mma_async.sync.aligned.m64n64k16.f32.f16.f16 {"
        "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, "
        "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31}, "
        "{%32, %33, %34, %35}, %36, p, 1, 1, 0;}"
        : "+f"(sums[0]), "+f"(sums[1]), "+f"(sums[2]), "+f"(sums[3]), "+f"(sums[4]), "+f"(sums[5]), "+f"(sums[6]),
          "+f"(sums[7]), "+f"(sums[8]), "+f"(sums[9]), "+f"(sums[10]), "+f"(sums[11]), "+f"(sums[12]), "+f"(sums[13]),
          "+f"(sums[14]), "+f"(sums[15]), "+f"(sums[16]), "+f"(sums[17]), "+f"(sums[18]), "+f"(sums[19]),
          "+f"(sums[20]), "+f"(sums[21]), "+f"(sums[22]), "+f"(sums[23]), "+f"(sums[24]), "+f"(sums[25]),
          "+f"(sums[26]), "+f"(sums[27]), "+f"(sums[28]), "+f"(sums[29]), "+f"(sums[30]), "+f"(sums[31])
        : "r"(a.x), "r"(a.y), "r"(a.z), "r"(a.w), "l"(b));
  }
};

template <>
struct WarpgroupSums<32> {
  float sums[16];

  LILY_INLINE void add_product(uint4 a, ulong b) {
    asm volatile(
        "{.reg .pred p; setp.ne.b32 p, 1, 0; wgmma.mma_async.sync.aligned.m64n32k16.f32.f16.f16 {"
        "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15}, "
        "{%16, %17, %18, %19}, %20, p, 1, 1, 0;}"
        : "+f"(sums[0]), "+f"(sums[1]), "+f"(sums[2]), "+f"(sums[3]), "+f"(sums[4]), "+f"(sums[5]), "+f"(sums[6]),
          "+f"(sums[7]), "+f"(sums[8]), "+f"(sums[9]), "+f"(sums[10]), "+f"(sums[11]), "+f"(sums[12]), "+f"(sums[13]),
          "+f"(sums[14]), "+f"(sums[15])
        : "r"(a.x), "r"(a.y), "r"(a.z), "r"(a.w), "l"(b));
  }
};

template <>
struct WarpgroupSums<16> {
  float sums[8];

  LILY_INLINE void add_product(uint4 a, ulong b) {
    asm volatile(
        "{.reg .pred p; setp.ne.b32 p, 1, 0; wgmma.mma_async.sync.aligned.m64n16k16.f32.f16.f16 "
        "{%0, %1, %2, %3, %4, %5, %6, %7}, {%8, %9, %10, %11}, %12, p, 1, 1, 0;}"
        : "+f"(sums[0]), "+f"(sums[1]), "+f"(sums[2]), "+f"(sums[3]), "+f"(sums[4]), "+f"(sums[5]), "+f"(sums[6]), "+f"(sums[7])
        : "r"(a.x), "r"(a.y), "r"(a.z), "r"(a.w), "l"(b));
  }
};

template <>
struct WarpgroupSums<8> {
  float sums[4];

  LILY_INLINE void add_product(uint4 a, ulong b) {
    asm volatile(
        "{.reg .pred p; setp.ne.b32 p, 1, 0; wgmma.mma_async.sync.aligned.m64n8k16.f32.f16.f16 "
        "{%0, %1, %2, %3}, {%4, %5, %6, %7}, %8, p, 1, 1, 0;}"
        : "+f"(sums[0]), "+f"(sums[1]), "+f"(sums[2]), "+f"(sums[3])
        : "r"(a.x), "r"(a.y), "r"(a.z), "r"(a.w), "l"(b));
  }
};
#endif
