// attention_block for a GPU with tensor cores and bulk copies: the pages of a row's context are dealt out
// to at most ATTENTION_PIECES blocks a KV head, as few to each as that allows, so that a row's result depends on its position alone.
//
//   scores [64 tokens][8 heads] = keys q^T, weights = e^(scores - max), sums [256][8 heads] += values^T weights^T
//
// q and the weights are two halves each, high and low, which together have 22 bits. Keys and values are copied asynchronously, a
// page at a time, in rows of 528 bytes, three pages ahead; of the first three what earlier steps wrote is asked for before the
// kernel that makes this step's has ended. A warp makes the scores of 16 tokens and, from everybody's, the sums of 64 dimensions;
// the sums before are scaled down when a page has a new maximum.
//
// attention_pieces: grid (pieces, KV_HEADS, rows), 128 threads; sums and weights as attention_block's with blocks = ATTENTION_PIECES.
#include "early.h"

#ifdef __CUDA_ARCH_FEAT_SM90_ALL

constant constexpr uint ATTENTION_PIECES = 64;
constant constexpr uint HEADS_TOGETHER = 8;
constant constexpr uint PAGE_STAGES = 3;
constant constexpr uint KEY_BYTES = HEAD * 2, KEY_PITCH = KEY_BYTES + 16, PAGE_BYTES = PAGE * KEY_PITCH;
static_assert(PAGE_STAGES * 2 * PAGE_BYTES == 202752, "as attention_pieces is launched with");
constant constexpr uint SCORE_PITCH = 12;  // floats of a token, for banks' sake

LILY_INLINE uint pages_of_piece(uint position) { return (position / PAGE + ATTENTION_PIECES) / ATTENTION_PIECES; }

LILY_INLINE void add_half_product(float (&sums)[4], const uint (&a)[4], uint b0, uint b1) {
  asm("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
      : "+f"(sums[0]), "+f"(sums[1]), "+f"(sums[2]), "+f"(sums[3]) : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}
template <bool TURNED> LILY_INLINE void load_matrices(uint (&a)[4], uint place) {
  if (TURNED)
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(a[0]), "=r"(a[1]), "=r"(a[2]), "=r"(a[3]) : "r"(place) : "memory");
  else
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(a[0]), "=r"(a[1]), "=r"(a[2]), "=r"(a[3]) : "r"(place) : "memory");
}
// Two floats as two pairs of halves, what the first leaves over in the second.
LILY_INLINE void in_two_halves(float a, float b, uint& high, uint& low) {
  const half2 first = half2(half(a), half(b));
  high = as_type<uint>(first);
  low = as_type<uint>(half2(half(a - float(first.x)), half(b - float(first.y))));
}

