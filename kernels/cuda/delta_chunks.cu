// What DeltaNet's recurrence needs of a chunk of 64 tokens that does not depend on the state before it, S0. With G_t the sum of
// the logarithms of the chunk's decays up to t,
//   A[t][i] = beta_t exp(G_t - G_i) (k_t k_i), i < t;   T = (I + A)^-1;   P[t][i] = exp(G_t - G_i) (q_t k_i), i <= t;
//   W = T diag(beta exp(G)) K;   U0 = T diag(beta) V;
// so that u = U0 - W S0^T, see delta_scan_chunked. Every entry of T and W is 1 at most: they are products of steps that lengthen
// nothing. G is summed in double and kept as two floats: after a decay of 0, which stands as exp(-1000), small differences keep
// their digits.
// Tokens behind a segment's end have k = q = v = beta = 0 and decay 1.
//
// Memory: k stays in shared memory, in two halves; q makes way for the values of the first and then of the second head;
// A of both heads becomes T in place. Triangles skip their blocks of 0. 108,544 bytes of shared memory.
// Grid {KEY_HEADS, chunks of the longest segment, segments}, 256 threads: both value heads of a key head.
#pragma once
#include "delta_chunk_factors.h"
#if defined(__CUDA_ARCH_FEAT_SM90_ALL) && LILY_VALUE_HEADS == 2 * LILY_KEY_HEADS

constant constexpr float LOG_OF_ZERO = -1000.0f;

// G, beta and what comes of them, of one head, by one warp: two tokens a lane.
LILY_INLINE void make_gates(ChunkShared& shared, const float* decay, const float* beta, uint rows, uint head, uint lane,
                            uint4* to) {
  double g[2];
#pragma unroll
  for (uint i = 0; i < 2; i++) {
    const uint t = lane * 2 + i;
    const float a = t < rows ? decay[t * VALUE_HEADS] : 1.0f;
    g[i] = a <= 0.0f ? double(LOG_OF_ZERO) : log(double(a));  // NaN stays NaN
    shared.betas[head][t] = t < rows ? beta[t * VALUE_HEADS] : 0.0f;
  }
  double sum = g[0] + g[1];
#pragma unroll
  for (uint apart = 1; apart < 32; apart *= 2) {
    const double below = __shfl_up_sync(lily_cuda::ALL_LANES, sum, apart);
    sum = lane >= apart ? below + sum : sum;
  }
  const double last = __shfl_sync(lily_cuda::ALL_LANES, sum, 31);
  const double both[2] = {sum - g[1], sum};
#pragma unroll
  for (uint i = 0; i < 2; i++) {
    const uint t = lane * 2 + i;
    shared.logs[head][t] = float2(float(both[i]), float(both[i] - double(float(both[i]))));
    const float since_start = expf(metal::min(float(both[i]), 0.0f));
    shared.weights[head][t] = shared.betas[head][t] * since_start;
    ((float*)(to + OF_DECAYS))[t] = since_start;
    ((float*)(to + OF_DECAYS))[DELTA_CHUNK + t] = expf(metal::min(float(last - both[i]), 0.0f));
  }
}

extern "C" __global__ void __launch_bounds__(CHUNKS_THREADS, 2)
    lily_delta_chunks(const float* convolved, const float* decay, const float* beta, const Segment* segments, uint4* work) {
  extern __shared__ uint4 delta_shared[];
  ChunkShared& shared = *(ChunkShared*)delta_shared;
  const uint key_head = blockIdx.x, first = blockIdx.y * DELTA_CHUNK;
  const Segment segment = segments[blockIdx.z];
  if (segment.slot == NONE || first >= segment.rows) return;
  const uint rows = metal::min(DELTA_CHUNK, segment.rows - first), row = segment.first_row + first, head = key_head * 2;
  const uint simd = lily_cuda::simdgroup_index(), lane = lily_cuda::lane();
  const float* from = convolved + ulong(row) * delta_channels();
  const float* values_from = from + (2 * KEY_HEADS + head) * DELTA_HEAD;
  work += chunk_place(segment, blockIdx.z, blockIdx.y);
  uint4* keys = work + key_place(key_head);
  uint4* values = work + value_place(head);

  if (threadIdx.x == 0) start_meetings(1, 64), start_meetings(2, 64);
  if (simd < 2) {
    const ulong gate = ulong(row) * VALUE_HEADS + head + simd;
    make_gates(shared, decay + gate, beta + gate, rows, simd, lane, values + simd * VALUE_PLACES);
  }
  stage_split<8>(from + key_head * DELTA_HEAD, rows, CHUNK_SCALE, shared.others, simd, lane);
  stage_split<8>(from + (KEY_HEADS + key_head) * DELTA_HEAD, rows, CHUNK_SCALE, shared.keys, simd, lane);
  __syncthreads();
  make_rows(shared, simd % 4, simd >= 4, lane, values);
#pragma unroll
  for (uint i = 0; i < 4; i++) {
    SplitFragment block;
    load_split(shared.others, i * 16 * STAGED_STRIDE + simd * 16 + right_place(lane, STAGED_STRIDE), block);
    block.write(keys + (i * 8 + simd) * BLOCK_PLACES + lane);
    load_split_transposed(shared.keys, i * 16 * STAGED_STRIDE + simd * 16 + left_place(lane, STAGED_STRIDE), block);
    block.write(keys + FACTOR_PLACES + (simd * 4 + i) * BLOCK_PLACES + lane);
  }
  __syncthreads();
  if (simd < 4) {
    invert(shared.triangles[simd % 2], simd / 2 * 32 + lane, simd / 2 * 32, 1 + simd % 2);
  } else {
    stage_split<4>(values_from, rows, 1.0f, shared.others, simd - 4, lane);
  }
  __syncthreads();
#pragma unroll 1
  for (uint i = 0; i < 2; i++) {
    if (i == 1) {
      __syncthreads();
      stage_split<8>(values_from + DELTA_HEAD, rows, 1.0f, shared.others, simd, lane);
      __syncthreads();
    }
    make_w(shared, i, simd % 4, simd / 4, lane, values + i * VALUE_PLACES);
    make_u(shared, i, simd, lane, values + i * VALUE_PLACES + OF_VALUES);
  }
}
#endif
