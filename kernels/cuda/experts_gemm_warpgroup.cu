// experts_gemm_up and experts_gemm_down for Hopper, as warpgroup.h has it; the map must be cut for 128 pairs, for those named 32,
// which are for few pairs an expert, as warpgroup_few.h has it, for as many.
//
// experts_gemm_up_warpgroup: grid {ceil(EXPERT_WIDTH / 64), blocks of the map, 1}, 256 threads. Of a warp's 16 rows of
// weights eight are of gate and eight the same of up, so that a thread has both of an output.
// experts_gemm_down_warpgroup: grid {ceil(HIDDEN / 128), blocks of the map, 1}, 256 threads.
#pragma once
#include "warpgroup_few.h"
#ifdef __CUDA_ARCH_FEAT_SM90_ALL

// Writes what `memory` holds as [tokens][WIDTH + 8] halves to rows of `y`, `pitch` apart, as far as there are columns.
template <uint WIDTH>
LILY_INLINE void store_staged(const char* memory, half* y, uint tokens, uint pitch, uint columns, uint thread_index) {
  constexpr uint PIECES = WIDTH / 8;
  const uint piece = thread_index % PIECES;
  if (piece * 8 >= columns) return;
#pragma unroll 2
  for (uint token = thread_index / PIECES; token < tokens; token += 256 / PIECES)
    *(uint4*)(y + ulong(token) * pitch + piece * 8) = ((const uint4*)memory)[token * (PIECES + 1) + piece];
}

template <uint TOKENS, class Product>
static __device__ __forceinline__ void experts_up_tile(const Matrix& gate, const Matrix& up, const half* x,
                                                       const uint* order, const Block& block, half* hidden, char* memory,
                                                       uint thread_index) {
  constexpr uint COLUMNS = WARPGROUP_OUTPUTS / 2, STRIDE = COLUMNS + 8;
  const uint column0 = blockIdx.x * COLUMNS;
  typename Product::Source source;
  source.tokens(
      [&](uint pair) { return x + order[block.first + metal::min(pair, block.pairs - 1)] / RANKS * HIDDEN; }, thread_index);
  source.weights(
      [&](uint output) {
        const uint row = metal::min(column0 + output / 16 * 8 + output % 8, EXPERT_WIDTH - 1);
        return rows_from<4>(output % 16 < 8 ? gate : up, row, HIDDEN);
      },
      thread_index);
  Product product;
  product.run(source, HIDDEN, memory, thread_index);

  const uint lane = thread_index % 32, warp = thread_index / 32;
  half* place = (half*)memory + lane % 4 * 2 * STRIDE + warp * 8 + lane / 4;
#pragma unroll
  for (uint i = 0; i < (TOKENS + 31) / 32; i++) {
    const float* sums = product.sums(i);
#pragma unroll
    for (uint e = 0; e < metal::min(TOKENS / 2, 16u); e++) {
      if (e % 4 >= 2) continue;
      const float gated = sums[e];
      place[(i * 32 + e / 4 * 8 + e % 2) * STRIDE] = saturated_half(gated * sigmoid(gated) * sums[e + 2]);
    }
  }
  __syncthreads();
  store_staged<COLUMNS>(memory, hidden + ulong(block.first) * EXPERT_WIDTH + column0, block.pairs, EXPERT_WIDTH,
                        EXPERT_WIDTH - column0, thread_index);
}

template <uint TOKENS, class Product>
static __device__ __forceinline__ void experts_down_tile(const Matrix& matrix, const half* hidden, const Block& block,
                                                         half* y, char* memory, uint thread_index) {
  constexpr uint STRIDE = WARPGROUP_OUTPUTS + 8;
  const uint column0 = blockIdx.x * WARPGROUP_OUTPUTS;
  typename Product::Source source;
  source.tokens([&](uint pair) { return hidden + (block.first + metal::min(pair, block.pairs - 1)) * EXPERT_WIDTH; },
                thread_index);
  source.weights([&](uint output) { return rows_from<4>(matrix, metal::min(column0 + output, HIDDEN - 1), EXPERT_WIDTH); },
                 thread_index);
  Product product;
  product.run(source, EXPERT_WIDTH, memory, thread_index);

  const uint lane = thread_index % 32, warp = thread_index / 32;
  half* place = (half*)memory + lane % 4 * 2 * STRIDE + warp * 16 + lane / 4;
#pragma unroll
  for (uint i = 0; i < (TOKENS + 31) / 32; i++) {
    const float* sums = product.sums(i);
#pragma unroll
    for (uint e = 0; e < metal::min(TOKENS / 2, 16u); e++)
      place[(i * 32 + e / 4 * 8 + e % 2) * STRIDE + e % 4 / 2 * 8] = saturated_half(sums[e]);
  }
  __syncthreads();
  store_staged<WARPGROUP_OUTPUTS>(memory, y + ulong(block.first) * HIDDEN + column0, block.pairs, HIDDEN,
                                  HIDDEN - column0, thread_index);
}

