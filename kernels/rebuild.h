// How packed weights become the halves that matrix tiles are made of.
#pragma once
#include <metal_stdlib>
using namespace metal;

// Eight weights of a word as eight halves q · scale + bias, in the order of staged_columns.
inline uint4 rebuild(uint word, float scale, float bias) {
  const float4 low = float4((uint4(word) >> uint4(0, 4, 8, 12)) & 15u);
  const float4 high = float4((uint4(word) >> uint4(16, 20, 24, 28)) & 15u);
  const half4 a = half4(fma(low, float4(scale), float4(bias)));
  const half4 b = half4(fma(high, float4(scale), float4(bias)));
  return uint4(as_type<uint2>(a), as_type<uint2>(b));
}

// The eight columns of a row, halves, that meet such weights: here as they lie.
inline uint4 staged_columns(uint4 x) {
  return x;
}
