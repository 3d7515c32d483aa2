// Stacks to run a kernel's threads on, and the switch between them. A switch by hand costs some 15 ns; ucontext, which
// saves the signal mask too, costs fifty times that.
#pragma once

#include <cstddef>
#include <vector>

#include "sanitizers.h"

namespace lily_host {

// A suspended stack: what `switch_stack` has pushed lies at its top.
struct Stack {
  void* top = nullptr;
};

// Suspends the running stack into `from` and resumes `to`.
extern "C" void lily_host_switch_stack(Stack* from, const Stack* to);

// The stacks of a worker, kept from launch to launch. Under the sanitizers each is a fiber of theirs.
class Fibers {
 public:
  Fibers() = default;
  ~Fibers();
  Fibers(const Fibers&) = delete;
  Fibers& operator=(const Fibers&) = delete;

  // Makes sure of fibers 0 to count - 1. New ones begin `body` when they are first resumed.
  void provide(unsigned count, void (*body)());
  // All fibers are as new, whatever they were at.
  void abandon() { abandoned_ = true; }
  // From the worker's own stack to a fiber, from one to another, and back. These return when switched back to.
  void enter(unsigned fiber);
  void change(unsigned from, unsigned to) {
    switch_fiber(fibers_[to].sanitizer);
    lily_host_switch_stack(&stacks_[from], &stacks_[to]);
  }
  void leave(unsigned fiber);
  // Has the top of a fiber's stack brought into the cache: the stacks of a SIMD-group do not fit the fastest one.
  void prepare(unsigned fiber) const {
    const char* top = static_cast<const char*>(stacks_[fiber].top);
    for (unsigned i = 0; i < 4; i++) __builtin_prefetch(top + i * 64, 1);
  }

 private:
  struct Fiber {
    char* memory = nullptr;  // a guard page, then the stack
    void* sanitizer = nullptr;
  };
  void begin(unsigned fiber, void (*body)());

  std::vector<Fiber> fibers_;
  std::vector<Stack> stacks_;  // of the fibers, close together
  bool abandoned_ = false;
  Stack worker_;
  void* worker_sanitizer_ = nullptr;
};

}  // namespace lily_host
