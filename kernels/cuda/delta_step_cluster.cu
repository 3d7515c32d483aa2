// delta_step with four blocks a value head: each has 32 values v of the state, all make q and k, and what rms_norm needs of the
// others comes through their shared memory. Same arguments, same order of sums, same bits.
//
// grid (VALUE_HEADS * DELTA_SHARERS, segments), clusters of as many blocks of 256 threads. A warp has four values, a lane four keys of each.
// The state, the windows and the taps are on their way before the kernel that makes the projections has ended.
#include "early.h"

#ifdef __CUDA_ARCH_FEAT_SM90_ALL

constant constexpr uint DELTA_SHARERS = 4;

extern "C" __global__ void __cluster_dims__(DELTA_SHARERS, 1, 1) __launch_bounds__(256)
    lily_delta_step_cluster(const float* projected, const float* conv, const float* a_log, const float* dt_bias, const float* gain,
                            const Segment* segments, const Sequence* sequences, float* windows, float* states, float* y) {
  constexpr uint SHARERS = DELTA_SHARERS, SIMDS = 8, VALUES = DELTA_HEAD / SHARERS, OWN = VALUES / SIMDS, K = DELTA_HEAD / 4;
  __shared__ float4 convolved[MAX_DECODE_ROWS][(2 * DELTA_HEAD + VALUES) / 4];  // q, k, own v
  __shared__ float4 outputs[MAX_DECODE_ROWS][VALUES / 4];
  __shared__ float decays[MAX_DECODE_ROWS], betas[MAX_DECODE_ROWS];
  __shared__ float squares[MAX_DECODE_ROWS][SHARERS];
  const uint thread_index = threadIdx.x, simd = thread_index / 32, lane = thread_index % 32;
  const uint head = blockIdx.x / SHARERS, rank = blockIdx.x % SHARERS, share = VALUE_HEADS / KEY_HEADS, key_head = head / share;
  const Segment segment = segments[blockIdx.y];
  let_later_begin();
  if (segment.slot == NONE) {
    wait_for_earlier();
    return;
  }
  // That all four have begun, before any writes into another's memory.
  asm volatile("barrier.cluster.arrive.relaxed.aligned;" : : : "memory");
  const uint flip = sequences[segment.slot].flip, channels = delta_channels(), width = delta_width();
  const float* input = projected + segment.first_row * width;

  const ulong old_state = (ulong(segment.slot * 2 + flip) * VALUE_HEADS + head) * DELTA_HEAD * DELTA_HEAD;
  const ulong new_state = (ulong(segment.slot * 2 + (flip ^ 1u)) * VALUE_HEADS + head) * DELTA_HEAD * DELTA_HEAD;
  const uint place = (rank * VALUES + simd * OWN) * DELTA_HEAD + lane * 4;
  float4 state[OWN];
#pragma unroll
  for (uint i = 0; i < OWN; i++) state[i] = *(const float4*)(states + old_state + place + i * DELTA_HEAD);

  // A thread a channel of q and k; the first 32 also one of v.
  const float* old_windows = windows + ulong(segment.slot * 2 + flip) * (CONV_WIDTH - 1) * channels;
  float* new_windows = windows + ulong(segment.slot * 2 + (flip ^ 1u)) * (CONV_WIDTH - 1) * channels;
  const uint first_head = thread_index < DELTA_HEAD ? key_head : KEY_HEADS + key_head;
  const uint channel = first_head * DELTA_HEAD + thread_index % DELTA_HEAD;
  const uint own_channel = (2 * KEY_HEADS + head) * DELTA_HEAD + rank * VALUES + lane;
  const float4 taps = *(const float4*)(conv + channel * CONV_WIDTH);
  const float4 own_taps = *(const float4*)(conv + own_channel * CONV_WIDTH);
  float4 seen = float4(0.0f, old_windows[channel], old_windows[channels + channel], old_windows[2 * channels + channel]);
  float4 own_seen = float4(0.0f);
  if (simd == 0)
    own_seen = float4(0.0f, old_windows[own_channel], old_windows[channels + own_channel], old_windows[2 * channels + own_channel]);
  const float4 own_gain = *(const float4*)(gain + rank * VALUES + lane % 8 * 4);
  wait_for_earlier();

  float4 z = float4(0.0f);
  if (simd < segment.rows)
    z = *(const float4*)(input + simd * width + channels + head * DELTA_HEAD + rank * VALUES + lane % 8 * 4);
  for (uint row = 0; row < segment.rows; row++) {
    seen = float4(seen.y, seen.z, seen.w, input[row * width + channel]);
    ((float*)convolved[row])[thread_index] = silu(add_product(taps, seen, 0.0f));
    if (simd == 0) {
      own_seen = float4(own_seen.y, own_seen.z, own_seen.w, input[row * width + own_channel]);
      ((float*)convolved[row])[2 * DELTA_HEAD + lane] = silu(add_product(own_taps, own_seen, 0.0f));
    }
  }
  if (simd == SIMDS - 1 && lane < segment.rows) {
    const float2 gates = delta_gates(input + lane * width, a_log, dt_bias, head);
    decays[lane] = gates.x;
    betas[lane] = gates.y;
  }
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
    if (lane % (32 / OWN) == 0) ((float*)outputs[row])[simd * OWN + lane / (32 / OWN)] = output;
  }
#pragma unroll
  for (uint i = 0; i < OWN; i++) *(float4*)(states + new_state + place + i * DELTA_HEAD) = state[i];
  __syncthreads();
  asm volatile("barrier.cluster.wait.aligned;" : : : "memory");

  float4 o = float4(0.0f);
  if (simd < segment.rows) {
    o = outputs[simd][lane % 8];
    float square = add_product(o, o, 0.0f);
    square += simd_shuffle_xor(square, ushort(1));
    square += simd_shuffle_xor(square, ushort(2));
    square += simd_shuffle_xor(square, ushort(4));
    if (lane < SHARERS)
      asm volatile("{.reg .b32 there; mapa.shared::cluster.u32 there, %0, %1; st.shared::cluster.f32 [there], %2;}"
                   : : "r"(uint(__cvta_generic_to_shared(&squares[simd][rank]))), "r"(lane), "f"(square) : "memory");
  }
  __syncwarp();
  asm volatile("barrier.cluster.arrive.release.aligned; barrier.cluster.wait.acquire.aligned;" : : : "memory");
  if (simd < segment.rows && lane < VALUES / 4) {
    const float square = (squares[simd][0] + squares[simd][1]) + (squares[simd][2] + squares[simd][3]);
    const float factor = rsqrt(square / float(DELTA_HEAD) + EPSILON);
    const float4 gate = float4(silu(z.x), silu(z.y), silu(z.z), silu(z.w));
    float* out = y + ((segment.first_row + simd) * VALUE_HEADS + head) * DELTA_HEAD + rank * VALUES + lane * 4;
    *(float4*)out = o * factor * own_gain * gate;
  }
}
#endif
