// Tiles of a quantised matrix, which come to shared memory and meet rows of activations there, see bytes.h.
//
// A tile is 16 outputs. An instruction multiplies 16 outputs by 32 columns by eight: a piece is two of the eight, of which
// one has the columns of two lanes of a row and zeros elsewhere, the other those of the other two; for four-bit weights these are
// two groups. The words of a tile come in bulk copies counted by a barrier of the tile, a row each or longer ones, for a
// multiprocessor begins one in some 40 clocks; its scales and biases in pieces of 16 bytes: to where eight rows meet all banks,
// and the latter first, as the first product needs them all. All tiles of a block are on their way at once, and before the kernel that
// makes the activations has ended. Each warp has its own columns; their sums are added up
// in order of warps.
#pragma once
#include "byte_product.h"
#include "byte_rows.h"

#ifdef __CUDA_ARCH_FEAT_SM90_ALL

constant constexpr uint TILE_OUTPUTS = 16;

// What a copy of words is: a row of a tile, or such a row of all the block's tiles, which lie one after the other.
enum class Copied { ROW, ROWS };

// A block's tiles of a matrix, of which TILES lie in shared memory: `source.at(tile, row, part)` is where a row of PART
// columns begins, of the source.rows(tile) that there are.
template <uint BITS, uint WARPS, uint TILES, uint COLUMNS, uint PART = COLUMNS, Copied COPIED = Copied::ROW>
struct ByteTiles {
  static constexpr uint BLOCK_COLUMNS = 512 / BITS, BLOCKS = COLUMNS / BLOCK_COLUMNS, PARTS = COLUMNS / PART;
  static constexpr uint ROW_BYTES = PART * BITS / 8, EDGE_BYTES = PART / GROUP * 2;
  // Tiles whose rows lie beside each other, and rows of that width.
  static constexpr uint BESIDE = COPIED == Copied::ROWS ? TILES : 1, ROWS_HELD = TILES / BESIDE * PARTS * TILE_OUTPUTS;
  static constexpr uint ROW_PITCH = BESIDE * ROW_BYTES + 64, EDGE_PITCH = BESIDE * 2 * EDGE_BYTES + 16;
  static constexpr uint WORD_BYTES = ROWS_HELD * ROW_PITCH, BYTES = WORD_BYTES + ROWS_HELD * EDGE_PITCH;
  static constexpr uint COPIES = PARTS * TILE_OUTPUTS, EDGE_COPIES = PARTS * TILE_OUTPUTS * 2 * (EDGE_BYTES / 16);
  static constexpr uint OWN = (BLOCKS + WARPS - 1) / WARPS, PART_BLOCKS = PART / BLOCK_COLUMNS;  // OWN of a warp
  uint memory;    // BYTES of shared memory: [TILES][PARTS][16] rows of words, as many rows of scales and biases
  uint barriers;  // TILES, or one

  // Copy number i < COPIES of a tile's words; number i < EDGE_COPIES of what goes with them.
  template <class Source> LILY_INLINE void ask_words(const Source& source, uint slot, uint tile, uint i) const {
    const uint row = i % TILE_OUTPUTS, barrier = barriers + slot * 8;
    if (i == 0) expect_bytes(barrier, source.rows(tile) * PARTS * ROW_BYTES);
    if (row < source.rows(tile))
      copy_bulk(memory + (slot * COPIES + i) * ROW_PITCH, source.at(tile, row, i / TILE_OUTPUTS).w, ROW_BYTES, barrier);
  }
  template <class Source> LILY_INLINE void ask_edges(const Source& source, uint slot, uint tile, uint i) const {
    const uint piece = i % (EDGE_BYTES / 16), bias = i / (EDGE_BYTES / 16) % 2, place = i / (EDGE_BYTES / 8);
    const Matrix from = source.at(tile, min(place % TILE_OUTPUTS, source.rows(tile) - 1), place / TILE_OUTPUTS);
    copy_16(memory + WORD_BYTES + (slot * PARTS * TILE_OUTPUTS + place) * EDGE_PITCH + bias * EDGE_BYTES + piece * 16,
            (const uint4*)(bias == 0 ? from.scales : from.biases) + piece);
  }

  // Of tiles blockIdx.x, blockIdx.x + gridDim.x and so on, as far as there are so many, the parts that are wanted(tile, part).
  template <class Source, class Wanted> LILY_INLINE void ask(const Source& source, uint count, Wanted wanted) const {
#pragma unroll
    for (uint k = 0; k < (TILES * EDGE_COPIES + WARPS * 32 - 1) / (WARPS * 32); k++) {
      const uint i = k * WARPS * 32 + threadIdx.x, slot = i / EDGE_COPIES, tile = blockIdx.x + slot * gridDim.x;
      const uint part = i % EDGE_COPIES / (EDGE_COPIES / PARTS);
      if (slot < TILES && tile < count && wanted(tile, part)) ask_edges(source, slot, tile, i % EDGE_COPIES);
    }
    close_copies();
    constexpr uint SPREAD = WARPS * 32 / (TILES * COPIES);  // a warp asks for one after the other
    static_assert(SPREAD > 0);
    const uint i = threadIdx.x / SPREAD, slot = i / COPIES, tile = blockIdx.x + slot * gridDim.x;
    if (threadIdx.x % SPREAD == 0 && slot < TILES && tile < count && wanted(tile, i % COPIES / TILE_OUTPUTS))
      ask_words(source, slot, tile, i % COPIES);
  }
  template <class Source> LILY_INLINE void ask_all(const Source& source, uint count) const {
    ask(source, count, [](uint, uint) { return true; });
  }

