// What a block of delta_scan_chunked has in shared memory, how its warps meet, and their products.
#pragma once
#include "bulk.h"
#include "delta_chunk.h"
#include "meetings.h"
#if defined(__CUDA_ARCH_FEAT_SM90_ALL) && LILY_VALUE_HEADS == 2 * LILY_KEY_HEADS

constant constexpr uint CHUNKED_THREADS = 288;
constant constexpr uint RING = 3;
constant constexpr uint STATE_PLACES = 8 * BLOCK_PLACES;  // of 16 rows v, as a left factor
constant constexpr uint UPDATE_PLACES = 4 * BLOCK_PLACES;
constant constexpr uint CHAIN_BARRIER = 1;   // of the chain and warp 8
constant constexpr uint READY_BARRIER = 2;   // and the next: S and u of an even, an odd chunk are there
constant constexpr uint FREE_BARRIER = 4;    // and the next: the outputs of an even, an odd chunk are done with them
constant constexpr uint OUTPUT_BARRIER = 6;  // of the warps of the outputs

struct ScanShared {
  uint4 ring[RING][FACTOR_PLACES];
  uint4 queries[FACTOR_PLACES];
  uint4 weights[WEIGHTS_PLACES];
  uint4 states[2][2][STATE_PLACES];    // of even and odd chunks
  uint4 updates[2][2][UPDATE_PLACES];  // u
  uint4 decayed[2][UPDATE_PLACES];     // u diag(d)
  ulong full[RING], queries_full, weights_full;  // mbarriers
};
static_assert(sizeof(ScanShared) == 204848, "as delta_scan_chunked is launched with");

// sums[i] += left[i] right^T, of `blocks` blocks and sixteen columns; the next blocks are on their way from shared memory.
template <uint blocks>
LILY_INLINE void multiply_rows(const uint4* left, const uint4* right, SplitSums (&sums)[2][2]) {
  SplitFragment a[2][2], b[2];
  a[0][0].read(left), a[0][1].read(left + blocks * BLOCK_PLACES), b[0].read(right);
#pragma unroll
  for (uint k = 0; k < blocks; k++) {
    if (k + 1 < blocks) {
      a[(k + 1) % 2][0].read(left + (k + 1) * BLOCK_PLACES);
      a[(k + 1) % 2][1].read(left + (blocks + k + 1) * BLOCK_PLACES);
      b[(k + 1) % 2].read(right + (k + 1) * BLOCK_PLACES);
    }
    add_products(a[k % 2], b[k % 2], sums);
  }
}

// Factors on their way.
LILY_INLINE void fetch(uint4* to, const uint4* from, uint places, ulong* barrier) {
  expect_bytes(barrier, places * 16);
  copy_bulk(to, from, places * 16, barrier);
}

// What a chain warp needs of a chunk beside the products, of sixteen tokens.
struct ChunkInputs {
  float4 u0[2][2];
  float2 decays[2];  // exp(G_63 - G_t)
  float whole;       // exp(G_63)

  LILY_INLINE void read(const uint4* values, uint part, uint lane) {
    const float* from = (const float*)(values + OF_DECAYS);
    whole = from[DELTA_CHUNK - 1];
#pragma unroll
    for (uint n = 0; n < 2; n++) {
      decays[n] = *(const float2*)(from + DELTA_CHUNK + part * 16 + n * 8 + lane % 4 * 2);
#pragma unroll
      for (uint i = 0; i < 2; i++)
        u0[i][n] = *(const float4*)(values + OF_VALUES + ((blockIdx.x * 2 + i) * 8 + part * 2 + n) * 32 + lane);
    }
  }
};

// A chain warp's quarter of the state, for the other warps.
LILY_INLINE void share_state(const float (&state)[2][4][4], uint4* to) {
#pragma unroll
  for (uint i = 0; i < 2; i++)
#pragma unroll
    for (uint k = 0; k < 2; k++) {
      SplitFragment block;
      split_left(state[i][k * 2], state[i][k * 2 + 1], block);
      block.write(to + i * STATE_PLACES + k * BLOCK_PLACES);
    }
}
#endif
