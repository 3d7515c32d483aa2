// Elementary functions, such that they survive fast math and NaN stays NaN.
#pragma once
#include <metal_stdlib>
using namespace metal;

// sum + a·b, one component after the other, none rounded in between.
inline float add_product(float4 a, float4 b, float sum) {
  return metal::fma(a.w, b.w, metal::fma(a.z, b.z, metal::fma(a.y, b.y, metal::fma(a.x, b.x, sum))));
}

// The nearest half, ±65504 at most: the cache and the matrix tiles hold no infinities.
inline half saturated_half(float x) {
  return half(x < -65504.0f ? -65504.0f : (x > 65504.0f ? 65504.0f : x));
}

inline half4 saturated_half4(float4 x) {
  return half4(saturated_half(x.x), saturated_half(x.y), saturated_half(x.z), saturated_half(x.w));
}

// Four halves that lie in two words.
inline float4 four_halves(uint low, uint high) {
  return float4(as_type<half4>(uint2(low, high)));
}

// 1 / (1 + e^−x). Below −80 it is left at e^−80, so that nothing overflows.
inline float sigmoid(float x) {
  return 1.0f / (1.0f + metal::exp(x < -80.0f ? 80.0f : -x));
}

inline float4 sigmoid4(float4 x) {
  return float4(sigmoid(x.x), sigmoid(x.y), sigmoid(x.z), sigmoid(x.w));
}

// x · sigmoid(x)
inline float silu(float x) {
  return x * sigmoid(x);
}

inline float4 silu4(float4 x) {
  return x * sigmoid4(x);
}

// ln(1 + e^x) = max(x, 0) + ln(1 + u), u = e^−|x|. ln(1 + u) = 2·artanh(s) = 2(s + s³/3 + s⁵/5 + …), s = u / (2 + u) ≤ 1/3:
// no cancellation where u is small.
inline float softplus(float x) {
  const float u = metal::exp(x > 0.0f ? -x : x);
  const float s = u / (2.0f + u);
  const float square = s * s;
  float series = 1.0f / 15.0f;
  series = series * square + 1.0f / 13.0f;
  series = series * square + 1.0f / 11.0f;
  series = series * square + 1.0f / 9.0f;
  series = series * square + 1.0f / 7.0f;
  series = series * square + 1.0f / 5.0f;
  series = series * square + 1.0f / 3.0f;
  return (x > 0.0f ? x : 0.0f) + 2.0f * (s + s * square * series);
}

// The fraction of a revolution, in units of 2^−32, after `count` times a fraction of 64 bits.
inline uint revolution(uint high, uint low, uint count) {
  return high * count + uint((ulong(low) * count) >> 32);
}

// Cosine and sine of a fraction of a revolution, in units of 2^−32. Integers keep the angle of a late position exact; what is
// left after the nearest quarter is at most π/4, where a few terms of the series give all bits of a float.
inline float2 cosine_and_sine(uint fraction) {
  const uint quarter = (fraction + 0x20000000u) >> 30;
  const float x = float(int(fraction - (quarter << 30))) * 1.46291808e-9f;  // 2π / 2^32
  const float square = x * x;
  const float odd = -1.0f / 5040.0f + square * (1.0f / 362880.0f);
  const float sine = x + x * square * (-1.0f / 6.0f + square * (1.0f / 120.0f + square * odd));
  const float even = -1.0f / 720.0f + square * (1.0f / 40320.0f - square * (1.0f / 3628800.0f));
  const float cosine = 1.0f + square * (-0.5f + square * (1.0f / 24.0f + square * even));
  const float a = (quarter & 1u) != 0u ? sine : cosine;
  const float b = (quarter & 1u) != 0u ? cosine : sine;
  return float2(quarter == 1u || quarter == 2u ? -a : a, quarter >= 2u ? -b : b);
}

// An integer that orders as the float does: both zeros alike, NaN 0 and below all else, infinities as the largest finite.
inline uint order_key(float x) {
  const uint bits = as_type<uint>(x);
  if ((bits & 0x7fffffffu) > 0x7f800000u) return 0u;
  const uint magnitude = metal::min(bits & 0x7fffffffu, 0x7f7fffffu);
  return (bits >> 31) != 0u ? 0x80000000u - magnitude : 0x80000000u + magnitude;
}

// The float whose key it is; the least one for keys that no number has.
inline float key_value(uint key) {
  if (key <= 0x00800000u) return -FLT_MAX;
  return as_type<float>(key >= 0x80000000u ? key - 0x80000000u : 0x80000000u | (0x80000000u - key));
}
