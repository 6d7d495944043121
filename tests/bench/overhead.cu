// What the tracer costs: 62 weight-streaming launches with dependent launch in one graph,
// the same kernel at every level, in turn, each round there and back (ABBA), as ratios to the mean
// of two identical plain builds. Lines go to pinned host memory; nobody drains them, so rings only
// wrap.
// bench_overhead.py builds it and runs it.
#include <algorithm>
#include <cstdio>
#include <cstdlib>

#include "megatrace/launch.cuh"
#include "megatrace/tracer.cuh"

using namespace megatrace;

namespace ev {
struct empty {
  static constexpr uint32_t id = 16;
  static constexpr Kind kind = Kind::stall;
  static constexpr uint32_t args = 0;
  static constexpr Cause cause = Cause::space;
  static constexpr bool kFirstUse = false;
  static constexpr const char* name = "empty";
};
struct full {
  static constexpr uint32_t id = 17;
  static constexpr Kind kind = Kind::stall;
  static constexpr uint32_t args = 0;
  static constexpr Cause cause = Cause::data;
  static constexpr bool kFirstUse = false;
  static constexpr const char* name = "full";
};
struct tile {
  static constexpr uint32_t id = 18;
  static constexpr Kind kind = Kind::instant;
  static constexpr uint32_t args = 0;
  static constexpr const char* name = "tile";
};
}  // namespace ev

constexpr uint32_t kStages = 6, kTile = 32768, kWarps = 12, kThreads = 32 * kWarps, kLaunches = 62;
constexpr uint32_t kRingLines = 256;
constexpr uint32_t kWarmRounds = 3;

struct Shared {
  alignas(128) char tile[kStages][kTile];
  uint64_t full[kStages], empty[kStages];
};

template <class T>
__global__ void __launch_bounds__(kThreads, 1)
    stream(const char* weights, uint32_t tiles, float* out, typename T::Params trace) {
  Launch<T> launch(trace);
  Shared& s = *reinterpret_cast<Shared*>(ptx::dynamic_shared());
  if (threadIdx.x == 0) {
    for (uint32_t i = 0; i < kStages; ++i) {
      ptx::mbar_init(&s.full[i], 1);
      ptx::mbar_init(&s.empty[i], kWarps - 1);
    }
    ptx::mbar_init_fence();
  }
  __syncthreads();
  ptx::launch_dependents();
  const char* mine = weights + size_t{blockIdx.x} * tiles * kTile;
  const auto load = [&](uint32_t i) {
    const uint32_t stage = i % kStages;
    if (ptx::lane_id() == 0) {
      ptx::mbar_expect_tx(&s.full[stage], kTile);
      ptx::bulk_load(s.tile[stage], mine + size_t{i} * kTile, kTile, &s.full[stage]);
    }
    ptx::syncwarp();
  };
  ptx::dependency_wait();
  // The first fill waits for nothing, so it comes before the tracer.
  if (threadIdx.x < 32)
    for (uint32_t i = 0; i < kStages; ++i) load(i);
  launch.run([&](auto& t) {
    t.after_dependency();
    if (threadIdx.x < 32) {
      for (uint32_t i = kStages; i < tiles; ++i) {
        t.detail_instant(ev::tile{});
        t.wait(ev::empty{}, &s.empty[i % kStages], (i / kStages + 1) & 1);
        t.detail_instant(ev::tile{});
        load(i);
      }
      t.end();
    } else {
      float sum = 0;
      for (uint32_t i = 0; i < tiles; ++i) {
        const uint32_t stage = i % kStages, parity = (i / kStages) & 1;
        t.detail_instant(ev::tile{});
        const Stalled stalled = t.wait_later(ev::full{}, &s.full[stage], parity);
        const float4* tile = reinterpret_cast<const float4*>(s.tile[stage]);
        for (uint32_t j = threadIdx.x - 32; j < kTile / 16; j += kThreads - 32) {
          const float4 v = tile[j];
          sum += v.x + v.y * v.z - v.w;
        }
        ptx::syncwarp();
        if (ptx::lane_id() == 0) ptx::mbar_arrive(&s.empty[stage]);
        t.commit(ev::full{}, stalled);
        t.detail_instant(ev::tile{});
      }
      if (sum == 12345.f) out[0] = sum;
      t.end();
    }
  });
}

