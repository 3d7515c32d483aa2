// What the kernels of a few-row step share on a Hopper GPU: they begin while the one before still runs, and copy asynchronously.
#pragma once
#include "bulk.h"

#ifdef __CUDA_ARCH_FEAT_SM90_ALL

// Each of `count` barriers ends a phase when one thread has said how many bytes come and all have come. All threads take part.
LILY_INLINE void start_counting(ulong* barriers, uint count) {
  if (threadIdx.x < count) start_barrier(barriers + threadIdx.x);
  __syncthreads();
}

LILY_INLINE uint4 shared_words(uint from) {
  uint4 words;
  asm volatile("ld.shared.v4.u32 {%0, %1, %2, %3}, [%4];"
               : "=r"(words.x), "=r"(words.y), "=r"(words.z), "=r"(words.w) : "r"(from));
  return words;
}

// A kernel may begin while the one before it still runs: until this it reads only bytes that no dispatch before it in its plan
// writes, and writes nothing. (A plan begins when the one before is complete, so what only a plan's end writes, `advance`, may be read.)
LILY_INLINE void wait_for_earlier() { asm volatile("griddepcontrol.wait;" : : : "memory"); }
// The kernel behind this one may begin, when all blocks have said so. Where they say it after they have waited, it may also read what
// the kernel before this one has written, past the first-level cache.
LILY_INLINE void let_later_begin() { asm volatile("griddepcontrol.launch_dependents;" : : : "memory"); }

// Four floats at a multiple of 16 bytes, in one piece.
LILY_INLINE float4 load_four(const float* from) {
  float4 x;
  asm volatile("ld.global.v4.f32 {%0, %1, %2, %3}, [%4];" : "=f"(x.x), "=f"(x.y), "=f"(x.z), "=f"(x.w) : "l"(from) : "memory");
  return x;
}
LILY_INLINE void store_four(float* to, float4 x) {
  asm volatile("st.global.v4.f32 [%0], {%1, %2, %3, %4};" : : "l"(to), "f"(x.x), "f"(x.y), "f"(x.z), "f"(x.w) : "memory");
}

// At most 56 registers a thread in blocks of so many; a compiler before CUDA 12.4 takes what it likes, and fewer blocks lie together.
#if __CUDACC_VER_MAJOR__ > 12 || __CUDACC_VER_MAJOR__ == 12 && __CUDACC_VER_MINOR__ >= 4
#define LILY_REGISTERS_56(threads) __maxnreg__(56)
#else
#define LILY_REGISTERS_56(threads) __launch_bounds__(threads)
#endif

LILY_INLINE char* given_memory() {
  extern __shared__ uint4 given[];
  return (char*)given;
}

LILY_INLINE uint shared_word(uint from) {
  uint word;
  asm volatile("ld.shared.u32 %0, [%1];" : "=r"(word) : "r"(from));
  return word;
}
#endif