  // Tiles of Copied::ROWS, of which source.at(row, slot) is a row: row `row` of tile `slot` + 1 lies behind that of tile `slot`.
  template <class Source> LILY_INLINE void ask_rows(const Source& source) const {
    constexpr uint PIECES = EDGE_BYTES / 16;
    static_assert(COPIED == Copied::ROWS && TILES * EDGE_COPIES == WARPS * 32 && TILE_OUTPUTS == WARPS, "a piece a thread, a row a warp");
    const uint piece = threadIdx.x % PIECES, slot = threadIdx.x / PIECES % TILES, bias = threadIdx.x / (PIECES * TILES) % 2;
    const uint row = threadIdx.x / (PIECES * TILES * 2), warp = threadIdx.x / 32;
    const Matrix from = source.at(row, slot);
    copy_16(memory + WORD_BYTES + row * EDGE_PITCH + (bias * TILES + slot) * EDGE_BYTES + piece * 16,
            (const uint4*)(bias == 0 ? from.scales : from.biases) + piece);
    close_copies();
    if (threadIdx.x == 0) expect_bytes(barriers, TILES * TILE_OUTPUTS * ROW_BYTES);
    if (threadIdx.x % 32 == 0) copy_bulk(memory + warp * ROW_PITCH, source.at(warp, 0).w, TILES * ROW_BYTES, barriers);
  }

  LILY_INLINE void wait(uint slot, uint parity) const { wait_for(barriers + slot / BESIDE * 8, parity); }

  // What a lane multiplies by, the same for all tiles: of one row it stays in registers.
  struct Held {
    uint4 pieces[OWN][BITS == 4 ? 2 : 1];
    float total[OWN];
  };

  template <uint ROWS>
  LILY_INLINE void hold(const ByteRows<ROWS, COLUMNS, WARPS>& staged, uint row, uint i, Held& held) const {
    const uint lane = threadIdx.x % 32, group = lane / 4, t = lane % 4, block = threadIdx.x / 32 * OWN + i;
    const bool zero = t / 2 != group % 2;
    const uint4* pieces = staged.pieces[row][group / 2] + (min(block, BLOCKS - 1) * 4 + t) * (BITS == 4 ? 2 : 1);
#pragma unroll
    for (uint part = 0; part < (BITS == 4 ? 2 : 1); part++) {
      const uint4 words = shared_words(shared_address(pieces + part));
      held.pieces[i][part] = zero ? uint4(0u) : words;
    }
    held.total[i] = staged.totals[row][BITS == 4 ? min(block, BLOCKS - 1) * 2 + t % 2 : min(block, BLOCKS - 1)];
  }
  template <uint ROWS> LILY_INLINE Held hold(const ByteRows<ROWS, COLUMNS, WARPS>& staged) const {
    Held held;
#pragma unroll
    for (uint i = 0; i < OWN; i++) hold(staged, 0, i, held);
    return held;
  }

