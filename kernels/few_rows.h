// The product of a quantised matrix and a few rows, from 1 to 8: weights are read once for all rows.
//
// Columns come in chunks of 1024, 32 neighbouring ones a lane. A SIMD-group makes OUTPUTS outputs of all ROWS rows. First it
// asks for its packed weights of CHUNKS chunks, 16 bytes a lane at a time, all in flight together; meanwhile the threadgroup
// stages those columns of at most 4 rows: scaled for masked weights, in the order in which lanes read them (neighbouring
// lanes, neighbouring float4), with the sum of each lane's 32 for the folded bias. The mean square for the RMSNorm is
// gathered on the way; the norm's factor is applied to the finished sums.
//
// Every sum runs in an order that does not depend on ROWS: a row has the same bits in every batch.
#pragma once
#include "fold.h"
#include "numbers.h"
#include "quantized.h"
using namespace metal;

constant constexpr uint CHUNK = 1024;
constant constexpr uint PIECES = CHUNK / 4;  // float4 of a chunk of one row

// Rows that are staged together.
constexpr uint staged_rows(uint rows) {
  return rows < 4 ? rows : 4;
}

// The packed weights that a lane holds of CHUNKS chunks of OUTPUTS rows of a matrix.
template <uint BITS, uint OUTPUTS, uint CHUNKS>
struct Packed {
  uint4 words[CHUNKS][OUTPUTS][BITS / 4];
  float scale[CHUNKS][OUTPUTS];
  float bias[CHUNKS][OUTPUTS];

  // Half of the outputs are the first rows of `low`, the other half of `high`; columns from `first` on.
  void load(Matrix low, Matrix high, uint columns, uint first, uint lane) {
#pragma unroll
    for (uint chunk = 0; chunk < CHUNKS; chunk++) {
      const uint column = first + chunk * CHUNK + lane * 32;
#pragma unroll
      for (uint output = 0; output < OUTPUTS; output++) {
        const uint row = output % (OUTPUTS / 2);
        const bool in_low = output < OUTPUTS / 2;
        const uint place = row * columns + column;
        device const uint4* w = (device const uint4*)((in_low ? low.w : high.w) + place / (32 / BITS));
#pragma unroll
        for (uint i = 0; i < BITS / 4; i++) words[chunk][output][i] = column < columns ? w[i] : uint4(0u);
        scale[chunk][output] = column < columns ? float((in_low ? low.scales : high.scales)[place / GROUP]) : 0.0f;
        bias[chunk][output] = column < columns ? float((in_low ? low.biases : high.biases)[place / GROUP]) : 0.0f;
      }
    }
  }
};

// Stages CHUNKS chunks of one row from column `first` on, times `gain` if NORM; returns the thread's part of Σ x², which
// goes on from `squares`: one chain of additions, in however many calls.
template <uint BITS, uint CHUNKS, uint THREADS, bool NORM>
inline float stage(device const float* x, device const float* gain, uint columns, uint first,
                   float squares, threadgroup float4* staged, threadgroup float* totals, uint thread_index) {
#pragma unroll
  for (uint step = 0; step < CHUNKS * PIECES / THREADS; step++) {
    const uint i = step * THREADS + thread_index;
    const uint column = first + i * 4;
    float4 value = float4(0.0f);
    if (column < columns) value = *(device const float4*)(x + column);
    if (NORM) {
      squares = add_product(value, value, squares);
      if (column < columns) value *= *(device const float4*)(gain + column);
    }
    float total = value.x + value.y + value.z + value.w;
    total += metal::simd_shuffle_xor(total, ushort(1));
    total += metal::simd_shuffle_xor(total, ushort(2));
    total += metal::simd_shuffle_xor(total, ushort(4));
    const uint chunk = i / PIECES, reader = i % PIECES / 8, piece = i % 8;
    staged[(chunk * 8 + piece) * 32 + reader] = value * place_values<BITS>(piece);
    if (piece == 0) totals[chunk * 32 + reader] = total;
  }
  return squares;
}

