// The tracer's levels, and the tracer of a kernel that is not traced.
#pragma once

#include <type_traits>

#include "megatrace/ptx.cuh"
#include "megatrace/sync.cuh"

namespace megatrace {

enum class Level : uint32_t { off, counters, timeline };

// What a timeline holds: stalls that blocked, spans and hand-offs, or every try of a wait
// and every instant too.
enum class Detail : uint32_t { stalls, all };

// A wait that ended and is not written down yet: commit it where time is to spare.
struct Stalled {
  std::conditional_t<ptx::kSlow, uint64_t, uint32_t> begin;  // cycles since launch start
  uint32_t cycles;
  bool blocked;
};

template <Level L, Detail D = Detail::stalls>
class Tracer;

// Off: same calls, no code, no state, an empty parameter.
template <Detail D>
class Tracer<Level::off, D> {
 public:
  struct Params {};
  static constexpr Level level = Level::off;
  static constexpr Detail detail = D;

  struct Nothing {
    MEGATRACE_DEVICE ~Nothing() {}
  };

  MEGATRACE_DEVICE explicit Tracer(const Params&) {}
  Tracer(const Tracer&) = delete;
  Tracer& operator=(const Tracer&) = delete;
  MEGATRACE_DEVICE void after_dependency() {}
  template <class E>
  MEGATRACE_DEVICE Nothing span(E) {
    return {};
  }
  template <class E, class... Args>
  MEGATRACE_DEVICE void instant(E, Args...) {}
  template <class E, class... Args>
  MEGATRACE_DEVICE void detail_instant(E, Args...) {}
  template <class E>
  MEGATRACE_DEVICE void publish(E, uint32_t) {}
  template <class E, class... Args>
  MEGATRACE_DEVICE void wait(E, uint64_t* bar, uint32_t parity, Args...) {
    mbar_wait(E::name, bar, parity);
  }
  template <class E>
  MEGATRACE_DEVICE Stalled wait_later(E, uint64_t* bar, uint32_t parity) {
    mbar_wait(E::name, bar, parity);
    return {0, 0, false};
  }
  template <class E, class Ready, class... Args>
  MEGATRACE_DEVICE void poll(E, const uint32_t& slot, Ready&& ready, Args...) {
    megatrace::poll(E::name, slot, ready);
  }
  template <class E, class... Args>
  MEGATRACE_DEVICE void commit(E, const Stalled&, Args...) {}
  MEGATRACE_DEVICE void flush() {}
  template <class... E>
  MEGATRACE_DEVICE void settle(E...) {}
  MEGATRACE_DEVICE void end() {}
};

}  // namespace megatrace
