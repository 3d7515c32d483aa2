// What attention on Hopper's warpgroups needs beside wgmma.h: its two products, barriers in shared memory between those that
// copy and those that multiply, and the exponential.
//
// A tile is PAGE = 64 tokens of 256 halves, in four slabs of 64 columns, each [64 tokens][128 bytes] with the 16-byte pieces of
// a row exchanged as wgmma.h has it. Keys are a right factor whose rows are outputs, values one whose rows are the inner
// dimension, 64 columns of the outputs from slab to slab.
#pragma once
#include "bulk.h"
#include "rebuild.h"
#include "wgmma.h"
#ifdef __CUDA_ARCH_FEAT_SM90_ALL

constant constexpr uint SLAB_COLUMNS = 64;
constant constexpr uint TILE_SLAB = PAGE * SLAB_COLUMNS * 2;             // bytes of a slab of a tile
constant constexpr uint PAGE_TILE = HEAD / SLAB_COLUMNS * TILE_SLAB;     // and of a tile
constant constexpr uint PROBABILITY_WORDS = PAGE / 4;                    // a lane's probabilities of a tile, in pairs

// Until all but the products committed last are done.
LILY_INLINE void wait_for_all_products_but_one() { asm volatile("wgmma.wait_group.sync.aligned 1;" : : : "memory"); }

// That of a right factor whose rows are the inner dimension: slabs lie `slab` bytes apart.
LILY_INLINE ulong transposed_descriptor_of(const void* tile, uint slab) {
  return (descriptor_of(tile) & ~(0x3ffful << 16)) | ulong(slab / 16) << 16;
}

// sums [64][64] (+)= a b^T, of 16 inner columns; lanes have them as WarpgroupSums does.
LILY_INLINE void multiply_64(float (&sums)[32], ulong a, ulong b, bool add) {
  asm volatile(
      "{.reg .pred p; setp.ne.b32 p, %34, 0; wgmma.mma_async.sync.aligned.m64n64k16.f32.f16.f16 "
      "{%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, %16, %17, %18, %19, %20, %21, %22, "
      "%23, %24, %25, %26, %27, %28, %29, %30, %31}, "
      "%32, %33, p, 1, 1, 0, 0;}"
      : "+f"(sums[0]), "+f"(sums[1]), "+f"(sums[2]), "+f"(sums[3]), "+f"(sums[4]), "+f"(sums[5]), "+f"(sums[6]),
        "+f"(sums[7]), "+f"(sums[8]), "+f"(sums[9]), "+f"(sums[10]), "+f"(sums[11]), "+f"(sums[12]), "+f"(sums[13]),
        "+f"(sums[14]), "+f"(sums[15]), "+f"(sums[16]), "+f"(sums[17]), "+f"(sums[18]), "+f"(sums[19]),
        "+f"(sums[20]), "+f"(sums[21]), "+f"(sums[22]), "+f"(sums[23]), "+f"(sums[24]), "+f"(sums[25]),
        "+f"(sums[26]), "+f"(sums[27]), "+f"(sums[28]), "+f"(sums[29]), "+f"(sums[30]), "+f"(sums[31])
      : "l"(a), "l"(b), "r"(uint(add)));
}

