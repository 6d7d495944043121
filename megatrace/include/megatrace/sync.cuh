// Waits that end: every spin is bounded and traps instead of wedging the GPU.
#pragma once

#include <type_traits>

#include "megatrace/ptx.cuh"

namespace megatrace {

// Whom a poll waits for is its slot: a number, or a variable that it reads again, or a function
// of no arguments that is asked after a try that failed, by whoever wants to know. A function
// makes a LaneSlot: the value that `lane` has counts.
struct LaneSlot {
  uint32_t value = 0, lane = 0;
};
MEGATRACE_DEVICE uint32_t slot_of(uint32_t slot) { return slot; }
MEGATRACE_DEVICE uint32_t slot_of(const LaneSlot& slot) {
  return ptx::shuffle(slot.value, slot.lane);
}
template <class Name>
MEGATRACE_DEVICE auto slot_of(const Name& name) -> decltype(slot_of(name())) {
  return slot_of(name());
}

// Whom a poll missed last.
template <class Slot>
class LastMissed {
  static constexpr bool kAsked = !std::is_same_v<Slot, uint32_t>;

 public:
  MEGATRACE_DEVICE explicit LastMissed(const Slot& slot) : slot_(slot) {}
  // After every try that fails.
  MEGATRACE_DEVICE void miss() {
    if constexpr (kAsked) last_ = slot_();
  }
  // The last, as a LaneSlot or the variable.
  MEGATRACE_DEVICE decltype(auto) get() const {
    if constexpr (kAsked)
      return (last_);
    else
      return (slot_);
  }

 private:
  const Slot& slot_;
  LaneSlot last_;
};

// Runs `done` until it says true. `hanging` is called, with the cycles since `begin`, after every
// try from where they are suspiciously many; `die` at the bound, and does not come back.
template <class Slot, class Done, class Hanging, class Die, class Bound = uint64_t>
MEGATRACE_DEVICE void spin_bounded(const char* what, const Slot& slot, Done&& done,
                                   Hanging&& hanging, Die&& die, uint64_t begin,
                                   Bound bound_cycles = ptx::kTrapCycles) {
  while (!done()) {
    ptx::spin_pause(what, ptx::kSlow ? slot_of(slot) : 0);
    const uint64_t waited = ptx::clock64() - begin;
    if (__builtin_expect(waited > ptx::kHangCycles, 0)) {
      hanging(waited);
      if (waited > bound_cycles) die();
    }
  }
}

// Waits for the phase of this parity of an mbarrier.
MEGATRACE_DEVICE void mbar_wait(const char* what, uint64_t* bar, uint32_t parity) {
  if (ptx::mbar_test(bar, parity)) return;
  spin_bounded(
      what, 0u, [&] { return ptx::mbar_try(bar, parity); }, [](uint64_t) {}, [] { ptx::trap(); },
      ptx::clock64());
}

// Waits until `ready` says true: data is the flag, polled with relaxed loads. `ready` may be
// long, so its code is here once.
template <class Slot, class Ready>
MEGATRACE_DEVICE void poll(const char* what, const Slot& slot, Ready&& ready) {
  spin_bounded(what, slot, ready, [](uint64_t) {}, [] { ptx::trap(); }, ptx::clock64());
}

}  // namespace megatrace
