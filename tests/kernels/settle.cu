// Warps that settle before their last wait, and what may come after that.
#include "megatrace/launch.cuh"
#include "megatrace/tracer.cuh"
#include "settle_events.cuh"

using namespace megatrace;
namespace ev = megatrace::events::settle;

constexpr uint32_t kRingLines = 4096;

// One launch: instants before the last wait, how it settles, what the wait does, instants after.
struct Plan {
  uint32_t before;
  uint32_t settle;  // 0 never, 1 for a wait, 2 for that and a span's end, 3 for nothing, 4 twice
  uint32_t blocks;
  uint32_t after;
};

template <class T>
MEGATRACE_DEVICE void wait(T& t, uint32_t tries) {
  t.poll(ev::full{}, 0, [&] { return tries-- == 0; });
}

template <class T>
__global__ void settles(Plan plan, typename T::Params trace) {
  T t(trace);
  ptx::dependency_wait();
  t.after_dependency();
  wait(t, 1);
  for (uint32_t i = 0; i < plan.before; ++i) t.instant(ev::mark{});
  {
    auto span = t.span(ev::work{});
    if (plan.settle == 1) t.settle(ev::full{});
    if (plan.settle == 2) t.settle(ev::full{}, ev::work{});
    if (plan.settle >= 3) t.settle();
    if (plan.settle == 4) t.settle(ev::full{}, ev::work{});
    wait(t, plan.blocks);
  }
  for (uint32_t i = 0; i < plan.after; ++i) t.instant(ev::mark{});
  t.end();
}

extern "C" {
uint64_t megatrace_table_hash() { return ev::kTableHash; }

// Runs the plans in turn, one warp each, at a level of the control word; `counters`: built for
// counters only. Returns what is left in the ring and beside it.
int settle_run(uint32_t counters, uint32_t level, const Plan* plans, uint32_t count,
               uint32_t* lines, uint32_t* cursor, uint64_t* sums) {
  return guarded([&] {
    std::vector<uint32_t> control(16, 0);
    control[0] = 1;
    control[1] = level;
    TraceParams p{};
    uint32_t* device_control = device_alloc<uint32_t>(control.size());
    copy_bytes(device_control, control.data(), 64);
    p.control = device_control;
    p.cursors = device_alloc<uint4>(1);
    p.sums = device_alloc<uint64_t>(kCauses);
    p.lines = device_alloc<uint32_t>(size_t{kRingLines} * kLineWords);
    p.line_mask = kRingLines - 1;
    p.warps = p.layers = 1;
    Chain chain;
    for (uint32_t i = 0; i < count; ++i) {
      if (counters != 0)
        chain.add(settles<Tracer<Level::counters>>, dim3(1), 32, 0, plans[i], p);
      else
        chain.add(settles<Tracer<Level::timeline>>, dim3(1), 32, 0, plans[i], p);
    }
    chain.finish();
    chain.replay();
    chain.synchronize();
    copy_bytes(lines, p.lines, size_t{kRingLines} * kLineWords * 4);
    copy_bytes(cursor, p.cursors, 16);
    copy_bytes(sums, p.sums, kCauses * 8);
  });
}

// A tracer that has ended and settles.
int settle_late() {
  return guarded([&] {
    Chain chain;
    chain.add(
        +[](TraceParams trace) {
          Tracer<Level::timeline> t(trace);
          t.end();
          t.settle();
        },
        dim3(1), 32, 0, TraceParams{});
    chain.finish();
    chain.replay();
  });
}
}
