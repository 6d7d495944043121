// Stacks and the switch between them: one fiber per lane, all on one OS thread.
#pragma once

#include <sys/mman.h>

#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <stdexcept>
#include <vector>

#include "sanitizers.hpp"

#if defined(MEGATRACE_HOST_UCONTEXT) || !(defined(__x86_64__) || defined(__aarch64__))
#define MEGATRACE_HOST_HAS_UCONTEXT 1
#include <ucontext.h>
#endif

#if !defined(MEGATRACE_HOST_HAS_UCONTEXT)
// megatrace_host_switch(save, load): keeps the callee-saved registers on this stack, its
// pointer in *save, and goes on where `load` left off. A comdat: this header may be in
// many translation units.
#define MEGATRACE_ASM_BEGIN                                                                   \
  ".pushsection .text.megatrace_host_switch,\"axG\",%progbits,megatrace_host_switch,comdat\n" \
  ".weak megatrace_host_switch\n"                                                             \
  ".hidden megatrace_host_switch\n"                                                           \
  ".type megatrace_host_switch,%function\n"                                                   \
  "megatrace_host_switch:\n"
#define MEGATRACE_ASM_END ".size megatrace_host_switch, . - megatrace_host_switch\n.popsection\n"

#if defined(__x86_64__)
// clang-format off
asm(MEGATRACE_ASM_BEGIN
    "  pushq %rbp\n  pushq %rbx\n  pushq %r12\n  pushq %r13\n  pushq %r14\n  pushq %r15\n"
    "  movq %rsp, (%rdi)\n"
    "  movq %rsi, %rsp\n"
    "  popq %r15\n  popq %r14\n  popq %r13\n  popq %r12\n  popq %rbx\n  popq %rbp\n"
    "  ret\n"
    MEGATRACE_ASM_END);
// clang-format on
#else
// clang-format off
asm(MEGATRACE_ASM_BEGIN
    "  sub sp, sp, #160\n"
    "  stp x19, x20, [sp, #0]\n  stp x21, x22, [sp, #16]\n  stp x23, x24, [sp, #32]\n"
    "  stp x25, x26, [sp, #48]\n  stp x27, x28, [sp, #64]\n  stp x29, x30, [sp, #80]\n"
    "  stp d8, d9, [sp, #96]\n  stp d10, d11, [sp, #112]\n"
    "  stp d12, d13, [sp, #128]\n  stp d14, d15, [sp, #144]\n"
    "  mov x9, sp\n"
    "  str x9, [x0]\n"
    "  mov sp, x1\n"
    "  ldp x19, x20, [sp, #0]\n  ldp x21, x22, [sp, #16]\n  ldp x23, x24, [sp, #32]\n"
    "  ldp x25, x26, [sp, #48]\n  ldp x27, x28, [sp, #64]\n  ldp x29, x30, [sp, #80]\n"
    "  ldp d8, d9, [sp, #96]\n  ldp d10, d11, [sp, #112]\n"
    "  ldp d12, d13, [sp, #128]\n  ldp d14, d15, [sp, #144]\n"
    "  add sp, sp, #160\n"
    "  ret\n"
    MEGATRACE_ASM_END);
// clang-format on
#endif
#undef MEGATRACE_ASM_BEGIN
#undef MEGATRACE_ASM_END

extern "C" void megatrace_host_switch(void** save, void* load);
#endif  // !MEGATRACE_HOST_HAS_UCONTEXT

namespace megatrace::host {

// A stack and where it stopped. The scheduler's own stack is one too, without a `low`
// until the first switch tells.
struct Fiber {
  using Entry = void (*)();

#if defined(MEGATRACE_HOST_HAS_UCONTEXT)
  ucontext_t context;
#else
  void* sp = nullptr;
#endif
  const void* low = nullptr;
  size_t bytes = 0;
  void* fake_stack = nullptr;  // AddressSanitizer's
  void* shadow = nullptr;      // ThreadSanitizer's

  // Makes the next switch to this fiber call `entry`, which must never return.
  void reset(Entry entry) {
    sanitizer::unpoison(low, bytes);
    fake_stack = nullptr;
#if defined(MEGATRACE_HOST_HAS_UCONTEXT)
    getcontext(&context);
    context.uc_stack.ss_sp = const_cast<void*>(low);
    context.uc_stack.ss_size = bytes;
    context.uc_link = nullptr;
    makecontext(&context, entry, 0);
#else
    // The switch pops the callee-saved registers and returns to `entry`, whose own return
    // address is 0.
#if defined(__x86_64__)
    constexpr size_t kFrameWords = 8, kEntryWord = 6;
#else
    constexpr size_t kFrameWords = 20, kEntryWord = 11;
#endif
    auto* top = reinterpret_cast<uintptr_t*>(static_cast<char*>(const_cast<void*>(low)) + bytes);
    // Two words of headroom keep the stack 16-byte aligned as the ABI wants it at a call.
    uintptr_t* frame = top - 2 - kFrameWords;
    std::memset(frame, 0, (kFrameWords + 2) * sizeof(uintptr_t));
    frame[kEntryWord] = reinterpret_cast<uintptr_t>(entry);
    sp = frame;
#endif
  }
};

MEGATRACE_HOST_NO_TSAN inline void switch_fiber(Fiber& from, Fiber& to, bool for_good) {
  sanitizer::start_switch(for_good ? nullptr : &from.fake_stack, to.low, to.bytes, to.shadow);
#if defined(MEGATRACE_HOST_HAS_UCONTEXT)
  swapcontext(&from.context, &to.context);
#else
  megatrace_host_switch(&from.sp, to.sp);
#endif
  sanitizer::finish_switch(from.fake_stack, nullptr, nullptr);
}

// Stacks in slabs of lazily touched pages, kept between launches.
class StackPool {
 public:
  static constexpr size_t kStackBytes = sanitizer::kActive ? 256 << 10 : 64 << 10;
  static constexpr size_t kGuardBytes = 4 << 10;
  // A guard page is a mapping of its own, and Linux allows 65530 of them a process.
  static constexpr size_t kMaxGuards = 12 << 10;

  void reserve(size_t count) {
    while (fibers_.size() < count) add_slab(count - fibers_.size());
  }

  // The fibers will not come to an end: what they did came before what `main` does next, and
  // what the sanitizers know of them is void.
  void abandon(const Fiber& main) {
    for (Fiber& fiber : fibers_) {
      sanitizer::join(fiber.shadow, main.shadow);
      fiber.shadow = sanitizer::create_fiber();
    }
  }

  Fiber& operator[](size_t i) { return fibers_[i]; }

 private:
  void add_slab(size_t count) {
    const size_t size = count * kStackBytes;
    void* slab = mmap(nullptr, size, PROT_READ | PROT_WRITE,
                      MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_STACK, -1, 0);
    if (slab == MAP_FAILED) throw std::runtime_error("host build: no memory for fiber stacks");
    // Huge pages would make every stack cost 2 MiB / 32.
    madvise(slab, size, MADV_NOHUGEPAGE);
    for (size_t i = 0; i < count; i++) {
      char* low = static_cast<char*>(slab) + i * kStackBytes;
      if (fibers_.size() < kMaxGuards) mprotect(low, kGuardBytes, PROT_NONE);
      Fiber fiber;
      fiber.low = low + kGuardBytes;
      fiber.bytes = kStackBytes - kGuardBytes;
      fiber.shadow = sanitizer::create_fiber();
      fibers_.push_back(fiber);
    }
  }

  std::vector<Fiber> fibers_;
};

}  // namespace megatrace::host
