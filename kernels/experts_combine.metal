// What the experts of a row gave, added into the residual stream: x[row] += sum_rank weights[row][rank] * y[place] with
// the place of the pair (row, rank), by descending weight, the shared expert last.
//
// Grid {rows, 1, 1}, 128 threads: a row, eight columns a thread at a time in 16-byte pieces.
#include <metal_stdlib>
#include "model.h"
#include "numbers.h"
using namespace metal;

[[kernel, max_total_threads_per_threadgroup(128)]] void experts_combine(
    device const half* y [[buffer(0)]],         // [rows * RANKS][HIDDEN], by place
    device const uint* places [[buffer(1)]],    // [rows][RANKS]
    device const float* weights [[buffer(2)]],  // [rows][RANKS]
    device float* x [[buffer(3)]],              // [rows][HIDDEN]
    uint3 group [[threadgroup_position_in_grid]],
    uint thread_index [[thread_index_in_threadgroup]]) {
  const uint row = group.x;
  for (uint column = thread_index * 8; column < HIDDEN; column += 128 * 8) {
    float4 low = float4(0.0f), high = float4(0.0f);
    for (uint rank = 0; rank < RANKS; rank++) {
      const uint4 eight = *(device const uint4*)(y + places[row * RANKS + rank] * HIDDEN + column);
      const float weight = weights[row * RANKS + rank];
      low = fma(float4(weight), four_halves(eight.x, eight.y), low);
      high = fma(float4(weight), four_halves(eight.z, eight.w), high);
    }
    device float4* out = (device float4*)(x + row * HIDDEN + column);
    out[0] = out[0] + low;
    out[1] = out[1] + high;
  }
}
