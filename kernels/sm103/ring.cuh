// The rings of weight stages between the loader warp and the tensor warps. Both ends walk the
// same list of stages, in the same order, each with a count of its own: there is nothing else to
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
    stalled_ = t.wait_later(ev::weights{}, &s_.full[warp_][stage], parity);
    return s_.ring[warp_][stage];
  }

  // The stage may be filled again; all lanes have read it. Only now is the wait for it written
  // down: the loader does not wait for that.
  template <class T>
  MEGATRACE_DEVICE void release(T& t) {
    ptx::syncwarp();
    if (ptx::lane_id() == 0) ptx::mbar_arrive(&s_.empty[warp_][count_ % kStages]);
    ++count_;
    if (first_)
      t.commit(ev::first_weights{}, stalled_, early_slot(phase_, warp_));
    else
      t.commit(ev::weights{}, stalled_);
    first_ = false;
  }

 private:
  Shared& s_;
  const uint32_t warp_;
  uint32_t count_ = 0;
  Phase phase_ = kPhases;
  bool first_ = false;
  megatrace::Stalled stalled_ = {};
};

// The loader's end: lane w fills the ring of tensor warp w, all lanes at once. One warp has to
// keep the memory busy, so what it does for a stage must be little.
class Loader {
 public:
  MEGATRACE_DEVICE explicit Loader(Shared& s)
      : s_(s), warp_(ptx::lane_id() % kTensorWarps), mine_(ptx::lane_id() < kTensorWarps) {}

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

  // Asks for the next stage of the first `warps` tensor warps; lane w says where warp w's lies.
  template <class T>
  MEGATRACE_DEVICE void load(T& t, uint32_t warps, const char* source, uint32_t bytes) {
    const uint32_t stage = count_ % kStages, parity = (count_ / kStages) & 1;
    bool asked = !mine_ || warp_ >= warps;
    if (ptx::ballot(!asked && count_ >= kStages) != 0) wait_for_launch_before(t);
    publish_first(t, warps);
    if (!asked) ++count_;
    const uint32_t slot = 0;
    t.poll(ev::stage_free{}, slot, [&] {
      if (!asked && ptx::mbar_test(&s_.empty[warp_][stage], parity ^ 1)) {
        ptx::mbar_expect_tx(&s_.full[warp_][stage], bytes);
        ptx::bulk_stream(s_.ring[warp_][stage], source, bytes, &s_.full[warp_][stage]);
        asked = true;
      }
      return ptx::ballot(!asked) == 0;
    });
  }

 private:
  // Marks the rings whose first stage of the phase is asked for now.
  template <class T>
  MEGATRACE_DEVICE void publish_first(T& t, uint32_t warps) {
#pragma unroll 1
    for (; begun_ < warps; ++begun_) t.publish(ev::early_weights{}, early_slot(phase_, begun_));
  }

  Shared& s_;
  const uint32_t warp_;
  const bool mine_;
  uint32_t count_ = 0;  // stages of this lane's warp so far
  Phase phase_ = kPhases;
  uint32_t begun_ = 0;  // warps that have a stage of this phase
  bool alone_ = false;  // the launch before has ended
};

}  // namespace muse
