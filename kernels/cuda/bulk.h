// Bulk copies from global to shared memory that a barrier counts.
#pragma once
#ifdef __CUDA_ARCH_FEAT_SM90_ALL

LILY_INLINE uint shared_address(const void* place) { return uint(__cvta_generic_to_shared(place)); }

// Before its use, by one thread; then a barrier of the block.
LILY_INLINE void start_barrier(ulong* barrier) {
  asm volatile("mbarrier.init.shared::cta.b64 [%0], 1; fence.mbarrier_init.release.cluster;"
               : : "r"(shared_address(barrier)) : "memory");
}

// Begins a phase of the barrier: it is over when so many bytes have come.
LILY_INLINE void expect_bytes(ulong* barrier, uint bytes) {
  asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" : : "r"(shared_address(barrier)), "r"(bytes) : "memory");
}

// Until the phase of this parity is over.
LILY_INLINE void wait_for(ulong* barrier, uint parity) {
  uint done = 0;
  while (done == 0)
    asm volatile("{.reg .pred p; mbarrier.try_wait.parity.shared::cta.b64 p, [%1], %2; selp.u32 %0, 1, 0, p;}"
                 : "=r"(done) : "r"(shared_address(barrier)), "r"(parity) : "memory");
}

// `bytes`, a multiple of 16, on their way.
LILY_INLINE void copy_bulk(uint4* to, const uint4* from, uint bytes, ulong* barrier) {
  asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];"
               : : "r"(shared_address(to)), "l"(from), "r"(bytes), "r"(shared_address(barrier)) : "memory");
}
#endif
