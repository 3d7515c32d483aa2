// Metal's vectors and mathematics for the compilers that run the kernels. A class, not a compiler's vector type, because
// elements may be 16-bit floats and swizzles are to read and write as in Metal.
#pragma once

#include "scalars.h"

namespace metal {

template <class T, int N> struct vec;

// `v.xz` and the like: stands at the place of the vector it is a member of.
template <class T, int WIDTH, int... I> struct Swizzle {
  T values[WIDTH];
  using Vector = vec<T, int(sizeof...(I))>;
  LILY_INLINE operator Vector() const { return Vector(values[I]...); }
  LILY_INLINE Swizzle& operator=(const Vector& from) {
    int k = 0;
    ((values[I] = from[k++]), ...);
    return *this;
  }
  LILY_INLINE Swizzle& operator=(const Swizzle& from) { return *this = Vector(from); }
};

template <class T> struct alignas(2 * sizeof(T)) vec<T, 2> {
  union {
    T values[2];
    struct { T x, y; };
    Swizzle<T, 2, 0, 1> xy;
    Swizzle<T, 2, 1, 0> yx;
  };
  vec() = default;
  LILY_INLINE vec(const vec& o) : values{o.values[0], o.values[1]} {}
  LILY_INLINE vec& operator=(const vec& o) { return values[0] = o.values[0], values[1] = o.values[1], *this; }
  LILY_INLINE vec(T a) : values{a, a} {}
  LILY_INLINE vec(T a, T b) : values{a, b} {}
  template <class U> explicit LILY_INLINE vec(const vec<U, 2>& o) : values{T(o[0]), T(o[1])} {}
  LILY_INLINE T& operator[](int i) { return values[i]; }
  LILY_INLINE const T& operator[](int i) const { return values[i]; }
};

template <class T> struct alignas(4 * sizeof(T)) vec<T, 3> {
  union {
    T values[4];
    struct { T x, y, z; };
    Swizzle<T, 4, 0, 1> xy;
    Swizzle<T, 4, 1, 2> yz;
    Swizzle<T, 4, 0, 1, 2> xyz;
  };
  vec() = default;
  LILY_INLINE vec(const vec& o) : values{o.values[0], o.values[1], o.values[2], T(0)} {}
  LILY_INLINE vec& operator=(const vec& o) {
    for (int i = 0; i < 3; i++) values[i] = o.values[i];
    return *this;
  }
  LILY_INLINE vec(T a) : values{a, a, a, T(0)} {}
  LILY_INLINE vec(T a, T b, T c) : values{a, b, c, T(0)} {}
  LILY_INLINE vec(vec<T, 2> a, T b) : values{a[0], a[1], b, T(0)} {}
  template <class U> explicit LILY_INLINE vec(const vec<U, 3>& o) : values{T(o[0]), T(o[1]), T(o[2]), T(0)} {}
  LILY_INLINE T& operator[](int i) { return values[i]; }
  LILY_INLINE const T& operator[](int i) const { return values[i]; }
};

template <class T> struct alignas(4 * sizeof(T)) vec<T, 4> {
  union {
    T values[4];
    struct { T x, y, z, w; };
    Swizzle<T, 4, 0, 1> xy;
    Swizzle<T, 4, 2, 3> zw;
    Swizzle<T, 4, 0, 2> xz;
    Swizzle<T, 4, 1, 3> yw;
    Swizzle<T, 4, 0, 1, 2> xyz;
    Swizzle<T, 4, 3, 2, 1, 0> wzyx;
  };
  vec() = default;
  LILY_INLINE vec(const vec& o) : values{o.values[0], o.values[1], o.values[2], o.values[3]} {}
  LILY_INLINE vec& operator=(const vec& o) {
    for (int i = 0; i < 4; i++) values[i] = o.values[i];
    return *this;
  }
  LILY_INLINE vec(T a) : values{a, a, a, a} {}
  LILY_INLINE vec(T a, T b, T c, T d) : values{a, b, c, d} {}
  LILY_INLINE vec(vec<T, 2> a, vec<T, 2> b) : values{a[0], a[1], b[0], b[1]} {}
  LILY_INLINE vec(vec<T, 3> a, T b) : values{a[0], a[1], a[2], b} {}
  template <class U> explicit LILY_INLINE vec(const vec<U, 4>& o) : values{T(o[0]), T(o[1]), T(o[2]), T(o[3])} {}
  LILY_INLINE T& operator[](int i) { return values[i]; }
  LILY_INLINE const T& operator[](int i) const { return values[i]; }
};

// `T`, but not deduced from: `float4 * 2` converts the 2.
template <class T> using Same = conditional_t<true, T, void>;

#define LILY_OPERATOR(op, Result)                                                                             \
  template <class T, int N> LILY_INLINE vec<Result, N> operator op(const vec<T, N>& a, const vec<T, N>& b) {  \
    vec<Result, N> r;                                                                                         \
    for (int i = 0; i < N; i++) r[i] = a[i] op b[i];                                                          \
    return r;                                                                                                 \
  }                                                                                                           \
  template <class T, int N> LILY_INLINE vec<Result, N> operator op(const vec<T, N>& a, Same<T> b) {           \
    return a op vec<T, N>(b);                                                                                 \
  }                                                                                                           \
  template <class T, int N> LILY_INLINE vec<Result, N> operator op(Same<T> a, const vec<T, N>& b) {           \
    return vec<T, N>(a) op b;                                                                                 \
  }
#define LILY_ASSIGNMENT(op)                                                                                   \
  template <class T, int N> LILY_INLINE vec<T, N>& operator op##=(vec<T, N>& a, const vec<T, N>& b) {         \
    return a = a op b;                                                                                        \
  }                                                                                                           \
  template <class T, int N> LILY_INLINE vec<T, N>& operator op##=(vec<T, N>& a, Same<T> b) { return a = a op b; }
