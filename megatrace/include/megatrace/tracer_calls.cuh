// What kernels call of a tracer that is on, however it is built.
#pragma once

#include "megatrace/tracer_off.cuh"

// Keeps the path that is seldom taken out of the way of the other's instructions.
#define MEGATRACE_RARE(condition) __builtin_expect(static_cast<bool>(condition), 0)

namespace megatrace {

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
