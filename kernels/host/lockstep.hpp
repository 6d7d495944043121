// The machine's ops: instructions that the lanes of a warp do together, as in lockstep.
#pragma once

#include "machine.hpp"

namespace megatrace::host {

inline uint64_t Machine::op_at(OpKind kind, const void* address, const void* pc) {
  Lane& me = lane();
  me.op = {kind, pc, address};
  me.warp->move(me, State::at_op);
  park();
  return me.result;
}

__attribute__((noinline)) inline uint64_t Machine::op(OpKind kind, const void* address) {
  const sanitizer::Quiet quiet;
  if (kind == OpKind::load32 || kind == OpKind::load64) lane().tried = nullptr;
  return op_at(kind, address, __builtin_return_address(0));
}

__attribute__((noinline)) inline uint4 Machine::load_four(const uint4* address) {
  const sanitizer::Quiet quiet;
  Lane& me = lane();
  me.tried = nullptr;
  const uint64_t low = op_at(OpKind::load128, address, __builtin_return_address(0));
  return {static_cast<uint32_t>(low), static_cast<uint32_t>(low >> 32),
          static_cast<uint32_t>(me.more), static_cast<uint32_t>(me.more >> 32)};
}

__attribute__((noinline)) inline void Machine::spin_pause(const char* what, uint32_t slot) {
  const sanitizer::Quiet quiet;
  lane().what = what;
  lane().slot = slot;
  op_at(OpKind::spin, nullptr, __builtin_return_address(0));
}

// The lanes that go on together. Lanes of a warp part at a branch and a GPU joins them after
// it; we cannot see where that is, so: a few lanes on their own go first, else those earlier
// in the code; and nobody overtakes lanes that still spin there, unless all else stands still.
inline uint32_t Machine::choose_group(const Warp& warp, bool even_if_held) const {
  const uint32_t waiting = warp.spinning | warp.mbarrier;
  uint32_t left = warp.at_op | (even_if_held ? 0 : waiting);
  uint32_t best = 0;
  bool best_many = false;
  uintptr_t best_pc = 0;
  while (left != 0) {
    const Op& op = warp.lanes[__builtin_ctz(left)].op;
    uint32_t group = 0;
    for_lanes(left, [&](uint32_t i) {
      if (warp.lanes[i].op.pc == op.pc && warp.lanes[i].op.kind == op.kind) group |= 1u << i;
    });
    left &= ~group;
    const bool many = __builtin_popcount(group) > 2;
    const auto pc = reinterpret_cast<uintptr_t>(op.pc);
    if (best == 0 || many < best_many || (many == best_many && pc < best_pc)) {
      best = group;
      best_many = many;
      best_pc = pc;
    }
  }
  return best & warp.at_op;
}

inline void Machine::resolve(Warp& warp, uint32_t group) {
  const uint64_t ns = monotonic_ns();
  for_lanes(group, [&](uint32_t i) {
    Lane& lane = warp.lanes[i];
    const void* const p = lane.op.address;
    switch (lane.op.kind) {
      case OpKind::clock:
        return make_ready(lane, sm_clock(warp.block->sm, ns));
      case OpKind::timer:
        return make_ready(lane, ns);
      case OpKind::pause:
        return make_ready(lane, 0);
      case OpKind::load32:
        return make_ready(lane, __atomic_load_n(static_cast<const uint32_t*>(p), __ATOMIC_ACQUIRE));
      case OpKind::load64:
        return make_ready(lane, __atomic_load_n(static_cast<const uint64_t*>(p), __ATOMIC_ACQUIRE));
      case OpKind::load128: {
        const auto* halves = static_cast<const uint64_t*>(p);
        lane.more = __atomic_load_n(halves + 1, __ATOMIC_ACQUIRE);
        return make_ready(lane, __atomic_load_n(halves, __ATOMIC_ACQUIRE));
      }
      case OpKind::mbar_test:
      case OpKind::mbar_try: {
        const bool ended = Mbarrier::load(p).ended(lane.parity);
        if (ended || lane.op.kind == OpKind::mbar_test) return make_ready(lane, ended);
        return warp.move(lane, State::mbarrier);
      }
      case OpKind::spin:
        // It may have looked before what it waits for came.
        if (lane.looked != progress_) must_wake_ = true;
        return warp.move(lane, State::spinning);
    }
  });
  if (warp.spinning != 0 && !warp.in_spinners) {
    warp.in_spinners = true;
    spinners_.push_back(&warp);
  }
}

}  // namespace megatrace::host
