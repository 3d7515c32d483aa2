// Barriers of some of a block's warps, by number, beside that of all, which is 0.
//
// compute-sanitizer does not follow them: it takes what they order for races. For it each is counted in shared memory instead,
// where LILY_COUNTED_BARRIERS is defined (tools/kernels/sanitizer.sh).
#pragma once
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
#ifdef LILY_COUNTED_BARRIERS

LILY_INLINE uint counted_barrier(uint barrier) {
  __shared__ ulong counted[8];
  return uint(__cvta_generic_to_shared(counted + barrier));
}
LILY_INLINE ulong arrive_at(uint barrier) {
  ulong state;
  asm volatile("mbarrier.arrive.shared::cta.b64 %0, [%1];" : "=l"(state) : "r"(counted_barrier(barrier)) : "memory");
  return state;
}
LILY_INLINE void start_meetings(uint barrier, uint threads) {
  asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" : : "r"(counted_barrier(barrier)), "r"(threads) : "memory");
}
LILY_INLINE void meet(uint barrier, uint threads) {
  const ulong state = arrive_at(barrier);
  uint done = 0;
  while (done == 0)
    asm volatile("{.reg .pred p; mbarrier.try_wait.shared::cta.b64 p, [%1], %2; selp.u32 %0, 1, 0, p;}"
                 : "=r"(done) : "r"(counted_barrier(barrier)), "l"(state) : "memory");
}
LILY_INLINE void pass(uint barrier, uint threads) { arrive_at(barrier); }

#else

// By one thread, before a barrier of the block that comes before all meetings.
LILY_INLINE void start_meetings(uint barrier, uint threads) {}
// Until so many threads are there.
LILY_INLINE void meet(uint barrier, uint threads) {
  __syncwarp();
  asm volatile("bar.sync %0, %1;" : : "r"(barrier), "r"(threads) : "memory");
}
// Is one of those threads, and goes on.
LILY_INLINE void pass(uint barrier, uint threads) {
  __syncwarp();
  asm volatile("bar.arrive %0, %1;" : : "r"(barrier), "r"(threads) : "memory");
}

#endif
#endif
