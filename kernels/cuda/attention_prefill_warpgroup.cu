// attention_prefill for Hopper: the same function, with products of whole warpgroups and copies that nobody waits for:
//   y = half(softmax(q K^T) V * sigmoid(gate)), per query head; q already has the factor 1 / sqrt(HEAD).
//
// A block takes 128 queries that share a KV head, 128 / (QUERY_HEADS / KV_HEADS) tokens with all query heads of it, and passes
// once over the context, a page at a time. Two warpgroups have 64 queries each: queries as halves in shared memory, a running
// maximum and sum a query in fp32, outputs in fp32 in registers, and probabilities as halves in registers, where the product
// with the values takes them from (Shah et al., "FlashAttention-3", 2024). While the tensor cores add the values of one page,
// the warpgroup makes probabilities of the next page's products; while it does neither, the other warpgroup's products run.
//
// Memory: four warps of a third warpgroup copy, each into a tile of its own: keys of even and of odd pages, values of even and
// of odd pages, as soon as both warpgroups are done with the tile. A row of 512 bytes goes in one instruction, to four slabs.
//
// A context is taken in pieces of 128 pages, each with a maximum of its own, which attention_joined.h brings together in their order;
// of a step of few rows over a long context each piece has a block of its own, so that there are enough of them, and
// attention_prefill_join brings them together, by the same operations.
//
// Pages and pieces lie at absolute positions, and one that a query sees nothing of changes none of its bits, so what a query gets
// depends neither on how a prompt is cut nor on its neighbours in the block.
//
// Grid {ceil((rows of the longest segment - first) / tokens of a block), KV_HEADS or, for blocks of a piece, times their number,
// segments}, 384 threads, 196,672 bytes of shared memory. Of a KV head the blocks with the longest context come first.
// `sums`: what the pieces so far have, [rows][QUERY_HEADS][HEAD]; or what each has, [rows][QUERY_HEADS][pieces][HEAD], and its
// maximum and sum in `weights`, [rows][QUERY_HEADS][pieces][2].
#pragma once
#include "attention_joined.h"
#ifdef __CUDA_ARCH_FEAT_SM90_ALL

constant constexpr uint TILES = 4;                // keys of even and odd pages, values of even and odd pages
static_assert(QUERY_TILE + TILES * PAGE_TILE + 2 * TILES * sizeof(PhaseBarrier) == 196672, "as it is launched with");

