#include "worker.h"

#include <cstdio>
#include <utility>

#include "sanitizers.h"

namespace lily_host {
namespace {

__thread Worker* running = nullptr;

// Never inlined: a fiber that waits for its next threadgroup may find itself on another OS thread, and must not have kept
// the address of this one's `running`.
__attribute__((noinline)) Worker& worker() { return *running; }

constexpr uint32_t ALL_LANES = ~0u;

// Ways round the lanes of a SIMD-group: upwards, downwards, and some at random.
struct Orders {
  static constexpr unsigned RANDOM = 64;
  uint8_t after[2 + RANDOM][LANES];

  Orders() {
    uint64_t state = 0x9e3779b97f4a7c15u;
    for (unsigned order = 0; order < 2 + RANDOM; order++) {
      unsigned lanes[LANES];
      for (unsigned i = 0; i < LANES; i++) lanes[i] = order == 1 ? LANES - 1 - i : i;
      for (unsigned left = LANES; order > 1 && left > 1; left--) {
        state = state * 6364136223846793005u + 1442695040888963407u;
        std::swap(lanes[left - 1], lanes[(state >> 32) % left]);
      }
      for (unsigned i = 0; i < LANES; i++) after[order][lanes[i]] = uint8_t(lanes[(i + 1) % LANES]);
    }
  }
};

void body() { worker().run_threads(); }

std::string named(const Site& site) {
  return std::string(site.operation) + " (" + site.file + ":" + std::to_string(site.line) + ")";
}

// In words, with no call of memcpy: ThreadSanitizer would see it.
inline void copy(void* to, const void* from, unsigned bytes) {
  typedef uint64_t TwoWords __attribute__((aligned(4), may_alias));
  if (bytes == 8) {
    *static_cast<volatile TwoWords*>(to) = *static_cast<const TwoWords*>(from);
    return;
  }
  for (unsigned i = 0; i < bytes / 4; i++) static_cast<volatile uint32_t*>(to)[i] = static_cast<const uint32_t*>(from)[i];
}

}  // namespace

__thread unsigned running_thread = 0;
__thread Products* running_products = nullptr;

void Worker::start(const Launch& launch, unsigned worker) {
  running = this;
  launch_ = &launch;
  simdgroup_count_ = launch.threads / LANES;
  if (simdgroups_.size() < simdgroup_count_) {
    simdgroups_.resize(simdgroup_count_);
    products_.resize(simdgroup_count_);
  }
  running_products = products_.data();
  rotation_ = 0;
  random_ = (launch.seed + 1) * 0x9e3779b97f4a7c15u + worker;
  error.clear();
  fibers_.provide(launch.threads, &body);
}

void Worker::finish() {
  acquire(&finished_);
  running = nullptr;
}

bool Worker::run(const unsigned (&group)[3]) {
  for (int i = 0; i < 3; i++) group_[i] = group[i];
  unfinished_ = launch_->threads;
  for (unsigned i = 0; i < simdgroup_count_; i++) {
    Simdgroup& group = simdgroups_[i];
    group.runnable = ALL_LANES;
    group.arrived = group.finished = 0;
    group.after = an_order();
    products_[i].forget();
  }
  barrier_.waiting = 0;
  arena_.clear();
  // Threads of one threadgroup and of another are not ordered, but they take turns on the fibers, and what one fiber
  // does is ordered. So a conflict shows only if its two sides are on different fibers.
  if (THREAD_SANITIZER) rotation_ = (rotation_ + 37) % launch_->threads;
  release(&started_);
  go_on_with(first());
  fibers_.enter(fiber_of(current_));
  return error.empty();
}

// With no division: this is asked at every switch.
inline unsigned Worker::fiber_of(unsigned thread) const {
  if (!THREAD_SANITIZER) return thread;
  const unsigned fiber = thread + rotation_, threads = launch_->threads;
  return fiber < threads ? fiber : fiber - threads;
}

inline uint32_t Worker::random() {
  random_ = random_ * 6364136223846793005u + 1442695040888963407u;
  return uint32_t(random_ >> 32);
}

// In which order the lanes of a SIMD-group take turns until they have met: after which comes which.
inline const uint8_t* Worker::an_order() {
  static const Orders orders;
  return orders.after[launch_->seed > 1 ? 2 + random() % Orders::RANDOM : launch_->seed];
}

unsigned Worker::first() {
  switch (launch_->seed) {
    case 0: return 0;
    case 1: return launch_->threads - 1;
    default: return random() % launch_->threads;
  }
}

// The next thread to run: of the same SIMD-group if one can, so that it soon meets.
inline bool Worker::next(unsigned& thread) {
  const unsigned mine = current_ / LANES;
  Simdgroup& group = simdgroups_[mine];
  if (group.runnable != 0) {
    unsigned lane = group.after[current_ % LANES];
    if ((group.runnable >> lane & 1u) == 0) lane = pick(group.runnable, current_ % LANES);
    thread = mine * LANES + lane;
    fibers_.prepare(fiber_of(mine * LANES + group.after[lane]));
    return true;
  }
  const unsigned start = launch_->seed > 1 ? random() % simdgroup_count_ : mine;
  for (unsigned i = 0; i < simdgroup_count_; i++) {
    const unsigned step = launch_->seed == 1 ? simdgroup_count_ - i : i;
    const unsigned group = (start + step) % simdgroup_count_;
    if (simdgroups_[group].runnable != 0) {
      thread = group * LANES + pick(simdgroups_[group].runnable, launch_->seed == 1 ? 0 : LANES - 1);
      return true;
    }
  }
  return false;
}

// One of the lanes: the first after `after`, or the last before it, or any.
inline unsigned Worker::pick(uint32_t lanes, unsigned after) {
  if (launch_->seed == 1) {
    const uint32_t before = lanes & ((1u << after) - 1);
    return 31 - unsigned(__builtin_clz(before != 0 ? before : lanes));
  }
  if (launch_->seed > 1) after = random() % LANES;
  const uint32_t beyond = after == LANES - 1 ? 0 : lanes & (ALL_LANES << (after + 1));
  return unsigned(__builtin_ctz(beyond != 0 ? beyond : lanes));
}

inline void Worker::yield(const Site& site) {
  const unsigned me = current_;
  unsigned other = me;
  if (!next(other)) fail_stuck(site);
  go_on_with(other);
  if (other != me) fibers_.change(fiber_of(me), fiber_of(other));
}

void Worker::run_threads() {
  for (;;) {
    acquire(&started_);
    Place place = {{group_[0], group_[1], group_[2]}, current_};
    launch_->kernel->entry(launch_->buffers, place);
    worker().thread_finished();
  }
}

void Worker::thread_finished() {
  const unsigned me = current_;
  release(&finished_);
  Simdgroup& group = group_of(me);
  group.runnable &= ~(1u << me % LANES);
  group.finished |= 1u << me % LANES;
  unfinished_--;
  if (group.arrived != 0) fail(group.site, "is not reached by lane " + std::to_string(me % LANES) + ", which has returned");
  if (barrier_.waiting > 0) fail(barrier_.site, "is not reached by thread " + std::to_string(me) + ", which has returned");
  if (unfinished_ == 0) {
    fibers_.leave(fiber_of(me));
    return;
  }
  unsigned other;
  next(other);  // there is one: who waits has been dealt with
  go_on_with(other);
  fibers_.change(fiber_of(me), fiber_of(other));
}

void Worker::cannot_meet(const Site& site, const Simdgroup& group) {
  if (group.finished != 0) fail(site, "comes after some lanes of the SIMD-group have returned");
  fail(site, "while other lanes of the SIMD-group wait at " + named(group.site));
}

void Worker::meet(const Site& site, void* value, unsigned bytes, void (*combine)(Slots&)) {
  const unsigned me = current_, lane = me % LANES;
  Simdgroup& group = group_of(me);
  if (group.arrived == 0) {
    group.site = site;
    group.after = an_order();
  }
  if (group.finished != 0 || !same(group.site, site)) cannot_meet(site, group);
  Slots& slots = group.slots[group.meetings % 2];
  unsigned char* own = slots.bytes + lane * bytes;
  copy(own, value, bytes);
  group.arrived |= 1u << lane;
  if (group.arrived == ALL_LANES) {
    if (combine != nullptr) combine(slots);
    group.arrived = 0;
    group.meetings++;
    group.runnable = ALL_LANES;
  } else {
    const unsigned meeting = group.meetings;
    group.runnable &= ~(1u << lane);
    while (group.meetings == meeting) yield(site);
  }
  copy(value, own, bytes);
}

void Worker::simdgroup_barrier(const Site& site, bool orders_memory) {
  Simdgroup& group = group_of(current_);
  char* order = &group.memory_order[group.meetings % 2];
  if (orders_memory) release(order);
  meet(site, nullptr, 0, nullptr);
  if (orders_memory) acquire(order);
}

void Worker::cannot_wait(const Site& site, const Simdgroup& group) {
  if (unfinished_ != launch_->threads) fail(site, "comes after some threads have returned");
  if (group.arrived != 0) fail(site, "while other lanes of the SIMD-group wait at " + named(group.site));
  fail(site, "while other threads wait at " + named(barrier_.site));
}

void Worker::threadgroup_barrier(const Site& site, bool orders_memory) {
  const unsigned me = current_;
  Simdgroup& group = group_of(me);
  if (barrier_.waiting == 0) barrier_.site = site;
  if (unfinished_ != launch_->threads || group.arrived != 0 || !same(barrier_.site, site)) cannot_wait(site, group);
  char* order = &barrier_.memory_order[barrier_.passed % 2];
  if (orders_memory) release(order);
  if (++barrier_.waiting == launch_->threads) {
    barrier_.waiting = 0;
    barrier_.passed++;
    for (unsigned i = 0; i < simdgroup_count_; i++) {
      simdgroups_[i].runnable = ALL_LANES;
      simdgroups_[i].after = an_order();
    }
  } else {
    const unsigned barrier = barrier_.passed;
    group.runnable &= ~(1u << me % LANES);
    while (barrier_.passed == barrier) yield(site);
  }
  if (orders_memory) acquire(order);
}

void* Worker::threadgroup_memory(unsigned number, unsigned bytes, unsigned alignment) {
  void* memory = arena_.variable(number, bytes, alignment);
  if (memory == nullptr) {
    const Site site = {"threadgroup memory", launch_->kernel->name, 0};
    fail(site, "of " + std::to_string(arena_.used()) + " bytes; the limit is " + std::to_string(Arena::LIMIT));
  }
  return memory;
}

void Worker::fail(const Site& site, const std::string& message) {
  error = (site.line > 0 ? named(site) : std::string(site.operation)) + " " + message + "; in thread " +
          std::to_string(current_) + " of threadgroup (" + std::to_string(group_[0]) + ", " + std::to_string(group_[1]) + ", " +
          std::to_string(group_[2]) + ")";
  // No thread goes on.
  fibers_.abandon();
  fibers_.leave(fiber_of(current_));
  __builtin_unreachable();
}

void Worker::fail_stuck(const Site& site) {
  unsigned meeting = 0;
  for (unsigned i = 0; i < simdgroup_count_; i++) meeting += unsigned(__builtin_popcount(simdgroups_[i].arrived));
  std::string text = "is not reached by all threads: " + std::to_string(barrier_.waiting) + " wait at ";
  text += (barrier_.waiting > 0 ? named(barrier_.site) : std::string("a threadgroup_barrier")) + ", ";
  text += std::to_string(meeting) + " at SIMD-group operations, ";
  fail(site, text + std::to_string(launch_->threads - unfinished_) + " have returned");
}

// What runtime.h promises to kernels, which stay on one OS thread.
void meet(const Site& site, void* value, unsigned bytes, void (*combine)(Slots&)) { running->meet(site, value, bytes, combine); }
void simdgroup_barrier(const Site& site, bool orders_memory) { running->simdgroup_barrier(site, orders_memory); }
void threadgroup_barrier(const Site& site, bool orders_memory) { running->threadgroup_barrier(site, orders_memory); }
void* threadgroup_memory(unsigned number, unsigned bytes, unsigned alignment) {
  return running->threadgroup_memory(number, bytes, alignment);
}
void fail(const Site& site, const char* message) { running->fail(site, message); }

}  // namespace lily_host
