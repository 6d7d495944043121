// Waits that end: every spin is bounded and traps instead of wedging the GPU.
#pragma once

#include "megatrace/ptx.cuh"

namespace megatrace {

// What a wait is for, where a lane knows it: `lane`'s value counts. Nobody asks the lane before
// somebody wants to know.
struct LaneSlot {
  uint32_t value = 0, lane = 0;
};
MEGATRACE_DEVICE uint32_t slot_of(uint32_t slot) { return slot; }
MEGATRACE_DEVICE uint32_t slot_of(const LaneSlot& slot) {
  return ptx::shuffle(slot.value, slot.lane);
}

// Runs `done` until it says true. `hang` is called once where that takes suspiciously
// long since `begin`, before the bound that traps; says whether it was.
template <class Slot, class Done, class Hang>
MEGATRACE_DEVICE bool spin_bounded(const char* what, const Slot& slot, Done&& done, Hang&& hang,
                                   uint64_t begin) {
  bool told = false;
  while (!done()) {
    ptx::spin_pause(what, ptx::kSlow ? slot_of(slot) : 0);
    const uint64_t waited = ptx::clock64() - begin;
    if (__builtin_expect(waited > ptx::kHangCycles, 0)) {
      if (!told) hang();
      told = true;
      if (waited > ptx::kTrapCycles) ptx::trap();
    }
  }
  return told;
}

// Waits for the phase of this parity of an mbarrier.
MEGATRACE_DEVICE void mbar_wait(const char* what, uint64_t* bar, uint32_t parity) {
  if (ptx::mbar_test(bar, parity)) return;
  spin_bounded(what, 0u, [&] { return ptx::mbar_try(bar, parity); }, [] {}, ptx::clock64());
}

// Waits until `ready` says true: data is the flag, polled with relaxed loads. `ready` may be
// long, so its code is here once.
template <class Slot, class Ready>
MEGATRACE_DEVICE void poll(const char* what, const Slot& slot, Ready&& ready) {
  spin_bounded(what, slot, ready, [] {}, ptx::clock64());
}

}  // namespace megatrace
