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

// Where an element lies is what mma.sync wants of an accumulator: row lane / 4, columns lane % 4 * 2 and the next. A right
// factor passes through a transposition on its way into the product.
template <class T, int ROWS, int COLUMNS> struct simdgroup_matrix {
  static_assert(ROWS == 8 && COLUMNS == 8, "Metal's matrices are 8 x 8");
  vec<T, 2> elements;
  simdgroup_matrix() = default;
  explicit LILY_INLINE simdgroup_matrix(T value) : elements(value) {}
  LILY_INLINE vec<T, 2>& thread_elements() { return elements; }
};
typedef simdgroup_matrix<float, 8, 8> simdgroup_float8x8;
typedef simdgroup_matrix<half, 8, 8> simdgroup_half8x8;

template <class T, int ROWS, int COLUMNS> LILY_INLINE simdgroup_matrix<T, ROWS, COLUMNS> make_filled_simdgroup_matrix(T value) {
  return simdgroup_matrix<T, ROWS, COLUMNS>(value);
}
LILY_INLINE ulong matrix_element(int index, ulong per_row, ulong2 origin, bool transposed) {
  const ulong row = lily_cuda::lane() / 4, column = lily_cuda::lane() % 4 * 2 + ulong(index);
  return origin.x + origin.y * per_row + (transposed ? column * per_row + row : row * per_row + column);
}
template <class T>
LILY_INLINE void simdgroup_load(simdgroup_matrix<T, 8, 8>& to, const T* from, ulong per_row = 8, ulong2 origin = ulong2(0),
                                bool transposed = false) {
  for (int i = 0; i < 2; i++) to.elements[i] = from[matrix_element(i, per_row, origin, transposed)];
}
template <class T>
LILY_INLINE void simdgroup_store(const simdgroup_matrix<T, 8, 8>& from, T* to, ulong per_row = 8, ulong2 origin = ulong2(0),
                                 bool transposed = false) {
  for (int i = 0; i < 2; i++) to[matrix_element(i, per_row, origin, transposed)] = from.elements[i];
}
// d = a·b + c: the upper half of an m16n8k8 product; the lower half's factors are zero.
LILY_INLINE void simdgroup_multiply_accumulate(simdgroup_matrix<float, 8, 8>& d, const simdgroup_matrix<half, 8, 8>& a,
                                               const simdgroup_matrix<half, 8, 8>& b, const simdgroup_matrix<float, 8, 8>& c) {
  const uint left = as_type<uint>(a.elements), right = as_type<uint>(b.elements), zero = 0;
  uint turned;
  asm("movmatrix.sync.aligned.m8n8.trans.b16 %0, %1;" : "=r"(turned) : "r"(right));
  asm("{ .reg .f32 unused<2>;\n"
      "mma.sync.aligned.m16n8k8.row.col.f32.f16.f16.f32 {%0, %1, unused0, unused1}, {%2, %3}, {%4}, {%5, %6, %7, %7}; }"
      : "=f"(d.elements.x), "=f"(d.elements.y)
      : "r"(left), "r"(zero), "r"(turned), "f"(c.elements.x), "f"(c.elements.y), "f"(0.0f));
}

}  // namespace metal
