// What the runtime tells ThreadSanitizer and AddressSanitizer. The runtime itself is compiled without them, so that they
// see the kernels' accesses only; it is told which flavour it serves by a macro.
#pragma once

#include <cstddef>

#if defined(LILY_HOST_THREAD)

#include <sanitizer/tsan_interface.h>

namespace lily_host {
constexpr bool THREAD_SANITIZER = true;
// What was done before a release of an object happens before what is done after an acquire of it.
inline void acquire(void* object) { __tsan_acquire(object); }
inline void release(void* object) { __tsan_release(object); }
inline void* create_fiber() { return __tsan_create_fiber(0); }
inline void destroy_fiber(void* fiber) { __tsan_destroy_fiber(fiber); }
inline void* current_fiber() { return __tsan_get_current_fiber(); }
// Unordered: a switch is no synchronisation between threads of the kernel.
inline void switch_fiber(void* fiber) { __tsan_switch_to_fiber(fiber, __tsan_switch_to_fiber_no_sync); }
}  // namespace lily_host

#else

namespace lily_host {
constexpr bool THREAD_SANITIZER = false;
inline void acquire(void*) {}
inline void release(void*) {}
inline void* create_fiber() { return nullptr; }
inline void destroy_fiber(void*) {}
inline void* current_fiber() { return nullptr; }
inline void switch_fiber(void*) {}
}  // namespace lily_host

#endif

#if defined(LILY_HOST_ADDRESS)

#include <sanitizer/asan_interface.h>

namespace lily_host {
inline void poison(void* memory, size_t bytes) { __asan_poison_memory_region(memory, bytes); }
inline void unpoison(void* memory, size_t bytes) { __asan_unpoison_memory_region(memory, bytes); }
}  // namespace lily_host

#else

namespace lily_host {
inline void poison(void*, size_t) {}
inline void unpoison(void*, size_t) {}
}  // namespace lily_host

#endif
