#include "arena.h"

#include <sys/mman.h>

#include <cstdio>
#include <cstdlib>

#include "sanitizers.h"

namespace lily_host {
namespace {

void* map(void* at, size_t size) {
  void* memory = mmap(at, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANON | (at == nullptr ? 0 : MAP_FIXED), -1, 0);
  if (memory == MAP_FAILED) {
    std::fputs("lily-host: no memory for a threadgroup's variables\n", stderr);
    std::abort();
  }
  return memory;
}

unsigned rounded(unsigned value, unsigned to) { return (value + to - 1) / to * to; }

}  // namespace

Arena::Arena() : memory_(static_cast<unsigned char*>(map(nullptr, SIZE))) {}

Arena::~Arena() {
  unpoison(memory_, SIZE);
  munmap(memory_, SIZE);
}

void Arena::clear() {
  // ThreadSanitizer would take the next threadgroup's accesses for races with this one's; of new memory it knows nothing.
  if (THREAD_SANITIZER && end_ > 0) map(memory_, SIZE);
  used_ = 0;
  end_ = RED_ZONE;
  for (void*& variable : variables_) variable = nullptr;
  poison(memory_, SIZE);
}

void* Arena::variable(unsigned number, unsigned bytes, unsigned alignment) {
  if (number >= VARIABLES) return nullptr;
  void*& variable = variables_[number];
  if (variable != nullptr) return variable;
  // Metal's compilers align arrays to 16 bytes or better.
  used_ = rounded(used_, alignment < 16 ? 16 : alignment) + bytes;
  if (used_ > LIMIT) return nullptr;
  end_ = rounded(unsigned(end_), RED_ZONE);
  unsigned char* memory = memory_ + end_;
  end_ += bytes + RED_ZONE;
  unpoison(memory, bytes);
  for (unsigned i = 0; i < bytes; i++) memory[i] = 0xff;
  variable = memory;
  return memory;
}

}  // namespace lily_host
