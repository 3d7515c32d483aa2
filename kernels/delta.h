// What DeltaNet's kernels of few and of many rows share: how a row of the projections lies, and its gates.
#pragma once
#include "model.h"
#include "numbers.h"

// Channels of the convolution: q, k and v of all heads.
inline uint delta_channels() {
  return (2 * KEY_HEADS + VALUE_HEADS) * DELTA_HEAD;
}

// Of a projected row: channels | z VALUE_HEADS heads | a VALUE_HEADS | b as many.
inline uint delta_width() {
  return delta_channels() + VALUE_HEADS * (DELTA_HEAD + 2);
}

// A value head's decay exp(−exp(a_log) · softplus(a + dt_bias)) and beta sigmoid(b).
inline float2 decay_and_beta(float a, float b, float a_log, float dt_bias) {
  return float2(metal::exp(-metal::exp(a_log) * softplus(a + dt_bias)), sigmoid(b));
}
// The same with a and b where they lie in a projected row.
inline float2 delta_gates(device const float* row, device const float* a_log, device const float* dt_bias, uint head) {
  device const float* a = row + delta_channels() + VALUE_HEADS * DELTA_HEAD + head;
  return decay_and_beta(a[0], a[VALUE_HEADS], a_log[head], dt_bias[head]);
}

// Brings a key of this squared length to length 1, a query to 1 / sqrt(128).
inline float unit_factor(float square, bool query) {
  return metal::rsqrt(square + 1e-6f) * (query ? 0.08838834764831845f : 1.0f);
}
