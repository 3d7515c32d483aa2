#include "fiber.h"

#include <sys/mman.h>

#include <cstdint>
#include <cstdio>
#include <cstdlib>

#define LILY_STRING_(x) #x
#define LILY_STRING(x) LILY_STRING_(x)
// Symbols have a leading underscore on macOS.
#define LILY_SYMBOL(name) LILY_STRING(__USER_LABEL_PREFIX__) #name

// Pushes what a function must preserve, swaps stacks and pops. A new stack's "return address" is the fiber's body.
#if defined(__x86_64__)
asm(".text\n"
    ".globl " LILY_SYMBOL(lily_host_switch_stack) "\n"
    LILY_SYMBOL(lily_host_switch_stack) ":\n"
    R"(
    pushq %rbp
    pushq %rbx
    pushq %r12
    pushq %r13
    pushq %r14
    pushq %r15
    movq %rsp, (%rdi)
    movq (%rsi), %rsp
    popq %r15
    popq %r14
    popq %r13
    popq %r12
    popq %rbx
    popq %rbp
    popq %rcx
    jmpq *%rcx
)");
#elif defined(__aarch64__)
asm(".text\n"
    ".globl " LILY_SYMBOL(lily_host_switch_stack) "\n"
    ".p2align 2\n"
    LILY_SYMBOL(lily_host_switch_stack) ":\n"
    R"(
    stp x19, x20, [sp, #-160]!
    stp x21, x22, [sp, #16]
    stp x23, x24, [sp, #32]
    stp x25, x26, [sp, #48]
    stp x27, x28, [sp, #64]
    stp x29, x30, [sp, #80]
    stp d8, d9, [sp, #96]
    stp d10, d11, [sp, #112]
    stp d12, d13, [sp, #128]
    stp d14, d15, [sp, #144]
    mov x9, sp
    str x9, [x0]
    ldr x9, [x1]
    mov sp, x9
    ldp x21, x22, [sp, #16]
    ldp x23, x24, [sp, #32]
    ldp x25, x26, [sp, #48]
    ldp x27, x28, [sp, #64]
    ldp x29, x30, [sp, #80]
    ldp d8, d9, [sp, #96]
    ldp d10, d11, [sp, #112]
    ldp d12, d13, [sp, #128]
    ldp d14, d15, [sp, #144]
    ldp x19, x20, [sp], #160
    ret
)");
#else
#error "the kernels' threads need a stack switch for this processor"
#endif

namespace lily_host {
namespace {

constexpr size_t PAGE = 16384;  // the largest page of the machines this runs on
constexpr size_t STACK = 8 * PAGE;

char* allocate() {
  void* memory = mmap(nullptr, PAGE + STACK, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANON, -1, 0);
  if (memory == MAP_FAILED || mprotect(memory, PAGE, PROT_NONE) != 0) {
    std::fputs("lily-host: no memory for the stacks of a threadgroup\n", stderr);
    std::abort();
  }
  return static_cast<char*>(memory);
}

// A stack from which `switch_stack` returns into `body`.
void* prepared(char* memory, unsigned index, void (*body)()) {
  // Tops that differ in their low bits keep the hot ends of 32 stacks out of each other's cache sets.
  char* top = memory + PAGE + STACK - index % 32 * 320;
#if defined(__x86_64__)
  // Six registers, then the body, then a return address that is never used: a body sees the stack as after a call.
  void** words = reinterpret_cast<void**>(reinterpret_cast<uintptr_t>(top) & ~uintptr_t(15)) - 8;
  for (int i = 0; i < 8; i++) words[i] = nullptr;
  words[6] = reinterpret_cast<void*>(body);
#else
  void** words = reinterpret_cast<void**>(reinterpret_cast<uintptr_t>(top) & ~uintptr_t(15)) - 20;
  for (int i = 0; i < 20; i++) words[i] = nullptr;
  words[11] = reinterpret_cast<void*>(body);  // x30
#endif
  return words;
}

}  // namespace

Fibers::~Fibers() {
  for (Fiber& fiber : fibers_) {
    if (fiber.sanitizer != nullptr) destroy_fiber(fiber.sanitizer);
    munmap(fiber.memory, PAGE + STACK);
  }
}

void Fibers::provide(unsigned count, void (*body)()) {
  const unsigned have = unsigned(fibers_.size());
  if (have < count) {
    fibers_.resize(count);
    stacks_.resize(count);
  }
  for (unsigned i = abandoned_ ? 0 : have; i < fibers_.size(); i++) begin(i, body);
  abandoned_ = false;
}

void Fibers::begin(unsigned index, void (*body)()) {
  Fiber& fiber = fibers_[index];
  if (fiber.memory == nullptr) fiber.memory = allocate();
  // A fiber that was left in the middle of a kernel still has frames there.
  unpoison(fiber.memory + PAGE, STACK);
  if (fiber.sanitizer != nullptr) destroy_fiber(fiber.sanitizer);
  fiber.sanitizer = create_fiber();
  stacks_[index].top = prepared(fiber.memory, index, body);
}

void Fibers::enter(unsigned fiber) {
  worker_sanitizer_ = current_fiber();
  switch_fiber(fibers_[fiber].sanitizer);
  lily_host_switch_stack(&worker_, &stacks_[fiber]);
}

void Fibers::leave(unsigned fiber) {
  switch_fiber(worker_sanitizer_);
  lily_host_switch_stack(&stacks_[fiber], &worker_);
}

}  // namespace lily_host