// sums[row][output] += packed · staged rows.
template <uint BITS, uint ROWS, uint OUTPUTS, uint CHUNKS>
inline void multiply(thread const Packed<BITS, OUTPUTS, CHUNKS>& packed, threadgroup const float4* staged,
                     threadgroup const float* totals, thread float* sums, uint lane) {
#pragma unroll
  for (uint chunk = 0; chunk < CHUNKS; chunk++) {
    float products[ROWS][OUTPUTS];
#pragma unroll
    for (uint row = 0; row < ROWS; row++)
#pragma unroll
      for (uint output = 0; output < OUTPUTS; output++) products[row][output] = 0.0f;
#pragma unroll
    for (uint pair = 0; pair < 4; pair++) {  // of pieces: 8 columns
      float4 even[ROWS], odd[ROWS];
#pragma unroll
      for (uint row = 0; row < ROWS; row++) {
        threadgroup const float4* pieces = staged + ((row * CHUNKS + chunk) * 8 + pair * 2) * 32 + lane;
        even[row] = pieces[0];
        odd[row] = pieces[32];
      }
#pragma unroll
      for (uint output = 0; output < OUTPUTS; output++) {
        thread const uint4* words = packed.words[chunk][output];
        const uint first = words[pair * BITS / 16][pair * (BITS / 4) % 4];
        const uint second = words[pair * BITS / 16][(pair * 2 + 1) % 4];
        const float4 low = BITS == 4 ? low_nibbles(first) : bytes_of(first);
        const float4 high = BITS == 4 ? high_nibbles(first) : bytes_of(second);
#pragma unroll
        for (uint row = 0; row < ROWS; row++)
          products[row][output] = add_product(high, odd[row], add_product(low, even[row], products[row][output]));
      }
    }
#pragma unroll
    for (uint row = 0; row < ROWS; row++) {
      const float total = totals[(row * CHUNKS + chunk) * 32 + lane];
#pragma unroll
      for (uint output = 0; output < OUTPUTS; output++) {
        const float biased = metal::fma(packed.bias[chunk][output], total, sums[row * OUTPUTS + output]);
        sums[row * OUTPUTS + output] = metal::fma(packed.scale[chunk][output], products[row][output], biased);
      }
    }
  }
}

// Where a row is read from.
template <uint ROWS>
struct Rows {
  device const float* x[ROWS];
};

// The whole product. With LANES = 32 / (ROWS · OUTPUTS) and i = lane / LANES, the lane returns output i % OUTPUTS of row
// i / OUTPUTS, the outputs being rows of `low`, then as many of `high`. All threads of the threadgroup take part. In
// threadgroup memory `staged` holds staged_rows · CHUNKS · PIECES, `totals` staged_rows · CHUNKS · 32, `squares` ROWS · SIMDS.
template <uint BITS, uint ROWS, uint OUTPUTS, uint CHUNKS, uint SIMDS, bool NORM>
inline float few_rows_product(Matrix low, Matrix high, uint columns, thread const Rows<ROWS>& rows,
                              device const float* gain, threadgroup float4* staged, threadgroup float* totals,
                              threadgroup float* squares, uint simd, uint lane) {
  constexpr uint TOGETHER = staged_rows(ROWS);
  float sums[ROWS * OUTPUTS];
  float parts[ROWS];
#pragma unroll
  for (uint i = 0; i < ROWS * OUTPUTS; i++) sums[i] = 0.0f;
#pragma unroll
  for (uint row = 0; row < ROWS; row++) parts[row] = 0.0f;
  for (uint first = 0; first < columns; first += CHUNKS * CHUNK) {
    Packed<BITS, OUTPUTS, CHUNKS> packed;
    packed.load(low, high, columns, first, lane);
#pragma unroll
    for (uint batch = 0; batch < ROWS; batch += TOGETHER) {
      metal::threadgroup_barrier(metal::mem_flags::mem_threadgroup);  // all have read what was staged before
#pragma unroll
      for (uint row = 0; row < TOGETHER; row++)
        parts[batch + row] = stage<BITS, CHUNKS, SIMDS * 32, NORM>(
            rows.x[batch + row], gain, columns, first, parts[batch + row], staged + row * CHUNKS * PIECES,
            totals + row * CHUNKS * 32, simd * 32 + lane);
      metal::threadgroup_barrier(metal::mem_flags::mem_threadgroup);
      multiply<BITS, TOGETHER, OUTPUTS, CHUNKS>(packed, staged, totals, sums + batch * OUTPUTS, lane);
    }
  }
  constexpr uint LANES = 32 / (ROWS * OUTPUTS);
  float sum = fold<ROWS * OUTPUTS>(sums, lane);
  if (NORM) {
    const float part = fold<ROWS>(parts, lane);
    if (lane % (32 / ROWS) == 0) squares[lane / (32 / ROWS) * SIMDS + simd] = part;
    metal::threadgroup_barrier(metal::mem_flags::mem_threadgroup);
    float square = 0.0f;
    for (uint i = 0; i < SIMDS; i++) square += squares[lane / LANES / OUTPUTS * SIMDS + i];
    sum *= metal::rsqrt(square / float(columns) + EPSILON);
  }
  return sum;
}
