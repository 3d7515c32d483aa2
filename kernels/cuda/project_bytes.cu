// project_norm for a GPU that multiplies bytes, see bytes.h: its arguments, but a grid of one block a
// multiprocessor, whose tiles are those with number blockIdx.x, blockIdx.x + gridDim.x and so on, and 512 threads.
#include "bytes.h"

#ifdef LILY_BYTES

constant constexpr uint BYTES_WARPS = 16;
// Tiles of a block at most, as shared memory allows.
constexpr uint tiles_beside(uint rows) { return rows == 8 ? 5 : 6; }

// Rows of up to four matrices one above the other, each of a multiple of 16.
struct StackedRows {
  Matrix matrices[4];
  ProjectParams p;

  LILY_INLINE uint total() const { return p.outputs0 + p.outputs1 + p.outputs2 + p.outputs3; }
  LILY_INLINE uint rows(uint) const { return TILE_OUTPUTS; }
  LILY_INLINE Matrix at(uint tile, uint row, uint) const {
    uint place = tile * TILE_OUTPUTS + row;
    Matrix matrix = matrices[0];
    if (place >= p.outputs0) {
      matrix = matrices[1];
      place -= p.outputs0;
      if (place >= p.outputs1) {
        matrix = matrices[2];
        place -= p.outputs1;
        if (place >= p.outputs2) {
          matrix = matrices[3];
          place -= p.outputs2;
        }
      }
    }
    return rows_from<4>(matrix, place, HIDDEN);
  }
};

template <uint ROWS>
LILY_INLINE void project_norm_bytes(const StackedRows& source, const float* x, const float* gain, float* y) {
  constexpr uint TILES = tiles_beside(ROWS);
  using Tiles = ByteTiles<4, BYTES_WARPS, TILES, HIDDEN>;
  using Staged = ByteRows<ROWS, HIDDEN, BYTES_WARPS>;
  static_assert(GIVEN_BYTES<Tiles, Staged, BYTES_WARPS * TILES * ROWS * TILE_OUTPUTS> ==
                (ROWS == 1 ? 132864 : ROWS == 2 ? 147456 : ROWS == 4 ? 176640 : 207104));
  __shared__ ulong barriers[TILES];
  char* memory = given_memory();
  const Tiles tiles{shared_address(memory), shared_address(barriers)};
  Staged& staged = *(Staged*)(memory + Tiles::BYTES);
  auto sums = (float (*)[TILES][ROWS][TILE_OUTPUTS])(&staged + 1);
  const uint total = source.total(), count = (total + TILE_OUTPUTS - 1) / TILE_OUTPUTS;
  let_later_begin();
  start_counting(barriers, TILES);
  tiles.ask_all(source, count);
  const uint column = min(threadIdx.x * 8, HIDDEN - 8);
  const float4 gain0 = *(const float4*)(gain + column), gain1 = *(const float4*)(gain + column + 4);
  wait_for_earlier();
  ByteScale scales[ROWS];
  stage_bytes<4, true>(staged, scales, gain0, gain1,
                       [&](uint row, uint column, uint i) { return *(const float4*)(x + row * HIDDEN + column + i * 4); });
  const auto held = tiles.hold(staged);
  constexpr uint AT_ONCE = ROWS == 1 ? 3 : 1;  // as registers allow
#pragma unroll
  for (uint slot = 0; slot < TILES; slot += AT_ONCE)
    tiles.template multiply_slots<AT_ONCE>(staged, scales, held, slot, tiles.tiles_there(count), sums);
  __syncthreads();
  for (uint i = threadIdx.x; i < TILES * ROWS * TILE_OUTPUTS; i += BYTES_WARPS * 32) {
    const uint row = i / (TILES * TILE_OUTPUTS), slot = i / TILE_OUTPUTS % TILES, output = i % TILE_OUTPUTS;
    const uint place = (blockIdx.x + slot * gridDim.x) * TILE_OUTPUTS + output;
    if (place < total)
      y[row * total + place] = sum_of_warps<BYTES_WARPS>(sums, slot, row, output) * norm_of(scales, row);
  }
}

struct MatrixRows {
  Matrix matrix;
  uint columns;

  LILY_INLINE uint rows(uint) const { return TILE_OUTPUTS; }
  LILY_INLINE Matrix at(uint tile, uint row, uint) const {
    return rows_from<4>(matrix, tile * TILE_OUTPUTS + row, columns);
  }
};

extern "C" __global__ void __launch_bounds__(576, 2)  // 56 registers: beside experts_down's blocks
    lily_project_norm_bytes_1(const uint* w0, const bfloat* scales0, const bfloat* biases0, const uint* w1,
                              const bfloat* scales1, const bfloat* biases1, const uint* w2, const bfloat* scales2,
                              const bfloat* biases2, const uint* w3, const bfloat* scales3, const bfloat* biases3,
                              const float* x, const float* gain, float* y, const ProjectParams p) {
  const StackedRows source{{{w0, scales0, biases0}, {w1, scales1, biases1}, {w2, scales2, biases2}, {w3, scales3, biases3}},
                           p};
  project_norm_bytes<1>(source, x, gain, y);
}

extern "C" __global__ void __launch_bounds__(512, 1)
    lily_project_norm_bytes_2(const uint* w0, const bfloat* scales0, const bfloat* biases0, const uint* w1,
                              const bfloat* scales1, const bfloat* biases1, const uint* w2, const bfloat* scales2,
                              const bfloat* biases2, const uint* w3, const bfloat* scales3, const bfloat* biases3,
                              const float* x, const float* gain, float* y, const ProjectParams p) {
  const StackedRows source{{{w0, scales0, biases0}, {w1, scales1, biases1}, {w2, scales2, biases2}, {w3, scales3, biases3}},
                           p};
  project_norm_bytes<2>(source, x, gain, y);
}

extern "C" __global__ void __launch_bounds__(512, 1)
    lily_project_norm_bytes_4(const uint* w0, const bfloat* scales0, const bfloat* biases0, const uint* w1,
                              const bfloat* scales1, const bfloat* biases1, const uint* w2, const bfloat* scales2,
                              const bfloat* biases2, const uint* w3, const bfloat* scales3, const bfloat* biases3,
                              const float* x, const float* gain, float* y, const ProjectParams p) {
  const StackedRows source{{{w0, scales0, biases0}, {w1, scales1, biases1}, {w2, scales2, biases2}, {w3, scales3, biases3}},
                           p};
  project_norm_bytes<4>(source, x, gain, y);
}

extern "C" __global__ void __launch_bounds__(512, 1)
    lily_project_norm_bytes_8(const uint* w0, const bfloat* scales0, const bfloat* biases0, const uint* w1,
                              const bfloat* scales1, const bfloat* biases1, const uint* w2, const bfloat* scales2,
                              const bfloat* biases2, const uint* w3, const bfloat* scales3, const bfloat* biases3,
                              const float* x, const float* gain, float* y, const ProjectParams p) {
  const StackedRows source{{{w0, scales0, biases0}, {w1, scales1, biases1}, {w2, scales2, biases2}, {w3, scales3, biases3}},
                           p};
  project_norm_bytes<8>(source, x, gain, y);
}
#endif
