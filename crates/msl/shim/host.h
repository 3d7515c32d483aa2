// Metal's standard library for kernels that run on the CPU: SIMD-group functions, barriers, atomics, arguments.
#pragma once

// Before `thread` and the like become macros.
#include <type_traits>

#include "core.h"
#include "runtime.h"

// Address spaces are one here.
#define device
#define constant const
#define thread
#define threadgroup

// For code that reads what other lanes wrote with no barrier between, which is the runtime's business: unseen by the
// sanitizers.
#define LILY_UNCHECKED __attribute__((noinline, no_sanitize("thread", "address")))

namespace lily_host {

// Where the caller is: a default argument is evaluated at the call.
#define LILY_HERE const char *file = __builtin_FILE(), int line = __builtin_LINE()
#define LILY_SITE(operation) ::lily_host::Site { operation, file, line }

// Values take whole words.
template <class T> constexpr unsigned WORDS = (sizeof(T) + 3) / 4;
template <class T> LILY_INLINE T& slot(Slots& slots, unsigned lane) {
  return *reinterpret_cast<T*>(slots.bytes + lane * WORDS<T> * 4);
}

template <class T> LILY_INLINE T exchange(const Site& site, T value, void (*combine)(Slots&)) {
  static_assert(sizeof(T) <= Slots::BYTES, "a SIMD-group operation on too large a value");
  union Carried {
    T value;
    unsigned words[WORDS<T>];
    Carried() {}
  } carried;
  carried.value = value;
  meet(site, carried.words, sizeof(carried.words), combine);
  return carried.value;
}

struct Sum {
  template <class T> static LILY_INLINE T of(T a, T b) { return T(a + b); }
};
struct Product {
  template <class T> static LILY_INLINE T of(T a, T b) { return T(a * b); }
};
struct Largest {
  template <class T> static LILY_INLINE T of(T a, T b) { return metal::max(a, b); }
};
struct Smallest {
  template <class T> static LILY_INLINE T of(T a, T b) { return metal::min(a, b); }
};
struct Or {
  template <class T> static LILY_INLINE T of(T a, T b) { return T(a | b); }
};
struct And {
  template <class T> static LILY_INLINE T of(T a, T b) { return T(a & b); }
};

// In a tree: lanes 1 apart, 2, 4, 8, 16.
template <class T, class Operation> LILY_UNCHECKED void reduce(Slots& slots) {
  T values[LANES];
  for (unsigned i = 0; i < LANES; i++) values[i] = slot<T>(slots, i);
  for (unsigned apart = 1; apart < LANES; apart *= 2)
    for (unsigned i = 0; i < LANES; i += 2 * apart) values[i] = Operation::of(values[i], values[i + apart]);
  for (unsigned i = 0; i < LANES; i++) slot<T>(slots, i) = values[0];
}

template <class T, bool INCLUSIVE> LILY_UNCHECKED void prefix_sum(Slots& slots) {
  T before = T(0);
  for (unsigned i = 0; i < LANES; i++) {
    const T with = T(before + slot<T>(slots, i));
    slot<T>(slots, i) = INCLUSIVE ? with : before;
    before = with;
  }
}

// A value and the lane whose value is wanted.
template <class T> struct Request {
  T value;
  unsigned from;
};
template <class T> LILY_UNCHECKED void shuffle(Slots& slots) {
  T values[LANES];
  for (unsigned i = 0; i < LANES; i++) values[i] = slot<Request<T>>(slots, i).value;
  for (unsigned i = 0; i < LANES; i++) slot<Request<T>>(slots, i).value = values[slot<Request<T>>(slots, i).from];
}
template <class T> LILY_INLINE T take_from(const Site& site, T value, unsigned from) {
  if (from >= LANES) fail(site, "the lane asked for is beyond the SIMD-group");
  return exchange(site, Request<T>{value, from}, &shuffle<T>).value;
}

// How a kernel's arguments are made. Launching checks that the slots are filled.
template <unsigned SLOT> struct Buffer {
  template <class A> static LILY_INLINE A get(void* const* buffers, const Place&) {
    if constexpr (std::is_lvalue_reference_v<A>) return *static_cast<std::remove_reference_t<A>*>(buffers[SLOT]);
    else return static_cast<A>(buffers[SLOT]);
  }
};
struct ThreadgroupPosition {
  template <class A> static LILY_INLINE A get(void* const*, const Place& place) {
    if constexpr (sizeof(A) == sizeof(uint)) return place.group[0];
    else if constexpr (sizeof(A) == sizeof(uint2)) return uint2(place.group[0], place.group[1]);
    else return uint3(place.group[0], place.group[1], place.group[2]);
  }
};
struct ThreadIndex {
  template <class A> static LILY_INLINE A get(void* const*, const Place& place) { return A(place.index); }
};
struct SimdgroupIndex {
  template <class A> static LILY_INLINE A get(void* const*, const Place& place) { return A(place.index / LANES); }
};
struct LaneIndex {
  template <class A> static LILY_INLINE A get(void* const*, const Place& place) { return A(place.index % LANES); }
};

template <auto KERNEL> struct Signature;
template <class... A, void (*KERNEL)(A...)> struct Signature<KERNEL> {
  template <class... Sources> static void call(void* const* buffers, const Place& place) {
    KERNEL(Sources::template get<A>(buffers, place)...);
  }
};
template <auto KERNEL, class... Sources> void call(void* const* buffers, const Place& place) {
  Signature<KERNEL>::template call<Sources...>(buffers, place);
}

template <class T> LILY_INLINE T& threadgroup_variable(unsigned number) {
  return *static_cast<T*>(threadgroup_memory(number, sizeof(T), alignof(T)));
}

}  // namespace lily_host

