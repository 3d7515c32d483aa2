// DeltaNet's recurrence over the tokens of each segment, 64 at a time, with the factors that delta_chunks made. With S0 the state
// [128 v][128 k] before a chunk and d_t = exp(G_63 - G_t),
//   u = U0 - W S0^T;   o = exp(G) Q S0^T + P u;   S = exp(G_63) S0 + u^T diag(d) K.
// The state is read from [flip] and, when all tokens are done, written to [flip ^ 1]. All products are transposed, [v][t] and
// [v][k]: so the registers of a sum are those of a left factor, and the state stays in fp32 in registers.
//
// A block has 32 rows v of a head. Warps 0 to 3 are the chain from state to state: W S0^T and u, then the new state. Warps 4 to 7
// make the outputs, up to a chunk behind. Each warp has all 32 rows and a quarter of a product's columns. Factors of left
// products, S and u, go from warp to warp through shared memory, in two halves each (see delta_chunk.h).
//
// Memory: factors come by bulk copies: the chain's, W and k in turn, three ahead through a ring, by warp 8; q and P into a place
// each as soon as it is free. U0 passes through registers, a chunk ahead. 204,840 bytes of shared memory.
// Grid {4, VALUE_HEADS, segments}, 288 threads.
#pragma once
#include "delta.h"
#include "delta_scan_shared.h"
#if defined(__CUDA_ARCH_FEAT_SM90_ALL) && LILY_VALUE_HEADS == 2 * LILY_KEY_HEADS

