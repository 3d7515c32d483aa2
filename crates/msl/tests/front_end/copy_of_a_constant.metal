#include <metal_stdlib>
#include "params.h"
using namespace metal;

[[kernel]] void copy_of_a_constant(device float* a [[buffer(0)]], constant Params& p [[buffer(1)]]) {
  const Params mine = p;  // refused
  a[0] = mine.scale;
}
