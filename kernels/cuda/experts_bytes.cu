// experts_up and experts_down for a GPU that multiplies bytes, see bytes.h: grids (CHOSEN EXPERT_WIDTH / 32, rows) and
// (HIDDEN / 16, rows), 512 and 640 threads.
//
// experts_up has its Metal kernel's arguments but for the shared expert, whose part router_bytes.cu has made, and the choices: both
// kernels choose themselves. A block has 32 gates and the 32 ups beside them in four tiles, each of every fourth.
//
// experts_down takes all ranks' columns for one row of 9 EXPERT_WIDTH. Its blocks lie beside those of experts_up, one of either on a
// multiprocessor: by the registers (of each of four parts 16,384: 4 warps of 56 and 5 of 56) and by what experts_up is given of shared
// memory. So its weights come while experts_up multiplies. Like the shared expert's, which are asked for first, they depend on
// nothing that experts_up makes.
#include "experts_choice.h"
#include "router_bytes.cu"

#ifdef LILY_BYTES

constant constexpr uint UP_TILES = 4;  // of a block
constant constexpr uint DOWN_WARPS = 20;

struct UpRows {
  Matrix gate, up;
  uint first;  // gate and up of the block

  LILY_INLINE Matrix at(uint row, uint slot) const {
    return rows_from<4>(row < PAIRS ? gate : up, first + row % PAIRS * UP_TILES + slot, HIDDEN);
  }
};

extern "C" __global__ void __launch_bounds__(576, 2)  // 56 registers: beside experts_down's blocks
    lily_experts_up_bytes(const uint* gate_w, const bfloat* gate_scales, const bfloat* gate_biases, const uint* up_w,
                          const bfloat* up_scales, const bfloat* up_biases, const float* x, const float* gain,
                          const float* logits, const Row* rows, float* hidden) {
  using Tiles = ByteTiles<4, BYTES_WARPS, UP_TILES, HIDDEN, HIDDEN, Copied::ROWS>;
  using Staged = ByteRows<1, HIDDEN, BYTES_WARPS>;
  static_assert(GIVEN_BYTES<Tiles, Staged, BYTES_WARPS * UP_TILES * TILE_OUTPUTS> <= 118784, "too much for two on a multiprocessor");
  __shared__ uint expert;
  __shared__ ulong barriers[1];
  char* memory = given_memory();
  const Tiles tiles{shared_address(memory), shared_address(barriers)};
  Staged& staged = *(Staged*)(memory + Tiles::BYTES);
  auto sums = (float (*)[UP_TILES][1][TILE_OUTPUTS])(&staged + 1);
  const uint row = blockIdx.y, column = min(threadIdx.x * 8, HIDDEN - 8);
  constexpr uint BLOCK_PAIRS = UP_TILES * PAIRS, BLOCKS = EXPERT_WIDTH / BLOCK_PAIRS;  // BLOCKS have an expert
  if (rows[row].slot == NONE) {
    wait_for_earlier();
    return;
  }
  const float4 gain0 = *(const float4*)(gain + column), gain1 = *(const float4*)(gain + column + 4);
  start_counting(barriers, 1);
  wait_for_earlier();
  let_later_begin();  // only now: experts_down reads the router's logits as soon as it begins
  const float4 x0 = load_four(x + row * HIDDEN + column), x1 = load_four(x + row * HIDDEN + column + 4);
  if (threadIdx.x / 32 == BYTES_WARPS - 1) {
    const uint lane = threadIdx.x % 32;
    const Choice own = rank_of_row(logits + row * (EXPERTS + 1), lane);
    if (lane == blockIdx.x / BLOCKS) expert = own.expert;
  }
  __syncthreads();
  const uint first = expert * EXPERT_WIDTH + blockIdx.x % BLOCKS * BLOCK_PAIRS;
  tiles.ask_rows(UpRows{{gate_w, gate_scales, gate_biases}, {up_w, up_scales, up_biases}, first});
  ByteScale all[1];
  stage_bytes<4, true>(staged, all, gain0, gain1, [&](uint, uint, uint i) { return i == 0 ? x0 : x1; });
  const auto held = tiles.hold(staged);
  constexpr uint AT_ONCE = 2;  // as registers allow
#pragma unroll
  for (uint slot = 0; slot < UP_TILES; slot += AT_ONCE)
    tiles.template multiply_slots<AT_ONCE>(staged, all, held, slot, UP_TILES, sums);
  __syncthreads();
  const uint slot = threadIdx.x % UP_TILES, pair = threadIdx.x / UP_TILES;
  if (pair < PAIRS)
    hidden[row * RANKS * EXPERT_WIDTH + blockIdx.x * BLOCK_PAIRS + threadIdx.x] = gated_pair(sums, slot, pair, all[0].norm);
}

