// Metal's standard library for the strict check: clang's C++ for OpenCL has real address spaces, no double and no function
// pointers. Nothing here has a body, as nothing is run.
#pragma once

#pragma OPENCL EXTENSION cl_khr_fp16 : enable

#define device __global
#define threadgroup __local
#define thread __private
#define constant __constant
#define METAL_FUNC inline

typedef unsigned char uchar;
typedef unsigned short ushort;
typedef unsigned int uint;
typedef unsigned long ulong;
typedef signed char int8_t;
typedef unsigned char uint8_t;
typedef short int16_t;
typedef unsigned short uint16_t;
typedef int int32_t;
typedef unsigned int uint32_t;
typedef long int64_t;
typedef unsigned long uint64_t;
typedef unsigned long size_t;
typedef __bf16 bfloat;

template <class T> using lily_type = T;

namespace metal {
template <class T, int N> using vec = T __attribute__((ext_vector_type(N)));
}

// Vectors are clang's own, so that swizzles and the ban on implicit conversions are; a macro makes constructors of them.
#define LILY_VECTORS(T)                                                                                         \
  typedef T T##2 __attribute__((ext_vector_type(2)));                                                           \
  typedef T T##3 __attribute__((ext_vector_type(3)));                                                           \
  typedef T T##4 __attribute__((ext_vector_type(4)));                                                           \
  T##2 lily_##T##2(T);                                                                                          \
  T##2 lily_##T##2(T, T);                                                                                       \
  template <class U> T##2 lily_##T##2(metal::vec<U, 2>);                                                        \
  T##3 lily_##T##3(T);                                                                                          \
  T##3 lily_##T##3(T, T, T);                                                                                    \
  template <class U> T##3 lily_##T##3(metal::vec<U, 3>);                                                        \
  T##4 lily_##T##4(T);                                                                                          \
  T##4 lily_##T##4(T, T, T, T);                                                                                 \
  T##4 lily_##T##4(T##2, T##2);                                                                                 \
  T##4 lily_##T##4(T##2, T, T);                                                                                 \
  T##4 lily_##T##4(T##3, T);                                                                                    \
  template <class U> T##4 lily_##T##4(metal::vec<U, 4>);
LILY_VECTORS(float)
LILY_VECTORS(half)
LILY_VECTORS(bfloat)
LILY_VECTORS(int)
LILY_VECTORS(uint)
LILY_VECTORS(short)
LILY_VECTORS(ushort)
LILY_VECTORS(uchar)
LILY_VECTORS(ulong)
#undef LILY_VECTORS
#define float2(...) lily_float2(__VA_ARGS__)
#define float3(...) lily_float3(__VA_ARGS__)
#define float4(...) lily_float4(__VA_ARGS__)
#define half2(...) lily_half2(__VA_ARGS__)
#define half3(...) lily_half3(__VA_ARGS__)
#define half4(...) lily_half4(__VA_ARGS__)
#define bfloat2(...) lily_bfloat2(__VA_ARGS__)
#define bfloat4(...) lily_bfloat4(__VA_ARGS__)
#define int2(...) lily_int2(__VA_ARGS__)
#define int4(...) lily_int4(__VA_ARGS__)
#define uint2(...) lily_uint2(__VA_ARGS__)
#define uint3(...) lily_uint3(__VA_ARGS__)
#define uint4(...) lily_uint4(__VA_ARGS__)
#define ushort2(...) lily_ushort2(__VA_ARGS__)
#define ushort4(...) lily_ushort4(__VA_ARGS__)
#define uchar4(...) lily_uchar4(__VA_ARGS__)
#define ulong2(...) lily_ulong2(__VA_ARGS__)

#define FLT_MAX 3.402823466e+38f

