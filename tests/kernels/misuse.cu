// Mistakes that a kernel's author can make, one a launch.
#include "megatrace/launch.cuh"
#include "megatrace/tracer.cuh"
#include "misuse_events.cuh"

using namespace megatrace;
namespace ev = megatrace::events::misuse;
using T = Tracer<Level::timeline>;

__global__ void span_outlives_end(TraceParams trace) {
  T t(trace);
  t.after_dependency();
  auto span = t.span(ev::work{});
  t.end();
}

__global__ void ends_twice(TraceParams trace) {
  T t(trace);
  t.after_dependency();
  t.end();
  t.end();
}

extern "C" {
uint64_t megatrace_table_hash() { return ev::kTableHash; }

int misuse_run(uint32_t which, const TraceParams* trace) {
  return guarded([&] {
    Chain chain;
    chain.add(which == 0 ? span_outlives_end : ends_twice, dim3(1), 32, 0, *trace);
    chain.finish();
    chain.replay();
  });
}

int misuse_grid(uint32_t blocks, uint32_t rows, uint32_t threads, const TraceParams* trace) {
  return guarded([&] { Chain().add(ends_twice, dim3(blocks, rows), threads, 0, *trace); });
}

int misuse_layer(uint32_t layer, const TraceParams* trace) {
  return guarded([&] { for_launch(*trace, 0, layer); });
}
}
