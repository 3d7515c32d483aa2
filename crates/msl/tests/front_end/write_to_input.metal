#include <metal_stdlib>
#include "params.h"
using namespace metal;

[[kernel]] void write_to_input(device const float* a [[buffer(0)]], device float* b [[buffer(1)]]) {
  b[0] = a[0];
  a[0] = 1.0f;  // refused
}