namespace metal {

template <class T> struct Itself {
  using type = T;
};
// Takes no part in deducing T.
template <class T> using Same = typename Itself<T>::type;
template <class A, class B> constexpr bool is_same_v = false;
template <class A> constexpr bool is_same_v<A, A> = true;

template <class To, class From> To as_type(From);

#define LILY_MATH(name)                                \
  float name(float);                                   \
  template <int N> vec<float, N> name(vec<float, N>);
LILY_MATH(exp) LILY_MATH(exp2) LILY_MATH(log) LILY_MATH(log2) LILY_MATH(sqrt) LILY_MATH(rsqrt) LILY_MATH(sin) LILY_MATH(cos)
LILY_MATH(tanh) LILY_MATH(fabs) LILY_MATH(abs) LILY_MATH(floor) LILY_MATH(ceil) LILY_MATH(rint) LILY_MATH(trunc)
int abs(int);
float pow(float, float);
float fma(float, float, float);
template <int N> vec<float, N> fma(vec<float, N>, vec<float, N>, vec<float, N>);
namespace precise {
LILY_MATH(exp) LILY_MATH(log) LILY_MATH(sqrt) LILY_MATH(rsqrt) LILY_MATH(sin) LILY_MATH(cos)
float pow(float, float);
}
namespace fast {
LILY_MATH(exp) LILY_MATH(log) LILY_MATH(sqrt) LILY_MATH(rsqrt) LILY_MATH(sin) LILY_MATH(cos)
}
#undef LILY_MATH
template <class T> T max(T, T);
template <class T> T min(T, T);
template <class T> T clamp(T, T, T);
template <class T> T select(T, T, bool);
template <class T, int N> T dot(vec<T, N>, vec<T, N>);
uint popcount(uint);
uint clz(uint);
uint ctz(uint);
uint mulhi(uint, uint);

enum class mem_flags { mem_none = 0, mem_device = 1, mem_threadgroup = 2 };
mem_flags operator|(mem_flags, mem_flags);
enum memory_order { memory_order_relaxed };
void threadgroup_barrier(mem_flags);
void simdgroup_barrier(mem_flags);

template <class T> T simd_sum(T);
template <class T> T simd_product(T);
template <class T> T simd_max(T);
template <class T> T simd_min(T);
template <class T> T simd_or(T);
template <class T> T simd_and(T);
bool simd_any(bool);
bool simd_all(bool);
template <class T> T simd_prefix_exclusive_sum(T);
template <class T> T simd_prefix_inclusive_sum(T);
template <class T> T simd_shuffle(T, ushort);
template <class T> T simd_shuffle_xor(T, ushort);
template <class T> T simd_shuffle_up(T, ushort);
template <class T> T simd_shuffle_down(T, ushort);
template <class T> T simd_broadcast(T, ushort);
template <class T> T simd_broadcast_first(T);

// OpenCL has types of these names.
#define atomic_uint lily_atomic_uint
#define atomic_int lily_atomic_int
template <class T> struct atomic {
  T value;
};
typedef atomic<uint> atomic_uint;
typedef atomic<int> atomic_int;
#define LILY_ATOMIC(space)                                                                       \
  template <class T> T atomic_load_explicit(const space atomic<T>*, memory_order);               \
  template <class T> void atomic_store_explicit(space atomic<T>*, Same<T>, memory_order);        \
  template <class T> T atomic_exchange_explicit(space atomic<T>*, Same<T>, memory_order);        \
  template <class T> T atomic_fetch_add_explicit(space atomic<T>*, Same<T>, memory_order);       \
  template <class T> T atomic_fetch_sub_explicit(space atomic<T>*, Same<T>, memory_order);       \
  template <class T> T atomic_fetch_or_explicit(space atomic<T>*, Same<T>, memory_order);        \
  template <class T> T atomic_fetch_and_explicit(space atomic<T>*, Same<T>, memory_order);       \
  template <class T> T atomic_fetch_max_explicit(space atomic<T>*, Same<T>, memory_order);       \
  template <class T> T atomic_fetch_min_explicit(space atomic<T>*, Same<T>, memory_order);
LILY_ATOMIC(device) LILY_ATOMIC(threadgroup)
#undef LILY_ATOMIC

template <class T, int ROWS, int COLUMNS> struct simdgroup_matrix {
  static_assert(ROWS == 8 && COLUMNS == 8, "Metal's matrices are 8 x 8");
  vec<T, 2> elements;
  simdgroup_matrix() = default;
  explicit simdgroup_matrix(T);
  thread vec<T, 2>& thread_elements();
};
typedef simdgroup_matrix<float, 8, 8> simdgroup_float8x8;
typedef simdgroup_matrix<half, 8, 8> simdgroup_half8x8;
template <class T, int ROWS, int COLUMNS> simdgroup_matrix<T, ROWS, COLUMNS> make_filled_simdgroup_matrix(T);
// Matrices are taken from any space: within a method of a struct that holds them, `this` has the generic one.
#define LILY_MATRIX(space)                                                                                              \
  template <class T> void simdgroup_load(simdgroup_matrix<T, 8, 8>&, const space T*, ulong = 8, ulong2 = 0, bool = false); \
  template <class T> void simdgroup_store(const simdgroup_matrix<T, 8, 8>&, space T*, ulong = 8, ulong2 = 0, bool = false);
LILY_MATRIX(device) LILY_MATRIX(threadgroup)
#undef LILY_MATRIX
template <class D, class A, class B, class C>
void simdgroup_multiply_accumulate(simdgroup_matrix<D, 8, 8>&, const simdgroup_matrix<A, 8, 8>&, const simdgroup_matrix<B, 8, 8>&,
                                   const simdgroup_matrix<C, 8, 8>&);

}  // namespace metal

using metal::as_type;

#if __METAL_VERSION__ >= 400
#include "check_tensor.h"
#endif
