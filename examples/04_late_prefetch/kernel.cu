// One layer of two phases, with a hand-off between them: `up` streams weights and gives a sum
// to all blocks, `down` needs the mean of these sums, and weights of its own.
//
//   out[block] = mean over blocks(sum of up's weights) * sum(this block's weights of down)
//
// The copy of down's weights needs nothing of the hand-off. kEarly asks for it before; without
// it the loader follows the phases as they are written, and asks when the hand-off is over.
#include "layer_events.cuh"
#include "megatrace/launch.cuh"
#include "megatrace/tracer.cuh"

using namespace megatrace;
namespace ev = megatrace::events::layer;

constexpr uint32_t kWorkers = 4, kThreads = 32 * (1 + kWorkers);
constexpr uint32_t kStages = 4, kDown = 4;  // stages of up's ring; tiles of down
constexpr uint32_t kTileFloats = MEGATRACE_TILE_BYTES / 4;
constexpr uint32_t kMissing = 0xffffffffu;  // a NaN no sum produces

struct Shared {
  alignas(128) float up[kStages][kTileFloats];
  alignas(128) float down[kDown][kTileFloats];
  uint64_t up_full[kStages], up_free[kStages], down_full[kDown];
  float sum[kWorkers];
};

struct Work {
  const float* weights;  // [blocks][up_tiles + kDown][kTileFloats]
  uint32_t up_tiles;     // of a block
  uint32_t* sums;        // [blocks] of this layer, kMissing where not there yet
  uint32_t* next;        // [blocks] of the next layer, emptied by this one
  float* out;            // [blocks]
};

MEGATRACE_DEVICE void load_tile(float* tile, const float* weights, uint64_t* full) {
  if (ptx::lane_id() == 0) {
    ptx::mbar_expect_tx(full, MEGATRACE_TILE_BYTES);
    ptx::bulk_load(tile, weights, MEGATRACE_TILE_BYTES, full);
  }
  ptx::syncwarp();
}

MEGATRACE_DEVICE float sum_over_lanes(float v) {
  for (uint32_t mask = 16; mask != 0; mask /= 2) v += ptx::shuffle_xor(v, mask);
  return v;
}

// The hand-off: waits until every block's sum is there, 32 blocks at a time, and returns their
// mean. Data is the flag, no atomics.
template <class T>
MEGATRACE_DEVICE float hand_off(T& t, const Work& work) {
  float sum = 0;
  for (uint32_t first = 0; first < gridDim.x; first += 32) {
    const uint32_t block = first + ptx::lane_id();
    uint32_t bits = 0, missing = 0;
    t.poll(ev::sum_wait{}, missing, [&] {
      bits = block < gridDim.x ? ptx::load_relaxed(work.sums + block) : 0;
      const uint32_t absent = ptx::ballot(bits == kMissing);
      if (absent != 0) missing = first + 31 - __clz(absent);
      return absent == 0;
    });
    sum += __uint_as_float(bits);
  }
  return sum_over_lanes(sum) / gridDim.x;
}

template <bool kEarly, class T>
MEGATRACE_DEVICE void load(T& t, Shared& s, const Work& work) {
  const float* weights = work.weights + size_t{blockIdx.x} * (work.up_tiles + kDown) * kTileFloats;
  for (uint32_t i = 0; i < work.up_tiles; ++i) {
    const uint32_t stage = i % kStages, parity = (i / kStages) & 1;
    t.wait(ev::stage_free{}, &s.up_free[stage], parity ^ 1);
    load_tile(s.up[stage], weights + size_t{i} * kTileFloats, &s.up_full[stage]);
  }
  if constexpr (!kEarly) hand_off(t, work);  // what this example is about
  for (uint32_t i = 0; i < kDown; ++i) {
    t.publish(ev::ask_down{}, i);
    load_tile(s.down[i], weights + size_t{work.up_tiles + i} * kTileFloats, &s.down_full[i]);
  }
}

// This thread's part of a tile.
MEGATRACE_DEVICE float sum_tile(const float* tile) {
  const float4* vectors = reinterpret_cast<const float4*>(tile);
  float sum = 0;
  for (uint32_t j = threadIdx.x - 32; j < kTileFloats / 4; j += 32 * kWorkers) {
    const float4 v = vectors[j];
    sum += (v.x + v.y) + (v.z + v.w);
  }
  return sum;
}

// The sum over all worker threads of the block, in every one of them.
MEGATRACE_DEVICE float sum_over_block(Shared& s, float v) {
  v = sum_over_lanes(v);
  ptx::barrier_sync(1, 32 * kWorkers);
  if (ptx::lane_id() == 0) s.sum[threadIdx.x / 32 - 1] = v;
  ptx::barrier_sync(1, 32 * kWorkers);
  float sum = 0;
  for (uint32_t w = 0; w < kWorkers; ++w) sum += s.sum[w];
  return sum;
}

template <class T>
MEGATRACE_DEVICE void compute(T& t, Shared& s, const Work& work) {
  {
    auto span = t.span(ev::up{});
    float part = 0;
    for (uint32_t i = 0; i < work.up_tiles; ++i) {
      const uint32_t stage = i % kStages, parity = (i / kStages) & 1;
      const Stalled stalled = t.wait_later(ev::up_weights{}, &s.up_full[stage], parity);
      part += sum_tile(s.up[stage]);
      ptx::syncwarp();
      if (ptx::lane_id() == 0) ptx::mbar_arrive(&s.up_free[stage]);
      t.commit(ev::up_weights{}, stalled);
    }
    const float sum = sum_over_block(s, part);
    if (threadIdx.x == 32) {
      ptx::store_relaxed(work.next + blockIdx.x, kMissing);
      ptx::store_relaxed(work.sums + blockIdx.x, __float_as_uint(sum));
    }
    if (threadIdx.x / 32 == 1) t.publish(ev::sum{}, blockIdx.x);
  }
  auto span = t.span(ev::down{});
  const float mean = hand_off(t, work);
  float part = 0;
  for (uint32_t i = 0; i < kDown; ++i) {
    t.wait(ev::down_weights{}, &s.down_full[i], 0, i);
    part += sum_tile(s.down[i]);
  }
  const float sum = sum_over_block(s, part);
  if (threadIdx.x == 32) work.out[blockIdx.x] = mean * sum;
}

template <class T, bool kEarly>
__global__ void __launch_bounds__(kThreads, 1) layer(Work work, typename T::Params trace) {
  Shared& s = *reinterpret_cast<Shared*>(ptx::dynamic_shared());
  if (threadIdx.x == 0) {
    for (uint32_t i = 0; i < kStages; ++i) {
      ptx::mbar_init(&s.up_full[i], 1);
      ptx::mbar_init(&s.up_free[i], kWorkers);
    }
    for (uint32_t i = 0; i < kDown; ++i) ptx::mbar_init(&s.down_full[i], 1);
    ptx::mbar_init_fence();
  }
  __syncthreads();
  ptx::launch_dependents();
  T t(trace);
  ptx::dependency_wait();
  t.after_dependency();
  if (threadIdx.x < 32) {
    load<kEarly>(t, s, work);
    t.end();
  } else {
    compute(t, s, work);
    t.end();
  }
}

#include "host.cuh"
