// product.h for Hopper: 128 outputs for up to 128 tokens of a block of two warpgroups, the weights as the left factor, so that
// they pass from their packed form into registers and never through shared memory as halves:
//   sums[output][token] = sum over k of (q scale + bias)[output][k] x[token][k].
//
// Memory: of 64 inner columns at a time the tokens' halves, 128 bytes each, and the packed weights, 32 bytes an output, come
// asynchronously into one of STAGES places, three steps ahead. A lane's part of a row of weights is a byte of each of its
// eight words, so the four lanes of a row read the same words at once.
#pragma once
#include "copies.h"
#include "wgmma.h"
#ifdef __CUDA_ARCH_FEAT_SM90_ALL

constant constexpr uint WARPGROUP_OUTPUTS = 128;  // of a block
constant constexpr uint WARPGROUP_TOKENS = 128;   // of a block, at most
constant constexpr uint STAGES = 4;
constant constexpr uint TOKEN_BYTES = 2 * GROUP;    // of a stage, for a token
constant constexpr uint OUTPUT_BYTES = GROUP / 2;   // and for an output
constant constexpr uint STAGE_BYTES = WARPGROUP_TOKENS * TOKEN_BYTES + WARPGROUP_OUTPUTS * OUTPUT_BYTES;
static_assert(STAGES * STAGE_BYTES + 1024 == 82944, "as the products are launched with");

// What a kernel is given at launch, from where descriptors can begin. (Counted from `given`, so that the compiler knows whose memory
// it is: it has instructions of its own.)
LILY_INLINE char* launch_memory() {
  extern __shared__ uint4 given[];
  return (char*)given + (1024 - shared_address(given) % 1024) % 1024;
}

// Constants of two_weights() in registers: known to the compiler, they would cost it an instruction more each time. An address's
// highest bit is 0, which it does not know.
struct RebuildConstants {
  uint exponent, steps;

  LILY_INLINE RebuildConstants(const void* address)
      : exponent(0x64006400u + uint((ulong)address >> 63)), steps(0x2c003c00u + uint((ulong)address >> 63)) {}
};

// Weights 2 t and 2 t + 1 of a word, t in `selector`, as halves q · scale + bias, as rebuild.h makes them.
LILY_INLINE uint two_weights(uint word, uint selector, uint scales, uint biases, const RebuildConstants& constants) {
  // The byte twice, 16 bits apart: its low nibble under the exponent of 1024 is 1024 + q, the high one 1024 + 16 q.
  const uint both = (__byte_perm(word, 0, selector) & 0x00f0000fu) | constants.exponent;
  return multiply_add_halves(multiply_add_halves(both, constants.steps, 0xd400e400u), scales, biases);
}

// Where a thread's copies come from.
template <uint TOKENS>
struct WarpgroupSource {
  const half* x[TOKENS / 32];  // tokens thread / 8 + 32 i, from column thread % 8 * 8 on
  const uint4* w;              // output thread / 2, half thread % 2 of its 32 bytes
  const bfloat* factor;        // by lane % 4: scale and bias of the output of sums[0], then of sums[2]

  // Sets the sources of tokens, a row each.
  template <class TokenOf>
  LILY_INLINE void tokens(TokenOf token_of, uint thread_index) {
#pragma unroll
    for (uint i = 0; i < TOKENS / 32; i++) x[i] = token_of(thread_index / 8 + i * 32) + thread_index % 8 * 8;
  }

  // Sets the sources of weights; the matrix begins with a row each for the block's outputs as row_of(output) has them.
  template <class RowOf>
  LILY_INLINE void weights(RowOf row_of, uint thread_index) {
    w = (const uint4*)row_of(thread_index / 2).w + thread_index % 2;
    const uint lane = thread_index % 32;
    const Matrix own = row_of(thread_index / 32 * 16 + lane / 4 + lane % 4 / 2 * 8);
    factor = lane % 2 == 0 ? own.scales : own.biases;
  }
};

template <uint TOKENS>
struct WarpgroupProduct {
  using Source = WarpgroupSource<TOKENS>;
  static constexpr uint WIDE = TOKENS / 64, NARROW = TOKENS / 32 % 2;
  WarpgroupSums<64> wide[WIDE == 0 ? 1 : WIDE];
  WarpgroupSums<32> narrow;

  // The sums of tokens 32 i and following: [4 j + e] as WarpgroupSums has it, j from 0 to 3.
  LILY_INLINE const float* sums(uint i) const { return i / 2 < WIDE ? wide[i / 2].sums + i % 2 * 16 : narrow.sums; }

