// A hand-off that never comes: block 1 waits for a word that block 0 does not write.
#include "hang_events.cuh"
#include "megatrace/launch.cuh"
#include "megatrace/tracer.cuh"

using namespace megatrace;
namespace ev = megatrace::events::hang;

template <class T>
__global__ void __launch_bounds__(64) hang(const uint32_t* flag, typename T::Params trace) {
  T t(trace);
  ptx::dependency_wait();
  t.after_dependency();
  {
    auto span = t.span(ev::work{});
    const uint32_t slot = 7;
    if (blockIdx.x == 1 && threadIdx.x >= 32)
      t.poll(ev::never{}, slot, [&] { return ptx::load_relaxed(flag) != 0; });
  }
  t.end();
}

extern "C" {
uint64_t megatrace_table_hash() { return ev::kTableHash; }

// Launches it once and waits for the end: 1 and the reason.
int hang_run(const TraceParams* trace) {
  return guarded([&] {
    uint32_t* flag = device_alloc<uint32_t>(1);
    Chain chain;
    chain.add(hang<Tracer<Level::timeline>>, dim3(2), 64, 0, static_cast<const uint32_t*>(flag),
              for_launch(*trace, 0, 0));
    chain.finish();
    chain.replay();
    chain.synchronize();
  });
}
}
