// router, experts_up and experts_down for a GPU that multiplies bytes, see bytes.h: their arguments, but grids
// (ceil(EXPERTS + 1, 16), rows), (one block a multiprocessor, rows) and (HIDDEN / 16, rows), 512, 512 and 576 threads.
//
// A tile of experts_up is 8 gates and the 8 ups beside them, so that both meet in one lane's sums. experts_down takes all ranks'
// columns for one row of 9 EXPERT_WIDTH. The shared expert's weights are on their way before it is known which others are chosen.
#include "bytes.h"
#include "experts_choice.h"
#include "project_bytes.cu"

#ifdef LILY_BYTES

constant constexpr uint UP_TILES = 5;  // of a block, at most
constant constexpr uint DOWN_WARPS = 18;
constant constexpr uint PAIRS = TILE_OUTPUTS / 2;

struct RouterRows {
  Matrix experts, shared;

  LILY_INLINE uint rows(uint tile) const { return tile < EXPERTS / TILE_OUTPUTS ? TILE_OUTPUTS : 1; }
  LILY_INLINE Matrix at(uint tile, uint row, uint) const {
    const uint place = tile * TILE_OUTPUTS + row;
    return place < EXPERTS ? rows_from<8>(experts, place, HIDDEN) : shared;
  }
};

extern "C" __global__ void __launch_bounds__(512, 1)
    lily_router_bytes(const uint* w, const bfloat* scales, const bfloat* biases, const uint* shared_w, const bfloat* shared_scales,
                      const bfloat* shared_biases, const float* x, const float* gain, float* logits, const CountParams p) {
  using Tiles = ByteTiles<8, BYTES_WARPS, 1, HIDDEN>;
  using Staged = ByteRows<1, HIDDEN, BYTES_WARPS>;
  static_assert(GIVEN_BYTES<Tiles, Staged, BYTES_WARPS * TILE_OUTPUTS> == 45568);
  __shared__ ulong barriers[1];
  char* memory = given_memory();
  const Tiles tiles{shared_address(memory), shared_address(barriers)};
  Staged& staged = *(Staged*)(memory + Tiles::BYTES);
  auto sums = (float (*)[1][1][TILE_OUTPUTS])(&staged + 1);
  let_later_begin();
  start_counting(barriers, 1);
  tiles.ask_all(RouterRows{{w, scales, biases}, {shared_w, shared_scales, shared_biases}}, gridDim.x);
  const uint column = min(threadIdx.x * 8, HIDDEN - 8);
  const float4 gain0 = *(const float4*)(gain + column), gain1 = *(const float4*)(gain + column + 4);
  wait_for_earlier();
  ByteScale all[1];
  const float* source = x + blockIdx.y * HIDDEN;
  stage_bytes<8, true>(staged, all, gain0, gain1,
                       [&](uint, uint column, uint i) { return *(const float4*)(source + column + i * 4); });
  const auto held = tiles.hold(staged);
  tiles.multiply_slots<1>(staged, all, held, 0, 1, sums);
  __syncthreads();
  const uint output = blockIdx.x * TILE_OUTPUTS + threadIdx.x;
  if (threadIdx.x < TILE_OUTPUTS && output <= EXPERTS)
    logits[blockIdx.y * (EXPERTS + 1) + output] = sum_of_warps<BYTES_WARPS>(sums, 0, 0, threadIdx.x) * all[0].norm;
}

struct UpRows {
  Matrix gate, up, shared_gate, shared_up;
  const uint* experts;  // of each rank

  LILY_INLINE uint rows(uint) const { return TILE_OUTPUTS; }
  LILY_INLINE Matrix at(uint tile, uint row, uint) const {
    const uint rank = tile / (EXPERT_WIDTH / PAIRS), place = tile % (EXPERT_WIDTH / PAIRS) * PAIRS + row % PAIRS;
    const bool shared = rank == CHOSEN;
    const Matrix all = row < PAIRS ? (shared ? shared_gate : gate) : (shared ? shared_up : up);
    return rows_from<4>(all, (shared ? 0 : experts[rank] * EXPERT_WIDTH) + place, HIDDEN);
  }
};

