// The first half of a draw, a block of SAMPLE_BLOCK tokens at a time: adjusts and masks the logits, turns them into keys
// that order as the logits do (0: never to be drawn), and sums the block up. A draw that was written before the sequence's
// last token was seen takes that into its adjustments itself.
//
// grid ((VOCABULARY + SAMPLE_BLOCK − 1) / SAMPLE_BLOCK, draws, 1), 256 threads.
// logits [draws][VOCABULARY] raw, mask [draws][(VOCABULARY + 31) / 32] words of bits, lowest first, read only for draws that say so,
// keys [draws][blocks][SAMPLE_BLOCK], blocks [draws][blocks]. Draws that pad a plan are passed over.
#include <metal_stdlib>
#include "model.h"
#include "sampling.h"
using namespace metal;

// The first of `count` ascending adjustments whose token is at least `token`.
inline uint first_reaching(device const Adjustment* changes, uint count, uint token) {
  uint low = 0, high = count;
  while (low < high) {
    const uint middle = (low + high) / 2;
    if (changes[middle].token < token) low = middle + 1; else high = middle;
  }
  return low;
}

inline float changed(float logit, float repetition, float add) {
  return (logit > 0.0f ? logit / repetition : logit * repetition) + add;
}

[[kernel, max_total_threads_per_threadgroup(256)]] void sample_blocks(
    device const float* logits [[buffer(0)]],
    device const Draw* draws [[buffer(1)]],
    device const Adjustment* adjustments [[buffer(2)]],
    device const uint* mask [[buffer(3)]],
    device const Sequence* sequences [[buffer(4)]],
    device uint* keys [[buffer(5)]],
    device BlockSummary* blocks [[buffer(6)]],
    uint3 group [[threadgroup_position_in_grid]],
    uint thread_index [[thread_index_in_threadgroup]],
    uint simd [[simdgroup_index_in_threadgroup]],
    uint lane [[thread_index_in_simdgroup]]) {
  constexpr uint SIMDS = 8;
  threadgroup float adjusted[SAMPLE_BLOCK];
  threadgroup BlockSummary parts[SIMDS];
  const uint count = sample_blocks_of_vocabulary(), index = group.y, block = group.x;
  if (draws[index].slot == NONE) return;
  const uint vocabulary = min(draws[index].vocabulary, VOCABULARY), first = block * SAMPLE_BLOCK;
  float raw[4];
#pragma unroll
  for (uint i = 0; i < 4; i++) {
    const uint token = first + thread_index * 4 + i;
    raw[i] = token < vocabulary ? logits[ulong(index) * VOCABULARY + token] : 0.0f;
    adjusted[thread_index * 4 + i] = raw[i];
  }
  threadgroup_barrier(mem_flags::mem_threadgroup);
  device const Adjustment* changes = adjustments + draws[index].first_adjustment;
  const uint end = draws[index].adjustments;
  const uint unseen = draws[index].unseen != 0u ? sequences[draws[index].slot].token : NONE;
  const float penalty = draws[index].penalty_repetition;
  for (uint i = first_reaching(changes, end, first) + thread_index; i < end; i += 256) {
    const uint token = changes[i].token;
    if (token >= first + SAMPLE_BLOCK) break;
    const bool drawn = token == unseen;
    adjusted[token - first] = changed(adjusted[token - first], drawn ? penalty : changes[i].repetition,
                                      drawn ? changes[i].add_once_drawn : changes[i].add);
  }
  if (thread_index == 0 && unseen >= first && unseen < first + SAMPLE_BLOCK) {
    const uint place = first_reaching(changes, end, unseen);
    if (place == end || changes[place].token != unseen)
      adjusted[unseen - first] = changed(adjusted[unseen - first], penalty, draws[index].penalty_add);
  }
  threadgroup_barrier(mem_flags::mem_threadgroup);

  BlockSummary own = empty_summary();
  uint4 key;
#pragma unroll
  for (uint i = 0; i < 4; i++) {
    const uint token = first + thread_index * 4 + i, place = index * ((VOCABULARY + 31) / 32) + token / 32;
    key[i] = 0u;
    if (token >= vocabulary) continue;
    const bool allowed = draws[index].masked == 0u || (mask[place] >> (token % 32) & 1u) != 0u;
    if (allowed) key[i] = order_key(adjusted[thread_index * 4 + i]);
    const uint raw_key = order_key(raw[i]);
    const bool finite = allowed && (as_type<uint>(raw[i]) & 0x7f800000u) != 0x7f800000u;
    own = joined(own, BlockSummary{key[i], token, key_value(raw_key), raw_key == 0u ? 0.0f : 1.0f, finite ? 1u : 0u});
  }
  ((device uint4*)keys)[(ulong(index) * count + block) * (SAMPLE_BLOCK / 4) + thread_index] = key;
  const BlockSummary all = joined_by_all(own, parts, SIMDS, simd, lane);
  if (thread_index == 0) blocks[index * count + block] = all;
}