extern "C" __global__ void __launch_bounds__(384, 1) lily_attention_prefill_warpgroup(
    const float* q, const float* projected, const half* keys, const half* values, const uint* pages,
    const Segment* segments, const Sequence* sequences, half* y, float* sums, float* weights, const AttentionPrefillParams p) {
  extern __shared__ __align__(1024) uchar attention_memory[];
  PhaseBarrier* full = (PhaseBarrier*)(attention_memory + QUERY_TILE + TILES * PAGE_TILE);
  PhaseBarrier* empty = full + TILES;
  const uint heads = QUERY_HEADS / KV_HEADS, kv_head = blockIdx.y % KV_HEADS;
  const uint pieces = gridDim.y / KV_HEADS, piece = blockIdx.y / KV_HEADS;  // 1: a block has them all
  const Segment segment = segments[blockIdx.z];
  // Of the first query in the segment; blocks start in the order of blockIdx.x.
  const uint place = p.first + (gridDim.x - 1 - blockIdx.x) * (WARPGROUP_BLOCK / heads);
  if (segment.slot == NONE || place >= segment.rows) return;
  const uint row = segment.first_row + place;
  const uint tokens = metal::min(WARPGROUP_BLOCK / heads, segment.rows - place);
  const uint position = sequences[segment.slot].position + place;
  const uint first = piece * PIECE_PAGES * PAGE;
  const uint end = pieces == 1 ? position + tokens : metal::min(position + tokens, first + PIECE_PAGES * PAGE);
  if (first >= end) return;
  const uint lane = threadIdx.x % 32, warp = __shfl_sync(lily_cuda::ALL_LANES, threadIdx.x / 32, 0);
  const uint warpgroup = warp / 4;
  if (threadIdx.x < TILES) {
    full[threadIdx.x].expect(32);  // the lanes of the warp that copies
    empty[threadIdx.x].expect(8);  // the warps that multiply
  }
  __syncthreads();

  if (warpgroup == 2) {
    asm volatile("setmaxnreg.dec.sync.aligned.u32 40;");
    const uint which = warp % 4, tile = uint(__cvta_generic_to_shared(attention_memory)) + QUERY_TILE + which * PAGE_TILE;
    copy_pages(which < 2 ? keys : values, pages + segment.slot * p.max_pages, kv_head, first / PAGE + which % 2, end, tile, full[which],
               empty[which], lane);
  } else {
    asm volatile("setmaxnreg.inc.sync.aligned.u32 232;");
    const uint first_query = warp * 16;  // of the warp
    stage_queries(q, row, tokens, kv_head, first_query, attention_memory, lane);
    warpgroup_barrier(warpgroup);

    float scores[32], outputs[128], factors[2];
    uint pairs[PROBABILITY_WORDS];
    Softmax softmax;
#pragma unroll
    for (uint r = 0; r < 2; r++) softmax.last[r] = metal::min(position + (first_query + lane / 4 + r * 8) / heads, position + tokens - 1);
    const ulong queries = descriptor_of(attention_memory + warpgroup * WARPGROUP_QUERIES * 128);
    const ulong key_tiles = descriptor_of(attention_memory + QUERY_TILE);
    const ulong value_tiles = transposed_descriptor_of(attention_memory + QUERY_TILE + 2 * PAGE_TILE, TILE_SLAB);
    Joined joined[2];  // the pieces before
    const uint count = (end - first + PAGE - 1) / PAGE;  // pages, from `first` on
    for (uint begin = 0; begin < count; begin += PIECE_PAGES) {
      const uint stop = metal::min(begin + PIECE_PAGES, count);
#pragma unroll
      for (uint i = 0; i < 128; i++) outputs[i] = 0.0f;
#pragma unroll
      for (uint r = 0; r < 2; r++) {
        softmax.highest[r] = -FLT_MAX;
        softmax.sum[r] = 0.0f;
      }
      full[0].wait(begin / 2);
      begin_products();
      multiply_keys(scores, queries, key_tiles);
      wait_for_products();
      sums_are_written(scores);
      if (lane == 0) empty[0].arrive();
      softmax.probabilities(scores, first + begin * PAGE, lane, factors);
      pack(scores, pairs);
      if (begin + 1 < stop) full[1].wait(begin / 2);
      for (uint page = begin + 1; page < stop; page++) {
        const uint tile = page % 2, older = 1 - tile;
        begin_products();
        multiply_keys(scores, queries, key_tiles + tile * (PAGE_TILE / 16));
        full[2 + older].wait((page - 1) / 2);
        begin_products();
        add_values(outputs, pairs, value_tiles + older * (PAGE_TILE / 16));
        wait_for_all_products_but_one();
        sums_are_written(scores);
        if (lane == 0) empty[tile].arrive();
        softmax.probabilities(scores, first + page * PAGE, lane, factors);
        sums_are_written(scores);
        // Waited for here, it also keeps the compiler from moving the wait below before the exponentials.
        if (page + 1 < stop) full[older].wait((page + 1) / 2);
        wait_for_products();
        sums_are_written(outputs);
        if (lane == 0) empty[2 + older].arrive();
        if (__any_sync(lily_cuda::ALL_LANES, factors[0] != 1.0f || factors[1] != 1.0f)) {
#pragma unroll
          for (uint i = 0; i < 128; i++) outputs[i] *= factors[i / 2 % 2];
        }
        pack(scores, pairs);
      }
      full[2 + (stop - 1) % 2].wait((stop - 1) / 2);
      begin_products();
      add_values(outputs, pairs, value_tiles + (stop - 1) % 2 * (PAGE_TILE / 16));
      wait_for_products();
      sums_are_written(outputs);
      if (lane == 0) empty[2 + (stop - 1) % 2].arrive();
#pragma unroll
      for (uint r = 0; r < 2; r++) {
        const uint query = first_query + lane / 4 + r * 8, token = metal::min(query / heads, tokens - 1);
        const ulong place = ((ulong(row + token) * QUERY_HEADS + kv_head * heads + query % heads) * pieces + piece);
        float* own = sums + place * HEAD + lane % 4 * 2;
        const Joined here{softmax.highest[r], sum_of_lanes(softmax.sum[r])};
        if (begin == 0) joined[r] = here;
        else join_halves(outputs, r, own, joined[r].add(here));
        if (query / heads >= tokens || pieces == 1 && stop == count) continue;
#pragma unroll
        for (uint n = 0; n < HEAD / 8; n++) *(float2*)(own + n * 8) = float2(outputs[n * 4 + r * 2], outputs[n * 4 + r * 2 + 1]);
        if (pieces > 1 && lane % 4 == 0) *(float2*)(weights + place * 2) = float2(here.highest, here.sum);
      }
      __syncwarp();
    }
    if (pieces > 1) return;
    const ulong width = (2 * QUERY_HEADS + 2 * KV_HEADS) * HEAD;
#pragma unroll
    for (uint r = 0; r < 2; r++) {
      const uint query = first_query + lane / 4 + r * 8, token = metal::min(query / heads, tokens - 1);
      const uint head = kv_head * heads + query % heads;
      const float* gate = projected + (row + token) * width + (head * 2 + 1) * HEAD + lane % 4 * 2;
      float2 gates[HEAD / 8];
#pragma unroll
      for (uint n = 0; n < HEAD / 8; n++) gates[n] = *(const float2*)(gate + n * 8);
      const float factor = 1.0f / joined[r].sum;
      half* out = y + (ulong(row + token) * QUERY_HEADS + head) * HEAD + lane % 4 * 2;
      if (query / heads >= tokens) continue;
#pragma unroll
      for (uint n = 0; n < HEAD / 8; n++)
        *(half2*)(out + n * 8) = half2(gated_half(outputs[n * 4 + r * 2], factor, gates[n].x),
                                       gated_half(outputs[n * 4 + r * 2 + 1], factor, gates[n].y));
    }
  }
}
#endif