  LILY_INLINE void stage(const WarpgroupSource<TOKENS>& source, uint step, char* place, uint thread_index) {
    const uint token = thread_index / 8, output = thread_index / 2;
    char* to = place + token * TOKEN_BYTES + ((thread_index % 8) ^ (token % 8)) * 16;
#pragma unroll
    for (uint i = 0; i < TOKENS / 32; i++) copy_16(shared_address(to + i * 32 * TOKEN_BYTES), source.x[i] + step * GROUP);
    to = place + WARPGROUP_TOKENS * TOKEN_BYTES + output * OUTPUT_BYTES;
    copy_16(shared_address(to + ((thread_index ^ output / 4) % 2) * 16), source.w + step * 2);
  }

  // The whole inner dimension. `memory`, of STAGES stages, is free again for all when it returns.
  LILY_INLINE void run(const WarpgroupSource<TOKENS>& source, uint inner, char* memory, uint thread_index) {
    const uint lane = thread_index % 32, steps = inner / GROUP;
    const uint selector = lane % 4 * 0x0101u;
    const RebuildConstants constants(source.w);
    // The lane's first row of weights among the block's; the second is 8 further. Its halves are exchanged in rows 4 to 7.
    const uint row = thread_index / 32 * 16 + lane / 4, exchange = lane / 16;
    const uint row_place = WARPGROUP_TOKENS * TOKEN_BYTES + row * OUTPUT_BYTES;
#pragma unroll
    for (uint i = 0; i < WIDE; i++)
#pragma unroll
      for (uint e = 0; e < 32; e++) wide[i].sums[e] = 0.0f;
#pragma unroll
    for (uint e = 0; e < 16; e++) narrow.sums[e] = 0.0f;
#pragma unroll
    for (uint s = 0; s + 1 < STAGES; s++) {
      if (s < steps) stage(source, s, memory + s * STAGE_BYTES, thread_index);
      close_copies();
    }
    float factor = float(source.factor[0]), next_factor = float(source.factor[metal::min(1u, steps - 1)]);
    for (uint step = 0; step < steps; step++) {
      leave_copies<STAGES - 2>();
      copies_are_for_products();
      __syncthreads();  // all copies of this step are there, and all are done with the step before
      if (step + STAGES - 1 < steps)
        stage(source, step + STAGES - 1, memory + (step + STAGES - 1) % STAGES * STAGE_BYTES, thread_index);
      close_copies();
      const char* place = memory + step % STAGES * STAGE_BYTES;
      // Those of rows `row` and `row` + 8.
      const uint factors = two_halves(factor, factor);
      factor = next_factor;
      next_factor = float(source.factor[metal::min(step + 2, steps - 1)]);
      uint scales[2], biases[2];
#pragma unroll
      for (uint r = 0; r < 2; r++) {
        scales[r] = __shfl_sync(lily_cuda::ALL_LANES, factors, lane / 4 * 4 + r * 2);
        biases[r] = __shfl_sync(lily_cuda::ALL_LANES, factors, lane / 4 * 4 + r * 2 + 1);
      }
      const ulong tokens = descriptor_of(place);
      begin_products();
#pragma unroll
      for (uint part = 0; part < 2; part++) {
        const uint4* words = (const uint4*)(place + row_place) + (part ^ exchange);
        const uint4 first = words[0], second = words[8 * OUTPUT_BYTES / 16];
#pragma unroll
        for (uint k = 0; k < 2; k++) {
          // Of words 2 k and 2 k + 1 of the half.
          const uint4 a = uint4(two_weights(k == 0 ? first.x : first.z, selector, scales[0], biases[0], constants),
                                two_weights(k == 0 ? second.x : second.z, selector, scales[1], biases[1], constants),
                                two_weights(k == 0 ? first.y : first.w, selector, scales[0], biases[0], constants),
                                two_weights(k == 0 ? second.y : second.w, selector, scales[1], biases[1], constants));
          begin_products();
          const ulong columns = tokens + (part * 2 + k) * 2;
#pragma unroll
          for (uint i = 0; i < WIDE; i++) wide[i].add_product(a, columns + i * (64 * TOKEN_BYTES / 16));
          if (NARROW != 0) narrow.add_product(a, columns + WIDE * (64 * TOKEN_BYTES / 16));
        }
      }
      commit_products();
      wait_for_products();
    }
#pragma unroll
    for (uint i = 0; i < WIDE; i++) sums_are_written(wide[i].sums);
    sums_are_written(narrow.sums);
    __syncthreads();
  }
};

template <uint TOKENS>
struct Tokens {
  static constexpr uint COUNT = TOKENS;
};

// Blocks of many tokens, and how they are multiplied.
struct ManyTokens {
  template <uint TOKENS>
  using Product = WarpgroupProduct<TOKENS>;

  // Calls `make` with the least tokens of a block, by type, that hold so many.
  template <class Make>
  LILY_INLINE static void with(uint tokens, Make make) {
    switch ((tokens + 31) / 32) {
      case 1: make(Tokens<32>{}); break;
      case 2: make(Tokens<64>{}); break;
      case 3: make(Tokens<96>{}); break;
      default: make(Tokens<128>{});
    }
  }
};
#endif
