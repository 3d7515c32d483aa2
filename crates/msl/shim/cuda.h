// Metal's standard library for kernels compiled by NVRTC: a warp stands for a SIMD-group, a block for a threadgroup.
// Included by the source that lily-msl makes for CUDA, which also gives each kernel a `__global__` entry.
#pragma once

#include "core.h"

// Address spaces are one here; threadgroup storage becomes `__shared__` where it is declared.
#define device
#define constant const
#define thread
#define threadgroup

namespace lily_cuda {

constexpr uint ALL_LANES = 0xffffffffu;

LILY_INLINE uint thread_index() { return threadIdx.x + blockDim.x * (threadIdx.y + blockDim.y * threadIdx.z); }
LILY_INLINE uint lane() { return thread_index() % 32; }
LILY_INLINE uint simdgroup_index() { return thread_index() / 32; }
LILY_INLINE uint3 threadgroup_position() { return uint3(blockIdx.x, blockIdx.y, blockIdx.z); }

// A shuffle moves words: the bits of a value go through as many as it has.
template <class T, class Move> LILY_INLINE T move(T value, Move word_from) {
  constexpr int WORDS = (sizeof(T) + 3) / 4;
  struct Words {
    uint words[WORDS];
  } carried = {};
  memcpy(&carried, &value, sizeof(T));
#pragma unroll
  for (int i = 0; i < WORDS; i++) carried.words[i] = word_from(carried.words[i]);
  T moved;
  memcpy(&moved, &carried, sizeof(T));
  return moved;
}

}  // namespace lily_cuda

namespace metal {

LILY_INLINE void threadgroup_barrier(mem_flags) { __syncthreads(); }
LILY_INLINE void simdgroup_barrier(mem_flags) { __syncwarp(); }

template <class T> LILY_INLINE T simd_shuffle(T x, ushort from) {
  return lily_cuda::move(x, [=](uint word) { return __shfl_sync(lily_cuda::ALL_LANES, word, from); });
}
template <class T> LILY_INLINE T simd_shuffle_xor(T x, ushort mask) {
  return lily_cuda::move(x, [=](uint word) { return __shfl_xor_sync(lily_cuda::ALL_LANES, word, mask); });
}
template <class T> LILY_INLINE T simd_shuffle_up(T x, ushort by) {
  return lily_cuda::move(x, [=](uint word) { return __shfl_up_sync(lily_cuda::ALL_LANES, word, by); });
}
template <class T> LILY_INLINE T simd_shuffle_down(T x, ushort by) {
  return lily_cuda::move(x, [=](uint word) { return __shfl_down_sync(lily_cuda::ALL_LANES, word, by); });
}
template <class T> LILY_INLINE T simd_broadcast(T x, ushort from) { return simd_shuffle(x, from); }
template <class T> LILY_INLINE T simd_broadcast_first(T x) { return simd_shuffle(x, 0); }

template <class T> LILY_INLINE T simd_sum(T x) {
#pragma unroll
  for (uint apart = 1; apart < 32; apart *= 2) x = T(x + simd_shuffle_xor(x, apart));
  return x;
}
template <class T> LILY_INLINE T simd_max(T x) {
#pragma unroll
  for (uint apart = 1; apart < 32; apart *= 2) x = max(x, simd_shuffle_xor(x, apart));
  return x;
}
template <class T> LILY_INLINE T simd_min(T x) {
#pragma unroll
  for (uint apart = 1; apart < 32; apart *= 2) x = min(x, simd_shuffle_xor(x, apart));
  return x;
}
template <class T> LILY_INLINE T simd_or(T x) {
#pragma unroll
  for (uint apart = 1; apart < 32; apart *= 2) x = T(x | simd_shuffle_xor(x, apart));
  return x;
}
template <class T> LILY_INLINE T simd_and(T x) {
#pragma unroll
  for (uint apart = 1; apart < 32; apart *= 2) x = T(x & simd_shuffle_xor(x, apart));
  return x;
}
LILY_INLINE bool simd_any(bool x) { return __any_sync(lily_cuda::ALL_LANES, x) != 0; }
LILY_INLINE bool simd_all(bool x) { return __all_sync(lily_cuda::ALL_LANES, x) != 0; }
template <class T> LILY_INLINE T simd_prefix_inclusive_sum(T x) {
  const uint lane = lily_cuda::lane();
#pragma unroll
  for (uint apart = 1; apart < 32; apart *= 2) {
    const T below = simd_shuffle_up(x, apart);
    x = lane >= apart ? T(below + x) : x;
  }
  return x;
}
template <class T> LILY_INLINE T simd_prefix_exclusive_sum(T x) {
  const T below = simd_shuffle_up(simd_prefix_inclusive_sum(x), 1);
  return lily_cuda::lane() == 0 ? T(0) : below;
}

template <class T> struct atomic {
  T value;
};
typedef atomic<uint> atomic_uint;
typedef atomic<int> atomic_int;
template <class T> LILY_INLINE T atomic_load_explicit(const atomic<T>* a, memory_order) {
  return *const_cast<const volatile T*>(&a->value);
}
template <class T> LILY_INLINE void atomic_store_explicit(atomic<T>* a, Same<T> x, memory_order) {
  *const_cast<volatile T*>(&a->value) = x;
}
template <class T> LILY_INLINE T atomic_exchange_explicit(atomic<T>* a, Same<T> x, memory_order) {
  return atomicExch(&a->value, x);
}
template <class T> LILY_INLINE T atomic_fetch_add_explicit(atomic<T>* a, Same<T> x, memory_order) {
  return atomicAdd(&a->value, x);
}
template <class T> LILY_INLINE T atomic_fetch_sub_explicit(atomic<T>* a, Same<T> x, memory_order) {
  return atomicSub(&a->value, x);
}
template <class T> LILY_INLINE T atomic_fetch_or_explicit(atomic<T>* a, Same<T> x, memory_order) {
  return atomicOr(&a->value, x);
}
template <class T> LILY_INLINE T atomic_fetch_and_explicit(atomic<T>* a, Same<T> x, memory_order) {
  return atomicAnd(&a->value, x);
}
template <class T> LILY_INLINE T atomic_fetch_max_explicit(atomic<T>* a, Same<T> x, memory_order) {
  return atomicMax(&a->value, x);
}
template <class T> LILY_INLINE T atomic_fetch_min_explicit(atomic<T>* a, Same<T> x, memory_order) {
  return atomicMin(&a->value, x);
}

}  // namespace metal