// sums [64][256] += a b, of 16 inner rows; a lane's words of a are pairs of columns 2 (lane % 4) of rows lane / 4 and
// lane / 4 + 8, then of columns 8 more.
LILY_INLINE void add_product_256(float (&sums)[128], const uint* a, ulong b) {
  asm volatile(
      "{.reg .pred p; setp.ne.b32 p, 1, 0; wgmma.mma_async.sync.aligned.m64n256k16.f32.f16.f16 "
      "{%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, %16, %17, %18, %19, %20, %21, %22, "
      "%23, %24, %25, %26, %27, %28, %29, %30, %31, %32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, "
      "%44, %45, %46, %47, %48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63, %64, "
      "%65, %66, %67, %68, %69, %70, %71, %72, %73, %74, %75, %76, %77, %78, %79, %80, %81, %82, %83, %84, %85, "
      "%86, %87, %88, %89, %90, %91, %92, %93, %94, %95, %96, %97, %98, %99, %100, %101, %102, %103, %104, %105, "
      "%106, %107, %108, %109, %110, %111, %112, %113, %114, %115, %116, %117, %118, %119, %120, %121, %122, %123, "
      "%124, %125, %126, %127}, "
      "{%128, %129, %130, %131}, %132, p, 1, 1, 1;}"
      : "+f"(sums[0]), "+f"(sums[1]), "+f"(sums[2]), "+f"(sums[3]), "+f"(sums[4]), "+f"(sums[5]), "+f"(sums[6]),
        "+f"(sums[7]), "+f"(sums[8]), "+f"(sums[9]), "+f"(sums[10]), "+f"(sums[11]), "+f"(sums[12]), "+f"(sums[13]),
        "+f"(sums[14]), "+f"(sums[15]), "+f"(sums[16]), "+f"(sums[17]), "+f"(sums[18]), "+f"(sums[19]),
        "+f"(sums[20]), "+f"(sums[21]), "+f"(sums[22]), "+f"(sums[23]), "+f"(sums[24]), "+f"(sums[25]),
        "+f"(sums[26]), "+f"(sums[27]), "+f"(sums[28]), "+f"(sums[29]), "+f"(sums[30]), "+f"(sums[31]),
        "+f"(sums[32]), "+f"(sums[33]), "+f"(sums[34]), "+f"(sums[35]), "+f"(sums[36]), "+f"(sums[37]),
        "+f"(sums[38]), "+f"(sums[39]), "+f"(sums[40]), "+f"(sums[41]), "+f"(sums[42]), "+f"(sums[43]),
        "+f"(sums[44]), "+f"(sums[45]), "+f"(sums[46]), "+f"(sums[47]), "+f"(sums[48]), "+f"(sums[49]),
        "+f"(sums[50]), "+f"(sums[51]), "+f"(sums[52]), "+f"(sums[53]), "+f"(sums[54]), "+f"(sums[55]),
        "+f"(sums[56]), "+f"(sums[57]), "+f"(sums[58]), "+f"(sums[59]), "+f"(sums[60]), "+f"(sums[61]),
        "+f"(sums[62]), "+f"(sums[63]), "+f"(sums[64]), "+f"(sums[65]), "+f"(sums[66]), "+f"(sums[67]),
        "+f"(sums[68]), "+f"(sums[69]), "+f"(sums[70]), "+f"(sums[71]), "+f"(sums[72]), "+f"(sums[73]),
        "+f"(sums[74]), "+f"(sums[75]), "+f"(sums[76]), "+f"(sums[77]), "+f"(sums[78]), "+f"(sums[79]),
        "+f"(sums[80]), "+f"(sums[81]), "+f"(sums[82]), "+f"(sums[83]), "+f"(sums[84]), "+f"(sums[85]),
        "+f"(sums[86]), "+f"(sums[87]), "+f"(sums[88]), "+f"(sums[89]), "+f"(sums[90]), "+f"(sums[91]),
        "+f"(sums[92]), "+f"(sums[93]), "+f"(sums[94]), "+f"(sums[95]), "+f"(sums[96]), "+f"(sums[97]),
        "+f"(sums[98]), "+f"(sums[99]), "+f"(sums[100]), "+f"(sums[101]), "+f"(sums[102]), "+f"(sums[103]),
        "+f"(sums[104]), "+f"(sums[105]), "+f"(sums[106]), "+f"(sums[107]), "+f"(sums[108]), "+f"(sums[109]),
        "+f"(sums[110]), "+f"(sums[111]), "+f"(sums[112]), "+f"(sums[113]), "+f"(sums[114]), "+f"(sums[115]),
        "+f"(sums[116]), "+f"(sums[117]), "+f"(sums[118]), "+f"(sums[119]), "+f"(sums[120]), "+f"(sums[121]),
        "+f"(sums[122]), "+f"(sums[123]), "+f"(sums[124]), "+f"(sums[125]), "+f"(sums[126]), "+f"(sums[127])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b));
}

// A barrier in shared memory: its phase ends when as many have arrived as it expects.
struct PhaseBarrier {
  ulong state;

  LILY_INLINE void expect(uint arrivals) {
    asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" : : "r"(shared_address(&state)), "r"(arrivals) : "memory");
  }
  LILY_INLINE void arrive() {
    asm volatile("{.reg .b64 state; mbarrier.arrive.shared::cta.b64 state, [%0];}" : : "r"(shared_address(&state)) : "memory");
  }
  // Until phase `phase`, counted from 0, has ended; no later one can end before it is waited for.
  LILY_INLINE void wait(uint phase) { wait_for(&state, phase % 2); }
};

// Four floats that are only read, at a multiple of 16 bytes.
LILY_INLINE float4 four_floats(const float* from) {
  float4 x;
  asm("ld.global.nc.v4.f32 {%0, %1, %2, %3}, [%4];" : "=f"(x.x), "=f"(x.y), "=f"(x.z), "=f"(x.w) : "l"(from));
  return x;
}

// A warpgroup's threads among themselves; `which` from 0.
LILY_INLINE void warpgroup_barrier(uint which) { asm volatile("bar.sync %0, 128;" : : "r"(which + 1) : "memory"); }

constant constexpr float LOG2_E = 1.44269504f;

// 2^x, 0 for what would be subnormal.
LILY_INLINE float exp2_fast(float x) {
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}
// 1 / (1 + e^-x), within some units of the last place; e^-x may become infinite.
LILY_INLINE float sigmoid_fast(float x) {
  float y;
  asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(1.0f + exp2_fast(x * -LOG2_E)));
  return y;
}
#endif
