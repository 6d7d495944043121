// What every tracer has in common, and the one that is off: the same calls, and no code.
#pragma once

#include <stdexcept>
#include <string>
#include <type_traits>

#include "megatrace/ptx.cuh"
#include "megatrace/sync.cuh"
#include "megatrace/words.cuh"

namespace megatrace {

enum class Level : uint32_t { off, counters, timeline };

// What a timeline holds: stalls that blocked, spans and hand-offs, or every try of a wait
// and every instant too.
enum class Detail : uint32_t { stalls, all };

// When the header of a launch is made: with the first line that leaves, or where the kernel
// calls head(). A kernel with many records wants the latter: what makes a header is then in its
// code once, not in every place where a line may become full.
enum class Head : uint32_t { late, early };

// The last parameter of a traced kernel. All pointers are device addresses; `control` is
// null where nobody records.
struct TraceParams {
  const uint32_t* control;  // DEVICE_CONTROL, written by the host before a replay
  uint4* cursors;           // [warps] lines, words and launches so far
  uint64_t* sums;           // [layers + 1][causes][warps] running sums, from this layer's on
  uint32_t* lines;          // [warps][line_mask + 1] lines of the ring, host memory
  uint32_t line_mask;
  uint32_t kernel_layer;
  uint32_t warps;   // of the grid
  uint32_t layers;  // that have sums, and above 16 bits block_warps()
};

// One word for both: kernels copy the parameter word by word, and with one more they would be
// other code.
constexpr uint32_t kLayerMask = (1u << kKernelShift) - 1;
inline uint32_t layer_count(const TraceParams& p) { return p.layers & kLayerMask; }
// Warps of a block of the kernel that the agent was told of; 0 where nobody said.
inline uint32_t block_warps(const TraceParams& p) { return p.layers >> 16; }

// The parameter of one launch of a chain: which kernel, which layer. Throws where the agent
// was told of fewer layers.
inline TraceParams for_launch(TraceParams p, uint32_t kernel, uint32_t layer) {
  if (p.control != nullptr && layer >= layer_count(p))
    throw std::out_of_range("layer " + std::to_string(layer) + " of a ring with " +
                            std::to_string(layer_count(p)) + " layers: give the agent more");
  p.kernel_layer = kernel << kKernelShift | layer;
  p.sums += size_t{kCauses} * p.warps * layer;
  return p;
}

// A wait that ended and is not written down yet: commit it where time is to spare.
struct Stalled {
  std::conditional_t<ptx::kSlow, uint64_t, uint32_t> begin;  // cycles since launch start
  uint32_t cycles;  // modulo 2**32 where there is no timeline
  bool blocked;
};

// kWarps: 0, or of a block of a kernel that calls its tracer (tracer_called.cuh).
template <Level L, Detail D = Detail::stalls, Head H = Head::late, uint32_t kWarps = 0>
class Tracer;

// Off: same calls, no code, no state, an empty parameter.
template <Detail D, Head H, uint32_t kWarps>
class Tracer<Level::off, D, H, kWarps> {
 public:
  struct Params {};
  template <Level kOther>
  using At = Tracer<kOther, D, H, kWarps>;
  static constexpr bool kOneBody = true;
  static constexpr Level level = Level::off;
  static constexpr Detail detail = D;

  struct Nothing {
    MEGATRACE_DEVICE ~Nothing() {}
  };

  MEGATRACE_DEVICE explicit Tracer(const Params&) {}
  Tracer(const Tracer&) = delete;
  Tracer& operator=(const Tracer&) = delete;
  MEGATRACE_DEVICE void after_dependency() {}
  MEGATRACE_DEVICE void head() {}
  template <class E>
  MEGATRACE_DEVICE Nothing span(E) {
    return {};
  }
  template <class E>
  MEGATRACE_DEVICE Nothing span_if(bool, E) {
    return {};
  }
  template <class E, class... Args>
  MEGATRACE_DEVICE void instant(E, Args...) {}
  template <class E, class... Args>
  MEGATRACE_DEVICE void detail_instant(E, Args...) {}
  template <class E>
  MEGATRACE_DEVICE void publish(E, uint32_t) {}
  template <class E, class... Args>
  MEGATRACE_DEVICE void wait(E event, uint64_t* bar, uint32_t parity, Args...) {
    mbar_wait(event.name, bar, parity);
  }
  template <class E>
  MEGATRACE_DEVICE Stalled wait_later(E event, uint64_t* bar, uint32_t parity) {
    mbar_wait(event.name, bar, parity);
    return {0, 0, false};
  }
  template <class E, class Slot, class Ready, class... Args>
  MEGATRACE_DEVICE void poll(E event, const Slot& slot, Ready&& ready, Args...) {
    megatrace::poll(event.name, slot, ready);
  }
  template <class E, class... Args>
  MEGATRACE_DEVICE void commit(E, const Stalled&, Args...) {}
  MEGATRACE_DEVICE void flush() {}
  MEGATRACE_DEVICE void end() {}
};

}  // namespace megatrace
