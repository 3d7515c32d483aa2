// Routing of many rows, all on the device.
//
// route_top8: the CHOSEN largest logits of a row, descending, equals by ascending expert; weights are the softmax over
// them (the softmax over all, renormalised), and sigmoid of the shared expert's logit.
// Grid {ceil(rows / 4), 1, 1}, 128 threads: a SIMD-group a row, EXPERTS / 32 logits a lane.
#include <metal_stdlib>
#include "model.h"
#include "numbers.h"
#include "prefill.h"
#include "top_experts.h"
using namespace metal;

constant constexpr uint SORT_PAIRS = 16;  // that a lane looks at together

[[kernel, max_total_threads_per_threadgroup(128)]] void route_top8(
    device const float* logits [[buffer(0)]],  // [rows][EXPERTS + 1], the last is the shared expert's
    device uint* chosen [[buffer(1)]],         // [rows][CHOSEN]
    device float* weights [[buffer(2)]],       // [rows][RANKS]
    constant CountParams& p [[buffer(3)]],
    uint3 group [[threadgroup_position_in_grid]],
    uint simd [[simdgroup_index_in_threadgroup]],
    uint lane [[thread_index_in_simdgroup]]) {
  const uint row = group.x * 4 + simd;
  if (row >= p.count) return;
  device const float* from = logits + row * (EXPERTS + 1);
  const Choice own = top_experts(from, CHOSEN, lane);
  if (lane < CHOSEN) {
    chosen[row * CHOSEN + lane] = own.expert;
    weights[row * RANKS + lane] = own.weight;
  } else if (lane == CHOSEN) {
    weights[row * RANKS + CHOSEN] = sigmoid(from[EXPERTS]);
  }
}

// route_sort: the pairs (row, expert) in the order of the experts, and in it of the rows; the shared expert, which has
// all rows, comes last. A pair's number is row * RANKS + rank, its place the position in that order.
// `map` cuts each expert's places into blocks of at most `tile`; records that are left over get expert NONE. It needs
// rows * CHOSEN / tile + min(EXPERTS, rows * CHOSEN) + ceil(rows / tile) records.
//
// Each threadgroup counts all pairs; each of its SIMD-groups then owns an expert and passes over the pairs again,
// compacting those of its own: a stable order without atomics on the device.
// Grid {EXPERTS / 8 + 1, 1, 1}, 256 threads: a SIMD-group an expert; the last threadgroup has the shared one.
[[kernel, max_total_threads_per_threadgroup(256)]] void route_sort(
    device const uint* chosen [[buffer(0)]],  // [rows][CHOSEN]
    device uint* order [[buffer(1)]],         // [rows * RANKS]: the pair at each place
    device uint* places [[buffer(2)]],        // [rows][RANKS]: the place of each pair
    device Block* map [[buffer(3)]],          // [p.blocks]
    constant SortParams& p [[buffer(4)]],
    uint3 group [[threadgroup_position_in_grid]],
    uint thread_index [[thread_index_in_threadgroup]],
    uint simd [[simdgroup_index_in_threadgroup]],
    uint lane [[thread_index_in_simdgroup]]) {
  threadgroup atomic_uint counts[MAX_EXPERTS];
  threadgroup uint firsts[MAX_EXPERTS];        // place of each expert's first pair
  threadgroup uint first_blocks[MAX_EXPERTS];  // record of its first block
  threadgroup uint pair_sums[8];               // of each SIMD-group's experts
  threadgroup uint block_sums[8];
  const uint pairs = p.rows * CHOSEN;
  atomic_store_explicit(&counts[thread_index], 0u, memory_order_relaxed);
  threadgroup_barrier(mem_flags::mem_threadgroup);
  for (uint pair = thread_index * 4; pair < pairs; pair += 1024) {
    const uint4 experts = *(device const uint4*)(chosen + pair);
    for (uint i = 0; i < 4; i++) atomic_fetch_add_explicit(&counts[experts[i]], 1u, memory_order_relaxed);
  }
  threadgroup_barrier(mem_flags::mem_threadgroup);
  const uint count = atomic_load_explicit(&counts[thread_index], memory_order_relaxed);
  const uint blocks = (count + p.tile - 1) / p.tile;
  uint first = simd_prefix_exclusive_sum(count);
  uint first_block = simd_prefix_exclusive_sum(blocks);
  if (lane == 31) {
    pair_sums[simd] = first + count;
    block_sums[simd] = first_block + blocks;
  }
  threadgroup_barrier(mem_flags::mem_threadgroup);
  uint all_blocks = 0;
  for (uint i = 0; i < 8; i++) {
    if (i < simd) first += pair_sums[i];
    if (i < simd) first_block += block_sums[i];
    all_blocks += block_sums[i];
  }
  firsts[thread_index] = first;
  first_blocks[thread_index] = first_block;
  threadgroup_barrier(mem_flags::mem_threadgroup);

  if (group.x == EXPERTS / 8) {
    for (uint row = thread_index; row < p.rows; row += 256) {
      order[pairs + row] = row * RANKS + CHOSEN;
      places[row * RANKS + CHOSEN] = pairs + row;
    }
    for (uint i = thread_index; all_blocks + i < p.blocks; i += 256) {
      const uint done = i * p.tile;
      Block block = Block{NONE, 0, 0};
      if (done < p.rows) block = Block{EXPERTS, pairs + done, min(p.tile, p.rows - done)};
      map[all_blocks + i] = block;
    }
    return;
  }
  const uint expert = group.x * 8 + simd;
  const uint own = atomic_load_explicit(&counts[expert], memory_order_relaxed);
  for (uint done = lane * p.tile; done < own; done += 32 * p.tile)
    map[first_blocks[expert] + done / p.tile] = Block{expert, firsts[expert] + done, min(p.tile, own - done)};
  uint place = firsts[expert];
  for (uint base = 0; base < pairs; base += 32 * SORT_PAIRS) {
    const uint own_pairs = base + lane * SORT_PAIRS;
    uint4 experts[SORT_PAIRS / 4];
    uint here = 0;
#pragma unroll
    for (uint n = 0; n < SORT_PAIRS / 4; n++) {
      const uint pair = own_pairs + n * 4;
      experts[n] = pair < pairs ? *(device const uint4*)(chosen + pair) : uint4(NONE);
      for (uint i = 0; i < 4; i++) here += experts[n][i] == expert ? 1u : 0u;
    }
    const uint before = simd_prefix_exclusive_sum(here);
    uint at = place + before;
#pragma unroll
    for (uint n = 0; n < SORT_PAIRS / 4; n++)
      for (uint i = 0; i < 4; i++) {
        if (experts[n][i] != expert) continue;
        const uint pair = own_pairs + n * 4 + i;
        const uint number = pair / CHOSEN * RANKS + pair % CHOSEN;
        order[at] = number;
        places[number] = at;
        at++;
      }
    place += simd_shuffle(before + here, 31);
  }
}