// The variants; the kernel is the same source for all.
enum Variant { kOff, kOffAgain, kStalls, kAll, kCounters, kSwitchedOff, kVariants };
constexpr const char* kNames[kVariants] = {
    "off",           "off again (A/A)", "timeline, stalls",
    "timeline, all", "counters",        "compiled in, switched off"};

struct Recorder {
  TraceParams params{};
  uint32_t* lines = nullptr;
  size_t line_count = 0;

  Recorder(uint32_t level, uint32_t warps) {
    std::vector<uint32_t> control(16, 0);
    control[0] = 1;
    control[1] = level;
    for (uint32_t i = 0; i < kSmMaskWords; ++i) control[4 + i] = ~0u;
    uint32_t* device_control = device_alloc<uint32_t>(16);
    copy_bytes(device_control, control.data(), 64);
    line_count = size_t{warps} * kRingLines;
    check(cudaHostAlloc(&lines, line_count * 128, cudaHostAllocMapped), "host ring");
    params.control = device_control;
    params.cursors = device_alloc<uint4>(warps);
    params.sums = device_alloc<uint64_t>(size_t{warps} * kCauses * (kLaunches + 1));
    params.lines = lines;
    params.line_mask = kRingLines - 1;
    params.warps = warps;
    params.layers = kLaunches;
  }
};

template <class T>
void add(Chain& chain, uint32_t blocks, const std::vector<char*>& weights, uint32_t tiles,
         float* out, const TraceParams& params) {
  for (uint32_t i = 0; i < kLaunches; ++i) {
    typename T::Params mine{};
    if constexpr (T::level != Level::off) mine = for_launch(params, 0, i);
    chain.add(stream<T>, dim3(blocks), kThreads, sizeof(Shared), weights[i % weights.size()], tiles,
              out, mine);
  }
}

// Until the host has queued what is timed: else its own time is in it, a graph's launch of some
// microseconds that vary.
__global__ void hold() {
  constexpr uint64_t kCycles = 200'000;
  for (const uint64_t begin = ptx::clock64(); ptx::clock64() - begin < kCycles;) {
  }
}

float time_ms(Chain& chain, cudaEvent_t begin, cudaEvent_t end) {
  hold<<<1, 1, 0, chain.stream()>>>();
  check(cudaEventRecord(begin, chain.stream()), "event");
  chain.replay();
  check(cudaEventRecord(end, chain.stream()), "event");
  check(cudaEventSynchronize(end), "synchronize");
  float ms = 0;
  check(cudaEventElapsedTime(&ms, begin, end), "elapsed");
  return ms;
}

double at(std::vector<double> sorted, double q) {
  std::sort(sorted.begin(), sorted.end());
  return sorted[static_cast<size_t>(q * (sorted.size() - 1) + 0.5)];
}

