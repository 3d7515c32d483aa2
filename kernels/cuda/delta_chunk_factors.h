// The factors of a chunk as products of what lies in shared memory: a warp's share of each (see delta_chunks).
#pragma once
#include "delta_chunk_shared.h"
#if defined(__CUDA_ARCH_FEAT_SM90_ALL) && LILY_VALUE_HEADS == 2 * LILY_KEY_HEADS

// The sixteen rows t from 16 m on of A, or of P, for both heads, from sums of products of 16 times the factors.
LILY_INLINE void make_rows(ChunkShared& shared, uint m, bool queries, uint lane, uint4* values) {
  SplitSums sums[DELTA_CHUNK / 8];
#pragma unroll
  for (uint n = 0; n < DELTA_CHUNK / 8; n++) sums[n].clear();
#pragma unroll 1
  for (uint k = 0; k < DELTA_HEAD; k += 16) {
    SplitFragment left, right;
    load_split(queries ? shared.others : shared.keys, m * 16 * STAGED_STRIDE + k + left_place(lane, STAGED_STRIDE), left);
#pragma unroll
    for (uint j = 0; j < DELTA_CHUNK / 16; j++) {
      if (j > m) continue;
      load_split(shared.keys, j * 16 * STAGED_STRIDE + k + right_place(lane, STAGED_STRIDE), right);
      sums[j * 2].add_product(left, right, 0);
      sums[j * 2 + 1].add_product(left, right, 2);
    }
  }
#pragma unroll 1
  for (uint head = 0; head < 2; head++) {
    float2 log_t[2];
    log_t[0] = shared.logs[head][m * 16 + lane / 4], log_t[1] = shared.logs[head][m * 16 + lane / 4 + 8];
#pragma unroll
    for (uint j = 0; j < DELTA_CHUNK / 16; j++) {
      if (j > m) continue;
      float x[2][4];
#pragma unroll
      for (uint n = 0; n < 2; n++)
#pragma unroll
        for (uint e = 0; e < 4; e++) {
          const uint t = m * 16 + lane / 4 + e / 2 * 8, i = j * 16 + n * 8 + lane % 4 * 2 + e % 2;
          const float2 log_i = shared.logs[head][i];
          const float factor = expf(metal::min((log_t[e / 2].x - log_i.x) + (log_t[e / 2].y - log_i.y), 0.0f));
          x[n][e] = i <= t ? sums[j * 2 + n].value(e) * factor : 0.0f;
          if (!queries)
            shared.triangles[head][t * TRIANGLE_STRIDE + i] = i < t ? shared.betas[head][t] * x[n][e] * WEIGHTS_UNSCALE : 0.0f;
        }
      if (queries) {
        SplitFragment weights;
        split_right(x[0], x[1], weights);
        weights.write(values + head * VALUE_PLACES + OF_WEIGHTS + (m * 4 + j) * BLOCK_PLACES + lane);
      }
    }
  }
}

// W's rows from 16 m on and columns from 64 part on.
LILY_INLINE void make_w(ChunkShared& shared, uint head, uint m, uint part, uint lane, uint4* to) {
  SplitSums sums[8];
#pragma unroll
  for (uint n = 0; n < 8; n++) sums[n].clear();
#pragma unroll 1
  for (uint j = 0; j <= m; j++) {
    SplitFragment left, right;
#pragma unroll
    for (uint word = 0; word < 4; word++) {
      const uint t = m * 16 + lane / 4 + word % 2 * 8, i = j * 16 + lane % 4 * 2 + word / 2 * 8;
      const float2 x = *(const float2*)(shared.triangles[head] + t * TRIANGLE_STRIDE + i);
      const float2 w = *(const float2*)(shared.weights[head] + i);
      split(x.x * w.x, x.y * w.y, left.high.words[word], left.low.words[word]);
    }
#pragma unroll
    for (uint n = 0; n < 4; n++) {
      load_split_transposed(shared.keys, j * 16 * STAGED_STRIDE + part * 64 + n * 16 + left_place(lane, STAGED_STRIDE), right);
      sums[n * 2].add_product(left, right, 0);
      sums[n * 2 + 1].add_product(left, right, 2);
    }
  }
#pragma unroll
  for (uint n = 0; n < 4; n++) {
    float x[2][4];
#pragma unroll
    for (uint e = 0; e < 8; e++) x[e / 4][e % 4] = sums[n * 2 + e / 4].value(e % 4);
    SplitFragment block;
    split_right(x[0], x[1], block);
    block.write(to + (m * 8 + part * 4 + n) * BLOCK_PLACES + lane);
  }
}

// U0's sixteen columns v from 16 m on, transposed.
LILY_INLINE void make_u(ChunkShared& shared, uint head, uint m, uint lane, uint4* to) {
  SplitSums sums[DELTA_CHUNK / 8];
#pragma unroll
  for (uint n = 0; n < DELTA_CHUNK / 8; n++) sums[n].clear();
#pragma unroll 1
  for (uint j = 0; j < DELTA_CHUNK / 16; j++) {
    SplitFragment left, right;
    load_split_transposed(shared.others, j * 16 * STAGED_STRIDE + m * 16 + right_place(lane, STAGED_STRIDE), left);
    float2 b[2];
#pragma unroll
    for (uint word = 0; word < 2; word++) b[word] = *(const float2*)(shared.betas[head] + j * 16 + lane % 4 * 2 + word * 8);
#pragma unroll
    for (uint n = 0; n < DELTA_CHUNK / 8; n++) {
      if (n < j * 2) continue;
#pragma unroll
      for (uint word = 0; word < 2; word++) {
        const uint t = n * 8 + lane / 4, i = j * 16 + lane % 4 * 2 + word * 8;
        const float2 x = *(const float2*)(shared.triangles[head] + t * TRIANGLE_STRIDE + i);
        split(x.x * b[word].x, x.y * b[word].y, right.high.words[word], right.low.words[word]);
      }
      sums[n].add_product(left, right, 0);
    }
  }
#pragma unroll
  for (uint n = 0; n < DELTA_CHUNK / 8; n++)
    *(float4*)(to + (m * 8 + n) * 32 + lane) = float4(sums[n].value(0), sums[n].value(1), sums[n].value(2), sums[n].value(3));
}
#endif
