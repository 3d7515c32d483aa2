// delta_step with four blocks a value head: each has 32 values v of the state, and all make q and k. What rms_norm needs of the
// others, the squares of the outputs, is left to the product behind, which adds them up and divides.
//
// grid (VALUE_HEADS * DELTA_SHARERS, segments), 256 threads. A warp has four values, a lane four keys of each.
// The state, the windows and the taps are on their way before the kernel that makes the projections has ended.
// delta_step's arguments; y is not divided; squares [rows][VALUE_HEADS][DELTA_SQUARES].
#include "bytes.h"

#ifdef LILY_BYTES

constant constexpr uint DELTA_SHARERS = 4;
constant constexpr uint DELTA_SQUARES = 32;  // of a head: of a warp each

extern "C" __global__ void __launch_bounds__(256)
    lily_delta_step_split(const float* projected, const float* conv, const float* a_log, const float* dt_bias, const float* gain,
                          const Segment* segments, const Sequence* sequences, float* windows, float* states, float* y,
                          float* squares) {
  constexpr uint SHARERS = DELTA_SHARERS, SIMDS = DELTA_SQUARES / SHARERS, VALUES = DELTA_HEAD / SHARERS, OWN = VALUES / SIMDS, K = DELTA_HEAD / 4;
  __shared__ float4 convolved[MAX_DECODE_ROWS][(2 * DELTA_HEAD + VALUES) / 4];  // q, k, own v
  __shared__ float decays[MAX_DECODE_ROWS], betas[MAX_DECODE_ROWS];
  const uint thread_index = threadIdx.x, simd = thread_index / 32, lane = thread_index % 32;
  const uint head = blockIdx.x / SHARERS, rank = blockIdx.x % SHARERS, share = VALUE_HEADS / KEY_HEADS, key_head = head / share;
  const Segment segment = segments[blockIdx.y];
  let_later_begin();
  if (segment.slot == NONE) {
    wait_for_earlier();
    return;
  }
  const uint flip = sequences[segment.slot].flip, channels = delta_channels(), width = delta_width();
  const float* input = projected + segment.first_row * width;

  const ulong old_state = (ulong(segment.slot * 2 + flip) * VALUE_HEADS + head) * DELTA_HEAD * DELTA_HEAD;
  const ulong new_state = (ulong(segment.slot * 2 + (flip ^ 1u)) * VALUE_HEADS + head) * DELTA_HEAD * DELTA_HEAD;
  const uint place = (rank * VALUES + simd * OWN) * DELTA_HEAD + lane * 4;
  float4 state[OWN];
#pragma unroll
  for (uint i = 0; i < OWN; i++) state[i] = load_four(states + old_state + place + i * DELTA_HEAD);

  // A thread a channel of q and k; the first 32 also one of v.
  const float* old_windows = windows + ulong(segment.slot * 2 + flip) * (CONV_WIDTH - 1) * channels;
  float* new_windows = windows + ulong(segment.slot * 2 + (flip ^ 1u)) * (CONV_WIDTH - 1) * channels;
  const uint first_head = thread_index < DELTA_HEAD ? key_head : KEY_HEADS + key_head;
  const uint channel = first_head * DELTA_HEAD + thread_index % DELTA_HEAD;
  const uint own_channel = (2 * KEY_HEADS + head) * DELTA_HEAD + rank * VALUES + lane;
  const float4 taps = load_four(conv + channel * CONV_WIDTH);
  const float4 own_taps = load_four(conv + own_channel * CONV_WIDTH);
  float4 seen = float4(0.0f, old_windows[channel], old_windows[channels + channel], old_windows[2 * channels + channel]);
  float4 own_seen = float4(0.0f);
  if (simd == 0)
    own_seen = float4(0.0f, old_windows[own_channel], old_windows[channels + own_channel], old_windows[2 * channels + own_channel]);
  const uint value = rank * VALUES + simd * OWN + lane / (32 / OWN);
  const float own_gain = gain[value], own_a_log = a_log[head], own_dt_bias = dt_bias[head];
  wait_for_earlier();

  const float* gates = input + channels + head * DELTA_HEAD + value;
  const float* rates = input + min(lane, segment.rows - 1) * width + channels + VALUE_HEADS * DELTA_HEAD + head;
  float next = input[channel], own_next = input[own_channel], gate = gates[0];
  const float a = rates[0], b = rates[VALUE_HEADS];
  for (uint row = 0; row < segment.rows; row++) {
    seen = float4(seen.y, seen.z, seen.w, next);
    own_seen = float4(own_seen.y, own_seen.z, own_seen.w, own_next);
    if (row + 1 < segment.rows) next = input[(row + 1) * width + channel], own_next = input[(row + 1) * width + own_channel];
    ((float*)convolved[row])[thread_index] = silu(add_product(taps, seen, 0.0f));
    if (simd == 0) ((float*)convolved[row])[2 * DELTA_HEAD + lane] = silu(add_product(own_taps, own_seen, 0.0f));
  }
  if (simd == SIMDS - 1 && lane < segment.rows) {
    const float2 both = decay_and_beta(a, b, own_a_log, own_dt_bias);
    decays[lane] = both.x;
    betas[lane] = both.y;
  }
  float factor = own_gain * silu(gate);
  // The value heads of a group share their q and k: the first writes those windows.
  if (head % share == 0 && rank == 0) {
    new_windows[channel] = seen.y;
    new_windows[channels + channel] = seen.z;
    new_windows[2 * channels + channel] = seen.w;
  }
  if (simd == 0) {
    new_windows[own_channel] = own_seen.y;
    new_windows[channels + own_channel] = own_seen.z;
    new_windows[2 * channels + own_channel] = own_seen.w;
  }
  __syncthreads();

  for (uint row = 0; row < segment.rows; row++) {
    if (row + 1 < segment.rows) gate = gates[(row + 1) * width];
    float4 q = convolved[row][lane], k = convolved[row][K + lane];
    const float q_length = simd_sum(add_product(q, q, 0.0f)), k_length = simd_sum(add_product(k, k, 0.0f));
    q *= unit_factor(q_length, true);
    k *= unit_factor(k_length, false);
    const float v = ((const float*)convolved[row])[2 * DELTA_HEAD + simd * OWN + lane / (32 / OWN)];
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
    float square = output * output;
    square += simd_shuffle_xor(square, ushort(8));
    square += simd_shuffle_xor(square, ushort(16));
    const uint place = (segment.first_row + row) * VALUE_HEADS + head;
    if (lane == 0) squares[place * DELTA_SQUARES + rank * SIMDS + simd] = square;
    if (lane % (32 / OWN) == 0) y[place * DELTA_HEAD + value] = output * factor;
    if (row + 1 < segment.rows) factor = own_gain * silu(gate);
  }
#pragma unroll
  for (uint i = 0; i < OWN; i++) store_four(states + new_state + place + i * DELTA_HEAD, state[i]);
}
#endif
