// The rings of weight stages between the loader warp and the tensor warps. Both ends walk the
// same list of stages, in the same order, each with a count of its own: there is nothing else to
// agree on.
#pragma once

#include "shared.cuh"

namespace muse {

// The tensor warp's end.
class Stages {
 public:
  MEGATRACE_DEVICE explicit Stages(Shared& s) : s_(s), warp_(warp_id()) {}

  MEGATRACE_DEVICE void begin(Phase phase) {
    phase_ = phase;
    first_ = true;
    stalled_ = {};  // or it takes registers from launch start
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
      t.commit(ev::first_weights{}, stalled_, phase_);
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

// The loader's end: lane w fills the ring of tensor warp w, each at its warp's pace. One warp has
// to keep the memory busy, so what it does for a stage must be little.
class Loader {
 public:
  MEGATRACE_DEVICE explicit Loader(Shared& s)
      : s_(s), warp_(ptx::lane_id() % kTensorWarps), mine_(ptx::lane_id() < kTensorWarps) {}

  // Of this phase, all stages but `first_stages` of a warp are held back until `moment`.
  template <class T>
  MEGATRACE_DEVICE void begin(T& t, Phase phase, Moment moment = kAnyMoment,
                              uint32_t first_stages = 0) {
    // Where every record says the high part of its time, the first fill has too many for a line.
    if (phase_ != kPhases || ptx::kSlow) wait_for_launch_before(t);
    phase_ = phase;
    moment_ = moment;
    held_from_ = count_ + first_stages;
    begun_ = false;
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

  // The tensor warp that this lane loads for, and whether it does and is one of the first `warps`.
  MEGATRACE_DEVICE uint32_t warp() const { return warp_; }
  MEGATRACE_DEVICE bool serves(uint32_t warps) const { return mine_ && warp_ < warps; }

  // Waits until some tensor warp whose lane wants a stage has room for it, and asks for the next
  // stages of all that have, `bytes` at `source` each. Says whether this lane's was: warps do not
  // wait for each other. What is held back counts as a stage without room.
  template <class T>
  MEGATRACE_DEVICE bool load(T& t, bool wanted, const char* source, uint32_t bytes) {
    const uint32_t stage = count_ % kStages, parity = (count_ / kStages) & 1;
    if (ptx::ballot(wanted && count_ >= kStages) != 0) wait_for_launch_before(t);
    bool room = false;
    const uint32_t slot = 0;
    t.poll(ev::stage_free{}, slot, [&] {
      room = wanted && ptx::mbar_test(&s_.empty[warp_][stage], parity ^ 1) && !held();
      return ptx::ballot(room) != 0 || ptx::ballot(wanted) == 0;
    });
    if (room) {
      ptx::mbar_expect_tx(&s_.full[warp_][stage], bytes);
      ptx::bulk_stream(s_.ring[warp_][stage], source, bytes, &s_.full[warp_][stage]);
      ++count_;
    }
    // Only now is it written down: the first stage of a phase is asked for before the phase can
    // begin, and its first touch says whether it came in time.
    if (ptx::ballot(room) != 0 && !begun_) {
      begun_ = true;
      t.publish(ev::early_weights{}, phase_);
    }
    return room;
  }

 private:
  MEGATRACE_DEVICE bool held() const {
    return moment_ != kAnyMoment && count_ >= held_from_ && !ptx::mbar_test(&s_.moment[moment_], 0);
  }

  Shared& s_;
  const uint32_t warp_;
  const bool mine_;
  uint32_t count_ = 0;      // stages of this lane's warp so far
  uint32_t held_from_ = 0;  // such a count
  Moment moment_ = kAnyMoment;
  Phase phase_ = kPhases;
  bool begun_ = false;  // this phase has a stage
  bool alone_ = false;  // the launch before has ended
};

}  // namespace muse