  // The product of a tile with the staged rows, of which `held` is the first: lanes with lane % 4 < 2 have the warp's sum for output
  // lane / 4 + 8 (lane % 4) of each row.
  template <uint ROWS>
  LILY_INLINE void multiply(const ByteRows<ROWS, COLUMNS, WARPS>& staged, const ByteScale (&scales)[ROWS], Held held, uint slot,
                            float (&results)[ROWS]) const {
    const uint warp = threadIdx.x / 32, lane = threadIdx.x % 32, group = lane / 4, t = lane % 4;
    float low[ROWS], high[ROWS], biased[ROWS];
#pragma unroll
    for (uint row = 0; row < ROWS; row++) low[row] = high[row] = biased[row] = 0.0f;
#pragma unroll
    for (uint i = 0; i < OWN; i++) {
      const uint block = warp * OWN + i;
      if (BLOCKS % WARPS != 0 && block >= BLOCKS) continue;
      const uint place = (slot / BESIDE * PARTS + block / PART_BLOCKS) * TILE_OUTPUTS, own = block % PART_BLOCKS;
      const uint beside = slot % BESIDE, words = memory + (place + group) * ROW_PITCH + beside * ROW_BYTES + own * 64 + t * 16;
      const uint4 a = shared_words(words), b = shared_words(words + 8 * ROW_PITCH);
      // Eight-bit blocks are one group: two of them share a pair.
      const uint edges = memory + WORD_BYTES + place * EDGE_PITCH + beside * EDGE_BYTES + (BITS == 4 ? own : own / 2) * 4;
      const uint scale0 = shared_word(edges + group * EDGE_PITCH), scale1 = shared_word(edges + (group + 8) * EDGE_PITCH);
      const uint bias = shared_word(edges + (group + t / 2 * 8) * EDGE_PITCH + BESIDE * EDGE_BYTES);
      const bool odd = BITS == 4 ? t % 2 == 1 : block % 2 == 1;
      const float own_bias = odd ? high_bfloat(bias) : low_bfloat(bias);
      const bool second = BITS == 8 && block % 2 == 1, first = BITS == 8 && block % 2 == 0;
      const float scale00 = second ? high_bfloat(scale0) : low_bfloat(scale0), scale01 = first ? low_bfloat(scale0) : high_bfloat(scale0);
      const float scale10 = second ? high_bfloat(scale1) : low_bfloat(scale1), scale11 = first ? low_bfloat(scale1) : high_bfloat(scale1);
#pragma unroll
      for (uint row = 0; row < ROWS; row++) {
        int products[4];
        if (ROWS > 1) hold(staged, row, i, held);
        const uint4 x0 = held.pieces[i][0];
        if (BITS == 8) {
          begin_byte_product(products, int(as_type<uint>(WHOLE)), a.x, b.x, a.y, b.y, x0.x, x0.y);
          add_byte_product(products, a.z, b.z, a.w, b.w, x0.z, x0.w);
        } else {  // sixteen times the sum: odd weights as they lie
          constexpr uint EVEN = 0x0f0f0f0fu, ODD = 0xf0f0f0f0u;
          const uint4 x1 = held.pieces[i][BITS == 4 ? 1 : 0];
          int even[4];
          begin_byte_product(even, 0, a.x & EVEN, b.x & EVEN, a.y & EVEN, b.y & EVEN, x0.x, x0.z);
          begin_byte_product(products, int(as_type<uint>(WHOLE)), a.x & ODD, b.x & ODD, a.y & ODD, b.y & ODD, x0.y, x0.w);
          add_byte_product(even, a.z & EVEN, b.z & EVEN, a.w & EVEN, b.w & EVEN, x1.x, x1.z);
          add_byte_product(products, a.z & ODD, b.z & ODD, a.w & ODD, b.w & ODD, x1.y, x1.w);
#pragma unroll
          for (uint k = 0; k < 4; k++) products[k] += even[k] * 16;
        }
        low[row] = fma(scale01, whole_number(products[1]), fma(scale00, whole_number(products[0]), low[row]));
        high[row] = fma(scale11, whole_number(products[3]), fma(scale10, whole_number(products[2]), high[row]));
        const bool counts = BITS == 4 || t % 2 == 0;
        const float total = held.total[i];
        biased[row] = counts ? fma(own_bias, total, biased[row]) : biased[row];
      }
    }
#pragma unroll
    for (uint row = 0; row < ROWS; row++) {
      const float unit = as_type<float>(as_type<uint>(scales[row].unit) - (t * 8 + (BITS == 4 ? 4 : 0) << 23));
      const float first = fma(low[row], unit, t < 2 ? biased[row] : 0.0f), second = fma(high[row], unit, t < 2 ? 0.0f : biased[row]);
      float sum = (t % 2 == 0 ? first : second) + simd_shuffle_xor(t % 2 == 0 ? second : first, ushort(1));
      sum += simd_shuffle_xor(sum, ushort(2));
      results[row] = sum;
    }
  }
  // Those of COUNT tiles from `first` on, of which there are `there`, when they have come: at sums[warp][slot][row]. In one piece,
  // as the chain of a tile's instructions is long and none of them waits for another tile's.
  template <uint COUNT, uint ROWS>
  LILY_INLINE void multiply_slots(const ByteRows<ROWS, COLUMNS, WARPS>& staged, const ByteScale (&scales)[ROWS], const Held& held,
                                  uint first, uint there, float (*sums)[TILES][ROWS][TILE_OUTPUTS], uint parity = 0) const {
    const uint warp = threadIdx.x / 32, lane = threadIdx.x % 32, t = lane % 4;
#pragma unroll
    for (uint i = 0; i < COUNT; i++)
      if (first + i < there) wait(first + i, parity);
    float results[COUNT][ROWS];  // of what is not there nobody takes any
#pragma unroll
    for (uint i = 0; i < COUNT; i++) multiply(staged, scales, held, first + i, results[i]);
#pragma unroll
    for (uint i = 0; i < COUNT; i++)
#pragma unroll
      for (uint row = 0; row < ROWS; row++)
        if (t < 2) sums[warp][first + i][row][lane / 4 + t * 8] = results[i][row];
  }
  // How many of `count` tiles are this block's.
  static LILY_INLINE uint tiles_there(uint count) { return (count - blockIdx.x + gridDim.x - 1) / gridDim.x; }
};
#endif
