#include <metal_stdlib>
#include "params.h"
using namespace metal;

inline float first(device const float* values) { return values[0]; }

[[kernel]] void space_of_an_argument(device float* a [[buffer(0)]], uint i [[thread_index_in_threadgroup]]) {
  threadgroup float shared[32];
  a[i] = first(shared);  // refused
}
