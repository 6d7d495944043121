// Which local experts this step's rows hit, and with which rows. Every block makes the same table
// from the same ids: no queue, no atomics.
#pragma once

#include "handoff.cuh"

namespace muse {

// Made by one warp. Experts ascend, and so do the pairs of one expert, in groups of kTokens.
template <class T>
MEGATRACE_DEVICE void make_routing(T& t, const Params& p, Shared& s) {
  uint32_t* const ids = s.ids;
  const uint32_t lane = ptx::lane_id(), pairs = p.shape.rows * p.shape.top_k;
  const uint32_t padded = (pairs + 31) & ~31u;
  for (uint32_t base = 0; base < padded; base += 32) {
    const uint32_t pair = base + lane;
    uint32_t id = 0, slot = 0;
    t.poll(ev::routes_wait{}, slot, [&] {
      return try_load(
          slot,
          [&] {
            if (pair >= pairs) return true;
            id = ptx::load_relaxed(p.handoff.ids + pair);
            return filled(id);
          },
          [&] { return row_owner(p, pair / p.shape.top_k); });
    });
    ids[pair] = pair < pairs ? id - p.shape.first_expert : kEmpty;
  }
  ptx::syncwarp();

  uint32_t groups = 0, experts = 0;
  for (uint32_t base = 0; base < p.shape.local_experts; base += 32) {
    const uint32_t expert = base + lane;
    uint32_t tokens = 0;
    if (expert < p.shape.local_experts)
      for (uint32_t i = 0; i < padded; ++i) tokens += ids[i] == expert;
    const uint32_t mine = (tokens + kTokens - 1) / kTokens;
    uint32_t before = mine;  // groups of the experts before this lane's, in these 32
    for (uint32_t step = 1; step < 32; step *= 2) {
      const uint32_t other = ptx::shuffle(before, lane - step);
      if (lane >= step) before += other;
    }
    const uint32_t all = ptx::shuffle(before, 31);
    before += groups - mine;
    if (tokens != 0) {
      uint32_t seen = 0;
      for (uint32_t i = 0; i < pairs; ++i) {
        if (ids[i] != expert) continue;
        Group& group = s.routing.group[before + seen / kTokens];
        group.expert = static_cast<uint16_t>(expert);
        group.tokens = static_cast<uint16_t>(min(tokens - seen / kTokens * kTokens, kTokens));
        group.pairs[seen % kTokens] = static_cast<uint8_t>(i);
        ++seen;
      }
    }
    experts += __popc(ptx::ballot(tokens != 0));
    groups += all;
    ptx::syncwarp();
  }
  if (lane == 0) {
    s.routing.groups = groups;
    s.routing.experts = experts;
  }
  ptx::syncwarp();
  if (blockIdx.x == 0) t.instant(ev::distinct_experts{}, experts);
  if (lane == 0) ptx::mbar_arrive(&s.routed);
}

// The table, once it is there; for warps that did not make it.
template <class T>
MEGATRACE_DEVICE const Routing& routing(T& t, Shared& s) {
  t.wait(ev::routing_table{}, &s.routed, 0);
  return s.routing;
}

}  // namespace muse
