// The block: its warps, their roles, its shared memory.
#pragma once

#include "megatrace/ptx.cuh"
#include "params.cuh"

namespace muse {

namespace ptx = megatrace::ptx;

// Warps 0..7 drive the tensor cores, 8..10 do what is not matrices, 11 loads weights.
constexpr uint32_t kTensorWarps = 8, kMathWarps = 3, kWarps = 12;
constexpr uint32_t kWorkers = (kTensorWarps + kMathWarps) * 32;  // all but the loader
constexpr uint32_t kThreads = kWarps * 32;
constexpr uint32_t kLoader = kWarps - 1;
// Of the math warps: who chooses a row's experts, who makes the table of them, who does neither.
constexpr uint32_t kRouterWarp = kTensorWarps, kTableWarp = kTensorWarps + 1;
constexpr uint32_t kSpareWarp = kTensorWarps + 2;

// Each tensor warp has its own ring of stages.
constexpr uint32_t kStages = 2;
constexpr uint32_t kStageBytes = 9216;  // 16 rows x 1024 columns of NVFP4 with their scales

// Named barriers (0 is __syncthreads).
enum Barrier : uint32_t { kWorkersBarrier = 1, kTensorBarrier = 2, kMergeBarrier = 3 };

constexpr uint32_t kTokens = 8;      // columns of one tensor-core tile: tokens an expert pass takes
constexpr uint32_t kMaxPairs = 256;  // (row, slot) pairs of a step
constexpr uint32_t kMaxExperts = 256;
constexpr uint32_t kWorkBytes = 72 * 1024;

// Tokens of one expert, at most kTokens: an expert with more has several groups.
struct Group {
  uint16_t expert;  // local
  uint16_t tokens;
  uint8_t pairs[kTokens];  // row * top_k + slot
  uint8_t rows[kTokens];
};

struct Routing {
  uint32_t groups;
  Group group[kMaxPairs];
};

// Moments that weights are held back for: a ring that fills takes all of the memory's rate, and
// whoever waits for a word of another block then waits for that too.
enum Moment : uint32_t {
  kKeysHere,  // the attention has its first keys and queries
  kRouterInputHere,
  kAnyMoment,
};

struct Shared {
  alignas(128) char ring[kTensorWarps][kStages][kStageBytes];
  // Whatever the phase at hand needs: activations, sums over warps, keys and values.
  alignas(128) char work[kWorkBytes];
  uint64_t full[kTensorWarps][kStages], empty[kTensorWarps][kStages];
  uint64_t moment[kAnyMoment];          // that it is there, one arrival a launch
  uint64_t routed;                      // `routing` is there, one arrival a launch
  alignas(16) uint32_t ids[kMaxPairs];  // of the step's pairs
  Routing routing;
};

MEGATRACE_DEVICE uint32_t warp_id() { return threadIdx.x >> 5; }
MEGATRACE_DEVICE void workers_sync() { ptx::barrier_sync(kWorkersBarrier, kWorkers); }
MEGATRACE_DEVICE void tensor_sync() { ptx::barrier_sync(kTensorBarrier, kTensorWarps * 32); }

// The first tensor warp says that this moment is there.
MEGATRACE_DEVICE void reach(Shared& s, Moment moment) {
  if (threadIdx.x == 0) ptx::mbar_arrive(&s.moment[moment]);
}

// The block that chooses a row's experts.
MEGATRACE_DEVICE uint32_t row_owner(const Params& p, uint32_t row) {
  return row * gridDim.x / p.shape.rows;
}

// Work is numbered 0..total; a block takes a contiguous share. Totals times blocks fit 32 bits.
MEGATRACE_DEVICE uint32_t share_begin(uint32_t total, uint32_t block) {
  return total * block / gridDim.x;
}
MEGATRACE_DEVICE uint32_t slices(uint32_t columns) { return (columns + kSlice - 1) / kSlice; }

// The block whose share holds this unit.
MEGATRACE_DEVICE uint32_t share_owner(uint32_t total, uint32_t unit) {
  return (unit * gridDim.x + gridDim.x - 1) / total;
}

}  // namespace muse
