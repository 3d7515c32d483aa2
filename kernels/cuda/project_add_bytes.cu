// project_add for a GPU that multiplies bytes, see bytes.h: a block a tile, 512 threads. Behind attention it has the Metal kernel's
// arguments. Behind DeltaNet it also divides its input by the norms of the heads, of which delta_step_split.cu gives the squares.
#include "delta_step_split.cu"
#include "project_bytes.cu"

#ifdef LILY_BYTES

template <uint ROWS, uint INNER, bool DELTA>
LILY_INLINE void project_add_bytes(Matrix matrix, const float* input, const float* squares, float* x) {
  using Tiles = ByteTiles<4, BYTES_WARPS, 1, INNER>;
  using Staged = ByteRows<ROWS, INNER, BYTES_WARPS>;
  static_assert(GIVEN_BYTES<Tiles, Staged, BYTES_WARPS * ROWS * TILE_OUTPUTS> <=
                (ROWS == 1 ? 55936 : ROWS == 2 ? 73728 : ROWS == 4 ? 109312 : 180480));
  __shared__ ulong barriers[1];
  char* memory = given_memory();
  const Tiles tiles{shared_address(memory), shared_address(barriers)};
  Staged& staged = *(Staged*)(memory + Tiles::BYTES);
  auto sums = (float (*)[1][ROWS][TILE_OUTPUTS])(&staged + 1);
  let_later_begin();
  start_counting(barriers, 1);
  tiles.ask_all(MatrixRows{matrix, INNER}, HIDDEN / TILE_OUTPUTS);
  wait_for_earlier();
  const uint row = threadIdx.x / TILE_OUTPUTS, output = threadIdx.x % TILE_OUTPUTS;
  float* place = x + min(row, ROWS - 1) * HIDDEN + blockIdx.x * TILE_OUTPUTS + output;
  const float before = *place;
  ByteScale scales[ROWS];
  if constexpr (DELTA) {
    const uint column = min(threadIdx.x * 8, INNER - 8);  // 16 threads have a head
    float2 square[ROWS];
    float4 values[ROWS][2];
#pragma unroll
    for (uint r = 0; r < ROWS; r++) {
      square[r] = *(const float2*)(squares + (r * VALUE_HEADS + column / DELTA_HEAD) * DELTA_SQUARES + threadIdx.x % 16 * 2);
#pragma unroll
      for (uint i = 0; i < 2; i++) values[r][i] = load_four(input + r * INNER + column + i * 4);
    }
#pragma unroll
    for (uint r = 0; r < ROWS; r++) {
      float sum = square[r].x + square[r].y;
#pragma unroll
      for (uint bit = 8; bit > 0; bit /= 2) sum += simd_shuffle_xor(sum, ushort(bit));
      const float factor = rsqrt(sum / float(DELTA_HEAD) + EPSILON);
      values[r][0] *= factor;
      values[r][1] *= factor;
    }
    stage_bytes<4, false>(staged, scales, float4(1.0f), float4(1.0f), [&](uint row, uint, uint i) { return values[row][i]; });
  } else {
    stage_bytes<4, false>(staged, scales, float4(1.0f), float4(1.0f),
                          [&](uint row, uint column, uint i) { return load_four(input + row * INNER + column + i * 4); });
  }
  const auto held = tiles.hold(staged);
  tiles.template multiply_slots<1>(staged, scales, held, 0, 1, sums);
  __syncthreads();
  if (row < ROWS) *place = fma(sum_of_warps<BYTES_WARPS>(sums, 0, row, output), norm_of(scales, row), before);
}

extern "C" __global__ void __launch_bounds__(512, 1)
    lily_project_add_bytes_1(const uint* w, const bfloat* scales, const bfloat* biases, const float* input, float* x,
                             const ProjectAddParams) {
  project_add_bytes<1, QUERY_HEADS * HEAD, false>(Matrix{w, scales, biases}, input, nullptr, x);
}

extern "C" __global__ void __launch_bounds__(512, 1)
    lily_project_add_delta_bytes_1(const uint* w, const bfloat* scales, const bfloat* biases, const float* input, float* x,
                                   const float* squares) {
  project_add_bytes<1, VALUE_HEADS * DELTA_HEAD, true>(Matrix{w, scales, biases}, input, squares, x);
}

extern "C" __global__ void __launch_bounds__(512, 1)
    lily_project_add_bytes_2(const uint* w, const bfloat* scales, const bfloat* biases, const float* input, float* x,
                             const ProjectAddParams) {
  project_add_bytes<2, QUERY_HEADS * HEAD, false>(Matrix{w, scales, biases}, input, nullptr, x);
}

extern "C" __global__ void __launch_bounds__(512, 1)
    lily_project_add_delta_bytes_2(const uint* w, const bfloat* scales, const bfloat* biases, const float* input, float* x,
                                   const float* squares) {
  project_add_bytes<2, VALUE_HEADS * DELTA_HEAD, true>(Matrix{w, scales, biases}, input, squares, x);
}

extern "C" __global__ void __launch_bounds__(512, 1)
    lily_project_add_bytes_4(const uint* w, const bfloat* scales, const bfloat* biases, const float* input, float* x,
                             const ProjectAddParams) {
  project_add_bytes<4, QUERY_HEADS * HEAD, false>(Matrix{w, scales, biases}, input, nullptr, x);
}

extern "C" __global__ void __launch_bounds__(512, 1)
    lily_project_add_delta_bytes_4(const uint* w, const bfloat* scales, const bfloat* biases, const float* input, float* x,
                                   const float* squares) {
  project_add_bytes<4, VALUE_HEADS * DELTA_HEAD, true>(Matrix{w, scales, biases}, input, squares, x);
}

extern "C" __global__ void __launch_bounds__(512, 1)
    lily_project_add_bytes_8(const uint* w, const bfloat* scales, const bfloat* biases, const float* input, float* x,
                             const ProjectAddParams) {
  project_add_bytes<8, QUERY_HEADS * HEAD, false>(Matrix{w, scales, biases}, input, nullptr, x);
}

extern "C" __global__ void __launch_bounds__(512, 1)
    lily_project_add_delta_bytes_8(const uint* w, const bfloat* scales, const bfloat* biases, const float* input, float* x,
                                   const float* squares) {
  project_add_bytes<8, VALUE_HEADS * DELTA_HEAD, true>(Matrix{w, scales, biases}, input, squares, x);
}
#endif