void measure(uint32_t tiles, uint32_t rounds, bool last) {
  const uint32_t blocks = sm_count(), warps = blocks * kWarps;
  const size_t bytes = size_t{blocks} * tiles * kTile;
  std::vector<char*> weights;
  for (uint32_t i = 0; i < 6; ++i) {
    weights.push_back(device_alloc<char>(bytes));
    check(cudaMemset(weights.back(), 1, bytes), "memset");
  }
  float* out = device_alloc<float>(1);
  Recorder on(2, warps), switched_off(0, warps);
  Chain chains[kVariants];
  add<Tracer<Level::off>>(chains[kOff], blocks, weights, tiles, out, {});
  add<Tracer<Level::off>>(chains[kOffAgain], blocks, weights, tiles, out, {});
  add<Tracer<Level::timeline>>(chains[kStalls], blocks, weights, tiles, out, on.params);
  add<Tracer<Level::timeline, Detail::all>>(chains[kAll], blocks, weights, tiles, out, on.params);
  add<Tracer<Level::counters>>(chains[kCounters], blocks, weights, tiles, out, on.params);
  add<Tracer<Level::timeline>>(chains[kSwitchedOff], blocks, weights, tiles, out,
                               switched_off.params);
  for (Chain& c : chains) c.finish();

  cudaEvent_t begin, end;
  check(cudaEventCreate(&begin), "event");
  check(cudaEventCreate(&end), "event");
  std::vector<double> ratio[kVariants];
  double base_ms = 0;
  for (uint32_t round = 0; round < rounds + kWarmRounds; ++round) {
    double ms[kVariants] = {};
    for (uint32_t v = 0; v < kVariants; ++v) ms[v] += time_ms(chains[v], begin, end) / 2;
    for (uint32_t v = kVariants; v-- > 0;) ms[v] += time_ms(chains[v], begin, end) / 2;
    if (round < kWarmRounds) continue;
    const double base = (ms[kOff] + ms[kOffAgain]) / 2;
    base_ms += base / rounds;
    for (uint32_t v = 0; v < kVariants; ++v)
      ratio[v].push_back((ms[v] / (v <= kOffAgain ? ms[kOff] : base) - 1) * 100);
  }
  // Words a launch: read off the cursors the kernels keep.
  std::vector<uint4> cursors(warps);
  copy_bytes(cursors.data(), on.params.cursors, cursors.size() * sizeof(uint4));
  double words = 0, lines = 0;
  for (const uint4& c : cursors) lines += c.x, words += c.y;
  const double launches = 4.0 * kLaunches * (rounds + kWarmRounds);
  std::fprintf(stderr,
               "%u tiles: launch %.1f us, %.2f TB/s, %u rounds; %.0f words, %.1f lines a warp and "
               "launch (stalls and all)\n",
               tiles, base_ms / kLaunches * 1e3, double(bytes) * kLaunches / base_ms / 1e9, rounds,
               words / warps / launches, lines / warps / launches);
  std::printf(
      "{\"tiles\": %u, \"launch_us\": %.2f, \"tb_s\": %.3f, \"rounds\": %u, \"variants\": [", tiles,
      base_ms / kLaunches * 1e3, double(bytes) * kLaunches / base_ms / 1e9, rounds);
  for (uint32_t v = 1; v < kVariants; ++v) {
    std::fprintf(stderr, "   %-28s median %+.2f %%  p5 %+.2f  p95 %+.2f\n", kNames[v],
                 at(ratio[v], 0.5), at(ratio[v], 0.05), at(ratio[v], 0.95));
    std::printf("%s{\"name\": \"%s\", \"median_pct\": %.3f, \"p5_pct\": %.3f, \"p95_pct\": %.3f}",
                v > 1 ? ", " : "", kNames[v], at(ratio[v], 0.5), at(ratio[v], 0.05),
                at(ratio[v], 0.95));
  }
  std::printf("]}%s\n", last ? "" : ",");
  for (char* w : weights) device_free(w);
}

int main(int argc, char** argv) {
  const uint32_t rounds = argc > 1 ? static_cast<uint32_t>(std::atoi(argv[1])) : 64;
  return guarded([&] {
           cudaDeviceProp properties;
           check(cudaGetDeviceProperties(&properties, 0), "properties");
           std::fprintf(stderr, "%s, %d SMs\n", properties.name, properties.multiProcessorCount);
           std::printf("{\"gpu\": \"%s\", \"runs\": [\n", properties.name);
           if (argc > 2) return measure(static_cast<uint32_t>(std::atoi(argv[2])), rounds, true);
           measure(57, rounds, false);
           measure(96, rounds, false);
           measure(204, rounds, true);
           std::printf("]}\n");
         }) == 0
             ? 0
             : (std::fprintf(stderr, "%s\n", last_error().c_str()), 1);
}
