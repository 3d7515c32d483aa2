// warpgroup.h for at most 32 tokens of a block: the same sums, to the bit, where all that counts is how fast weights come and are
// rebuilt. A step has 128 inner columns, so that there are half as many barriers, and no more tokens are copied than there are, in
// eights; scales and biases come eight at a time; three blocks share a multiprocessor.
#pragma once
#include "warpgroup.h"
#if defined(__CUDA_ARCH_FEAT_SM90_ALL) && LILY_HIDDEN % 512 == 0 && LILY_EXPERT_WIDTH % 512 == 0
#define LILY_FEW_TOKENS

constant constexpr uint FEW_TOKENS = 32;  // of a block, at most
constant constexpr uint FEW_STAGES = 4;   // whose factors come together, too
constant constexpr uint FEW_COLUMNS = 2 * GROUP;
constant constexpr uint FEW_WEIGHTS = FEW_TOKENS * 2 * TOKEN_BYTES;  // where they begin in a stage
constant constexpr uint FEW_STAGE = FEW_WEIGHTS + WARPGROUP_OUTPUTS * 2 * OUTPUT_BYTES;
static_assert(FEW_STAGES * FEW_STAGE + 1024 == 66560, "as the products are launched with");

template <uint TOKENS>
struct FewSource {
  static constexpr uint ROUNDS = (TOKENS + 15) / 16;
  const half* x[ROUNDS];  // tokens thread / 16 + 16 i, from column thread % 16 * 8 on
  const uint4* w[2];      // outputs thread / 4 + 64 i, quarter thread % 4 of the 64 bytes of a step
  const uint4* factors;   // as WarpgroupSource's

  template <class TokenOf>
  LILY_INLINE void tokens(TokenOf token_of, uint thread_index) {
#pragma unroll
    for (uint i = 0; i < ROUNDS; i++) x[i] = token_of(thread_index / 16 + i * 16) + thread_index % 16 * 8;
  }

  template <class RowOf>
  LILY_INLINE void weights(RowOf row_of, uint thread_index) {
#pragma unroll
    for (uint i = 0; i < 2; i++) w[i] = (const uint4*)row_of(thread_index / 4 + i * 64).w + thread_index % 4;
    const uint lane = thread_index % 32;
    const Matrix own = row_of(thread_index / 32 * 16 + lane / 4 + lane % 4 / 2 * 8);
    factors = (const uint4*)(lane % 2 == 0 ? own.scales : own.biases);
  }
};

template <uint TOKENS>
struct FewProduct {
  using Source = FewSource<TOKENS>;
  WarpgroupSums<TOKENS> all;

  LILY_INLINE const float* sums(uint) const { return all.sums; }

  LILY_INLINE void stage(const Source& source, uint step, char* place, uint thread_index) {
    const uint group = thread_index % 16 / 8, token = thread_index / 16;
#pragma unroll
    for (uint i = 0; i < Source::ROUNDS; i++)
      if (TOKENS >= 16 || token < TOKENS)
        copy_16(shared_address(place + (group * TOKENS + token + i * 16) * TOKEN_BYTES + ((thread_index ^ token) % 8) * 16),
                source.x[i] + step * FEW_COLUMNS);
    const uint output = thread_index / 4;
    char* to = place + FEW_WEIGHTS + (thread_index % 4 / 2 * WARPGROUP_OUTPUTS + output) * OUTPUT_BYTES +
               ((thread_index ^ output / 4) % 2) * 16;
#pragma unroll
    for (uint i = 0; i < 2; i++) copy_16(shared_address(to + i * 64 * OUTPUT_BYTES), source.w[i] + step * (FEW_COLUMNS / 32));
  }

