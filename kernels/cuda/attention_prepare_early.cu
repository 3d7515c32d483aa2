// attention_prepare that begins while the kernel before runs, so that its launch is over when that ends.
#include "early.h"

#ifdef __CUDA_ARCH_FEAT_SM90_ALL

extern "C" __global__ void __launch_bounds__(128)
    lily_attention_prepare_early(const float* q_gate, const float* k, const float* v, const float* q_gain, const float* k_gain,
                                 const uint* turns, const Row* rows, const Sequence* sequences, const uint* pages, half* keys,
                                 half* values, float* q, const PrepareParams p) {
  let_later_begin();
  wait_for_earlier();
  attention_prepare(q_gate, k, v, q_gain, k_gain, turns, rows, sequences, pages, keys, values, q, p,
                    lily_cuda::threadgroup_position(), lily_cuda::simdgroup_index(), lily_cuda::lane());
}
#endif
