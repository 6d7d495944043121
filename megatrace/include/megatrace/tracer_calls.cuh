// What kernels call of a tracer that is on, however it is built.
#pragma once

#include "megatrace/tracer_off.cuh"

// Keeps the path that is seldom taken out of the way of the other's instructions.
#define MEGATRACE_RARE(condition) __builtin_expect(static_cast<bool>(condition), 0)

// A function of the kernel: the compiler keeps its registers apart from its callers', so that a
// call saves nothing.
#if defined(MEGATRACE_HOST_BUILD)
#define MEGATRACE_FUNCTION static
#else
#define MEGATRACE_FUNCTION static __device__ __noinline__
#endif

namespace megatrace {

// -- what the host wants of a launch ---------------------------------------------------

// Of the grid's warps, this one: the number of its lines.
MEGATRACE_DEVICE uint32_t warp_of_grid() {
  return blockIdx.x * (blockDim.x >> 5) + (threadIdx.x >> 5);
}
// Was the ring made for such a grid? Says the same to all threads of a block, and the compiler can
// see that: code that threads may have parted in front of is slower.
MEGATRACE_DEVICE bool fits(const TraceParams& p) {
  return (blockIdx.x + 1) * (blockDim.x >> 5) <= p.warps && gridDim.y * gridDim.z == 1 &&
         (blockDim.x & 31) == 0;
}

// Step id and level. No kernel writes them, so a kernel may ask before its dependency wait.
MEGATRACE_DEVICE uint2 ask_control(const TraceParams& p) {
  return p.control == nullptr ? make_uint2(0, 0) : ptx::load_pair(p.control);
}

// Does a launch of this level keep anything?
MEGATRACE_DEVICE bool keeps(uint32_t level) { return level != 0 && (level & kRests) == 0; }

// Does a launch of this level have a timeline on this SM?
MEGATRACE_DEVICE bool wants_timeline(const TraceParams& p, uint32_t level) {
  if (MEGATRACE_RARE(level & kSomeSms)) {
    const uint32_t sm = ptx::sm_id();
    if (!(ptx::load_relaxed(p.control + 4 + (sm >> 5)) >> (sm & 31) & 1)) return false;
  }
  return (level & kLevelMask) >= static_cast<uint32_t>(Level::timeline);
}

// -- calls -----------------------------------------------------------------------------

// `Self` has record(), wait_later() and commit().
template <class Self, Level L, Detail D>
class Calls {
 public:
  static constexpr Level level = L;
  static constexpr Detail detail = D;

  // An event is a type of the table, or of the same members where the kernel chooses it at run
  // time (`id` and `name` are then its own).

  // RAII: begins here, ends where it leaves scope.
  template <class E>
  class Span {
   public:
    MEGATRACE_DEVICE Span(Self& t, E event) : t_(t), event_(event) { t_.record(event.id); }
    MEGATRACE_DEVICE ~Span() { t_.record(event_.id + 1); }
    Span(const Span&) = delete;
    Span& operator=(const Span&) = delete;

   private:
    Self& t_;
    const E event_;
  };

  // The same where `on`, and nothing elsewhere.
  template <class E>
  class SpanIf {
   public:
    MEGATRACE_DEVICE SpanIf(Self& t, bool on, E event) : t_(t), on_(on), event_(event) {
      if (on_) t_.record(event.id);
    }
    MEGATRACE_DEVICE ~SpanIf() {
      if (on_) t_.record(event_.id + 1);
    }
    SpanIf(const SpanIf&) = delete;
    SpanIf& operator=(const SpanIf&) = delete;

   private:
    Self& t_;
    const bool on_;
    const E event_;
  };

  template <class E>
  MEGATRACE_DEVICE Span<E> span(E event) {
    static_assert(E::kind == Kind::span, "not a span");
    return Span<E>(self(), event);
  }

  template <class E>
  MEGATRACE_DEVICE SpanIf<E> span_if(bool on, E event) {
    static_assert(E::kind == Kind::span, "not a span");
    return SpanIf<E>(self(), on, event);
  }

  template <class E, class... Args>
  MEGATRACE_DEVICE void instant(E event, Args... args) {
    static_assert(E::kind == Kind::instant || E::kind == Kind::counter, "not an instant");
    static_assert(sizeof...(Args) == E::args, "not the arguments of the table");
    self().record(event.id, args...);
  }

  // An instant of Detail::all only: for places too hot for every timeline.
  template <class E, class... Args>
  MEGATRACE_DEVICE void detail_instant(E event, Args... args) {
    static_assert(E::kind == Kind::instant, "not an instant");
    static_assert(sizeof...(Args) == E::args, "not the arguments of the table");
    if constexpr (D == Detail::all) self().record(event.id, args...);
  }

  template <class E>
  MEGATRACE_DEVICE void publish(E event, uint32_t slot) {
    static_assert(E::kind == Kind::publish || E::kind == Kind::prefetch, "publishes nothing");
    self().record(event.id, slot);
  }

  // Waits for an mbarrier's phase; costs nothing where it has already ended.
  template <class E, class... Args>
  MEGATRACE_DEVICE void wait(E event, uint64_t* bar, uint32_t parity, Args... args) {
    self().commit(event, self().wait_later(event, bar, parity), args...);
  }

 private:
  MEGATRACE_DEVICE Self& self() { return static_cast<Self&>(*this); }
};

}  // namespace megatrace
