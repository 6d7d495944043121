// The tracer of a launch that keeps nothing, in a build that could: the plain kernel, but for a wait
// that is given up, which says so. It does not say whom it waited for: naming that is code beside
// every wait, and what a launch runs fastest is small.
#pragma once

#include "megatrace/tracer_inline.cuh"

namespace megatrace {

template <class Off>
class Resting : public Off {
 public:
  MEGATRACE_DEVICE explicit Resting(const TraceParams& params) : Off({}), p_(params) {}

  template <class E, class... Args>
  MEGATRACE_DEVICE void wait(E event, uint64_t* bar, uint32_t parity, Args...) {
    if (ptx::mbar_test(bar, parity)) return;
    spin(event, 0u, [&] { return ptx::mbar_try(bar, parity); });
  }
  template <class E>
  MEGATRACE_DEVICE Stalled wait_later(E event, uint64_t* bar, uint32_t parity) {
    wait(event, bar, parity);
    return {0, 0, false};
  }
  template <class E, class Slot, class Ready, class... Args>
  MEGATRACE_DEVICE void poll(E event, const Slot& slot, Ready&& ready, Args...) {
    spin(event, slot, ready);
  }

 private:
  template <class E, class Slot, class Done>
  MEGATRACE_DEVICE void spin(E event, const Slot& slot, Done&& done) {
    const uint64_t begin = ptx::clock64();
    spin_bounded(
        event.name, slot, done, [](uint64_t) {},
        [&] {
          const uint32_t whom = ptx::kSlow ? slot_of(slot) : kSlotUnknown;
          LastWords::say(p_, event.id, event.name, whom, begin);
        },
        begin, ptx::kGiveUpCycles);
  }

  const TraceParams p_;
};

}  // namespace megatrace
