// Waits that end: every spin is bounded and traps instead of wedging the GPU.
#pragma once

#include "megatrace/ptx.cuh"

namespace megatrace {

// Runs `done` until it says true. `hang` is called once where that takes suspiciously
// long since `begin`, before the bound that traps; says whether it was.
template <class Done, class Hang>
MEGATRACE_DEVICE bool spin_bounded(const char* what, const uint32_t& slot, Done&& done, Hang&& hang,
                                   uint64_t begin) {
  bool told = false;
  while (!done()) {
    ptx::spin_pause(what, slot);
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
  spin_bounded(what, 0, [&] { return ptx::mbar_try(bar, parity); }, [] {}, ptx::clock64());
}

// Waits until `ready` says true: data is the flag, polled with relaxed loads. `ready` may be
// long, so its code is here once.
template <class Ready>
MEGATRACE_DEVICE void poll(const char* what, const uint32_t& slot, Ready&& ready) {
  spin_bounded(what, slot, ready, [] {}, ptx::clock64());
}

}  // namespace megatrace
