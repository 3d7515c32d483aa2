// logits for a GPU that multiplies bytes, see bytes.h: its arguments, but a grid of one block a multiprocessor and 512 threads.
// A block passes through its tiles with six of them on their way (five beside eight rows); each takes the place of the one just used up.
#include "bytes.h"
#include "project_bytes.cu"

#if defined(__CUDA_ARCH_FEAT_SM90_ALL) && LILY_HIDDEN == 2048 && LILY_EXPERT_WIDTH == 512

template <uint ROWS>
LILY_INLINE void logits_bytes(Matrix matrix, const float* x, const float* gain, const uint* picked, float* y) {
  constexpr uint TILES = tiles_beside(ROWS);  // on their way
  using Tiles = ByteTiles<4, BYTES_WARPS, TILES, HIDDEN>;
  using Staged = ByteRows<ROWS, HIDDEN, BYTES_WARPS>;
  __shared__ ulong barriers[TILES];
  char* memory = given_memory();
  const Tiles tiles{shared_address(memory), shared_address(barriers)};
  Staged& staged = *(Staged*)(memory + Tiles::BYTES);
  auto sums = (float (*)[TILES][ROWS][TILE_OUTPUTS])(&staged + 1);
  constexpr uint COUNT = VOCABULARY / TILE_OUTPUTS;
  const MatrixRows source{matrix, HIDDEN};
  let_later_begin();
  start_counting(barriers, TILES);
  tiles.ask_all(source, COUNT);
  const uint column = min(threadIdx.x * 8, HIDDEN - 8);
  const float4 gain0 = *(const float4*)(gain + column), gain1 = *(const float4*)(gain + column + 4);
  wait_for_earlier();
  ByteScale scales[ROWS];
  stage_bytes<4, true>(staged, scales, gain0, gain1, [&](uint row, uint column, uint i) {
    return *(const float4*)(x + (picked[row] == NONE ? 0 : picked[row]) * HIDDEN + column + i * 4);
  });
  const uint row = threadIdx.x / TILE_OUTPUTS % ROWS, output = threadIdx.x % TILE_OUTPUTS;
  float norm = scales[0].norm;
#pragma unroll
  for (uint r = 1; r < ROWS; r++) norm = r == row ? scales[r].norm : norm;
  const bool writes = threadIdx.x < ROWS * TILE_OUTPUTS && picked[row] != NONE;
  const auto held = tiles.hold(staged);
  uint slot = 0, parity = 0;
  for (uint tile = blockIdx.x; tile < COUNT; tile += gridDim.x) {
    tiles.wait(slot, parity);
    tiles.multiply(staged, scales, held, slot, sums);
    leave_copies<TILES - 2>();  // the next tile's are there
    __syncthreads();
    const uint later = tile + TILES * gridDim.x, asking = BYTES_WARPS * 32 - 1 - threadIdx.x;
    if (asking < Tiles::EDGE_COPIES && later < COUNT) {
      if (asking < Tiles::COPIES) tiles.ask_words(source, slot, later, asking);
      tiles.ask_edges(source, slot, later, asking);
    }
    close_copies();
    if (writes) y[row * VOCABULARY + tile * TILE_OUTPUTS + output] = sum_of_warps<BYTES_WARPS>(sums, slot, row, output) * norm;
    slot = slot + 1 == TILES ? 0 : slot + 1;
    parity ^= slot == 0;
  }
}

extern "C" __global__ void __launch_bounds__(512, 1)
    lily_logits_bytes_1(const uint* w, const bfloat* scales, const bfloat* biases, const float* x, const float* gain,
                        const uint* picked, float* y) {
  logits_bytes<1>(Matrix{w, scales, biases}, x, gain, picked, y);
}

extern "C" __global__ void __launch_bounds__(512, 1)
    lily_logits_bytes_2(const uint* w, const bfloat* scales, const bfloat* biases, const float* x, const float* gain,
                        const uint* picked, float* y) {
  logits_bytes<2>(Matrix{w, scales, biases}, x, gain, picked, y);
}

extern "C" __global__ void __launch_bounds__(512, 1)
    lily_logits_bytes_4(const uint* w, const bfloat* scales, const bfloat* biases, const float* x, const float* gain,
                        const uint* picked, float* y) {
  logits_bytes<4>(Matrix{w, scales, biases}, x, gain, picked, y);
}

extern "C" __global__ void __launch_bounds__(512, 1)
    lily_logits_bytes_8(const uint* w, const bfloat* scales, const bfloat* biases, const float* x, const float* gain,
                        const uint* picked, float* y) {
  logits_bytes<8>(Matrix{w, scales, biases}, x, gain, picked, y);
}
#endif