extern "C" __global__ void __launch_bounds__(512, 1)
    lily_experts_up_bytes(const uint* gate_w, const bfloat* gate_scales, const bfloat* gate_biases, const uint* up_w,
                          const bfloat* up_scales, const bfloat* up_biases, const uint* shared_gate_w,
                          const bfloat* shared_gate_scales, const bfloat* shared_gate_biases, const uint* shared_up_w,
                          const bfloat* shared_up_scales, const bfloat* shared_up_biases, const float* x, const float* gain,
                          const float* logits, const Row* rows, float* hidden, Choice* choices) {
  using Tiles = ByteTiles<4, BYTES_WARPS, UP_TILES, HIDDEN>;
  using Staged = ByteRows<1, HIDDEN, BYTES_WARPS>;
  static_assert(GIVEN_BYTES<Tiles, Staged, BYTES_WARPS * UP_TILES * TILE_OUTPUTS> == 112128);
  __shared__ uint experts[CHOSEN];
  __shared__ ulong barriers[UP_TILES];
  char* memory = given_memory();
  const Tiles tiles{shared_address(memory), shared_address(barriers)};
  Staged& staged = *(Staged*)(memory + Tiles::BYTES);
  auto sums = (float (*)[UP_TILES][1][TILE_OUTPUTS])(&staged + 1);
  constexpr uint COUNT = RANKS * EXPERT_WIDTH / PAIRS;
  const uint row = blockIdx.y, column = min(threadIdx.x * 8, HIDDEN - 8);
  let_later_begin();
  if (rows[row].slot == NONE) {
    wait_for_earlier();
    return;
  }
  const float4 gain0 = *(const float4*)(gain + column), gain1 = *(const float4*)(gain + column + 4);
  start_counting(barriers, UP_TILES);
  const UpRows source{{gate_w, gate_scales, gate_biases}, {up_w, up_scales, up_biases},
                      {shared_gate_w, shared_gate_scales, shared_gate_biases},
                      {shared_up_w, shared_up_scales, shared_up_biases}, experts};
  const auto shared = [](uint tile, uint) { return tile / (EXPERT_WIDTH / PAIRS) == CHOSEN; };
  tiles.ask(source, COUNT, shared);
  wait_for_earlier();
  if (threadIdx.x / 32 == BYTES_WARPS - 1) {
    const uint lane = threadIdx.x % 32;
    const float* row_logits = logits + row * (EXPERTS + 1);
    const float shared_logit = row_logits[EXPERTS];
    Choice own = top_experts_quickly(row_logits, lane);
    if (lane == CHOSEN) own = Choice{EXPERTS, sigmoid(shared_logit)};
    if (lane < CHOSEN) experts[lane] = own.expert;
    if (lane < RANKS && blockIdx.x == 0) choices[row * RANKS + lane] = own;
  }
  __syncthreads();
  tiles.ask(source, COUNT, [&](uint tile, uint part) { return !shared(tile, part); });
  ByteScale all[1];
  stage_bytes<4, true>(staged, all, gain0, gain1,
                       [&](uint, uint column, uint i) { return *(const float4*)(x + row * HIDDEN + column + i * 4); });
  const auto held = tiles.hold(staged);
  constexpr uint FIRST = 3;  // the rest is still on its way
  tiles.multiply_slots<FIRST>(staged, all, held, 0, tiles.tiles_there(COUNT), sums);
  tiles.multiply_slots<UP_TILES - FIRST>(staged, all, held, FIRST, tiles.tiles_there(COUNT), sums);
  __syncthreads();
  const uint slot = threadIdx.x / PAIRS, tile = blockIdx.x + slot * gridDim.x, pair = threadIdx.x % PAIRS;
  if (slot < UP_TILES && tile < COUNT) {
    const float of_gate = sum_of_warps<BYTES_WARPS>(sums, slot, 0, pair) * all[0].norm;
    const float of_up = sum_of_warps<BYTES_WARPS>(sums, slot, 0, pair + PAIRS) * all[0].norm;
    hidden[row * RANKS * EXPERT_WIDTH + tile * PAIRS + pair] = silu(of_gate) * of_up;
  }
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

extern "C" __global__ void __launch_bounds__(576, 2)
    lily_experts_down_bytes(const uint* down_w, const bfloat* down_scales, const bfloat* down_biases, const uint* shared_w,
                            const bfloat* shared_scales, const bfloat* shared_biases, const float* hidden,
                            const Choice* choices, const Row* rows, float* x) {
  constexpr uint COLUMNS = RANKS * EXPERT_WIDTH;
  using Tiles = ByteTiles<4, DOWN_WARPS, 1, COLUMNS, EXPERT_WIDTH>;
  using Staged = ByteRows<1, COLUMNS, DOWN_WARPS>;
  static_assert(GIVEN_BYTES<Tiles, Staged, DOWN_WARPS * TILE_OUTPUTS> == 73008);
  __shared__ ulong barriers[1];
  char* memory = given_memory();
  const Tiles tiles{shared_address(memory), shared_address(barriers)};
  Staged& staged = *(Staged*)(memory + Tiles::BYTES);
  auto sums = (float (*)[1][1][TILE_OUTPUTS])(&staged + 1);
  const uint row = blockIdx.y;
  let_later_begin();
  if (rows[row].slot == NONE) {
    wait_for_earlier();
    return;
  }
  start_counting(barriers, 1);
  const DownRows source{{down_w, down_scales, down_biases}, {shared_w, shared_scales, shared_biases}, choices + row * RANKS};
  tiles.ask(source, HIDDEN / TILE_OUTPUTS, [](uint, uint part) { return part == CHOSEN; });
  wait_for_earlier();  // whose weights are asked for is in `choices`
  tiles.ask(source, HIDDEN / TILE_OUTPUTS, [](uint, uint part) { return part != CHOSEN; });
  float* place = x + row * HIDDEN + blockIdx.x * TILE_OUTPUTS + threadIdx.x % TILE_OUTPUTS;
  const float before = *place, weight = choices[row * RANKS + min(threadIdx.x * 8 / EXPERT_WIDTH, RANKS - 1)].weight;
  ByteScale all[1];
  stage_bytes<4, false>(staged, all, float4(1.0f), float4(1.0f), [&](uint, uint column, uint i) {
    return *(const float4*)(hidden + row * COLUMNS + column + i * 4) * weight;
  });
  const auto held = tiles.hold(staged);
  tiles.multiply_slots<1>(staged, all, held, 0, 1, sums);
  __syncthreads();
  if (threadIdx.x < TILE_OUTPUTS) *place = before + sum_of_warps<DOWN_WARPS>(sums, 0, 0, threadIdx.x) * all[0].norm;
}
#endif
