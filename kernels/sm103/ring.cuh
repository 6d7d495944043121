// The ring of weight stages between the loader warp and one tensor warp. Both walk the same
// list of stages, in the same order, each with a count of its own: there is nothing else to
// agree on.
#pragma once

#include "shared.cuh"

namespace muse {

// Names the first stage of a phase in a tensor warp's ring: the loader asks for it before the
// phase can begin, and its first touch says whether it came in time.
MEGATRACE_DEVICE uint32_t early_slot(Phase phase, uint32_t warp) {
  return phase * kTensorWarps + warp;
}

// The tensor warp's end.
class Stages {
 public:
  MEGATRACE_DEVICE explicit Stages(Shared& s) : s_(s), warp_(warp_id()) {}

  MEGATRACE_DEVICE void begin(Phase phase) {
    phase_ = phase;
    first_ = true;
  }

  // Waits for the next stage of the phase.
  template <class T>
  MEGATRACE_DEVICE const char* next(T& t) {
    const uint32_t stage = count_ % kStages, parity = (count_ / kStages) & 1;
    uint64_t* full = &s_.full[warp_][stage];
    if (first_)
      t.wait(ev::first_weights{}, full, parity, early_slot(phase_, warp_));
    else
      t.wait(ev::weights{}, full, parity);
    first_ = false;
    return s_.ring[warp_][stage];
  }

  // The stage may be filled again; all lanes have read it.
  MEGATRACE_DEVICE void release() {
    ptx::syncwarp();
    if (ptx::lane_id() == 0) ptx::mbar_arrive(&s_.empty[warp_][count_ % kStages]);
    ++count_;
  }

 private:
  Shared& s_;
  const uint32_t warp_;
  uint32_t count_ = 0;
  Phase phase_ = kPhases;
  bool first_ = false;
};

// The loader's end, of all rings.
class Loader {
 public:
  MEGATRACE_DEVICE explicit Loader(Shared& s) : s_(s) {}

  template <class T>
  MEGATRACE_DEVICE void begin(T& t, Phase phase) {
    // Where every record says the high part of its time, the first fill has too many for a line.
    if (phase_ != kPhases || ptx::kSlow) wait_for_launch_before(t);
    phase_ = phase;
    begun_ = 0;
  }

  // Weights do not change, so the first fill of the rings waits for nobody. All else does: the
  // launch before may still write what this warp keeps from launch to launch.
  template <class T>
  MEGATRACE_DEVICE void wait_for_launch_before(T& t) {
    if (alone_) return;
    alone_ = true;
    ptx::dependency_wait();
    t.after_dependency();
    t.head();
  }

  // Asks for the next stage of a tensor warp.
  template <class T>
  MEGATRACE_DEVICE void load(T& t, uint32_t warp, const char* source, uint32_t bytes) {
    const uint32_t count = ptx::shuffle(counts_, warp);
    const uint32_t stage = count % kStages, parity = (count / kStages) & 1;
    if (count >= kStages) wait_for_launch_before(t);
    t.wait(ev::stage_free{}, &s_.empty[warp][stage], parity ^ 1);
    if (!(begun_ >> warp & 1)) t.publish(ev::early_weights{}, early_slot(phase_, warp));
    begun_ |= 1u << warp;
    if (ptx::lane_id() == 0) {
      ptx::mbar_expect_tx(&s_.full[warp][stage], bytes);
      ptx::bulk_stream(s_.ring[warp][stage], source, bytes, &s_.full[warp][stage]);
    }
    if (ptx::lane_id() == warp) ++counts_;
    ptx::syncwarp();
  }

 private:
  Shared& s_;
  uint32_t counts_ = 0;  // lane w: stages of tensor warp w so far
  Phase phase_ = kPhases;
  uint32_t begun_ = 0;  // rings that have a stage of this phase
  bool alone_ = false;  // the launch before has ended
};

}  // namespace muse
