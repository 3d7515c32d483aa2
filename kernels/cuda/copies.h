// Copies of 16 bytes from global to shared memory that no register waits for: each thread waits for its own.
#pragma once
#ifdef __CUDA_ARCH_FEAT_SM90_ALL

LILY_INLINE uint shared_address(const void* place) { return uint(__cvta_generic_to_shared(place)); }

LILY_INLINE void copy_16(uint to, const void* from) {
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" : : "r"(to), "l"(from) : "memory");
}
// The same, or zeros.
LILY_INLINE void copy_16(uint to, const void* from, bool there) {
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" : : "r"(to), "l"(from), "r"(there ? 16 : 0) : "memory");
}
LILY_INLINE void close_copies() { asm volatile("cp.async.commit_group;" : : : "memory"); }
// Until no more than LEFT of the closed groups of them are on their way.
template <uint LEFT> LILY_INLINE void leave_copies() { asm volatile("cp.async.wait_group %0;" : : "n"(LEFT) : "memory"); }
LILY_INLINE void wait_for_copies() { asm volatile("cp.async.wait_all;" : : : "memory"); }
#endif
