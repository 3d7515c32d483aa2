// Runs threadgroups, one at a time, each thread a fiber.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "arena.h"
#include "fiber.h"
#include "runtime.h"

namespace lily_host {

// Threads of a threadgroup at most.
constexpr unsigned MAX_THREADS = 1024;

struct Launch {
  const RegisterKernel* kernel;
  void* const* buffers;
  unsigned grid[3];  // threadgroups
  unsigned threads;  // of a threadgroup
  // In which order threads and threadgroups run: 0 first to last, 1 last to first, others at random.
  uint64_t seed;
};

class Worker {
 public:
  // Gets ready for threadgroups of a launch; `finish` after the last.
  void start(const Launch& launch, unsigned worker);
  // Runs one. False, with the error in `error`, if its threads did what they must not.
  bool run(const unsigned (&group)[3]);
  void finish();

  std::string error;

  // What the running thread calls, see runtime.h.
  void meet(const Site& site, void* value, unsigned bytes, void (*combine)(Slots&));
  void threadgroup_barrier(const Site& site, bool orders_memory);
  void simdgroup_barrier(const Site& site, bool orders_memory);
  [[noreturn]] void fail(const Site& site, const std::string& message);
  void* threadgroup_memory(unsigned number, unsigned bytes, unsigned alignment);
  // What a fiber does, over and over.
  [[noreturn]] void run_threads();

 private:
  struct Simdgroup {
    uint32_t runnable;  // lanes, a bit each
    uint32_t arrived;   // at the meeting under way
    uint32_t finished;
    const uint8_t* after;  // which lane takes its turn after which
    unsigned meetings;  // parity says which slots are in use: a lane may come to the next meeting before another has left this
    Site site;
    Slots slots[2];
    char memory_order[2];  // only addresses, for ThreadSanitizer
  };

  struct Barrier {
    unsigned waiting;
    unsigned passed;  // its parity picks the object of the order: who is late must not see what comes after
    Site site;
    char memory_order[2];
  };

  unsigned fiber_of(unsigned thread) const;
  Simdgroup& group_of(unsigned thread) { return simdgroups_[thread / LANES]; }
  void go_on_with(unsigned thread) { current_ = running_thread = thread; }
  unsigned first();
  bool next(unsigned& thread);
  unsigned pick(uint32_t lanes, unsigned after);
  uint32_t random();
  // Lets another thread run; returns when this one is to go on.
  void yield(const Site& site);
  void thread_finished();
  const uint8_t* an_order();
  // What is wrong, where threads cannot come together. Apart from the functions that bring them, which are to be small.
  [[noreturn, gnu::cold]] void cannot_meet(const Site& site, const Simdgroup& group);
  [[noreturn, gnu::cold]] void cannot_wait(const Site& site, const Simdgroup& group);
  [[noreturn, gnu::cold]] void fail_stuck(const Site& site);

  const Launch* launch_ = nullptr;
  unsigned simdgroup_count_ = 0;
  unsigned group_[3] = {};
  unsigned current_ = 0;    // the running thread
  unsigned unfinished_ = 0;
  unsigned rotation_ = 0;   // of threads over fibers
  uint64_t random_ = 0;
  Fibers fibers_;
  Arena arena_;
  Barrier barrier_ = {};
  std::vector<Simdgroup> simdgroups_;
  std::vector<Products> products_;  // of each SIMD-group
  char started_ = 0, finished_ = 0;  // only addresses, for ThreadSanitizer
};

}  // namespace lily_host
