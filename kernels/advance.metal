// The last dispatch of a plan: each sequence has taken its rows, its conv windows change roles, and if it drew, its random
// stream moves on.
//
// grid ((segments + 63) / 64, 1, 1), 64 threads: a thread a segment; no two name one slot.
#include <metal_stdlib>
#include "model.h"
using namespace metal;

[[kernel, max_total_threads_per_threadgroup(64)]] void advance(
    device const Segment* segments [[buffer(0)]],
    device Sequence* sequences [[buffer(1)]],
    constant CountParams& p [[buffer(2)]],
    uint3 group [[threadgroup_position_in_grid]],
    uint thread_index [[thread_index_in_threadgroup]]) {
  const uint index = group.x * 64 + thread_index;
  if (index >= p.count) return;
  const uint slot = segments[index].slot;
  if (slot == NONE) return;
  sequences[slot].position += segments[index].rows;
  sequences[slot].flip ^= 1u;
  sequences[slot].generated += segments[index].draw == NONE ? 0u : 1u;
}
