// router for a GPU that multiplies bytes, see bytes.h, and beside it what experts_up makes for the shared expert: 512 threads, grid
// (ceil(EXPERTS + 1, 16) + EXPERT_WIDTH / 8, rows). The Metal kernel's arguments, then those of the shared expert and `hidden`.
//
// A tile of gates and ups is 8 gates and the 8 ups beside them, so that both meet in one lane's sums.
#include "bytes.h"
#include "project_bytes.cu"

#ifdef LILY_BYTES

constant constexpr uint PAIRS = TILE_OUTPUTS / 2;
constant constexpr uint ROUTER_TILES = EXPERTS / TILE_OUTPUTS + 1;

template <uint TILES>
LILY_INLINE float gated_pair(float (*sums)[TILES][1][TILE_OUTPUTS], uint slot, uint pair, float norm) {
  const float of_gate = sum_of_warps<BYTES_WARPS>(sums, slot, 0, pair) * norm;
  return silu(of_gate) * (sum_of_warps<BYTES_WARPS>(sums, slot, 0, pair + PAIRS) * norm);
}

struct RouterRows {
  Matrix experts, shared;

  LILY_INLINE uint rows(uint tile) const { return tile < EXPERTS / TILE_OUTPUTS ? TILE_OUTPUTS : 1; }
  LILY_INLINE Matrix at(uint tile, uint row, uint) const {
    const uint place = tile * TILE_OUTPUTS + row;
    return place < EXPERTS ? rows_from<8>(experts, place, HIDDEN) : shared;
  }
};

struct SharedRows {
  Matrix gate, up;

  LILY_INLINE uint rows(uint) const { return TILE_OUTPUTS; }
  LILY_INLINE Matrix at(uint tile, uint row, uint) const {
    return rows_from<4>(row < PAIRS ? gate : up, (tile - ROUTER_TILES) * PAIRS + row % PAIRS, HIDDEN);
  }
};

// The sums of the block's tile and what they are multiplied by.
template <uint BITS, class Source>
LILY_INLINE float one_tile(const Source& source, char* memory, ulong* barriers, const float* x, const float* gain,
                           float (*&sums)[1][1][TILE_OUTPUTS]) {
  using Tiles = ByteTiles<BITS, BYTES_WARPS, 1, HIDDEN>;
  using Staged = ByteRows<1, HIDDEN, BYTES_WARPS>;
  static_assert(GIVEN_BYTES<Tiles, Staged, BYTES_WARPS * TILE_OUTPUTS> <= 45568);
  const Tiles tiles{shared_address(memory), shared_address(barriers)};
  Staged& staged = *(Staged*)(memory + Tiles::BYTES);
  sums = (float (*)[1][1][TILE_OUTPUTS])(&staged + 1);
  start_counting(barriers, 1);
  tiles.ask_all(source, gridDim.x);
  const uint column = min(threadIdx.x * 8, HIDDEN - 8);
  const float4 gain0 = *(const float4*)(gain + column), gain1 = *(const float4*)(gain + column + 4);
  wait_for_earlier();
  ByteScale all[1];
  stage_bytes<BITS, true>(staged, all, gain0, gain1, [&](uint, uint column, uint i) { return *(const float4*)(x + column + i * 4); });
  const auto held = tiles.hold(staged);
  tiles.template multiply_slots<1>(staged, all, held, 0, 1, sums);
  __syncthreads();
  return all[0].norm;
}

extern "C" __global__ void __launch_bounds__(512, 1)
    lily_router_bytes(const uint* w, const bfloat* scales, const bfloat* biases, const uint* shared_w, const bfloat* shared_scales,
                      const bfloat* shared_biases, const float* x, const float* gain, float* logits, const uint* shared_gate_w,
                      const bfloat* shared_gate_scales, const bfloat* shared_gate_biases, const uint* shared_up_w,
                      const bfloat* shared_up_scales, const bfloat* shared_up_biases, float* hidden) {
  __shared__ ulong barriers[1];
  const float* own_x = x + blockIdx.y * HIDDEN;
  float (*sums)[1][1][TILE_OUTPUTS];
  let_later_begin();
  if (blockIdx.x < ROUTER_TILES) {
    const RouterRows source{{w, scales, biases}, {shared_w, shared_scales, shared_biases}};
    const float norm = one_tile<8>(source, given_memory(), barriers, own_x, gain, sums);
    const uint output = blockIdx.x * TILE_OUTPUTS + threadIdx.x;
    if (threadIdx.x < TILE_OUTPUTS && output <= EXPERTS)
      logits[blockIdx.y * (EXPERTS + 1) + output] = sum_of_warps<BYTES_WARPS>(sums, 0, 0, threadIdx.x) * norm;
  } else {
    const SharedRows source{{shared_gate_w, shared_gate_scales, shared_gate_biases}, {shared_up_w, shared_up_scales, shared_up_biases}};
    const float norm = one_tile<4>(source, given_memory(), barriers, own_x, gain, sums);
    float* place = hidden + (blockIdx.y * RANKS + CHOSEN) * EXPERT_WIDTH + (blockIdx.x - ROUTER_TILES) * PAIRS + threadIdx.x;
    if (threadIdx.x < PAIRS) *place = gated_pair(sums, 0, threadIdx.x, norm);
  }
}
#endif
