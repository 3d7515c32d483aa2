// gemm_q4 and gemm_q4_add for Hopper: a block makes 128 outputs of 128 rows, as warpgroup.h has it, or of the one named 32, which is
// for so few rows that else there would be few blocks, of 32 or 16, as warpgroup_few.h has it.
//
// Grid {ceil(rows / rows of a block), sum over the matrices of ceil(outputs / 128), 1}, 256 threads.
#pragma once
#include "warpgroup_few.h"
#ifdef __CUDA_ARCH_FEAT_SM90_ALL

constant constexpr uint STAGED_OUTPUTS = WARPGROUP_OUTPUTS + 4;  // of a token, in floats: spreads them over the banks

template <uint TOKENS, bool ADD, class Product>
static __device__ __forceinline__ void gemm_warpgroup_tile(const Matrix& matrix, const half* x, float* y, uint rows,
                                                           uint inner, uint outputs, uint pitch, uint row0,
                                                           uint column0, char* memory, uint thread_index) {
  typename Product::Source source;
  source.tokens([&](uint token) { return x + metal::min(row0 + token, rows - 1) * inner; }, thread_index);
  source.weights([&](uint output) { return rows_from<4>(matrix, metal::min(column0 + output, outputs - 1), inner); },
                 thread_index);
  Product product;
  product.run(source, inner, memory, thread_index);

  float* staged = (float*)memory;
  const uint lane = thread_index % 32, warp = thread_index / 32;
  float* place = staged + lane % 4 * 2 * STAGED_OUTPUTS + warp * 16 + lane / 4;
#pragma unroll
  for (uint i = 0; i < (TOKENS + 31) / 32; i++) {
    const float* sums = product.sums(i);
#pragma unroll
    for (uint e = 0; e < metal::min(TOKENS / 2, 16u); e++)
      place[(i * 32 + e / 4 * 8 + e % 2) * STAGED_OUTPUTS + e % 4 / 2 * 8] = sums[e];
  }
  __syncthreads();
  const uint column = column0 + lane * 4;
#pragma unroll 4
  for (uint token = warp; token < TOKENS; token += 8) {
    if (row0 + token >= rows || column >= outputs) continue;
    const float4 sum = *(const float4*)(staged + token * STAGED_OUTPUTS + lane * 4);
    float4* out = (float4*)(y + ulong(row0 + token) * pitch + column);
    *out = ADD ? *out + sum : sum;
  }
}

// Blocks of `tile` rows.
template <bool ADD, class Kind>
static __device__ __forceinline__ void gemm_warpgroup(const Matrix& matrix, const half* x, float* y, uint rows, uint inner,
                                                      uint outputs, uint pitch, uint column0, uint tile) {
  char* memory = launch_memory();
  const uint row0 = blockIdx.x * tile, thread_index = threadIdx.x;
  Kind::with(metal::min(rows - row0, tile), [&](auto tokens) {
    using Product = typename Kind::template Product<tokens.COUNT>;
    gemm_warpgroup_tile<tokens.COUNT, ADD, Product>(matrix, x, y, rows, inner, outputs, pitch, row0, column0, memory,
                                                    thread_index);
  });
}

LILY_INLINE uint warpgroup_tiles_of(uint outputs) { return (outputs + WARPGROUP_OUTPUTS - 1) / WARPGROUP_OUTPUTS; }

extern "C" __global__ void __launch_bounds__(256, 2)
    lily_gemm_q4_warpgroup(const uint* w0, const bfloat* scales0, const bfloat* biases0, const uint* w1,
                           const bfloat* scales1, const bfloat* biases1, const uint* w2, const bfloat* scales2,
                           const bfloat* biases2, const uint* w3, const bfloat* scales3, const bfloat* biases3,
                           const half* x, float* y, const GemmParams p) {
  Matrix matrix = Matrix{w0, scales0, biases0};
  uint outputs = p.outputs0, before = 0, tile = blockIdx.y;
  if (tile >= warpgroup_tiles_of(outputs)) {
    tile -= warpgroup_tiles_of(outputs);
    before += outputs;
    outputs = p.outputs1;
    matrix = Matrix{w1, scales1, biases1};
    if (tile >= warpgroup_tiles_of(outputs)) {
      tile -= warpgroup_tiles_of(outputs);
      before += outputs;
      outputs = p.outputs2;
      matrix = Matrix{w2, scales2, biases2};
      if (tile >= warpgroup_tiles_of(outputs)) {
        tile -= warpgroup_tiles_of(outputs);
        before += outputs;
        outputs = p.outputs3;
        matrix = Matrix{w3, scales3, biases3};
      }
    }
  }
  const uint pitch = p.outputs0 + p.outputs1 + p.outputs2 + p.outputs3;
  gemm_warpgroup<false, ManyTokens>(matrix, x, y + before, p.rows, p.inner, outputs, pitch, tile * WARPGROUP_OUTPUTS,
                                    WARPGROUP_TOKENS);
}

extern "C" __global__ void __launch_bounds__(256, 2)
    lily_gemm_q4_add_warpgroup(const uint* w, const bfloat* scales, const bfloat* biases, const half* x, float* y,
                               const GemmAddParams p) {
  gemm_warpgroup<true, ManyTokens>(Matrix{w, scales, biases}, x, y, p.rows, p.inner, p.outputs, p.outputs,
                                   blockIdx.y * WARPGROUP_OUTPUTS, WARPGROUP_TOKENS);
}

#ifdef LILY_FEW_TOKENS
extern "C" __global__ void __launch_bounds__(256, 3)
    lily_gemm_q4_add_32_warpgroup(const uint* w, const bfloat* scales, const bfloat* biases, const half* x, float* y,
                                  const GemmAddParams p) {
  gemm_warpgroup<true, FewTokens>(Matrix{w, scales, biases}, x, y, p.rows, p.inner, p.outputs, p.outputs,
                                  blockIdx.y * WARPGROUP_OUTPUTS, p.rows <= 128 ? 16 : 32);
}
#endif
#endif