namespace metal {

using lily_host::exchange;
using lily_host::take_from;

LILY_INLINE void threadgroup_barrier(mem_flags flags, LILY_HERE) {
  lily_host::threadgroup_barrier(LILY_SITE("threadgroup_barrier"), flags != mem_flags::mem_none);
}
LILY_INLINE void simdgroup_barrier(mem_flags flags, LILY_HERE) {
  lily_host::simdgroup_barrier(LILY_SITE("simdgroup_barrier"), flags != mem_flags::mem_none);
}

template <class T> LILY_INLINE T simd_sum(T x, LILY_HERE) {
  return exchange(LILY_SITE("simd_sum"), x, &lily_host::reduce<T, lily_host::Sum>);
}
template <class T> LILY_INLINE T simd_product(T x, LILY_HERE) {
  return exchange(LILY_SITE("simd_product"), x, &lily_host::reduce<T, lily_host::Product>);
}
template <class T> LILY_INLINE T simd_max(T x, LILY_HERE) {
  return exchange(LILY_SITE("simd_max"), x, &lily_host::reduce<T, lily_host::Largest>);
}
template <class T> LILY_INLINE T simd_min(T x, LILY_HERE) {
  return exchange(LILY_SITE("simd_min"), x, &lily_host::reduce<T, lily_host::Smallest>);
}
template <class T> LILY_INLINE T simd_or(T x, LILY_HERE) {
  return exchange(LILY_SITE("simd_or"), x, &lily_host::reduce<T, lily_host::Or>);
}
template <class T> LILY_INLINE T simd_and(T x, LILY_HERE) {
  return exchange(LILY_SITE("simd_and"), x, &lily_host::reduce<T, lily_host::And>);
}
LILY_INLINE bool simd_any(bool x, LILY_HERE) {
  return exchange(LILY_SITE("simd_any"), uint(x), &lily_host::reduce<uint, lily_host::Or>) != 0;
}
LILY_INLINE bool simd_all(bool x, LILY_HERE) {
  return exchange(LILY_SITE("simd_all"), uint(x), &lily_host::reduce<uint, lily_host::And>) != 0;
}
template <class T> LILY_INLINE T simd_prefix_exclusive_sum(T x, LILY_HERE) {
  return exchange(LILY_SITE("simd_prefix_exclusive_sum"), x, &lily_host::prefix_sum<T, false>);
}
template <class T> LILY_INLINE T simd_prefix_inclusive_sum(T x, LILY_HERE) {
  return exchange(LILY_SITE("simd_prefix_inclusive_sum"), x, &lily_host::prefix_sum<T, true>);
}
template <class T> LILY_INLINE T simd_shuffle(T x, ushort from, LILY_HERE) {
  return take_from(LILY_SITE("simd_shuffle"), x, from);
}
template <class T> LILY_INLINE T simd_shuffle_xor(T x, ushort mask, LILY_HERE) {
  return take_from(LILY_SITE("simd_shuffle_xor"), x, lily_host::lane() ^ mask);
}
// Beyond the SIMD-group Metal leaves the result undefined; here a lane gets its own value back.
template <class T> LILY_INLINE T simd_shuffle_down(T x, ushort by, LILY_HERE) {
  const unsigned lane = lily_host::lane();
  return take_from(LILY_SITE("simd_shuffle_down"), x, lane + by < lily_host::LANES ? lane + by : lane);
}
template <class T> LILY_INLINE T simd_shuffle_up(T x, ushort by, LILY_HERE) {
  const unsigned lane = lily_host::lane();
  return take_from(LILY_SITE("simd_shuffle_up"), x, lane >= by ? lane - by : lane);
}
template <class T> LILY_INLINE T simd_broadcast(T x, ushort from, LILY_HERE) {
  return take_from(LILY_SITE("simd_broadcast"), x, from);
}
template <class T> LILY_INLINE T simd_broadcast_first(T x, LILY_HERE) {
  return take_from(LILY_SITE("simd_broadcast_first"), x, 0);
}
// The lanes for which a condition holds, a bit each.
struct simd_vote {
  ulong bits;
  explicit operator ulong() const { return bits; }
};
LILY_INLINE simd_vote simd_ballot(bool x, LILY_HERE) {
  const uint bit = x ? 1u << lily_host::lane() : 0u;
  return simd_vote{exchange(LILY_SITE("simd_ballot"), bit, &lily_host::reduce<uint, lily_host::Or>)};
}

template <class T> struct atomic {
  T value;
};
typedef atomic<uint> atomic_uint;
typedef atomic<int> atomic_int;
template <class T> LILY_INLINE T atomic_load_explicit(const atomic<T>* a, memory_order) {
  return __atomic_load_n(&a->value, __ATOMIC_RELAXED);
}
template <class T> LILY_INLINE void atomic_store_explicit(atomic<T>* a, Same<T> x, memory_order) {
  __atomic_store_n(&a->value, x, __ATOMIC_RELAXED);
}
template <class T> LILY_INLINE T atomic_exchange_explicit(atomic<T>* a, Same<T> x, memory_order) {
  return __atomic_exchange_n(&a->value, x, __ATOMIC_RELAXED);
}
template <class T> LILY_INLINE T atomic_fetch_add_explicit(atomic<T>* a, Same<T> x, memory_order) {
  return __atomic_fetch_add(&a->value, x, __ATOMIC_RELAXED);
}
template <class T> LILY_INLINE T atomic_fetch_sub_explicit(atomic<T>* a, Same<T> x, memory_order) {
  return __atomic_fetch_sub(&a->value, x, __ATOMIC_RELAXED);
}
template <class T> LILY_INLINE T atomic_fetch_or_explicit(atomic<T>* a, Same<T> x, memory_order) {
  return __atomic_fetch_or(&a->value, x, __ATOMIC_RELAXED);
}
template <class T> LILY_INLINE T atomic_fetch_and_explicit(atomic<T>* a, Same<T> x, memory_order) {
  return __atomic_fetch_and(&a->value, x, __ATOMIC_RELAXED);
}
template <class T> LILY_INLINE T atomic_fetch_max_explicit(atomic<T>* a, Same<T> x, memory_order) {
  T old = __atomic_load_n(&a->value, __ATOMIC_RELAXED);
  while (old < x && !__atomic_compare_exchange_n(&a->value, &old, x, true, __ATOMIC_RELAXED, __ATOMIC_RELAXED)) {}
  return old;
}
template <class T> LILY_INLINE T atomic_fetch_min_explicit(atomic<T>* a, Same<T> x, memory_order) {
  T old = __atomic_load_n(&a->value, __ATOMIC_RELAXED);
  while (x < old && !__atomic_compare_exchange_n(&a->value, &old, x, true, __ATOMIC_RELAXED, __ATOMIC_RELAXED)) {}
  return old;
}

}  // namespace metal
