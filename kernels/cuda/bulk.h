// Bulk copies from global to shared memory that a barrier counts.
#pragma once
#include "copies.h"

#ifdef __CUDA_ARCH_FEAT_SM90_ALL

// Before its use, by one thread; then a barrier of the block.
LILY_INLINE void start_barrier(ulong* barrier) {
  asm volatile("mbarrier.init.shared::cta.b64 [%0], 1; fence.mbarrier_init.release.cluster;"
               : : "r"(shared_address(barrier)) : "memory");
}

// Barriers and places are named by their shared addresses or pointed to.

// Begins a phase of the barrier: it is over when so many bytes have come.
LILY_INLINE void expect_bytes(uint barrier, uint bytes) {
  asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" : : "r"(barrier), "r"(bytes) : "memory");
}
LILY_INLINE void expect_bytes(ulong* barrier, uint bytes) { expect_bytes(shared_address(barrier), bytes); }

// Until the phase of this parity is over.
LILY_INLINE void wait_for(uint barrier, uint parity) {
  uint done = 0;
  while (done == 0)
    asm volatile("{.reg .pred p; mbarrier.try_wait.parity.shared::cta.b64 p, [%1], %2; selp.u32 %0, 1, 0, p;}"
                 : "=r"(done) : "r"(barrier), "r"(parity) : "memory");
}
LILY_INLINE void wait_for(ulong* barrier, uint parity) { wait_for(shared_address(barrier), parity); }

// `bytes`, a multiple of 16, on their way.
LILY_INLINE void copy_bulk(uint to, const void* from, uint bytes, uint barrier) {
  asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];"
               : : "r"(to), "l"(from), "r"(bytes), "r"(barrier) : "memory");
}
LILY_INLINE void copy_bulk(uint4* to, const uint4* from, uint bytes, ulong* barrier) {
  copy_bulk(shared_address(to), from, bytes, shared_address(barrier));
}
#endif
