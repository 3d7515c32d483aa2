// attention_combine for the pieces of attention_decode.cu, its arguments.
//
// grid (QUERY_HEADS * JOIN_SHARERS, rows), 256 threads: 64 dimensions of a head, a thread four of every 16th piece, all on their way at once.
#include "attention_decode.cu"

#ifdef __CUDA_ARCH_FEAT_SM90_ALL

constant constexpr uint JOIN_SHARERS = 4;

extern "C" __global__ void __launch_bounds__(256)
    lily_attention_join(const float* sums, const float* weights, const float* q_gate, const Row* rows, const Sequence* sequences,
                        float* y, const CombineParams p) {
  constexpr uint PARTS = 16, OWN = ATTENTION_PIECES / PARTS;
  __shared__ float factors[ATTENTION_PIECES];
  __shared__ float4 parts[PARTS][16];
  const uint head = blockIdx.x / JOIN_SHARERS, row = blockIdx.y, part = threadIdx.x / 16, lane = threadIdx.x % 32;
  const uint dimension = blockIdx.x % JOIN_SHARERS * (HEAD / JOIN_SHARERS) + threadIdx.x % 16 * 4, slot = rows[row].slot;
  let_later_begin();
  if (slot == NONE) {
    wait_for_earlier();
    return;
  }
  const uint position = sequences[slot].position + rows[row].offset, each = pages_of_piece(position);
  const uint count = position / PAGE / each + 1;
  wait_for_earlier();
  const ulong first = (ulong(row) * QUERY_HEADS + head) * ATTENTION_PIECES;
  float4 own[OWN];
#pragma unroll
  for (uint i = 0; i < OWN; i++)
    own[i] = part + i * PARTS < count ? *(const float4*)(sums + (first + part + i * PARTS) * HEAD + dimension) : float4(0.0f);
  const float4 gate = *(const float4*)(q_gate + ulong(row) * p.stride + head * 2 * HEAD + HEAD + dimension);
  float2 weight[ATTENTION_PIECES / 32];  // every warp makes all factors
  float peak = -FLT_MAX, total = 0.0f;
#pragma unroll
  for (uint i = 0; i < ATTENTION_PIECES / 32; i++) {
    weight[i] = i * 32 + lane < count ? *(const float2*)(weights + (first + i * 32 + lane) * 2) : float2(-FLT_MAX, 0.0f);
    peak = max(peak, weight[i].x);
  }
  peak = simd_max(peak);
#pragma unroll
  for (uint i = 0; i < ATTENTION_PIECES / 32; i++) {
    const float factor = exp(weight[i].x - peak);
    total = fma(weight[i].y, factor, total);
    if (threadIdx.x < 32) factors[i * 32 + lane] = factor;
  }
  total = simd_sum(total);
  __syncthreads();
  float4 sum = float4(0.0f);
#pragma unroll
  for (uint i = 0; i < OWN; i++) sum = fma(own[i], float4(part + i * PARTS < count ? factors[part + i * PARTS] : 0.0f), sum);
  parts[part][threadIdx.x % 16] = sum;
  __syncthreads();
  if (part != 0) return;
#pragma unroll
  for (uint i = 1; i < PARTS; i++) sum += parts[i][threadIdx.x];
  *(float4*)(y + (row * QUERY_HEADS + head) * HEAD + dimension) = sum / total * sigmoid4(gate);
}
#endif
