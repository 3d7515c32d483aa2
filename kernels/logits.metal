// logits[i] = lm_head · (rms_norm(x[picked[i]]) · gain): only the rows whose logits are wanted.
//
// grid (ceil(VOCABULARY / LOGITS_OUTPUTS), 1, 1), 256 threads; ROWS entries of picked, each naming a row of x or NONE, whose
// logits are left as they are. w [VOCABULARY][HIDDEN/8], scales and biases [VOCABULARY][HIDDEN/64], x [rows][HIDDEN],
// gain [HIDDEN] the final norm's, logits [ROWS][VOCABULARY].
#include <metal_stdlib>
#include "few_rows.h"
#include "model.h"
using namespace metal;

constant constexpr uint LOGITS_OUTPUTS = 64;  // of a threadgroup

template <uint ROWS>
[[kernel, max_total_threads_per_threadgroup(256)]] void logits(
    device const uint* w [[buffer(0)]],
    device const bfloat* scales [[buffer(1)]],
    device const bfloat* biases [[buffer(2)]],
    device const float* x [[buffer(3)]],
    device const float* gain [[buffer(4)]],
    device const uint* picked [[buffer(5)]],
    device float* y [[buffer(6)]],
    uint3 group [[threadgroup_position_in_grid]],
    uint thread_index [[thread_index_in_threadgroup]],
    uint simd [[simdgroup_index_in_threadgroup]],
    uint lane [[thread_index_in_simdgroup]]) {
  constexpr uint OUTPUTS = ROWS <= 2 ? 8 : 4, SIMDS = 8, OWN = LOGITS_OUTPUTS / SIMDS, CHUNKS = ROWS <= 2 ? 2 : 1;
  threadgroup float4 staged[staged_rows(ROWS) * CHUNKS * PIECES];
  threadgroup float totals[staged_rows(ROWS) * CHUNKS * 32];
  threadgroup float squares[ROWS * SIMDS];
  Rows<ROWS> rows;
#pragma unroll
  for (uint i = 0; i < ROWS; i++) rows.x[i] = x + (picked[i] == NONE ? 0 : picked[i]) * HIDDEN;
  const Matrix matrix = Matrix{w, scales, biases};
  for (uint pass = 0; pass < OWN / OUTPUTS; pass++) {
    // SIMD-groups past the end repeat the last outputs and write nothing: barriers need them.
    const uint wanted = (group.x * SIMDS + simd) * OWN + pass * OUTPUTS, first = min(wanted, VOCABULARY - OUTPUTS);
    const float sum = few_rows_product<4, ROWS, OUTPUTS, CHUNKS, SIMDS, true>(
        rows_from<4>(matrix, first, HIDDEN), rows_from<4>(matrix, first + OUTPUTS / 2, HIDDEN), HIDDEN, rows, gain,
        staged, totals, squares, simd, lane);
    constexpr uint LANES = 32 / (ROWS * OUTPUTS);
    const uint place = lane / LANES, row = place / OUTPUTS;
    if (wanted < VOCABULARY && lane % LANES == 0 && picked[row] != NONE)
      y[row * VOCABULARY + first + place % OUTPUTS] = sum;
  }
}

template [[host_name("logits_1")]] [[kernel]] decltype(logits<1>) logits<1>;
template [[host_name("logits_2")]] [[kernel]] decltype(logits<2>) logits<2>;
template [[host_name("logits_4")]] [[kernel]] decltype(logits<4>) logits<4>;
template [[host_name("logits_8")]] [[kernel]] decltype(logits<8>) logits<8>;
