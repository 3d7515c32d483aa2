// Stacks to run a kernel's threads on, and the switch between them. A switch by hand costs some 15 ns; ucontext, which
// saves the signal mask too, costs fifty times that.
#pragma once

#include <cstddef>
#include <vector>

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
  void change(unsigned from, unsigned to);
  void leave(unsigned fiber);

 private:
  struct Fiber {
    Stack stack;
    char* memory = nullptr;  // a guard page, then the stack
    void* sanitizer = nullptr;
  };
  void begin(unsigned fiber, void (*body)());

  std::vector<Fiber> fibers_;
  bool abandoned_ = false;
  Stack worker_;
  void* worker_sanitizer_ = nullptr;
};

}  // namespace lily_host
