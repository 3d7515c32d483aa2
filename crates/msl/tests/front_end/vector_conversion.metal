#include <metal_stdlib>
#include "params.h"
using namespace metal;

[[kernel]] void vector_conversion(device const half4* h [[buffer(0)]], device float4* a [[buffer(1)]]) {
  float4 sum = float4(0.0f);
  sum += h[0];  // refused
  a[0] = sum;
}