LILY_OPERATOR(+, T) LILY_OPERATOR(-, T) LILY_OPERATOR(*, T) LILY_OPERATOR(/, T) LILY_OPERATOR(%, T)
LILY_OPERATOR(&, T) LILY_OPERATOR(|, T) LILY_OPERATOR(^, T) LILY_OPERATOR(<<, T) LILY_OPERATOR(>>, T)
LILY_OPERATOR(<, bool) LILY_OPERATOR(>, bool) LILY_OPERATOR(<=, bool) LILY_OPERATOR(>=, bool) LILY_OPERATOR(==, bool) LILY_OPERATOR(!=, bool)
LILY_ASSIGNMENT(+) LILY_ASSIGNMENT(-) LILY_ASSIGNMENT(*) LILY_ASSIGNMENT(/)
LILY_ASSIGNMENT(&) LILY_ASSIGNMENT(|) LILY_ASSIGNMENT(^) LILY_ASSIGNMENT(<<) LILY_ASSIGNMENT(>>)
#undef LILY_OPERATOR
#undef LILY_ASSIGNMENT

template <class T, int N> LILY_INLINE vec<T, N> operator-(const vec<T, N>& a) {
  vec<T, N> r;
  for (int i = 0; i < N; i++) r[i] = -a[i];
  return r;
}

template <class T, int N> LILY_INLINE T dot(const vec<T, N>& a, const vec<T, N>& b) {
  T sum = a[0] * b[0];
  for (int i = 1; i < N; i++) sum = sum + a[i] * b[i];
  return sum;
}
template <int N> LILY_INLINE bool any(const vec<bool, N>& a) {
  bool r = false;
  for (int i = 0; i < N; i++) r = r || a[i];
  return r;
}
template <int N> LILY_INLINE bool all(const vec<bool, N>& a) {
  bool r = true;
  for (int i = 0; i < N; i++) r = r && a[i];
  return r;
}

// Functions of one float, and element by element of a vector.
#if defined(__CUDACC__)
#define LILY_MATH(name, expression)                          \
  using ::name;                                              \
  template <int N> LILY_INLINE vec<float, N> name(const vec<float, N>& a) { \
    vec<float, N> r;                                         \
    for (int i = 0; i < N; i++) r[i] = ::name(a[i]);         \
    return r;                                                \
  }
#else
#define LILY_MATH(name, expression)                          \
  LILY_INLINE float name(float x) { return expression; }     \
  template <int N> LILY_INLINE vec<float, N> name(const vec<float, N>& a) { \
    vec<float, N> r;                                         \
    for (int i = 0; i < N; i++) r[i] = name(a[i]);           \
    return r;                                                \
  }
#endif
LILY_MATH(exp, ::expf(x))
LILY_MATH(exp2, ::exp2f(x))
LILY_MATH(log, ::logf(x))
LILY_MATH(log2, ::log2f(x))
LILY_MATH(sqrt, ::sqrtf(x))
LILY_MATH(rsqrt, 1.0f / ::sqrtf(x))
LILY_MATH(sin, ::sinf(x))
LILY_MATH(cos, ::cosf(x))
LILY_MATH(tanh, ::tanhf(x))
LILY_MATH(fabs, ::fabsf(x))
LILY_MATH(floor, ::floorf(x))
LILY_MATH(ceil, ::ceilf(x))
LILY_MATH(rint, ::rintf(x))
LILY_MATH(trunc, ::truncf(x))
#undef LILY_MATH

