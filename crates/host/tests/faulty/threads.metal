// Kernels whose threads part where they must stay together.
#include <metal_stdlib>
#include <metal_simdgroup_matrix>
using namespace metal;

[[kernel]] void barrier_in_a_branch(device float* a [[buffer(0)]], uint index [[thread_index_in_threadgroup]]) {
  if (index < 64) threadgroup_barrier(mem_flags::mem_threadgroup);
  a[index] = 1.0f;
}

[[kernel]] void two_barriers(device float* a [[buffer(0)]], uint index [[thread_index_in_threadgroup]]) {
  if (index < 64)
    threadgroup_barrier(mem_flags::mem_threadgroup);
  else
    threadgroup_barrier(mem_flags::mem_device);
  a[index] = 1.0f;
}

[[kernel]] void return_before_a_barrier(device float* a [[buffer(0)]], uint index [[thread_index_in_threadgroup]]) {
  if (index == 77) return;
  threadgroup_barrier(mem_flags::mem_threadgroup);
  a[index] = 1.0f;
}

[[kernel]] void sum_in_two_branches(device float* a [[buffer(0)]], uint index [[thread_index_in_threadgroup]]) {
  float x = a[index];
  if ((index & 1u) == 0u)
    x = simd_sum(x);
  else
    x = simd_sum(x * 2.0f);
  a[index] = x;
}

[[kernel]] void sum_of_some_lanes(device float* a [[buffer(0)]], uint index [[thread_index_in_threadgroup]]) {
  if (index % 32 < 20) a[index] = simd_sum(a[index]);
}

[[kernel]] void product_of_some_lanes(device float* a [[buffer(0)]], uint index [[thread_index_in_threadgroup]]) {
  simdgroup_matrix<float, 8, 8> factor, sums(0.0f);
  simdgroup_load(factor, a);
  if (index % 32 < 20) simdgroup_multiply_accumulate(sums, factor, factor, sums);
  simdgroup_store(sums, a);
}

[[kernel]] void more_products_in_some_lanes(device float* a [[buffer(0)]], uint index [[thread_index_in_threadgroup]]) {
  simdgroup_matrix<float, 8, 8> factor, sums(0.0f);
  simdgroup_load(factor, a);
  for (uint i = 0; i <= index % 2; i++) simdgroup_multiply_accumulate(sums, factor, factor, sums);
  simdgroup_store(sums, a);
}

[[kernel]] void barrier_or_sum(device float* a [[buffer(0)]], uint index [[thread_index_in_threadgroup]]) {
  if (index % 32 == 5)
    threadgroup_barrier(mem_flags::mem_threadgroup);
  else
    a[index] = simd_max(a[index]);
}

[[kernel]] void lane_beyond_the_group(device float* a [[buffer(0)]], uint index [[thread_index_in_threadgroup]]) {
  a[index] = simd_shuffle(a[index], ushort(32 + index % 2));
}

[[kernel, max_total_threads_per_threadgroup(64)]] void few_threads(device float* a [[buffer(0)]],
                                                                    uint index [[thread_index_in_threadgroup]]) {
  a[index] = 1.0f;
}
