// Gated DeltaNet over a segment of at most MAX_DECODE_ROWS rows, one value head.
//
//   q | k | v = silu(conv(qkv));  q ← q / |q| / √128;  k ← k / |k|
//   α = exp(−exp(a_log) · softplus(a + dt_bias));  β = sigmoid(b)
//   S ← αS;  u = β(v − S·k);  S ← S + u⊗k;  o = S·q;  y = rms_norm(o) · gain · silu(z)
//
// grid (VALUE_HEADS, segments, 1), 512 threads.
// projected [rows][channels | VALUE_HEADS·128 z | VALUE_HEADS a | VALUE_HEADS b],
// channels = (2·KEY_HEADS + VALUE_HEADS)·128,
// conv [channels][4], a_log and dt_bias [VALUE_HEADS], gain [128],
// windows [slots][2][3][channels] oldest first, states [slots][2][VALUE_HEADS][128 v][128 k]: both are read at the
// sequence's flip and written at the other, y [rows][VALUE_HEADS·128].
#include <metal_stdlib>
#include "delta.h"
#include "fold.h"
#include "model.h"
#include "numbers.h"
using namespace metal;

[[kernel, max_total_threads_per_threadgroup(512)]] void delta_step(
    device const float* projected [[buffer(0)]],
    device const float* conv [[buffer(1)]],
    device const float* a_log [[buffer(2)]],
    device const float* dt_bias [[buffer(3)]],
    device const float* gain [[buffer(4)]],
    device const Segment* segments [[buffer(5)]],
    device const Sequence* sequences [[buffer(6)]],
    device float* windows [[buffer(7)]],
    device float* states [[buffer(8)]],
    device float* y [[buffer(9)]],
    uint3 group [[threadgroup_position_in_grid]],
    uint thread_index [[thread_index_in_threadgroup]],
    uint simd [[simdgroup_index_in_threadgroup]],
    uint lane [[thread_index_in_simdgroup]]) {
  constexpr uint SIMDS = 16, OWN = DELTA_HEAD / SIMDS, CHANNELS = 3 * DELTA_HEAD;
  constexpr uint K = DELTA_HEAD / 4, V = 2 * DELTA_HEAD / 4;
  threadgroup float4 convolved[MAX_DECODE_ROWS][CHANNELS / 4];  // q, k, v of the head
  threadgroup float4 outputs[MAX_DECODE_ROWS][DELTA_HEAD / 4];
  threadgroup float decays[MAX_DECODE_ROWS], betas[MAX_DECODE_ROWS];
  const uint head = group.x, share = VALUE_HEADS / KEY_HEADS, key_head = head / share;
  const Segment segment = segments[group.y];
  if (segment.slot == NONE) return;
  const uint flip = sequences[segment.slot].flip;
  const uint channels = delta_channels(), width = delta_width();
  device const float* input = projected + segment.first_row * width;

  // The state sets out first: SIMD-group s holds values 8s to 8s + 7, four keys of each a lane.
  const ulong old_state = (ulong(segment.slot * 2 + flip) * VALUE_HEADS + head) * DELTA_HEAD * DELTA_HEAD;
  const ulong new_state = (ulong(segment.slot * 2 + (flip ^ 1u)) * VALUE_HEADS + head) * DELTA_HEAD * DELTA_HEAD;
  const uint place = simd * OWN * DELTA_HEAD + lane * 4;
  float4 state[OWN];
#pragma unroll
  for (uint i = 0; i < OWN; i++) state[i] = *(device const float4*)(states + old_state + place + i * DELTA_HEAD);

  if (thread_index < CHANNELS) {
    const uint part = thread_index / DELTA_HEAD;  // a thread a channel
    const uint first_head = part == 0 ? key_head : (part == 1 ? KEY_HEADS + key_head : 2 * KEY_HEADS + head);
    const uint channel = first_head * DELTA_HEAD + thread_index % DELTA_HEAD;
    device const float* old_window = windows + ulong(segment.slot * 2 + flip) * (CONV_WIDTH - 1) * channels + channel;
    device float* new_window = windows + ulong(segment.slot * 2 + (flip ^ 1u)) * (CONV_WIDTH - 1) * channels + channel;
    const float4 taps = *(device const float4*)(conv + channel * CONV_WIDTH);
    float4 seen = float4(0.0f, old_window[0], old_window[channels], old_window[2 * channels]);
    for (uint row = 0; row < segment.rows; row++) {
      seen = float4(seen.y, seen.z, seen.w, input[row * width + channel]);
      ((threadgroup float*)convolved[row])[thread_index] = silu(add_product(taps, seen, 0.0f));
    }
    // The value heads of a group share their q and k: the first writes those windows.
    if (part == 2 || head % share == 0) {
      new_window[0] = seen.y;
      new_window[channels] = seen.z;
      new_window[2 * channels] = seen.w;
    }
  } else if (thread_index < CHANNELS + segment.rows) {
    const uint row = thread_index - CHANNELS;
    const float2 gates = delta_gates(input + row * width, a_log, dt_bias, head);
    decays[row] = gates.x;
    betas[row] = gates.y;
  }
  threadgroup_barrier(mem_flags::mem_threadgroup);

  if (simd / 2 < segment.rows) {  // q of a row, or its k
    const float4 part = convolved[simd / 2][simd % 2 * K + lane];
    const float length = simd_sum(add_product(part, part, 0.0f));
    convolved[simd / 2][simd % 2 * K + lane] = part * unit_factor(length, simd % 2 == 0);
  }
  threadgroup_barrier(mem_flags::mem_threadgroup);

  for (uint row = 0; row < segment.rows; row++) {
    const float4 q = convolved[row][lane], k = convolved[row][K + lane];
    const float v = ((threadgroup const float*)convolved[row])[V * 4 + simd * OWN + lane / (32 / OWN)];
    float products[OWN];
#pragma unroll
    for (uint i = 0; i < OWN; i++) {
      state[i] *= decays[row];
      products[i] = add_product(state[i], k, 0.0f);
    }
    const float u = betas[row] * (v - fold<OWN>(products, lane));
#pragma unroll
    for (uint i = 0; i < OWN; i++) {
      state[i] = fma(k, float4(simd_shuffle(u, ushort(i * (32 / OWN)))), state[i]);
      products[i] = add_product(state[i], q, 0.0f);
    }
    const float output = fold<OWN>(products, lane);
    if (lane % (32 / OWN) == 0) ((threadgroup float*)outputs[row])[simd * OWN + lane / (32 / OWN)] = output;
  }
#pragma unroll
  for (uint i = 0; i < OWN; i++) *(device float4*)(states + new_state + place + i * DELTA_HEAD) = state[i];
  threadgroup_barrier(mem_flags::mem_threadgroup);

  if (simd < segment.rows) {
    const float4 o = outputs[simd][lane];
    const float factor = rsqrt(simd_sum(add_product(o, o, 0.0f)) / float(DELTA_HEAD) + EPSILON);
    const float4 z = *(device const float4*)(input + simd * width + channels + head * DELTA_HEAD + lane * 4);
    const float4 gate = float4(silu(z.x), silu(z.y), silu(z.z), silu(z.w));
    device float* out = y + ((segment.first_row + simd) * VALUE_HEADS + head) * DELTA_HEAD + lane * 4;
    *(device float4*)out = o * factor * *(device const float4*)(gain + lane * 4) * gate;
  }
}
