// What the C++ compilers that run the kernels lack of Metal's scalar types: the integer names, and 16-bit floats that
// round after every operation, as Metal's do. Used by every executor.
#pragma once

#if defined(__CUDACC__)
#define LILY_INLINE __device__ __forceinline__
#else
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#define LILY_INLINE inline __attribute__((always_inline))
#endif

#ifndef METAL_FUNC
#define METAL_FUNC LILY_INLINE
#endif

typedef unsigned char uchar;
typedef unsigned short ushort;
typedef unsigned int uint;
typedef unsigned long ulong;

#if defined(__CUDACC__)
typedef signed char int8_t;
typedef unsigned char uint8_t;
typedef short int16_t;
typedef unsigned short uint16_t;
typedef int int32_t;
typedef unsigned int uint32_t;
typedef long int64_t;
typedef unsigned long uint64_t;
#endif

namespace metal {

template <class A, class B> constexpr bool is_same_v = false;
template <class A> constexpr bool is_same_v<A, A> = true;

template <bool B, class Then, class Else> struct conditional { using type = Then; };
template <class Then, class Else> struct conditional<false, Then, Else> { using type = Else; };
template <bool B, class Then, class Else> using conditional_t = typename conditional<B, Then, Else>::type;

template <class T> struct remove_cv { using type = T; };
template <class T> struct remove_cv<const T> { using type = T; };
template <class T> using remove_cv_t = typename remove_cv<T>::type;
// Address spaces are erased here, so there is nothing to remove.
template <class T> using remove_addrspace_t = T;

template <class T>
constexpr bool is_integer_v = is_same_v<T, bool> || is_same_v<T, signed char> || is_same_v<T, uchar> || is_same_v<T, short> ||
                              is_same_v<T, ushort> || is_same_v<T, int> || is_same_v<T, uint> || is_same_v<T, long> || is_same_v<T, ulong>;

// Reinterprets the bits.
template <class To, class From> LILY_INLINE To as_type(const From& from) {
  static_assert(sizeof(To) == sizeof(From), "as_type between types of different sizes");
  To to;
  memcpy(static_cast<void*>(&to), static_cast<const void*>(&from), sizeof(To));  // vectors are not trivially copyable
  return to;
}

// How a 16-bit float becomes a 32-bit one and back, to the nearest, ties to even.
struct Bfloat16 {
  static LILY_INLINE float widen(ushort bits) { return as_type<float>(uint(bits) << 16); }
  static LILY_INLINE ushort narrow(float value) {
    const uint bits = as_type<uint>(value);
    if ((bits & 0x7fffffffu) > 0x7f800000u) return ushort((bits >> 16) | 0x40u);  // stays a NaN
    return ushort((bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16);
  }
};
struct Binary16 {
#if defined(__CUDACC__)
  static LILY_INLINE float widen(ushort bits) {
    float value;
    asm("cvt.f32.f16 %0, %1;" : "=f"(value) : "h"(bits));
    return value;
  }
  static LILY_INLINE ushort narrow(float value) {
    ushort bits;
    asm("cvt.rn.f16.f32 %0, %1;" : "=h"(bits) : "f"(value));
    return bits;
  }
#else
#if defined(__aarch64__)  // where g++ 12 has no _Float16
  using Native = __fp16;
#else
  using Native = _Float16;
#endif
  static LILY_INLINE float widen(ushort bits) { return float(as_type<Native>(bits)); }
  static LILY_INLINE ushort narrow(float value) { return as_type<ushort>(Native(value)); }
#endif
};

// A 16-bit float. With another of its kind, or with an integer, an operation gives its kind; with a float, a float.
template <class Format> struct Float16 {
  ushort bits;

  Float16() = default;
  LILY_INLINE Float16(float value) : bits(Format::narrow(value)) {}
  template <class I> requires is_integer_v<I> LILY_INLINE Float16(I value) : Float16(float(value)) {}
  template <class Other> explicit LILY_INLINE Float16(Float16<Other> other) : Float16(float(other)) {}
  LILY_INLINE operator float() const { return Format::widen(bits); }

  LILY_INLINE Float16& operator+=(Float16 other) { return *this = Float16(float(*this) + float(other)); }
  LILY_INLINE Float16& operator-=(Float16 other) { return *this = Float16(float(*this) - float(other)); }
  LILY_INLINE Float16& operator*=(Float16 other) { return *this = Float16(float(*this) * float(other)); }
  LILY_INLINE Float16& operator/=(Float16 other) { return *this = Float16(float(*this) / float(other)); }
  LILY_INLINE Float16 operator-() const { return as_type<Float16>(ushort(bits ^ 0x8000u)); }
};

#define LILY_OPERATOR(op)                                                                                                        \
  template <class F> LILY_INLINE Float16<F> operator op(Float16<F> a, Float16<F> b) { return Float16<F>(float(a) op float(b)); } \
  template <class F> LILY_INLINE float operator op(Float16<F> a, float b) { return float(a) op b; }                              \
  template <class F> LILY_INLINE float operator op(float a, Float16<F> b) { return a op float(b); }                              \
  template <class F, class I> requires is_integer_v<I> LILY_INLINE Float16<F> operator op(Float16<F> a, I b) {                   \
    return Float16<F>(float(a) op float(b));                                                                                     \
  }                                                                                                                              \
  template <class F, class I> requires is_integer_v<I> LILY_INLINE Float16<F> operator op(I a, Float16<F> b) {                   \
    return Float16<F>(float(a) op float(b));                                                                                     \
  }
LILY_OPERATOR(+)
LILY_OPERATOR(-)
LILY_OPERATOR(*)
LILY_OPERATOR(/)
#undef LILY_OPERATOR

}  // namespace metal

typedef metal::Float16<metal::Binary16> half;
typedef metal::Float16<metal::Bfloat16> bfloat;
