// x[row] = the embedding's row of the token: q · scale + bias.
//
// A threadgroup makes a row, a thread eight neighbouring values from one packed word. A row that pads a plan, or whose
// sequence drew no token, becomes zero.
//
// grid (rows, 1, 1), 256 threads; w [VOCABULARY][HIDDEN/8], scales and biases [VOCABULARY][HIDDEN/64], x [rows][HIDDEN].
#include <metal_stdlib>
#include "model.h"
#include "quantized.h"
using namespace metal;

[[kernel, max_total_threads_per_threadgroup(256)]] void embed(
    device const uint* w [[buffer(0)]],
    device const bfloat* scales [[buffer(1)]],
    device const bfloat* biases [[buffer(2)]],
    device const Row* rows [[buffer(3)]],
    device const Sequence* sequences [[buffer(4)]],
    device float* x [[buffer(5)]],
    uint3 group [[threadgroup_position_in_grid]],
    uint thread_index [[thread_index_in_threadgroup]]) {
  const uint row = group.x, slot = rows[row].slot;
  uint token = rows[row].token;
  if (slot != NONE && token == NONE) token = sequences[slot].token;
  const bool empty = slot == NONE || token >= VOCABULARY;
  for (uint word = thread_index; word < HIDDEN / 8; word += 256) {
    float4 low = float4(0.0f), high = float4(0.0f);
    if (!empty) {
      const uint place = token * (HIDDEN / 8) + word;  // below 2^32 / 8 words
      const float scale = float(scales[place / 8]), bias = float(biases[place / 8]);
      const uint q = w[place];
      low = low_nibbles(q) * place_values<4>(0) * scale + float4(bias);
      high = high_nibbles(q) * place_values<4>(1) * scale + float4(bias);
    }
    device float4* out = (device float4*)(x + row * HIDDEN + word * 8);
    out[0] = low;
    out[1] = high;
  }
}
