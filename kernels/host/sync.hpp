// The machine's collectives of a warp and barriers of a block.
#pragma once

#include <algorithm>

#include "machine.hpp"
#include "matrix.hpp"
#include "report.hpp"

namespace megatrace::host {

// Every lane of `mask` must come; `source` is the lane whose value a shuffle gives.
inline uint64_t Machine::collective(Collective kind, uint32_t mask, uint64_t value,
                                    uint32_t source) {
  const sanitizer::Quiet quiet;
  Lane& me = lane();
  Warp& warp = *me.warp;
  mask &= warp.exists;
  if (!(mask >> me.index & 1))
    fail(std::string(name(kind)) + " with a mask that leaves out the lane itself");
  sanitizer::release(&warp);
  me.collective = kind;
  me.mask = mask;
  me.value = value;
  me.source = source;
  warp.move(me, State::collective);

  bool all = (warp.collective & mask) == mask;
  if (all)
    for_lanes(mask, [&](uint32_t i) {
      const Lane& other = warp.lanes[i];
      if (other.mask != mask) all = false;
      if (other.mask == mask && other.collective != kind)
        fail("divergent warp: this lane is at " + std::string(name(kind)) + ", lane " +
             std::to_string(i) + " at " + name(other.collective));
    });
  if (all) complete_collective(warp, mask);
  // The last to come waits its turn like the others: all leave together.
  park();
  sanitizer::acquire(&warp);
  return me.result;
}

inline void Machine::matrices(Collective kind, void* mine) {
  constexpr uint32_t kWhole = 0xffffffffu;
  if (lane().warp->exists != kWhole) fail(std::string(name(kind)) + " takes a warp of 32 lanes");
  collective(kind, kWhole, reinterpret_cast<uintptr_t>(mine), 0);
}

inline void Machine::complete_collective(Warp& warp, uint32_t mask) {
  const Collective kind = warp.lanes[__builtin_ctz(mask)].collective;
  if (of_matrices(kind)) {
    exchange_matrices(kind, warp.lanes);
    for_lanes(mask, [&](uint32_t i) { make_ready(warp.lanes[i], 0); });
    return;
  }
  uint32_t votes = 0, sum = 0, least = ~0u, most = 0;
  for_lanes(mask, [&](uint32_t i) {
    const auto v = static_cast<uint32_t>(warp.lanes[i].value);
    votes |= static_cast<uint32_t>(v != 0) << i;
    sum += v;
    least = std::min(least, v);
    most = std::max(most, v);
  });
  for_lanes(mask, [&](uint32_t i) {
    Lane& lane = warp.lanes[i];
    uint64_t result = 0;
    switch (kind) {
      case Collective::syncwarp:
        break;
      case Collective::shuffle:
        result = warp.lanes[lane.source].value;
        break;
      case Collective::ballot:
        result = votes;
        break;
      case Collective::elect:
        result = i == static_cast<uint32_t>(__builtin_ctz(mask));
        break;
      case Collective::sum:
        result = sum;
        break;
      case Collective::min:
        result = least;
        break;
      case Collective::max:
        result = most;
        break;
      default:
        break;
    }
    make_ready(lane, result);
  });
}

inline void Machine::named_barrier(uint32_t id, uint32_t threads) {
  const Block& mine = block();
  if (id >= 16) fail("barrier_sync: a block has barriers 0 to 15, not " + std::to_string(id));
  if (threads == 0 || threads % 32 != 0 || threads > mine.warp_count * 32)
    fail("barrier_sync: " + std::to_string(threads) +
         " threads is not a multiple of 32 within the block");
  const NamedBarrier& it = mine.barriers[id];
  if (it.arrived != 0 && it.threads != threads)
    fail("barrier_sync: barrier " + std::to_string(id) + " waits for " +
         std::to_string(it.threads) + " threads, this lane says " + std::to_string(threads));
  barrier(id, threads);
}

// `threads` 0: every thread of the block that has not exited.
inline void Machine::barrier(uint32_t id, uint32_t threads) {
  const sanitizer::Quiet quiet;
  Lane& me = lane();
  Block& block = *me.warp->block;
  NamedBarrier& barrier = block.barriers[id];
  sanitizer::release(&barrier);
  barrier.threads = threads;
  barrier.arrived++;
  me.barrier = id;
  me.warp->move(me, State::barrier);
  check_barrier(block, id);
  park();
  sanitizer::acquire(&barrier);
}

inline void Machine::check_barrier(Block& block, uint32_t id) {
  NamedBarrier& barrier = block.barriers[id];
  const uint32_t wanted = barrier.threads == 0 ? block.live : barrier.threads;
  if (barrier.arrived < wanted) return;
  barrier.arrived = 0;
  progress_++;
  for (uint32_t w = 0; w < block.warp_count; w++) {
    Warp& warp = block.warps[w];
    for_lanes(warp.barrier, [&](uint32_t i) {
      if (warp.lanes[i].barrier == id) make_ready(warp.lanes[i], 0);
    });
  }
}

}  // namespace megatrace::host