  // The whole inner dimension, a multiple of 512. `memory`, of all stages, is free again for all when it returns.
  LILY_INLINE void run(const Source& source, uint inner, char* memory, uint thread_index) {
    const uint lane = thread_index % 32, steps = inner / FEW_COLUMNS;
    const uint selector = lane % 4 * 0x0101u, exchange = lane / 16;
    const RebuildConstants constants(source.factors);
    const uint row_place = FEW_WEIGHTS + (thread_index / 32 * 16 + lane / 4) * OUTPUT_BYTES;
#pragma unroll
    for (uint e = 0; e < TOKENS / 2; e++) all.sums[e] = 0.0f;
#pragma unroll
    for (uint s = 0; s + 1 < FEW_STAGES; s++) {
      stage(source, s, memory + s * FEW_STAGE, thread_index);
      close_copies();
    }
    uint4 next = source.factors[0];
    for (uint first = 0; first < steps; first += FEW_STAGES) {
      const uint factors[4] = {next.x, next.y, next.z, next.w};
      if (first + FEW_STAGES < steps) next = source.factors[first / FEW_STAGES + 1];
#pragma unroll
      for (uint s = 0; s < FEW_STAGES; s++) {
        leave_copies<FEW_STAGES - 2>();
        copies_are_for_products();
        __syncthreads();  // all copies of this step are there, and all are done with the step before
        if (first + s + FEW_STAGES - 1 < steps)
          stage(source, first + s + FEW_STAGES - 1, memory + (s + FEW_STAGES - 1) % FEW_STAGES * FEW_STAGE, thread_index);
        close_copies();
        const char* place = memory + s * FEW_STAGE;
#pragma unroll
        for (uint group = 0; group < 2; group++) {
          const float factor = as_type<float>(group == 0 ? factors[s] << 16 : factors[s] & 0xffff0000u);
          multiply(place + group * TOKENS * TOKEN_BYTES, place + row_place + group * WARPGROUP_OUTPUTS * OUTPUT_BYTES, factor,
                   lane, selector, exchange, constants);
        }
      }
    }
    sums_are_written(all.sums);
    __syncthreads();
  }

  // Adds the products of 64 columns.
  LILY_INLINE void multiply(const char* tokens, const char* weights, float factor, uint lane, uint selector, uint exchange,
                            const RebuildConstants& constants) {
    const uint factors = two_halves(factor, factor);
    uint scales[2], biases[2];
#pragma unroll
    for (uint r = 0; r < 2; r++) {
      scales[r] = __shfl_sync(lily_cuda::ALL_LANES, factors, lane / 4 * 4 + r * 2);
      biases[r] = __shfl_sync(lily_cuda::ALL_LANES, factors, lane / 4 * 4 + r * 2 + 1);
    }
    uint4 a[4];
#pragma unroll
    for (uint part = 0; part < 2; part++) {
      const uint4* words = (const uint4*)weights + (part ^ exchange);
      const uint4 first = words[0], second = words[8 * OUTPUT_BYTES / 16];
#pragma unroll
      for (uint k = 0; k < 2; k++)
        a[part * 2 + k] = uint4(two_weights(k == 0 ? first.x : first.z, selector, scales[0], biases[0], constants),
                                two_weights(k == 0 ? second.x : second.z, selector, scales[1], biases[1], constants),
                                two_weights(k == 0 ? first.y : first.w, selector, scales[0], biases[0], constants),
                                two_weights(k == 0 ? second.y : second.w, selector, scales[1], biases[1], constants));
    }
    begin_products();
    const ulong columns = descriptor_of(tokens);
#pragma unroll
    for (uint k = 0; k < 4; k++) all.add_product(a[k], columns + k * 2);
    commit_products();
    wait_for_products();
  }
};

// As ManyTokens.
struct FewTokens {
  template <uint TOKENS>
  using Product = FewProduct<TOKENS>;

  template <class Make>
  LILY_INLINE static void with(uint tokens, Make make) {
    if (tokens <= 8) make(Tokens<8>{});
    else if (tokens <= 16) make(Tokens<16>{});
    else make(Tokens<32>{});
  }
};
#endif
