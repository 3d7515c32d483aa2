#include "host.h"

#include <atomic>
#include <cstdio>
#include <cstring>
#include <memory>
#include <mutex>
#include <thread>

#include "worker.h"

namespace lily_host {
namespace {

const RegisterKernel* kernels = nullptr;
const RegisterConstant* constants = nullptr;

// Workers that are not at work: their stacks are used again.
std::mutex idle_lock;
std::vector<std::unique_ptr<Worker>> idle;

std::unique_ptr<Worker> take_worker() {
  std::lock_guard<std::mutex> lock(idle_lock);
  if (idle.empty()) return std::make_unique<Worker>();
  std::unique_ptr<Worker> worker = std::move(idle.back());
  idle.pop_back();
  return worker;
}

void give_back(std::unique_ptr<Worker> worker) {
  std::lock_guard<std::mutex> lock(idle_lock);
  idle.push_back(std::move(worker));
}

// Function constants belong to an OS thread, so that launches for different models may run at once.
void set_constants(const LilyHostLaunch& launch) {
  for (const RegisterConstant* constant = constants; constant != nullptr; constant = constant->next)
    std::memcpy(constant->address(), &launch.constants[constant->index], 4);
}

std::string check(const LilyHostLaunch& launch) {
  const RegisterKernel& kernel = *static_cast<const RegisterKernel*>(launch.kernel);
  for (const RegisterConstant* constant = constants; constant != nullptr; constant = constant->next) {
    if (constant->bytes != 4) return std::string("the function constant ") + constant->name + " is not of 4 bytes";
    if (constant->index >= launch.constant_count)
      return std::string("no value for the function constant ") + constant->name + " (" + std::to_string(constant->index) + ")";
  }
  if (launch.threads == 0 || launch.threads > MAX_THREADS || launch.threads % LANES != 0)
    return std::to_string(launch.threads) + " threads a threadgroup: must be whole SIMD-groups of 32, at most 1024";
  if (launch.buffer_count != kernel.slots)
    return std::to_string(launch.buffer_count) + " buffers for " + std::to_string(kernel.slots) + " slots";
  return {};
}

uint64_t common_divisor(uint64_t a, uint64_t b) { return b == 0 ? a : common_divisor(b, a % b); }

// A stride by which `total` places are visited once each, in an order that looks random.
uint64_t stride(uint64_t total, uint64_t seed) {
  uint64_t stride = seed * 0x9e3779b97f4a7c15u % total;
  while (common_divisor(stride, total) != 1) stride = (stride + 1) % total;
  return stride;
}

// A worker's share of the threadgroups: whichever is next.
struct Share {
  const LilyHostLaunch& request;
  const Launch launch;
  const uint64_t total;  // threadgroups
  const uint64_t step;   // between them, in a random order
  std::atomic<uint64_t> next{0};
  std::atomic<bool> failed{false};
  std::mutex lock{};
  std::string error{};

  void work(unsigned index) {
    set_constants(request);
    std::unique_ptr<Worker> worker = take_worker();
    worker->start(launch, index);
    while (!failed) {
      uint64_t at = next.fetch_add(1);
      if (at >= total) break;
      if (launch.seed == 1) at = total - 1 - at;
      if (launch.seed > 1) at = (at * step + launch.seed) % total;
      const unsigned group[3] = {unsigned(at % launch.grid[0]), unsigned(at / launch.grid[0] % launch.grid[1]),
                                 unsigned(at / launch.grid[0] / launch.grid[1])};
      if (!worker->run(group)) {
        std::lock_guard<std::mutex> guard(lock);
        if (!failed.exchange(true)) error = worker->error;
      }
    }
    worker->finish();
    give_back(std::move(worker));
  }
};

std::string run(const LilyHostLaunch& request) {
  if (std::string error = check(request); !error.empty()) return error;
  const Launch launch = {static_cast<const RegisterKernel*>(request.kernel), request.buffers,
                         {request.grid[0], request.grid[1], request.grid[2]}, request.threads, request.seed};
  const uint64_t total = uint64_t(launch.grid[0]) * launch.grid[1] * launch.grid[2];
  if (total == 0) return {};
  Share share{request, launch, total, stride(total, launch.seed)};
  std::vector<std::thread> others;
  for (unsigned i = 1; i < request.workers; i++) others.emplace_back([&share, i] { share.work(i); });
  share.work(0);
  for (std::thread& other : others) other.join();
  return share.error;
}

}  // namespace

RegisterKernel::RegisterKernel(const char* name, Entry entry, unsigned slots)
    : name(name), entry(entry), slots(slots), next(kernels) {
  kernels = this;
}

RegisterConstant::RegisterConstant(unsigned index, const char* name, unsigned bytes, void* (*address)())
    : index(index), name(name), bytes(bytes), address(address), next(constants) {
  constants = this;
}

}  // namespace lily_host

const void* lily_host_kernel(uint32_t index) {
  const lily_host::RegisterKernel* kernel = lily_host::kernels;
  while (kernel != nullptr && index-- > 0) kernel = kernel->next;
  return kernel;
}

const char* lily_host_kernel_name(const void* kernel) { return static_cast<const lily_host::RegisterKernel*>(kernel)->name; }

int32_t lily_host_launch(const LilyHostLaunch* launch, char* message, uint64_t capacity) {
  const std::string error = lily_host::run(*launch);
  if (error.empty()) return 0;
  std::snprintf(message, capacity, "%s", error.c_str());
  return 1;
}
