// Fibers: threads of control that hand over to each other only when they say so.
#pragma once

#include <sys/mman.h>
#include <unistd.h>

#include <cstddef>
#include <new>
#include <vector>

#ifdef __SANITIZE_ADDRESS__
#include <sanitizer/asan_interface.h>
#include <sanitizer/common_interface_defs.h>
#endif
#ifndef __x86_64__
#define TIM_EXT_UCONTEXT  // ten times slower, but on every machine
#endif
#ifdef TIM_EXT_UCONTEXT
#include <ucontext.h>
#endif

namespace emulation {

// The stacks of all fibers, kept from one launch to the next; a page below each one stops an overflow.
class Stacks {
 public:
  static constexpr size_t kBytes = 128 << 10, kSpread = 16 << 10;

  char* take() {
    if (free_.empty()) return make();
    char* const stack = free_.back();
    free_.pop_back();
    return stack;
  }
  void give_back(char* stack) { free_.push_back(stack); }

 private:
  char* make() {
    const size_t page = static_cast<size_t>(sysconf(_SC_PAGESIZE));
    void* const start =
        mmap(nullptr, page + kBytes + kSpread, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (start == MAP_FAILED || mprotect(start, page, PROT_NONE) != 0) throw std::bad_alloc();
    // All tops at the same distance from a page would share a few lines of the cache.
    return static_cast<char*>(start) + page + made_++ * 64 % kSpread;
  }
  size_t made_ = 0;
  std::vector<char*> free_;
};

// One side of a switch: where a fiber, or the scheduler, goes on when it is switched to.
struct Context {
#ifndef TIM_EXT_UCONTEXT
  void* stack_pointer = nullptr;
#else
  ucontext_t state;
#endif
  const char* stack = nullptr;  // null: the stack of the program itself
  size_t stack_bytes = 0;
  void* sanitizer_state = nullptr;
};

#ifndef TIM_EXT_UCONTEXT
// Saves the registers that a called function must keep on this stack, and takes them from the other one.
extern "C" __attribute__((visibility("hidden"))) void tim_emulation_switch(void** from, void* to);
asm(R"(
.text
.p2align 4
.type tim_emulation_switch, @function
tim_emulation_switch:
  pushq %rbp
  pushq %rbx
  pushq %r12
  pushq %r13
  pushq %r14
  pushq %r15
  movq %rsp, (%rdi)
  movq %rsi, %rsp
  popq %r15
  popq %r14
  popq %r13
  popq %r12
  popq %rbx
  popq %rbp
  ret
.size tim_emulation_switch, .-tim_emulation_switch
)");
#endif

// `entry` starts on the stack at the first switch to the context; it must never return.
inline void prepare(Context& context, char* stack, void (*entry)()) {
  context.stack = stack;
  context.stack_bytes = Stacks::kBytes;
  context.sanitizer_state = nullptr;
#ifdef __SANITIZE_ADDRESS__
  ASAN_UNPOISON_MEMORY_REGION(stack, Stacks::kBytes);  // what an earlier fiber left
#endif
#ifndef TIM_EXT_UCONTEXT
  void** top = reinterpret_cast<void**>(stack + Stacks::kBytes);
  *--top = nullptr;  // where `entry` would return to; keeps its stack aligned as the ABI wants
  *--top = reinterpret_cast<void*>(entry);
  context.stack_pointer = top - 6;  // the six registers
  for (int i = 0; i < 6; ++i) *--top = nullptr;
#else
  getcontext(&context.state);
  context.state.uc_stack.ss_sp = stack;
  context.state.uc_stack.ss_size = Stacks::kBytes;
  context.state.uc_link = nullptr;
  makecontext(&context.state, entry, 0);
#endif
}

// Right after a switch, on the new side.
inline void arrived([[maybe_unused]] Context& here, [[maybe_unused]] Context* program = nullptr) {
#ifdef __SANITIZE_ADDRESS__
  const void* bottom;
  size_t bytes;
  __sanitizer_finish_switch_fiber(here.sanitizer_state, &bottom, &bytes);
  if (program) {  // what was left is the program's own stack: remember it for the way back
    program->stack = static_cast<const char*>(bottom);
    program->stack_bytes = bytes;
  }
#endif
}

inline void switch_to(Context& from, Context& to) {
#ifdef __SANITIZE_ADDRESS__
  __sanitizer_start_switch_fiber(&from.sanitizer_state, to.stack, to.stack_bytes);
#endif
#ifndef TIM_EXT_UCONTEXT
  tim_emulation_switch(&from.stack_pointer, to.stack_pointer);
#else
  swapcontext(&from.state, &to.state);
#endif
  arrived(from);
}

}  // namespace emulation
