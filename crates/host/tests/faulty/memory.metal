// Kernels that use memory as they must not.
#include <metal_stdlib>
using namespace metal;

[[kernel]] void read_before_written(device float* a [[buffer(0)]], uint index [[thread_index_in_threadgroup]]) {
  threadgroup float shared[128];
  if (index < 100) shared[index] = a[index];
  threadgroup_barrier(mem_flags::mem_threadgroup);
  a[index] = shared[127 - index];
}

[[kernel]] void no_barrier(device float* a [[buffer(0)]], uint index [[thread_index_in_threadgroup]]) {
  threadgroup float shared[128];
  shared[index] = a[index];
  a[index] = shared[(index + 37) % 128];
}

[[kernel]] void no_second_barrier(device float* a [[buffer(0)]], uint index [[thread_index_in_threadgroup]]) {
  threadgroup float shared[128];
  for (uint i = 0; i < 4; i++) {
    shared[index] = a[index];
    threadgroup_barrier(mem_flags::mem_threadgroup);
    a[index] = shared[(index + 37) % 128];
  }
}

// A SIMD-group operation orders no memory.
[[kernel]] void no_simdgroup_barrier(device float* a [[buffer(0)]], uint index [[thread_index_in_threadgroup]]) {
  threadgroup float shared[128];
  shared[index] = a[index];
  const float sum = simd_sum(a[index]);
  a[index] = shared[index ^ 1u] + sum;
}

[[kernel]] void threadgroups_write_one_place(device float* a [[buffer(0)]], uint3 group [[threadgroup_position_in_grid]],
                                             uint index [[thread_index_in_threadgroup]]) {
  if (index == 0) a[0] = float(group.x);
}

// As it should be: what the checks must not complain about.
[[kernel]] void ordered(device float* a [[buffer(0)]], device atomic_uint* count [[buffer(1)]],
                        uint3 group [[threadgroup_position_in_grid]], uint index [[thread_index_in_threadgroup]]) {
  threadgroup float shared[128];
  threadgroup float sums[4];
  for (uint i = 0; i < 4; i++) {
    shared[index] = a[group.x * 128 + index];
    simdgroup_barrier(mem_flags::mem_threadgroup);
    const float sum = simd_sum(shared[index ^ 1u]);
    if (index % 32 == 0) sums[index / 32] = sum;
    threadgroup_barrier(mem_flags::mem_threadgroup);
    a[group.x * 128 + index] = shared[(index + 37) % 128] + 0.0f * (sums[0] + sums[3]);
    threadgroup_barrier(mem_flags::mem_threadgroup | mem_flags::mem_device);
  }
  atomic_fetch_add_explicit(count, 1u, memory_order_relaxed);
}

[[kernel]] void write_beyond_a_buffer(device float* a [[buffer(0)]], uint3 group [[threadgroup_position_in_grid]],
                                      uint index [[thread_index_in_threadgroup]]) {
  a[group.x * 128 + index + 1] = 1.0f;
}

[[kernel]] void read_beyond_an_array(device float* a [[buffer(0)]], uint index [[thread_index_in_threadgroup]]) {
  threadgroup float shared[128];
  threadgroup float other[4];
  shared[index] = a[index];
  if (index < 4) other[index] = 0.0f;
  threadgroup_barrier(mem_flags::mem_threadgroup);
  a[index] = shared[index + 1] + other[index % 4];
}
