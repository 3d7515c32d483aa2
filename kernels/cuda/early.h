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
// The kernel behind this one may begin, when all blocks have said so.
LILY_INLINE void let_later_begin() { asm volatile("griddepcontrol.launch_dependents;" : : : "memory"); }

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
