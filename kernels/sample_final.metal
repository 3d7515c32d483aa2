// The second half of a draw: the token. It goes to the sequence, whose next row it is, and with its log-probability to the
// sequence's ring at place Sequence::generated % DRAWN_RING.
//
// grid (draws, 1, 1), 512 threads. logits, keys, blocks: as sample_blocks read and wrote them; drawn [slots][DRAWN_RING].
#include <metal_stdlib>
#include "model.h"
#include "walk.h"
using namespace metal;

[[kernel, max_total_threads_per_threadgroup(512)]] void sample_final(
    device const float* logits [[buffer(0)]],
    device const uint* keys [[buffer(1)]],
    device const BlockSummary* blocks [[buffer(2)]],
    device const Draw* draws [[buffer(3)]],
    device Sequence* sequences [[buffer(4)]],
    device Drawn* drawn [[buffer(5)]],
    uint3 group [[threadgroup_position_in_grid]],
    uint thread_index [[thread_index_in_threadgroup]],
    uint simd [[simdgroup_index_in_threadgroup]],
    uint lane [[thread_index_in_simdgroup]]) {
  constexpr uint SIMDS = 16;
  threadgroup BlockSummary parts[SIMDS];
  threadgroup uint block_keys[MAX_SAMPLE_BLOCKS];
  threadgroup float masses[MAX_SAMPLE_BLOCKS], equals[MAX_SAMPLE_BLOCKS];
  threadgroup uint4 scratch[SIMDS];
  const uint index = group.x, count = sample_blocks_of_vocabulary();
  const Draw draw = draws[index];
  if (draw.slot == NONE) return;
  BlockSummary own = empty_summary();
  if (thread_index < count) {
    own = blocks[index * count + thread_index];
    block_keys[thread_index] = own.best_key;
  }
  const BlockSummary all = joined_by_all(own, parts, SIMDS, simd, lane);
  uint token = all.finite == 0u || all.best_key == 0u ? NONE : all.best_token;
  if (token != NONE && draw.temperature > 0.0f) {
    device const uint4* own_keys = (device const uint4*)keys + ulong(index) * count * (SAMPLE_BLOCK / 4);
    const Candidates candidates{own_keys, block_keys, scratch, count, key_value(all.best_key),
                                1.0f / draw.temperature, SIMDS, simd, lane};
    const Kept kept = candidates.cut(draw.top_k, draw.top_p, draw.min_p, all.best_key);
    weigh(candidates, kept, masses, equals);
    threadgroup_barrier(mem_flags::mem_threadgroup);
    const float number = uniform_number(draw.seed_low, draw.seed_high, sequences[draw.slot].generated, draw.counter_high);
    if (simd == 0) token = walk(candidates, kept, masses, equals, number);
    if (token == NONE) token = all.best_token;
  }
  if (thread_index != 0) return;
  const float peak = all.raw_peak + log(all.raw_sum);
  const float logprob = token == NONE ? 0.0f : logits[ulong(index) * VOCABULARY + token] - peak;
  sequences[draw.slot].token = token;
  drawn[draw.slot * DRAWN_RING + sequences[draw.slot].generated % DRAWN_RING] = Drawn{token, logprob};
}
