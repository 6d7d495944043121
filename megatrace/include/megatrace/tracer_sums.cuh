// What a launch without a timeline keeps: how long its warps stalled and how often, by cause.
#pragma once

#include "megatrace/tracer_calls.cuh"

namespace megatrace {

// Where a warp adds what it stalled, of its layer and of its block (megatrace/schema/layout.py). A
// layer's sums are few lines, shared by blocks: a launch ends when memory has taken them, which is
// sooner where another block has just had the line.
MEGATRACE_DEVICE uint64_t* layer_sums(const TraceParams& p) {
  return p.sums + (blockIdx.x % kSumGroups) * (blockDim.x >> 5) + (threadIdx.x >> 5);
}
MEGATRACE_DEVICE uint64_t* block_sums(const TraceParams& p) {
  const uint32_t rows = (p.layers & kLayerMask) - (p.kernel_layer & kLayerMask);
  return p.sums + uint64_t{rows * kCauses} * p.warps + warp_of_grid();
}

// A launch's stalls by cause, as running sums count them. In registers, which take the clocks of a
// wait's begin and end as they come, so that little stands between a wait and the work that waited.
// Or, for a kernel that has no registers to spare and names its warps, in shared memory, later.
template <uint32_t kWarps>
class StallSums;
#if !defined(MEGATRACE_HOST_BUILD)
template <uint32_t kWarps>
class StallSums {
 public:
  static constexpr bool kTakesClocks = false;

  MEGATRACE_DEVICE StallSums() {
    if (ptx::lane_id() < kCauses) of_warp()[ptx::lane_id()] = 0;
    ptx::syncwarp();
  }
  MEGATRACE_DEVICE void add(uint32_t cause, uint32_t cycles) {
    if (ptx::lane_id() != 0) return;
    of_warp()[cause] += uint64_t{cycles} << kCountBits | 1;
  }
  // Where this lane adds.
  static MEGATRACE_DEVICE uint64_t* place(const TraceParams& p) {
    return ptx::lane_id() < kCauses ? layer_sums(p) : block_sums(p);
  }
  // Calls it with every sum that is not zero, in a lane for each place.
  template <class Add>
  MEGATRACE_DEVICE void each(Add&& add) const {
    ptx::syncwarp();
    if (ptx::lane_id() >= 2 * kCauses) return;
    const uint32_t cause = ptx::lane_id() % kCauses;
    const uint64_t sum = of_warp()[cause];
    if (sum != 0) add(cause, sum);
  }

 private:
  static MEGATRACE_DEVICE uint64_t* of_warp() {
    __shared__ uint64_t sums[kWarps][kCauses];
    return sums[threadIdx.x >> 5];
  }
};
#endif
template <>
class StallSums<0> {
 public:
  static constexpr bool kTakesClocks = true;

  MEGATRACE_DEVICE void began(uint32_t cause, uint64_t clock) {
    cycles_[cause] -= clock;
    ++count_[cause];
  }
  MEGATRACE_DEVICE void ended(uint32_t cause, uint64_t clock) { cycles_[cause] += clock; }
  static MEGATRACE_DEVICE uint64_t* place(const TraceParams& p) {
    return ptx::lane_id() == 0 ? layer_sums(p) : block_sums(p);
  }
  template <class Add>
  MEGATRACE_DEVICE void each(Add&& add) const {
    if (ptx::lane_id() > 1) return;
#pragma unroll
    for (uint32_t c = 0; c < kCauses; ++c)
      if (count_[c] != 0) add(c, cycles_[c] << kCountBits | count_[c]);
  }

 private:
  uint64_t cycles_[kCauses] = {};
  uint32_t count_[kCauses] = {};
};

}  // namespace megatrace
