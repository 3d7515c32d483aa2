// logits for a GPU that multiplies bytes, see bytes.h: its arguments, but a grid of one block a multiprocessor and 512 threads.
// A block passes through its tiles with six of them on their way (five beside eight rows); each takes the place of the one just used up.
#include "bytes.h"
#include "project_bytes.cu"

#ifdef LILY_BYTES

template <uint ROWS>
LILY_INLINE void logits_bytes(Matrix matrix, const float* x, const float* gain, const uint* picked, float* y) {
  constexpr uint TILES = tiles_beside(ROWS);  // on their way
  using Tiles = ByteTiles<4, BYTES_WARPS, TILES, HIDDEN>;
  using Staged = ByteRows<ROWS, HIDDEN, BYTES_WARPS>;
  static_assert(GIVEN_BYTES<Tiles, Staged, BYTES_WARPS * TILES * ROWS * TILE_OUTPUTS> ==
                (ROWS == 1 ? 132864 : ROWS == 2 ? 147456 : ROWS == 4 ? 176640 : 207104));
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
  constexpr uint AT_ONCE = ROWS == 1 ? 2 : 1;  // tiles, as registers allow
  static_assert(TILES % AT_ONCE == 0, "they lie side by side");
  const uint row = threadIdx.x / TILE_OUTPUTS % ROWS, output = threadIdx.x % TILE_OUTPUTS, which = threadIdx.x / TILE_OUTPUTS / ROWS;
  const float norm = norm_of(scales, row);
  const bool writes = which < AT_ONCE && picked[row] != NONE;
  const uint asking = BYTES_WARPS * 32 - 1 - threadIdx.x, asked = asking / Tiles::EDGE_COPIES, copy = asking % Tiles::EDGE_COPIES;
  constexpr uint SPREAD = Tiles::EDGE_COPIES / Tiles::COPIES;
  const auto held = tiles.hold(staged);
  uint slot = 0, parity = 0;
  for (uint tile = blockIdx.x; tile < COUNT; tile += AT_ONCE * gridDim.x) {
    const uint there = slot + min(AT_ONCE, (COUNT - tile + gridDim.x - 1) / gridDim.x);
    tiles.template multiply_slots<AT_ONCE>(staged, scales, held, slot, there, sums, parity);
    leave_copies<TILES / AT_ONCE - 2>();  // the next tiles' are there
    __syncthreads();
    const uint later = tile + (TILES + asked) * gridDim.x, place = tile + which * gridDim.x;
    if (asked < AT_ONCE && later < COUNT) {
      if (copy % SPREAD == 0) tiles.ask_words(source, slot + asked, later, copy / SPREAD);
      tiles.ask_edges(source, slot + asked, later, copy);
    }
    close_copies();
    if (writes && place < COUNT)
      y[row * VOCABULARY + place * TILE_OUTPUTS + output] = sum_of_warps<BYTES_WARPS>(sums, slot + which, row, output) * norm;
    slot = slot + AT_ONCE == TILES ? 0 : slot + AT_ONCE;
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