extern "C" __global__ void __launch_bounds__(CHUNKED_THREADS, 1)
    lily_delta_scan_chunked(const uint4* work, const Segment* segments, const Sequence* sequences, float* state, float* o) {
  extern __shared__ uint4 delta_shared[];
  ScanShared& shared = *(ScanShared*)delta_shared;
  const Segment segment = segments[blockIdx.z];
  if (segment.slot == NONE || segment.rows == 0) return;
  const uint head = blockIdx.y;
  const uint simd = lily_cuda::simdgroup_index(), lane = lily_cuda::lane();
  const uint part = simd % 4;  // of the columns
  const uint flip = sequences[segment.slot].flip;
  const uint chunks = (segment.rows + DELTA_CHUNK - 1) / DELTA_CHUNK;
  const ulong pitch = KEY_HEADS * KEY_PLACES + VALUE_HEADS * VALUE_PLACES;
  work += chunk_place(segment, blockIdx.z, 0);
  const uint4* keys = work + key_place(head / (VALUE_HEADS / KEY_HEADS));
  const uint4* values = work + value_place(head);

  if (simd == 8 && lane == 0) {
    for (uint i = 0; i < RING; i++) start_barrier(&shared.full[i]);
    start_barrier(&shared.queries_full), start_barrier(&shared.weights_full);
    start_meetings(CHAIN_BARRIER, 160), start_meetings(OUTPUT_BARRIER, 128);
    for (uint i = 0; i < 2; i++) start_meetings(READY_BARRIER + i, 256), start_meetings(FREE_BARRIER + i, 256);
  }
  __syncthreads();

  if (simd == 8) {
    for (uint phase = 0; phase < chunks * 2 + RING; phase++) {
      if (phase >= RING) meet(CHAIN_BARRIER, 160);  // the end of the phase whose place this one takes
      const ulong chunk = phase / 2 * pitch;
      if (lane == 0 && phase < chunks * 2)
        fetch(shared.ring[phase % RING], phase % 2 == 0 ? values + chunk : keys + chunk + FACTOR_PLACES, FACTOR_PLACES,
              &shared.full[phase % RING]);
      __syncwarp();
      if (phase == RING - 1) meet(CHAIN_BARRIER, 160);  // the state is there
    }
  } else if (simd < 4) {
    const ulong half_of_states = VALUE_HEADS * DELTA_HEAD * DELTA_HEAD;
    float* home = state + segment.slot * 2 * half_of_states + (head * DELTA_HEAD + blockIdx.x * 32 + lane / 4) * DELTA_HEAD +
                  part * 32 + lane % 4 * 2;
    float s[2][4][4];
#pragma unroll
    for (uint i = 0; i < 2; i++)
#pragma unroll
      for (uint n = 0; n < 4; n++)
#pragma unroll
        for (uint r = 0; r < 2; r++) {
          const float2 x = *(const float2*)(home + flip * half_of_states + (i * 16 + r * 8) * DELTA_HEAD + n * 8);
          s[i][n][r * 2] = x.x, s[i][n][r * 2 + 1] = x.y;
        }
    share_state(s, shared.states[0][0] + part * 2 * BLOCK_PLACES + lane);
    meet(CHAIN_BARRIER, 160);
    ChunkInputs inputs;
    inputs.read(values, part, lane);
    for (uint chunk = 0; chunk < chunks; chunk++) {
      SplitSums x[2][2];
      clear(x);
      uint phase = chunk * 2;
      wait_for(&shared.full[phase % RING], phase / RING % 2);
      multiply_rows<8>(shared.states[chunk % 2][0] + lane, shared.ring[phase % RING] + part * 8 * BLOCK_PLACES + lane, x);
#pragma unroll
      for (uint i = 0; i < 2; i++) {
        float u[2][4], decayed[2][4];
#pragma unroll
        for (uint n = 0; n < 2; n++)
#pragma unroll
          for (uint e = 0; e < 4; e++) {
            u[n][e] = fmaf(x[i][n].value(e), -1.0f / CHUNK_SCALE, inputs.u0[i][n][e]);
            decayed[n][e] = u[n][e] * inputs.decays[n][e % 2];
          }
        SplitFragment block;
        split_left(u[0], u[1], block);
        block.write(shared.updates[chunk % 2][i] + part * BLOCK_PLACES + lane);
        split_left(decayed[0], decayed[1], block);
        block.write(shared.decayed[i] + part * BLOCK_PLACES + lane);
      }
      pass(READY_BARRIER + chunk % 2, 256);
      meet(CHAIN_BARRIER, 160);
      phase++;
      wait_for(&shared.full[phase % RING], phase / RING % 2);
      const float whole = inputs.whole;
      if (chunk + 1 < chunks) inputs.read(values + (chunk + 1) * pitch, part, lane);
      SplitSums more[2][2][2];  // by sixteen columns k
      clear(more[0]), clear(more[1]);
      const uint4* factors = shared.ring[phase % RING] + part * 8 * BLOCK_PLACES + lane;
#pragma unroll
      for (uint t = 0; t < 4; t++) {
        SplitFragment a[2], b[2];
#pragma unroll
        for (uint i = 0; i < 2; i++) {
          a[i].read(shared.decayed[i] + t * BLOCK_PLACES + lane);
          b[i].read(factors + (i * 4 + t) * BLOCK_PLACES);
        }
        add_products(a, b[0], more[0]);
        add_products(a, b[1], more[1]);
      }
#pragma unroll
      for (uint i = 0; i < 2; i++)
#pragma unroll
        for (uint n = 0; n < 4; n++)
#pragma unroll
          for (uint e = 0; e < 4; e++)
            s[i][n][e] = fmaf(s[i][n][e], whole, more[n / 2][i][n % 2].value(e) * (1.0f / CHUNK_SCALE));
      if (chunk + 1 < chunks) {
        if (chunk > 0) meet(FREE_BARRIER + (chunk - 1) % 2, 256);
        share_state(s, shared.states[(chunk + 1) % 2][0] + part * 2 * BLOCK_PLACES + lane);
      }
      meet(CHAIN_BARRIER, 160);
    }
#pragma unroll
    for (uint i = 0; i < 2; i++)
#pragma unroll
      for (uint n = 0; n < 4; n++)
#pragma unroll
        for (uint r = 0; r < 2; r++)
          *(float2*)(home + (flip ^ 1) * half_of_states + (i * 16 + r * 8) * DELTA_HEAD + n * 8) =
              float2(s[i][n][r * 2], s[i][n][r * 2 + 1]);
  } else {
    const bool fetches = simd == 4 && lane == 0;
    if (fetches) {
      fetch(shared.queries, keys, FACTOR_PLACES, &shared.queries_full);
      fetch(shared.weights, values + OF_WEIGHTS, WEIGHTS_PLACES, &shared.weights_full);
    }
    float* to = o + (ulong(segment.first_row) * VALUE_HEADS + head) * DELTA_HEAD + blockIdx.x * 32 + lane / 4;
    for (uint chunk = 0; chunk < chunks; chunk++) {
      const float* decays = (const float*)(values + chunk * pitch + OF_DECAYS);
      float2 since_start[2];
#pragma unroll
      for (uint n = 0; n < 2; n++) since_start[n] = *(const float2*)(decays + part * 16 + n * 8 + lane % 4 * 2);
      SplitSums x[2][2];
      clear(x);
      meet(READY_BARRIER + chunk % 2, 256);
      wait_for(&shared.queries_full, chunk % 2);
      multiply_rows<8>(shared.states[chunk % 2][0] + lane, shared.queries + part * 8 * BLOCK_PLACES + lane, x);
      float out[2][2][4];
#pragma unroll
      for (uint i = 0; i < 2; i++)
#pragma unroll
        for (uint n = 0; n < 2; n++)
#pragma unroll
          for (uint e = 0; e < 4; e++) out[i][n][e] = x[i][n].value(e) * (since_start[n][e % 2] * (1.0f / CHUNK_SCALE));
      meet(OUTPUT_BARRIER, 128);
      const ulong next = (chunk + 1) * pitch;
      if (fetches && chunk + 1 < chunks) fetch(shared.queries, keys + next, FACTOR_PLACES, &shared.queries_full);
      wait_for(&shared.weights_full, chunk % 2);
      clear(x);
      const uint4* weights = shared.weights + part * 4 * BLOCK_PLACES + lane;
#pragma unroll
      for (uint k = 0; k < 4; k++) {
        if (k > part) continue;
        SplitFragment a[2], b;
        b.read(weights + k * BLOCK_PLACES);
#pragma unroll
        for (uint i = 0; i < 2; i++) a[i].read(shared.updates[chunk % 2][i] + k * BLOCK_PLACES + lane);
        add_products(a, b, x);
      }
      if (chunk + 2 < chunks) pass(FREE_BARRIER + chunk % 2, 256);
      meet(OUTPUT_BARRIER, 128);
      if (fetches && chunk + 1 < chunks)
        fetch(shared.weights, values + next + OF_WEIGHTS, WEIGHTS_PLACES, &shared.weights_full);
#pragma unroll
      for (uint n = 0; n < 2; n++)
#pragma unroll
        for (uint e = 0; e < 4; e++) {
          const uint t = chunk * DELTA_CHUNK + part * 16 + n * 8 + lane % 4 * 2 + e % 2;
          if (t >= segment.rows) continue;
#pragma unroll
          for (uint i = 0; i < 2; i++)
            to[ulong(t) * (VALUE_HEADS * DELTA_HEAD) + i * 16 + e / 2 * 8] =
                fmaf(x[i][n].value(e), WEIGHTS_UNSCALE, out[i][n][e]);
        }
    }
  }
}
#endif