struct DownRows {
  Matrix experts, shared;
  const Choice* choices;  // of each rank

  LILY_INLINE uint rows(uint) const { return TILE_OUTPUTS; }
  LILY_INLINE Matrix at(uint tile, uint row, uint rank) const {
    const uint place = tile * TILE_OUTPUTS + row;
    if (rank == CHOSEN) return rows_from<4>(shared, place, EXPERT_WIDTH);
    return rows_from<4>(experts, choices[rank].expert * HIDDEN + place, EXPERT_WIDTH);
  }
};

extern "C" __global__ void LILY_REGISTERS_56(640)  // beside experts_up and project_norm, not beside another of its own
    lily_experts_down_bytes(const uint* down_w, const bfloat* down_scales, const bfloat* down_biases, const uint* shared_w,
                            const bfloat* shared_scales, const bfloat* shared_biases, const float* hidden,
                            const float* logits, const Row* rows, float* x) {
  constexpr uint COLUMNS = RANKS * EXPERT_WIDTH;
  using Tiles = ByteTiles<4, DOWN_WARPS, 1, COLUMNS, EXPERT_WIDTH>;
  using Staged = ByteRows<1, COLUMNS, DOWN_WARPS>;
  static_assert(GIVEN_BYTES<Tiles, Staged, DOWN_WARPS * TILE_OUTPUTS> == 73152);
  __shared__ ulong barriers[1];
  __shared__ Choice choices[RANKS];
  char* memory = given_memory();
  const Tiles tiles{shared_address(memory), shared_address(barriers)};
  Staged& staged = *(Staged*)(memory + Tiles::BYTES);
  auto sums = (float (*)[1][1][TILE_OUTPUTS])(&staged + 1);
  const uint row = blockIdx.y;
  if (rows[row].slot == NONE) {
    wait_for_earlier();
    return;
  }
  start_counting(barriers, 1);
  const DownRows source{{down_w, down_scales, down_biases}, {shared_w, shared_scales, shared_biases}, choices};
  tiles.ask(source, HIDDEN / TILE_OUTPUTS, [](uint, uint part) { return part == CHOSEN; });
  // The router is complete, for experts_up lets this begin when it has waited for it.
  if (threadIdx.x / 32 == DOWN_WARPS - 1) {
    const uint lane = threadIdx.x % 32;
    const Choice own = rank_of_row(logits + row * (EXPERTS + 1), lane);
    if (lane < RANKS) choices[lane] = own;
  }
  __syncthreads();
  tiles.ask(source, HIDDEN / TILE_OUTPUTS, [](uint, uint part) { return part != CHOSEN; });
  let_later_begin();
  const float weight = choices[min(threadIdx.x * 8 / EXPERT_WIDTH, RANKS - 1)].weight;
  wait_for_earlier();
  float* place = x + row * HIDDEN + blockIdx.x * TILE_OUTPUTS + threadIdx.x % TILE_OUTPUTS;
  const float before = *place;
  ByteScale all[1];
  stage_bytes<4, false>(staged, all, float4(1.0f), float4(1.0f), [&](uint, uint column, uint i) {
    return load_four(hidden + row * COLUMNS + column + i * 4) * weight;
  });
  const auto held = tiles.hold(staged);
  tiles.multiply_slots<1>(staged, all, held, 0, 1, sums);
  __syncthreads();
  if (threadIdx.x < TILE_OUTPUTS) *place = fma(sum_of_warps<DOWN_WARPS>(sums, 0, 0, threadIdx.x), all[0].norm, before);
}
#endif
