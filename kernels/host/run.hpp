// The machine's scheduler: which warp runs next, and what to do when none can.
#pragma once

#include "machine.hpp"
#include "report.hpp"

namespace megatrace::host {

MEGATRACE_HOST_NO_TSAN inline void Machine::enter(Lane& lane) {
  lane_ = &lane;
  threadIdx = lane.thread;
}

MEGATRACE_HOST_NO_TSAN inline Lane* Machine::next_in_pass() {
  if (pass_ == 0 || failed_) return nullptr;
  const uint32_t later = pass_ >> pass_first_ << pass_first_;
  const uint32_t index = static_cast<uint32_t>(__builtin_ctz(later != 0 ? later : pass_));
  pass_ &= ~(1u << index);
  return &lane_->warp->lanes[index];
}

// Gives the thread to the next lane of this pass, else to the scheduler.
MEGATRACE_HOST_NO_TSAN inline void Machine::leave(bool for_good) {
  Fiber& mine = *lane_->fiber;
  Lane* next = next_in_pass();
  if (next == nullptr) {
    switch_fiber(mine, main_, for_good);
  } else {
    from_main_ = false;
    enter(*next);
    switch_fiber(mine, *next->fiber, for_good);
  }
}

inline void Machine::park() { leave(false); }

inline void Machine::run_pass(Warp& warp) {
  pass_ = warp.ready;
  pass_first_ = random_.below(32);
  lane_ = warp.lanes;
  Lane* first = next_in_pass();
  if (first == nullptr) return;
  blockIdx = warp.block->index;
  gridDim = warp.block->grid->size;
  blockDim = warp.block->grid->block;
  from_main_ = true;
  enter(*first);
  switch_fiber(main_, *first->fiber, false);
}

inline void Machine::make_ready(Lane& lane, uint64_t result) {
  lane.result = result;
  lane.warp->move(lane, State::ready);
  make_runnable(*lane.warp);
}

inline void Machine::make_runnable(Warp& warp) {
  warp.held = false;
  if (warp.place >= 0) return;
  warp.place = static_cast<int32_t>(runnable_.size());
  runnable_.push_back(&warp);
}

inline void Machine::update_place(Warp& warp) {
  if ((warp.ready | warp.at_op) != 0 && !warp.held) return;
  if (warp.place < 0) return;
  runnable_[static_cast<size_t>(warp.place)] = runnable_.back();
  runnable_.back()->place = warp.place;
  runnable_.pop_back();
  warp.place = -1;
}

inline Warp& Machine::pick() {
  Warp* warp = runnable_[random_.below(runnable_.size())];
  if (warp->slow && !random_.one_in(8)) warp = runnable_[random_.below(runnable_.size())];
  return *warp;
}

inline void Machine::turn(Warp& warp, bool even_if_held) {
  if (warp.ready == 0) {
    const uint32_t group = choose_group(warp, even_if_held);
    if (group == 0) {
      warp.held = warp.at_op != 0;
      return;
    }
    resolve(warp, group);
  }
  if (warp.ready != 0) run_pass(warp);
}

inline void Machine::run() {
  idle_since_ns_ = watched_ns_ = monotonic_ns();
  for (uint64_t turns = 1; live_ != 0 && !failed_; turns++) {
    if (turns % 1024 == 0) watch();
    if (!bulks_.empty() && random_.one_in(bulk_every_)) complete_bulk(random_.below(bulks_.size()));
    if (may_wake() && random_.one_in(wake_every_)) wake_spinners();
    if (runnable_.empty()) {
      if (unstick()) continue;
      failed_ = true;
      error_ = "deadlock: every lane waits and no bulk copy is in flight\n" +
               wait_table(warps_, options);
      return;
    }
    Warp& warp = pick();
    note(static_cast<uint64_t>(&warp - warps_.data()));
    do turn(warp, false);
    while ((warp.ready | warp.at_op) != 0 && !warp.held && !failed_ && !random_.one_in(stay_));
    update_place(warp);
  }
}

// A spin that never pauses keeps its warp running: it shows only as time without progress.
inline void Machine::watch() {
  const uint64_t ns = monotonic_ns();
  if (progress_ != watched_) {
    watched_ = progress_;
    watched_ns_ = ns;
  } else if (ns - watched_ns_ > uint64_t{options.stuck_ms} * 300 * 1000000) {
    failed_ = true;
    error_ = "no progress for " + std::to_string(options.stuck_ms * 300 / 1000.0) +
             " s: a spin without ptx::spin_pause()?\n" + wait_table(warps_, options);
  }
}

inline void Machine::wake_spinners() {
  woken_at_ = progress_;
  must_wake_ = false;
  for (Warp* warp : spinners_) {
    warp->in_spinners = false;
    for_lanes(warp->spinning, [&](uint32_t i) {
      warp->lanes[i].looked = progress_;
      make_ready(warp->lanes[i], 0);
    });
  }
  spinners_.clear();
}

// Nobody can run: find somebody who might after all. False: there is nobody.
inline bool Machine::unstick() {
  if (may_wake()) {
    wake_spinners();
    return true;
  }
  if (!bulks_.empty()) {
    complete_bulk(random_.below(bulks_.size()));
    return true;
  }
  bool freed = false;
  for (Warp& warp : warps_) {
    if (!warp.held) continue;
    make_runnable(warp);
    turn(warp, true);
    update_place(warp);
    freed = true;
  }
  return freed || idle_round();
}

// Lets every failing wait look again, in vain: after some rounds and some time without any
// progress it is a deadlock. Before the verdict, waits are told to write down what they know
// (stuck(): kHangCycles is 0 then).
inline bool Machine::idle_round() {
  constexpr uint32_t kRounds = 4;
  constexpr timespec kPause = {0, 100000};
  if (progress_ != idle_at_) {
    idle_at_ = progress_;
    idle_rounds_ = 0;
    idle_since_ns_ = monotonic_ns();
    stuck_ = false;
  }
  if (++idle_rounds_ > kRounds) {
    if (monotonic_ns() - idle_since_ns_ < uint64_t{options.stuck_ms} * 1000000) {
      nanosleep(&kPause, nullptr);
    } else if (stuck_) {
      return false;
    } else {
      stuck_ = true;
      idle_rounds_ = 0;
    }
  }
  bool any = !spinners_.empty();
  wake_spinners();
  for (Warp& warp : warps_)
    for_lanes(warp.mbarrier, [&](uint32_t i) {
      make_ready(warp.lanes[i], 0);
      any = true;
    });
  return any;
}

}  // namespace megatrace::host
