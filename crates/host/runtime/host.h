// What a library of kernels for the CPU exports; the Rust side is crates/host/src/library.rs.
#pragma once

#include <stdint.h>

#define LILY_HOST_API extern "C" __attribute__((visibility("default")))

// The `index`-th kernel, in no particular order; null beyond the last.
LILY_HOST_API const void* lily_host_kernel(uint32_t index);
LILY_HOST_API const char* lily_host_kernel_name(const void* kernel);

struct LilyHostLaunch {
  const void* kernel;
  void* const* buffers;
  uint32_t buffer_count;
  uint32_t grid[3];
  uint32_t threads;
  uint32_t workers;  // OS threads, at least 1
  const uint32_t* constants;  // the function constants' bits, by index
  uint32_t constant_count;
  uint64_t seed;  // see Launch in worker.h
};
// Runs a kernel to its end. 0 if all went well, else 1 and a message, cut to `capacity` bytes with its final zero.
LILY_HOST_API int32_t lily_host_launch(const LilyHostLaunch* launch, char* message, uint64_t capacity);