// Of the block's expert, or of the shared one.
LILY_INLINE Matrix of_expert(const Matrix& matrix, const Matrix& shared, uint expert, uint rows, uint columns) {
  return expert == EXPERTS ? shared : rows_from<4>(matrix, expert * rows, columns);
}

template <class Kind>
static __device__ __forceinline__ void experts_up(const Matrix& gates, const Matrix& ups, const Matrix& shared_gate,
                                                  const Matrix& shared_up, const half* x, const uint* order,
                                                  const Block* map, half* hidden) {
  char* memory = launch_memory();
  const Block block = map[blockIdx.y];
  if (block.expert == NONE) return;
  const Matrix gate = of_expert(gates, shared_gate, block.expert, EXPERT_WIDTH, HIDDEN);
  const Matrix up = of_expert(ups, shared_up, block.expert, EXPERT_WIDTH, HIDDEN);
  Kind::with(block.pairs, [&](auto tokens) {
    using Product = typename Kind::template Product<tokens.COUNT>;
    experts_up_tile<tokens.COUNT, Product>(gate, up, x, order, block, hidden, memory, threadIdx.x);
  });
}

template <class Kind>
static __device__ __forceinline__ void experts_down(const Matrix& matrices, const Matrix& shared, const half* hidden,
                                                    const Block* map, half* y) {
  char* memory = launch_memory();
  const Block block = map[blockIdx.y];
  if (block.expert == NONE) return;
  const Matrix matrix = of_expert(matrices, shared, block.expert, HIDDEN, EXPERT_WIDTH);
  Kind::with(block.pairs, [&](auto tokens) {
    using Product = typename Kind::template Product<tokens.COUNT>;
    experts_down_tile<tokens.COUNT, Product>(matrix, hidden, block, y, memory, threadIdx.x);
  });
}

extern "C" __global__ void __launch_bounds__(256, 2) lily_experts_gemm_up_warpgroup(
    const uint* gate_w, const bfloat* gate_scales, const bfloat* gate_biases, const uint* up_w, const bfloat* up_scales,
    const bfloat* up_biases, const uint* shared_gate_w, const bfloat* shared_gate_scales,
    const bfloat* shared_gate_biases, const uint* shared_up_w, const bfloat* shared_up_scales,
    const bfloat* shared_up_biases, const half* x, const uint* order, const Block* map, half* hidden) {
  experts_up<ManyTokens>(Matrix{gate_w, gate_scales, gate_biases}, Matrix{up_w, up_scales, up_biases},
                         Matrix{shared_gate_w, shared_gate_scales, shared_gate_biases},
                         Matrix{shared_up_w, shared_up_scales, shared_up_biases}, x, order, map, hidden);
}

extern "C" __global__ void __launch_bounds__(256, 2) lily_experts_gemm_down_warpgroup(
    const uint* w, const bfloat* scales, const bfloat* biases, const uint* shared_w, const bfloat* shared_scales,
    const bfloat* shared_biases, const half* hidden, const Block* map, half* y) {
  experts_down<ManyTokens>(Matrix{w, scales, biases}, Matrix{shared_w, shared_scales, shared_biases}, hidden, map, y);
}

#ifdef LILY_FEW_TOKENS
extern "C" __global__ void __launch_bounds__(256, 3) lily_experts_gemm_up_32_warpgroup(
    const uint* gate_w, const bfloat* gate_scales, const bfloat* gate_biases, const uint* up_w, const bfloat* up_scales,
    const bfloat* up_biases, const uint* shared_gate_w, const bfloat* shared_gate_scales,
    const bfloat* shared_gate_biases, const uint* shared_up_w, const bfloat* shared_up_scales,
    const bfloat* shared_up_biases, const half* x, const uint* order, const Block* map, half* hidden) {
  experts_up<FewTokens>(Matrix{gate_w, gate_scales, gate_biases}, Matrix{up_w, up_scales, up_biases},
                        Matrix{shared_gate_w, shared_gate_scales, shared_gate_biases},
                        Matrix{shared_up_w, shared_up_scales, shared_up_biases}, x, order, map, hidden);
}

extern "C" __global__ void __launch_bounds__(256, 3) lily_experts_gemm_down_32_warpgroup(
    const uint* w, const bfloat* scales, const bfloat* biases, const uint* shared_w, const bfloat* shared_scales,
    const bfloat* shared_biases, const half* hidden, const Block* map, half* y) {
  experts_down<FewTokens>(Matrix{w, scales, biases}, Matrix{shared_w, shared_scales, shared_biases}, hidden, map, y);
}
#endif
#endif
