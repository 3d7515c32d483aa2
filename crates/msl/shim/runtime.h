// What a kernel on the CPU asks of the runtime that runs its threads (crates/host/runtime). Each thread of a threadgroup
// is a fiber; fibers of a SIMD-group meet in `meet`, those of a threadgroup in `barrier`.
#pragma once

namespace lily_host {

constexpr unsigned LANES = 32;

// An operation in a kernel, for error messages and to tell whether threads stand at the same one.
struct Site {
  const char* operation;
  const char* file;
  int line;
};
__attribute__((always_inline)) inline bool same(const Site& a, const Site& b) {
  return a.line == b.line && (a.operation == b.operation || __builtin_strcmp(a.operation, b.operation) == 0) &&
         (a.file == b.file || __builtin_strcmp(a.file, b.file) == 0);
}

// What the lanes of a SIMD-group bring to a meeting and take from it: a slot a lane, each as large as the values, one behind
// the other, as a few cache lines hold all.
struct Slots {
  static constexpr unsigned BYTES = 256;  // of a slot at most
  alignas(64) unsigned char bytes[LANES * BYTES];
};

// Waits until all lanes of the SIMD-group have come to `site` with a value. Then the last one calls `combine`, which
// replaces the values in the slots by the lanes' results; `combine` may be null. `bytes` is a multiple of 4.
void meet(const Site& site, void* value, unsigned bytes, void (*combine)(Slots&));
// As `meet` without values; memory that lanes wrote before is seen by all after.
void simdgroup_barrier(const Site& site, bool orders_memory);
void threadgroup_barrier(const Site& site, bool orders_memory);

// Of the running thread: its place in the SIMD-group, and the SIMD-group's place in the threadgroup.
extern __thread unsigned running_thread;
inline unsigned lane() { return running_thread % LANES; }
inline unsigned simdgroup() { return running_thread / LANES; }

// A row of an 8×8 matrix, of which a lane has two elements: of row lane / 4, lane % 4 * 2 and the next.
typedef float MatrixRow __attribute__((vector_size(32)));
// A lane's two elements of a matrix of sums.
struct Sums {
  alignas(8) float elements[2];
  bool waiting;  // for products
};
// The products of 8×8 matrices that a SIMD-group has asked for and not yet seen. They are made together, when a lane looks at
// a sum or there is no more room: a meeting costs a switch of stacks for every lane.
struct Products {
  static constexpr unsigned MOST = 16;
  unsigned asked[LANES];  // by each lane
  unsigned most_asked;    // by any lane
  Site sites[MOST];
  Sums* sums[MOST][LANES];
  MatrixRow left[MOST][8], right[MOST][8];

  // Inlined into functions that no sanitizer sees.
  __attribute__((always_inline)) void forget() {
    for (unsigned& count : asked) count = 0;
    most_asked = 0;
  }
};
extern __thread Products* running_products;  // of the threadgroup's SIMD-groups

// The threadgroup's variable `number` of the kernel's file; made, full of NaNs, by the first thread that asks.
void* threadgroup_memory(unsigned number, unsigned bytes, unsigned alignment);

// Ends the launch with an error.
[[noreturn]] void fail(const Site& site, const char* message);

// Where a thread is in the grid.
struct Place {
  unsigned group[3];  // threadgroup_position_in_grid
  unsigned index;     // thread_index_in_threadgroup
};
using Entry = void (*)(void* const* buffers, const Place& place);

// The lists of kernels and function constants that a library holds, filled by its static initialisers.
struct RegisterKernel {
  RegisterKernel(const char* name, Entry entry, unsigned slots);
  const char* name;
  Entry entry;
  unsigned slots;
  const RegisterKernel* next;
};
struct RegisterConstant {
  RegisterConstant(unsigned index, const char* name, unsigned bytes, void* (*address)());
  unsigned index;
  const char* name;
  unsigned bytes;
  void* (*address)();  // of this thread's
  const RegisterConstant* next;
};

}  // namespace lily_host
