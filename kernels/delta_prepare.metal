// DeltaNet, before the recurrence, over all rows of a chunk:
//   u[t][c] = silu(sum_j conv[c][j] * projected[t - 3 + j][c]), what lies before the segment taken from the window;
//   q = u / sqrt(|u|^2 + 1e-6) / sqrt(128), k = u / sqrt(|u|^2 + 1e-6), v = u, per head of 128 channels;
//   decay = exp(-exp(a_log) * softplus(a + dt_bias)), beta = sigmoid(b).
// The last row of a segment writes the sequence's next window, oldest first. VALUE_HEADS is even, so that the rows of
// `projected` stay aligned.
//
// Memory: a SIMD-group makes one head of PREPARE_ROWS rows one after the other, four channels a lane, in 16-byte pieces. The
// taps and, from row to row, the inputs that the next one needs stay in registers, so each is read once.
// Grid {ceil((2 * KEY_HEADS + VALUE_HEADS) / 4), ceil(rows / PREPARE_ROWS), 1}, 128 threads: four heads.
#include <metal_stdlib>
#include "delta.h"
#include "model.h"
#include "numbers.h"
using namespace metal;

constant constexpr uint PREPARE_ROWS = 8;  // of a SIMD-group

[[kernel, max_total_threads_per_threadgroup(128)]] void delta_prepare(
    device const float* projected [[buffer(0)]],  // [rows][q KEY_HEADS heads | k as many | v VALUE_HEADS heads | z as
                                                  // many | a VALUE_HEADS | b as many], heads of 128
    device const float* conv [[buffer(1)]],       // [channels][4], channels those of q, k and v
    device const float* a_log [[buffer(2)]],      // [VALUE_HEADS]
    device const float* dt_bias [[buffer(3)]],    // [VALUE_HEADS]
    device const Row* rows [[buffer(4)]],
    device const Segment* segments [[buffer(5)]],
    device const Sequence* sequences [[buffer(6)]],
    device float* window [[buffer(7)]],     // [slots][2][3][channels]: reads [flip], writes [flip ^ 1]
    device float* convolved [[buffer(8)]],  // [rows][channels]
    device float* decay [[buffer(9)]],      // [rows][VALUE_HEADS]
    device float* beta [[buffer(10)]],      // [rows][VALUE_HEADS]
    constant CountParams& p [[buffer(11)]],  // rows
    uint3 group [[threadgroup_position_in_grid]],
    uint thread_index [[thread_index_in_threadgroup]],
    uint simd [[simdgroup_index_in_threadgroup]],
    uint lane [[thread_index_in_simdgroup]]) {
  const uint first = group.y * PREPARE_ROWS, end = min(first + PREPARE_ROWS, p.count);
  const uint channels = delta_channels(), width = delta_width();
  if (group.x == 0) {
    for (uint i = thread_index; i < (end - first) * VALUE_HEADS; i += 128) {
      const uint row = first + i / VALUE_HEADS, head = i % VALUE_HEADS;
      if (rows[row].slot == NONE) continue;
      const float2 gates = delta_gates(projected + row * width, a_log, dt_bias, head);
      decay[row * VALUE_HEADS + head] = gates.x;
      beta[row * VALUE_HEADS + head] = gates.y;
    }
  }
  const uint head = group.x * 4 + simd;
  if (head >= channels / DELTA_HEAD) return;

  const uint channel = head * DELTA_HEAD + lane * 4;
  float4 taps[4];  // by channel
#pragma unroll
  for (uint c = 0; c < 4; c++) taps[c] = ((device const float4*)conv)[channel + c];
  float4 inputs[CONV_WIDTH];
  uint held_segment = NONE;  // whose row before this one the inputs belong to
  for (uint row = first; row < end; row++) {
    const Row record = rows[row];
    if (record.slot == NONE) continue;
    const Segment segment = segments[record.segment];
    const uint place = row - segment.first_row;
    const uint flip = sequences[segment.slot].flip;
    if (record.segment == held_segment) {
#pragma unroll
      for (uint j = 0; j + 1 < CONV_WIDTH; j++) inputs[j] = inputs[j + 1];
    } else {
      device const float* held = window + (segment.slot * 2 + flip) * (CONV_WIDTH - 1) * channels + channel;
#pragma unroll
      for (uint j = 0; j + 1 < CONV_WIDTH; j++) {
        const uint back = CONV_WIDTH - 1 - j;
        device const float* input = held + (place + j) * channels;
        if (back <= place) input = projected + (row - back) * width + channel;
        inputs[j] = *(device const float4*)input;
      }
      held_segment = record.segment;
    }
    inputs[CONV_WIDTH - 1] = *(device const float4*)(projected + row * width + channel);
    float4 u;
#pragma unroll
    for (uint c = 0; c < 4; c++) {
      float sum = 0.0f;
#pragma unroll
      for (uint j = 0; j < CONV_WIDTH; j++) sum = fma(inputs[j][c], taps[c][j], sum);
      u[c] = silu(sum);
    }
    if (head < 2 * KEY_HEADS) u = u * unit_factor(simd_sum(dot(u, u)), head < KEY_HEADS);
    *(device float4*)(convolved + row * channels + channel) = u;

    if (place + 1 == segment.rows) {
      device float* next = window + (segment.slot * 2 + (flip ^ 1)) * (CONV_WIDTH - 1) * channels + channel;
      for (uint j = 0; j < CONV_WIDTH - 1; j++) *(device float4*)(next + j * channels) = inputs[j + 1];
    }
  }
}
