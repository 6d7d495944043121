// What the sanitizers must be told: stacks change hands, and which hand-offs order memory.
//
// Under ThreadSanitizer every lane is a thread of its own to it (a switch orders nothing),
// and only real hand-offs (barriers, mbarriers, collectives, acquire and release) are
// announced: so a kernel that forgets one is reported as the race it is.
#pragma once

#include <cstddef>

#if defined(__has_feature)
#if __has_feature(address_sanitizer)
#define MEGATRACE_HOST_ASAN 1
#endif
#if __has_feature(thread_sanitizer)
#define MEGATRACE_HOST_TSAN 1
#endif
#endif
#if defined(__SANITIZE_ADDRESS__)
#define MEGATRACE_HOST_ASAN 1
#endif
#if defined(__SANITIZE_THREAD__)
#define MEGATRACE_HOST_TSAN 1
#endif

#if defined(MEGATRACE_HOST_ASAN)
#include <sanitizer/asan_interface.h>
#include <sanitizer/common_interface_defs.h>
#endif
#if defined(MEGATRACE_HOST_TSAN)
#include <sanitizer/tsan_interface.h>
extern "C" {
void AnnotateIgnoreReadsBegin(const char*, int);
void AnnotateIgnoreReadsEnd(const char*, int);
void AnnotateIgnoreWritesBegin(const char*, int);
void AnnotateIgnoreWritesEnd(const char*, int);
}
#define MEGATRACE_HOST_NO_TSAN __attribute__((no_sanitize("thread")))
#else
#define MEGATRACE_HOST_NO_TSAN
#endif

// Each library keeps its own machine: without this the dynamic linker would fold the inline
// variables of all kernels of a process into one, whatever version each was built from.
#define MEGATRACE_HOST_HIDDEN __attribute__((visibility("hidden")))

namespace megatrace::host::sanitizer {

#if defined(MEGATRACE_HOST_ASAN) || defined(MEGATRACE_HOST_TSAN)
constexpr bool kActive = true;
#else
constexpr bool kActive = false;
#endif

MEGATRACE_HOST_NO_TSAN inline void start_switch([[maybe_unused]] void** fake_stack,
                                                [[maybe_unused]] const void* low,
                                                [[maybe_unused]] size_t bytes,
                                                [[maybe_unused]] void* shadow) {
#if defined(MEGATRACE_HOST_ASAN)
  __sanitizer_start_switch_fiber(fake_stack, low, bytes);
#endif
#if defined(MEGATRACE_HOST_TSAN)
  __tsan_switch_to_fiber(shadow, __tsan_switch_to_fiber_no_sync);
#endif
}

inline void finish_switch([[maybe_unused]] void* fake_stack, [[maybe_unused]] const void** old_low,
                          [[maybe_unused]] size_t* old_bytes) {
#if defined(MEGATRACE_HOST_ASAN)
  __sanitizer_finish_switch_fiber(fake_stack, old_low, old_bytes);
#endif
}

inline void unpoison([[maybe_unused]] const void* low, [[maybe_unused]] size_t bytes) {
#if defined(MEGATRACE_HOST_ASAN)
  __asan_unpoison_memory_region(low, bytes);
#endif
}

inline void* create_fiber() {
#if defined(MEGATRACE_HOST_TSAN)
  return __tsan_create_fiber(0);
#else
  return nullptr;
#endif
}

MEGATRACE_HOST_NO_TSAN inline void join([[maybe_unused]] void* fiber, [[maybe_unused]] void* into) {
#if defined(MEGATRACE_HOST_TSAN)
  __tsan_switch_to_fiber(fiber, __tsan_switch_to_fiber_no_sync);
  __tsan_switch_to_fiber(into, 0);
#endif
}

inline void* current_fiber() {
#if defined(MEGATRACE_HOST_TSAN)
  return __tsan_get_current_fiber();
#else
  return nullptr;
#endif
}

inline void release([[maybe_unused]] const void* address) {
#if defined(MEGATRACE_HOST_TSAN)
  __tsan_release(const_cast<void*>(address));
#endif
}

inline void acquire([[maybe_unused]] const void* address) {
#if defined(MEGATRACE_HOST_TSAN)
  __tsan_acquire(const_cast<void*>(address));
#endif
}

// While one lives, ThreadSanitizer looks away: the machine's own books are shared by all
// lanes without locks, for only one lane runs at a time.
struct Quiet {
#if defined(MEGATRACE_HOST_TSAN)
  Quiet() {
    AnnotateIgnoreReadsBegin(__FILE__, __LINE__);
    AnnotateIgnoreWritesBegin(__FILE__, __LINE__);
  }
  ~Quiet() {
    AnnotateIgnoreWritesEnd(__FILE__, __LINE__);
    AnnotateIgnoreReadsEnd(__FILE__, __LINE__);
  }
#else
  Quiet() {}
#endif
  Quiet(const Quiet&) = delete;
  Quiet& operator=(const Quiet&) = delete;
};

}  // namespace megatrace::host::sanitizer