extern "C" __global__ void __launch_bounds__(128, 1)
    lily_attention_pieces(const float* q, const half* keys, const half* values, const Row* rows, const Sequence* sequences,
                          const uint* pages, float* sums, float* weights, const BlockParams p) {
  __shared__ float scores[2][PAGE * SCORE_PITCH];
  const uint memory = shared_address(given_memory());  // [PAGE_STAGES][2][PAGE] rows
  const uint warp = threadIdx.x / 32, lane = threadIdx.x % 32, group = lane / 4, t = lane % 4;
  const uint row = blockIdx.z, kv_head = blockIdx.y, heads = QUERY_HEADS / KV_HEADS, slot = rows[row].slot;
  let_later_begin();
  uint first = 0, end = 0, position = 0, held = 0;  // pages; tokens, of which no kernel of this step writes those held
  if (slot != NONE) {
    held = sequences[slot].position;
    position = held + rows[row].offset;
    const uint each = pages_of_piece(position);
    first = blockIdx.x * each;
    end = min(first + each, position / PAGE + 1);
  }
  if (first >= end) {
    wait_for_earlier();
    return;
  }
  const uint* own_pages = pages + slot * p.max_pages;
  // Those of tokens `from` to `to` that lie in the page, a row a warp at a time.
  auto copy_tokens = [&](uint page, uint from, uint to) {
    const ulong place = (ulong(own_pages[page]) * KV_HEADS + kv_head) * PAGE;
    const uint stage = memory + (page - first) % PAGE_STAGES * 2 * PAGE_BYTES, last = min(to, (page + 1) * PAGE);
#pragma unroll 4
    for (uint token = max(from, page * PAGE) + warp; token < last; token += 4) {
      const ulong source = (place + token % PAGE) * HEAD + lane * 8;
      const uint target = stage + token % PAGE * KEY_PITCH + lane * 16;
      copy_16(target, keys + source);
      copy_16(target + PAGE_BYTES, values + source);
    }
  };
#pragma unroll
  for (uint i = 0; i < PAGE_STAGES; i++) {
    if (first + i < end) copy_tokens(first + i, 0, held);
    close_copies();
  }
  wait_for_earlier();
  for (uint page = max(first, held / PAGE); page < min(end, first + PAGE_STAGES); page++) copy_tokens(page, held, position + 1);
  close_copies();

  uint q_high[HEAD / 16][2], q_low[HEAD / 16][2];
  const float* own_q = q + (row * QUERY_HEADS + kv_head * heads + min(group, heads - 1)) * HEAD + t * 2;
#pragma unroll
  for (uint i = 0; i < HEAD / 8; i++) {
    const float2 pair = *(const float2*)(own_q + i * 8);
    in_two_halves(pair.x, pair.y, q_high[i / 2][i % 2], q_low[i / 2][i % 2]);
  }
  float mixed[4][4];
#pragma unroll
  for (uint i = 0; i < 16; i++) mixed[i / 4][i % 4] = 0.0f;
  float peak = -FLT_MAX, total = 0.0f;
  for (uint page = first; page < end; page++) {
    const uint number = page - first, stage = number % PAGE_STAGES, count = min(position + 1 - page * PAGE, PAGE);
    const uint page_keys = memory + stage * 2 * PAGE_BYTES, page_values = page_keys + PAGE_BYTES;
    if (number < PAGE_STAGES && (page + 1) * PAGE > held) leave_copies<0>();
    else if (number < PAGE_STAGES) leave_copies<PAGE_STAGES>();
    else leave_copies<PAGE_STAGES - 1>();
    __syncthreads();
    for (uint i = count * (KEY_BYTES / 16) + threadIdx.x; i < PAGE * (KEY_BYTES / 16); i += 128)  // values that are not there
      asm volatile("st.shared.v4.u32 [%0], {%1, %1, %1, %1};"
                   : : "r"(page_values + i / (KEY_BYTES / 16) * KEY_PITCH + i % (KEY_BYTES / 16) * 16), "r"(0u) : "memory");
    float parts[4][4];
#pragma unroll
    for (uint i = 0; i < 16; i++) parts[i / 4][i % 4] = 0.0f;
    const uint own_keys = page_keys + (warp * 16 + lane % 16) * KEY_PITCH + lane / 16 * 16;
#pragma unroll
    for (uint i = 0; i < HEAD / 16; i++) {
      uint a[4];
      load_matrices<false>(a, own_keys + i * 32);
      add_half_product(parts[i % 2], a, q_high[i][0], q_high[i][1]);
      add_half_product(parts[2 + i % 2], a, q_low[i][0], q_low[i][1]);
    }
    float* page_scores = scores[number % 2];
#pragma unroll
    for (uint i = 0; i < 2; i++) {
      const uint token = warp * 16 + i * 8 + group;
      float2 score = float2((parts[2][i * 2] + parts[3][i * 2]) + (parts[0][i * 2] + parts[1][i * 2]),
                            (parts[2][i * 2 + 1] + parts[3][i * 2 + 1]) + (parts[0][i * 2 + 1] + parts[1][i * 2 + 1]));
      if (token >= count) score = float2(-FLT_MAX);
      *(float2*)(page_scores + token * SCORE_PITCH + t * 2) = score;
    }
    __syncthreads();
    float weight[PAGE / 16][4], page_peak = peak;
#pragma unroll
    for (uint i = 0; i < PAGE / 4; i++) {
      weight[i / 4][i % 4] = page_scores[(i / 4 * 16 + i % 4 / 2 * 8 + t * 2 + i % 2) * SCORE_PITCH + group];
      page_peak = max(page_peak, weight[i / 4][i % 4]);
    }
    page_peak = max(page_peak, simd_shuffle_xor(page_peak, ushort(1)));
    page_peak = max(page_peak, simd_shuffle_xor(page_peak, ushort(2)));
    const float factor = exp(peak - page_peak);
    peak = page_peak;
    total *= factor;
    const float factor0 = simd_shuffle(factor, ushort(t * 8)), factor1 = simd_shuffle(factor, ushort(t * 8 + 4));
    float own_mixed[4][4];
#pragma unroll
    for (uint i = 0; i < 16; i++) own_mixed[i / 4][i % 4] = 0.0f;
#pragma unroll
    for (uint step = 0; step < PAGE / 16; step++) {
#pragma unroll
      for (uint i = 0; i < 4; i++) {
        weight[step][i] = exp(weight[step][i] - peak);
        total += weight[step][i];
      }
      uint high[2], low[2];
      in_two_halves(weight[step][0], weight[step][1], high[0], low[0]);
      in_two_halves(weight[step][2], weight[step][3], high[1], low[1]);
      const uint own = page_values + (step * 16 + lane / 16 * 8 + lane % 8) * KEY_PITCH + (warp * 64 + lane / 8 % 2 * 8) * 2;
#pragma unroll
      for (uint i = 0; i < 4; i++) {
        uint a[4];
        load_matrices<true>(a, own + i * 32);
        add_half_product(own_mixed[i], a, low[0], low[1]);
        add_half_product(own_mixed[i], a, high[0], high[1]);
      }
    }
    // The tensor cores' sums are cut off, not rounded: short ones are added up here.
#pragma unroll
    for (uint i = 0; i < 16; i++) mixed[i / 4][i % 4] = fma(mixed[i / 4][i % 4], i % 2 == 0 ? factor0 : factor1, own_mixed[i / 4][i % 4]);
    __syncthreads();  // the page is used up
    if (page + PAGE_STAGES < end) copy_tokens(page + PAGE_STAGES, 0, position + 1);
    close_copies();
  }
  total += simd_shuffle_xor(total, ushort(1));
  total += simd_shuffle_xor(total, ushort(2));
  const ulong place = (ulong(row) * QUERY_HEADS + kv_head * heads) * ATTENTION_PIECES + blockIdx.x;
#pragma unroll
  for (uint i = 0; i < 16; i++) {
    const uint head = t * 2 + i % 2, dimension = warp * 64 + i / 4 * 16 + i % 4 / 2 * 8 + group;
    if (head < heads) sums[(place + head * ATTENTION_PIECES) * HEAD + dimension] = mixed[i / 4][i % 4];
  }
  if (warp == 0 && t == 0 && group < heads)
    *(float2*)(weights + (place + group * ATTENTION_PIECES) * 2) = float2(peak, total);
}
#endif