#if defined(__CUDACC__)
using ::abs;
using ::fma;
using ::pow;
LILY_INLINE uint popcount(uint x) { return uint(__popc(x)); }
LILY_INLINE uint clz(uint x) { return uint(__clz(x)); }
LILY_INLINE uint ctz(uint x) { return x == 0 ? 32u : uint(__ffs(x) - 1); }
LILY_INLINE uint mulhi(uint a, uint b) { return __umulhi(a, b); }
#else
LILY_INLINE float abs(float x) { return ::fabsf(x); }
LILY_INLINE int abs(int x) { return x < 0 ? -x : x; }
LILY_INLINE float fma(float a, float b, float c) { return ::fmaf(a, b, c); }
LILY_INLINE float pow(float a, float b) { return ::powf(a, b); }
LILY_INLINE uint popcount(uint x) { return uint(__builtin_popcount(x)); }
LILY_INLINE uint clz(uint x) { return x == 0 ? 32u : uint(__builtin_clz(x)); }
LILY_INLINE uint ctz(uint x) { return x == 0 ? 32u : uint(__builtin_ctz(x)); }
LILY_INLINE uint mulhi(uint a, uint b) { return uint((ulong(a) * b) >> 32); }
#endif
template <int N> LILY_INLINE vec<float, N> fma(const vec<float, N>& a, const vec<float, N>& b, const vec<float, N>& c) {
  vec<float, N> r;
  for (int i = 0; i < N; i++) r[i] = fma(a[i], b[i], c[i]);
  return r;
}
namespace precise {
using metal::cos;
using metal::exp;
using metal::log;
using metal::pow;
using metal::rsqrt;
using metal::sin;
using metal::sqrt;
}  // namespace precise

template <class T> LILY_INLINE T max(T a, T b) { return a < b ? b : a; }
template <class T> LILY_INLINE T min(T a, T b) { return b < a ? b : a; }
template <class T> LILY_INLINE T clamp(T x, Same<T> low, Same<T> high) { return x < low ? T(low) : high < x ? T(high) : x; }
template <class T, int N> LILY_INLINE vec<T, N> max(const vec<T, N>& a, const vec<T, N>& b) {
  vec<T, N> r;
  for (int i = 0; i < N; i++) r[i] = max(a[i], b[i]);
  return r;
}
template <class T, int N> LILY_INLINE vec<T, N> min(const vec<T, N>& a, const vec<T, N>& b) {
  vec<T, N> r;
  for (int i = 0; i < N; i++) r[i] = min(a[i], b[i]);
  return r;
}
template <class T, int N> LILY_INLINE vec<T, N> clamp(const vec<T, N>& x, const vec<T, N>& low, const vec<T, N>& high) {
  return min(max(x, low), high);
}
// `b` where the condition holds, else `a`.
template <class T> LILY_INLINE T select(T a, T b, bool condition) { return condition ? b : a; }
template <class T, int N> LILY_INLINE vec<T, N> select(const vec<T, N>& a, const vec<T, N>& b, const vec<bool, N>& condition) {
  vec<T, N> r;
  for (int i = 0; i < N; i++) r[i] = condition[i] ? b[i] : a[i];
  return r;
}

enum class mem_flags : uint { mem_none = 0, mem_device = 1, mem_threadgroup = 2 };
LILY_INLINE mem_flags operator|(mem_flags a, mem_flags b) { return mem_flags(uint(a) | uint(b)); }
enum memory_order { memory_order_relaxed };

}  // namespace metal

using metal::as_type;

#define LILY_VECTORS(T)           \
  typedef metal::vec<T, 2> T##2;  \
  typedef metal::vec<T, 3> T##3;  \
  typedef metal::vec<T, 4> T##4;
#if defined(__CUDACC__)
// NVRTC has vectors of these names, without operators.
#define float2 lily_float2
#define float3 lily_float3
#define float4 lily_float4
#define int2 lily_int2
#define int3 lily_int3
#define int4 lily_int4
#define uint2 lily_uint2
#define uint3 lily_uint3
#define uint4 lily_uint4
#define short2 lily_short2
#define short3 lily_short3
#define short4 lily_short4
#define ushort2 lily_ushort2
#define ushort3 lily_ushort3
#define ushort4 lily_ushort4
#define uchar2 lily_uchar2
#define uchar3 lily_uchar3
#define uchar4 lily_uchar4
#define ulong2 lily_ulong2
#define ulong3 lily_ulong3
#define ulong4 lily_ulong4
#endif
LILY_VECTORS(float) LILY_VECTORS(half) LILY_VECTORS(bfloat) LILY_VECTORS(bool) LILY_VECTORS(int) LILY_VECTORS(uint)
LILY_VECTORS(short) LILY_VECTORS(ushort) LILY_VECTORS(uchar) LILY_VECTORS(ulong)
#undef LILY_VECTORS

#ifndef FLT_MAX
#define FLT_MAX 3.402823466e+38f
#endif
#ifndef INFINITY
#define INFINITY __builtin_huge_valf()
#endif
