// Waits for all four causes, and adds up itself what its tracer is told of each: the in-kernel
// counters of a launch that has a timeline, which keeps none.
#include "counted_events.cuh"
#include "megatrace/launch.cuh"
#include "megatrace/tracer.cuh"

using namespace megatrace;
namespace ev = megatrace::events::counted;

constexpr uint32_t kWarps = 4, kWaiters = kWarps - 1;

struct Sums {
  uint64_t cycles, count;
};

template <class T>
struct Counting {
  T& t;
  Sums sums[kCauses] = {};

  template <class E>
  MEGATRACE_DEVICE void wait(E event, uint64_t* bar, uint32_t parity) {
    const Stalled s = t.wait_later(event, bar, parity);
    if (s.blocked) {
      sums[static_cast<uint32_t>(E::cause)].cycles += s.cycles;
      sums[static_cast<uint32_t>(E::cause)].count += 1;
    }
    t.commit(event, s);
  }
};

template <class T>
MEGATRACE_DEVICE void wait_for(Counting<T>& c, uint32_t cause, uint64_t* bar, uint32_t parity) {
  if (cause == 0) return c.wait(ev::data{}, bar, parity);
  if (cause == 1) return c.wait(ev::input{}, bar, parity);
  c.wait(ev::peer{}, bar, parity);
}

template <class T>
MEGATRACE_DEVICE void count(T& t, Sums* out, uint32_t rounds) {
  ptx::dependency_wait();
  t.after_dependency();
  uint64_t* bars = reinterpret_cast<uint64_t*>(ptx::dynamic_shared());
  const uint32_t warp = threadIdx.x / 32;
  if (threadIdx.x == 0) {
    ptx::mbar_init(&bars[0], 1);
    ptx::mbar_init(&bars[1], kWaiters);
    ptx::mbar_init_fence();
  }
  ptx::barrier_sync(0, 32 * kWarps);
  Counting<T> c{t};
  for (uint32_t i = 0; i < rounds; ++i) {
    if (warp == 0) {
      c.wait(ev::space{}, &bars[1], (i & 1) ^ 1);
      auto span = t.span(ev::work{});
      const uint64_t until = ptx::clock64() + 500 * (i % 5);
      while (ptx::clock64() < until) ptx::spin_pause("work", i);
      if (ptx::lane_id() == 0) ptx::mbar_arrive(&bars[0]);
    } else {
      wait_for(c, (i + warp) % 3, &bars[0], i & 1);
      t.poll(ev::input{}, 0u, [] { return true; });  // is no stall
      auto span = t.span(ev::work{});
      const uint64_t until = ptx::clock64() + 400 * ((i + warp) % 3);
      while (ptx::clock64() < until) ptx::spin_pause("work", i);
      if (ptx::lane_id() == 0) ptx::mbar_arrive(&bars[1]);
    }
    ptx::syncwarp();
  }
  if (ptx::lane_id() == 0)
    for (uint32_t k = 0; k < kCauses; ++k)
      out[(blockIdx.x * kWarps + warp) * kCauses + k] = c.sums[k];
  t.end();
}

// One body for all levels.
template <class T>
__global__ void __launch_bounds__(32 * kWarps)
    one_body(Sums* out, uint32_t rounds, typename T::Params trace) {
  T t(trace);
  count(t, out, rounds);
}

// A body for each; of launches that count, on the GPU with sums in shared memory.
template <class T>
__global__ void __launch_bounds__(32 * kWarps)
    bodies(Sums* out, uint32_t rounds, typename T::Params trace) {
  Launch<T> launch(trace);
  launch.run([&](auto& t) { count(t, out, rounds); });
}

extern "C" {
uint64_t megatrace_table_hash() { return ev::kTableHash; }

// One launch of `layer` in form 0 (one body) or 1 (bodies, named warps); `sums` is
// [blocks][warps][causes] of (cycles, count). 1 and the reason on failure.
int counted_run(const TraceParams* trace, uint32_t form, uint32_t layer, uint32_t blocks,
                uint32_t rounds, void* sums) {
  return guarded([&] {
    using Named = Tracer<Level::counters, Detail::stalls, Head::late, kWarps>;
    constexpr decltype(&bodies<Named>) kForms[] = {one_body<Tracer<Level::timeline>>,
                                                   bodies<Named>};
    const size_t many = size_t{blocks} * kWarps * kCauses;
    Sums* out = device_alloc<Sums>(many);
    copy_bytes(sums, out, many * sizeof(Sums));  // waits for the stream that the step is said on
    Chain chain;
    chain.add(kForms[form], dim3(blocks), 32 * kWarps, 2 * sizeof(uint64_t), out, rounds,
              for_launch(*trace, 0, layer));
    chain.finish();
    chain.replay();
    chain.synchronize();
    copy_bytes(sums, out, many * sizeof(Sums));
    device_free(out);
  });
}
}
