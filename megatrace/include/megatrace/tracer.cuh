// The tracer: what a kernel carries to be legible, and nothing of it when it is off.
//
//   template <class T> __global__ void kernel(..., typename T::Params trace) {
//     Launch<T> launch(trace);                     // first of all
//     ...                                          // barriers, first loads, dependency wait
//     launch.run([&](auto& t) {
//       t.after_dependency();                      // after the wait
//       if (loader) {
//         t.wait(ev::empty{}, &empty[s], parity);  // a stall, if it blocks
//         t.end();
//       } else {
//         { auto span = t.span(ev::tile{}); ... }
//         t.publish(ev::partial{}, block);
//         t.end();                                 // once a warp, in its role's own branch
//       }
//     });
//   }
//
// What run() is given is in the kernel once for each level up to T's, and a launch runs what the
// host wants of it: one that keeps nothing is the plain kernel, but for a word that it asks for at
// its start, and run() waits for, and for what a wait does that is given up
// (tracer_resting.cuh). `T t(trace)` in place of the two makes one body of it,
// which any launch runs: less code, where a launch that is switched off may cost a little. (Not of
// a tracer with named warps.)
//
// Of the kernel: a one-dimensional grid of whole warps, as many as the agent was told
// (check_launch() of launch.cuh), and one stream per ring. Of the calls: made by whole, converged
// warps; arguments are the same in all lanes; spans end before end().
//
// A wait of the tracer's has a bound at every level, off too: it traps after 2**34 cycles, 8.7 s at
// 1.98 GHz. In a launch of counters it is given up after half of that, and says whom it waited for;
// in one that keeps nothing too, but not whom.
// So what is off is the same code as a kernel that waits by mbar_wait() and poll() of sync.cuh and
// has no tracer. A kernel that waits for work for longer is built with its own bound, for example
// -DMEGATRACE_TRAP_CYCLES='(1ull<<38)'; the host build finds a deadlock by itself.
//
// A time is unrolled by the reader from the record before it, so more than 2**22 cycles (2 ms)
// without a record or a traced wait that blocks cannot be told from less: the launch's
// closing shows it, and the report calls its times uncertain.
//
// Records are code in line, with a warp's line in registers (tracer_inline.cuh). A large kernel
// wants them as calls, with the line in shared memory, and names its warps (tracer_called.cuh).
#pragma once

#include "megatrace/tracer_called.cuh"
#include "megatrace/tracer_inline.cuh"
#include "megatrace/tracer_resting.cuh"

namespace megatrace {

// Only a timeline has lines. The host build has no functions of a kernel, and compiles a large
// one's body once.
template <Level L, Detail D, Head H, uint32_t kWarps>
struct TracerOf {
#if !defined(MEGATRACE_HOST_BUILD)
  static constexpr bool kCalled = kWarps != 0 && L == Level::timeline, kOneBody = false;
  using Base = std::conditional_t<kCalled, Called<D, kWarps>, Inlined<L, D, H, kWarps>>;
#else
  static constexpr bool kOneBody = kWarps != 0;
  using Base = Inlined<L, D, H>;
#endif
};

template <Level L, Detail D, Head H, uint32_t kWarps>
class Tracer : public TracerOf<L, D, H, kWarps>::Base {
  using Base = typename TracerOf<L, D, H, kWarps>::Base;

 public:
  template <Level kOther>
  using At = Tracer<kOther, D, H, kWarps>;
  static constexpr bool kOneBody = TracerOf<L, D, H, kWarps>::kOneBody;
  using Base::Base;
};

// A launch of a kernel that has a body for every level.
template <class T>
class Launch {
 public:
  MEGATRACE_DEVICE explicit Launch(const typename T::Params& params) : p_(params) {
    if constexpr (T::level != Level::off) control_ = ask_control(params);
  }

  // Calls `body` with the tracer of the level that is wanted. Every warp decides by itself, so
  // bodies meet at barriers, not in code.
  template <class Body>
  MEGATRACE_DEVICE void run(Body&& body) {
    if constexpr (T::kOneBody) {
      T t(p_);
      body(t);
    } else {
      // What a launch runs fastest is the first 128 KB of a kernel's code, where the compiler lays
      // what comes last here, for sm_90a (tests/sass/test_layer_kernel.py): most launches keep
      // nothing.
      const Level level = wanted();
      if constexpr (T::level == Level::timeline)
        if (level == Level::timeline) return run_at<Level::timeline>(body);
      if (level == Level::counters) return run_at<Level::counters>(body);
      run_at<Level::off>(body);
    }
  }

 private:
  MEGATRACE_DEVICE Level wanted() const {
    const uint32_t level = ptx::opaque(control_.y);
    Level wanted = Level::off;
    if (keeps(level) && fits(p_)) wanted = Level::counters;
    if constexpr (T::level == Level::timeline)
      if (wanted != Level::off && wants_timeline(p_, level)) wanted = Level::timeline;
    return static_cast<Level>(ptx::opaque(static_cast<uint32_t>(wanted)));
  }

  template <Level kLevel, class Body>
  MEGATRACE_DEVICE void run_at(Body& body) {
    if constexpr (kLevel == Level::off) {
      Resting<typename T::template At<kLevel>> t(p_);
      body(t);
    } else {
      typename T::template At<kLevel> t(p_, control_);
      body(t);
    }
  }

  const typename T::Params p_;
  uint2 control_ = {};
};

}  // namespace megatrace
