#include <metal_stdlib>
#include "params.h"
using namespace metal;

struct Sums {
  float values[2];
  float total() { return values[0] + values[1]; }
};

// Nothing here is refused: structs are made, copied, and have methods.
inline Sums make(float a) { return Sums{{a, a + 1.0f}}; }

[[kernel]] void proper(device float* a [[buffer(0)]], constant Params& p [[buffer(1)]], uint i [[thread_index_in_threadgroup]]) {
  threadgroup float4 shared[32], more[2];
  Sums sums = make(a[i]), copy = sums;
  sums = make(copy.total());
  shared[i] = float4(sums.values[0], p.scale, 0.0f, 1.0f);
  more[0] = shared[0].wzyx;
  threadgroup_barrier(mem_flags::mem_threadgroup);
  a[i] = dot(shared[i ^ 1u], more[0]) + sums.total();
}
