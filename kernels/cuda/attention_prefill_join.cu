// What the blocks of attention_prefill_warpgroup left of each piece of a row's context becomes
//   y = half(softmax(q K^T) V * sigmoid(gate)).
//
// Grid {rows, QUERY_HEADS, 1}, 64 threads, four dimensions each. p.blocks: pieces that there is room for; p.block: tokens of one.
#pragma once
#include "attention_joined.h"
#include "decode_params.h"
#ifdef __CUDA_ARCH_FEAT_SM90_ALL

extern "C" __global__ void __launch_bounds__(64)
    lily_attention_prefill_join(const float* sums, const float* weights, const float* projected, const Row* rows,
                                const Sequence* sequences, half* y, const CombineParams p) {
  const uint row = blockIdx.x, head = blockIdx.y, slot = rows[row].slot, dimension = threadIdx.x * 4;
  if (slot == NONE) return;
  const uint count = (sequences[slot].position + rows[row].offset) / p.block + 1;
  const ulong place = (ulong(row) * QUERY_HEADS + head) * p.blocks;
  const float2* of_pieces = (const float2*)weights + place;
  Joined joined{of_pieces[0].x, of_pieces[0].y};
  float4 output = *(const float4*)(sums + place * HEAD + dimension);
#pragma unroll 4
  for (uint piece = 1; piece < count; piece++) {
    const float2 factors = joined.add(Joined{of_pieces[piece].x, of_pieces[piece].y});
    const float4 other = *(const float4*)(sums + (place + piece) * HEAD + dimension);
#pragma unroll
    for (uint i = 0; i < 4; i++) output[i] = join(output[i], other[i], factors);
  }
  const float4 gate = *(const float4*)(projected + ulong(row) * p.stride + (head * 2 + 1) * HEAD + dimension);
  const float factor = 1.0f / joined.sum;
  half* out = y + (ulong(row) * QUERY_HEADS + head) * HEAD + dimension;
  *(half2*)out = half2(gated_half(output.x, factor, gate.x), gated_half(output.y, factor, gate.y));
  *(half2*)(out + 2) = half2(gated_half(output.z, factor, gate.z), gated_half(output.w, factor, gate.w));
}
#endif
