// A memory-bound kernel of the shape of a decode megakernel: on every SM one warp streams
// weights into a ring of shared-memory stages, eleven warps consume them, and half-way all
// blocks hand a partial sum to each other: data is the flag, no atomics.
//
//   out[block] = mean(partial sums of all blocks) * sum(second half of this block's weights)
#include "megatrace/launch.cuh"
#include "megatrace/tracer.cuh"
#include "stream_events.cuh"

using namespace megatrace;
namespace ev = megatrace::events::stream;

constexpr uint32_t kWarps = 12, kConsumers = kWarps - 1, kThreads = 32 * kWarps;
constexpr uint32_t kStages = 6, kTileFloats = MEGATRACE_TILE_BYTES / 4;
constexpr uint32_t kEmpty = 0xffffffffu;  // a NaN no sum produces

struct Shared {
  alignas(128) float tile[kStages][kTileFloats];
  uint64_t full[kStages], empty[kStages];
  float sum[kConsumers], scale;
};

struct Work {
  const float* weights;  // [blocks][tiles][kTileFloats]
  uint32_t tiles;        // of a block, even
  uint32_t* partials;    // [blocks] of this launch, kEmpty where missing
  uint32_t* next;        // [blocks] of the next launch, emptied by this one
  float* out;            // [blocks]
};

template <class T>
MEGATRACE_DEVICE void load_weights(T& t, Shared& s, const Work& work) {
  const float* weights = work.weights + size_t{blockIdx.x} * work.tiles * kTileFloats;
  for (uint32_t i = 0; i < work.tiles; ++i) {
    const uint32_t stage = i % kStages, parity = (i / kStages) & 1;
    t.wait(ev::empty{}, &s.empty[stage], parity ^ 1);
    const uint32_t ahead = i - work.tiles / 2;
    if (ahead < kStages) t.publish(ev::early_tile{}, ahead);
    if (ptx::lane_id() == 0) {
      ptx::mbar_expect_tx(&s.full[stage], MEGATRACE_TILE_BYTES);
      ptx::bulk_load(s.tile[stage], weights + size_t{i} * kTileFloats, MEGATRACE_TILE_BYTES,
                     &s.full[stage]);
    }
    ptx::syncwarp();
  }
}

// Sums tiles [begin, end) over all consumer warps; the answer is in every thread.
template <class T>
MEGATRACE_DEVICE float sum_tiles(T& t, Shared& s, const Work& work, uint32_t begin, uint32_t end) {
  const uint32_t thread = threadIdx.x - 32, warp = thread / 32;
  float sum = 0;
  for (uint32_t i = begin; i < end; ++i) {
    const uint32_t stage = i % kStages, parity = (i / kStages) & 1, ahead = i - work.tiles / 2;
    t.detail_instant(ev::tile{}, i);
    Stalled stalled;
    if (ahead < kStages) {
      t.wait(ev::first_use{}, &s.full[stage], parity, ahead);
      stalled = {0, 0, false};
    } else {
      stalled = t.wait_later(ev::full{}, &s.full[stage], parity);
    }
    const float4* tile = reinterpret_cast<const float4*>(s.tile[stage]);
    for (uint32_t j = thread; j < kTileFloats / 4; j += 32 * kConsumers) {
      const float4 v = tile[j];
      sum += (v.x + v.y) + (v.z + v.w);
    }
    ptx::syncwarp();
    if (ptx::lane_id() == 0) ptx::mbar_arrive(&s.empty[stage]);
    t.commit(ev::full{}, stalled);
    t.detail_instant(ev::tile_done{});
  }
  for (uint32_t mask = 16; mask != 0; mask /= 2)
    sum += __uint_as_float(ptx::shuffle_xor(__float_as_uint(sum), mask));
  if (ptx::lane_id() == 0) s.sum[warp] = sum;
  ptx::barrier_sync(1, 32 * kConsumers);
  sum = 0;
  for (uint32_t w = 0; w < kConsumers; ++w) sum += s.sum[w];
  ptx::barrier_sync(1, 32 * kConsumers);
  return sum;
}

// Warp 1: waits until every block has published, 32 blocks at a time.
template <class T>
MEGATRACE_DEVICE float mean_of_partials(T& t, const Work& work) {
  float sum = 0;
  for (uint32_t first = 0; first < gridDim.x; first += 32) {
    const uint32_t block = first + ptx::lane_id();
    uint32_t bits = 0, missing = 0;
    t.poll(ev::partials{}, missing, [&] {
      bits = block < gridDim.x ? ptx::load_relaxed(work.partials + block) : 0;
      const uint32_t absent = ptx::ballot(bits == kEmpty);
      if (absent != 0) missing = first + 31 - __clz(absent);
      return absent == 0;
    });
    sum += __uint_as_float(bits);
  }
  for (uint32_t mask = 16; mask != 0; mask /= 2)
    sum += __uint_as_float(ptx::shuffle_xor(__float_as_uint(sum), mask));
  return sum / gridDim.x;
}

template <class T>
MEGATRACE_DEVICE void consume(T& t, Shared& s, const Work& work) {
  {
    auto span = t.span(ev::sum{});
    const float partial = sum_tiles(t, s, work, 0, work.tiles / 2);
    if (threadIdx.x == 32) {
      ptx::store_relaxed(work.next + blockIdx.x, kEmpty);
      ptx::store_relaxed(work.partials + blockIdx.x, __float_as_uint(partial));
    }
    if (threadIdx.x / 32 == 1) t.publish(ev::partial{}, blockIdx.x);
  }
  auto span = t.span(ev::scale{});
  if (threadIdx.x / 32 == 1) {
    const float mean = mean_of_partials(t, work);
    if (ptx::lane_id() == 0) s.scale = mean;
  }
  const float sum = sum_tiles(t, s, work, work.tiles / 2, work.tiles);
  if (threadIdx.x == 32) work.out[blockIdx.x] = s.scale * sum;
}

template <class T>
__global__ void __launch_bounds__(kThreads, 1) stream(Work work, typename T::Params trace) {
  Launch<T> launch(trace);
  Shared& s = *reinterpret_cast<Shared*>(ptx::dynamic_shared());
  if (threadIdx.x == 0) {
    for (uint32_t i = 0; i < kStages; ++i) {
      ptx::mbar_init(&s.full[i], 1);
      ptx::mbar_init(&s.empty[i], kConsumers);
    }
    ptx::mbar_init_fence();
  }
  __syncthreads();
  ptx::launch_dependents();
  ptx::dependency_wait();
  launch.run([&](auto& t) {
    t.after_dependency();
    if (threadIdx.x < 32) {
      load_weights(t, s, work);
      t.end();
    } else {
      consume(t, s, work);
      t.end();
    }
  });
}

#include "host.cuh"
