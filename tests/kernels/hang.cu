// A hand-off that never comes: block 1 waits for a word that block 0 does not write.
#include "hang_events.cuh"
#include "megatrace/launch.cuh"
#include "megatrace/tracer.cuh"

using namespace megatrace;
namespace ev = megatrace::events::hang;

template <class T>
MEGATRACE_DEVICE void wait_in_vain(T& t, const uint32_t* flag) {
  t.after_dependency();
  {
    auto span = t.span(ev::work{});
    const uint32_t slot = 7;
    if (blockIdx.x == 1 && threadIdx.x >= 32)
      t.poll(ev::never{}, slot, [&] { return ptx::load_relaxed(flag) != 0; });
  }
  t.end();
}

// One body for all levels.
template <class T>
__global__ void __launch_bounds__(64) one_body(const uint32_t* flag, typename T::Params trace) {
  T t(trace);
  ptx::dependency_wait();
  wait_in_vain(t, flag);
}

// A body for each.
template <class T>
__global__ void __launch_bounds__(64) bodies(const uint32_t* flag, typename T::Params trace) {
  Launch<T> launch(trace);
  ptx::dependency_wait();
  launch.run([&](auto& t) { wait_in_vain(t, flag); });
}

extern "C" {
uint64_t megatrace_table_hash() { return ev::kTableHash; }

// Launches form 0 (one body), 1 (bodies) or 2 (bodies, records as calls) once and waits for the
// end: 1 and the reason.
int hang_run(const TraceParams* trace, int form) {
  return guarded([&] {
    using Named = Tracer<Level::timeline, Detail::stalls, Head::late, 2>;
    constexpr decltype(&bodies<Named>) kForms[] = {one_body<Tracer<Level::timeline>>,
                                                   bodies<Tracer<Level::timeline>>, bodies<Named>};
    uint32_t* flag = device_alloc<uint32_t>(1);
    Chain chain;
    chain.add(kForms[form], dim3(2), 64, 0, static_cast<const uint32_t*>(flag),
              for_launch(*trace, 0, 0));
    chain.finish();
    chain.replay();
    chain.synchronize();
  });
}
}
