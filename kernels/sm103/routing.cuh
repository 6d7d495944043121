// Which local experts this step's rows hit, and with which rows. Every block makes the same table
// from the same ids: no queue, no atomics.
#pragma once

#include "handoff.cuh"

namespace muse {

constexpr uint32_t kNobody = 1u << 31;  // an expert that no id less the first one is

// All ids of the step, as local experts (others wrap around to something large), in s.ids.
template <class T>
MEGATRACE_DEVICE void gather_ids(T& t, const Params& p, Shared& s) {
  const uint32_t pairs = p.shape.rows * p.shape.top_k;
#pragma unroll 1
  for (uint32_t pair = ptx::lane_id() * 4; pair < kMaxPairs; pair += 128) {
    uint4 id = make_uint4(0, 0, 0, 0);
    uint32_t slot = 0;
    t.poll(ev::routes_wait{}, slot, [&] {
      return try_load(
          slot,
          [&] {
            if (pair < pairs)
              id = ptx::load_relaxed(reinterpret_cast<const uint4*>(p.handoff.ids + pair));
            if (pair + 1 >= pairs) id.y = 0;
            if (pair + 2 >= pairs) id.z = 0;
            if (pair + 3 >= pairs) id.w = 0;
            return filled(id);
          },
          [&] { return row_owner(p, pair / p.shape.top_k); });
    });
    const uint32_t first = p.shape.first_expert;
    *reinterpret_cast<uint4*>(s.ids + pair) = make_uint4(
        pair < pairs ? id.x - first : kEmpty, pair + 1 < pairs ? id.y - first : kEmpty,
        pair + 2 < pairs ? id.z - first : kEmpty, pair + 3 < pairs ? id.w - first : kEmpty);
  }
  ptx::syncwarp();
}

// Of 32 pairs from `first`, those that go to an expert.
MEGATRACE_DEVICE uint32_t pairs_of(const Shared& s, uint32_t first, uint32_t expert) {
  uint32_t mask = 0;
#pragma unroll 2
  for (uint32_t i = 0; i < 32; i += 4) {
    const uint4 id = *reinterpret_cast<const uint4*>(s.ids + first + i);
    const uint32_t four =
        (id.x == expert) | (id.y == expert) << 1 | (id.z == expert) << 2 | (id.w == expert) << 3;
    mask |= four << i;
  }
  return mask;
}

// Sum over the lanes up to this one.
MEGATRACE_DEVICE uint32_t sum_up_to_lane(uint32_t v) {
  const uint32_t lane = ptx::lane_id();
#pragma unroll 1
  for (uint32_t step = 1; step < 32; step *= 2) {
    const uint32_t other = ptx::shuffle(v, (lane - step) & 31);
    if (lane >= step) v += other;
  }
  return v;
}

// Made by one warp. Experts ascend, and so do the pairs of one expert, in groups of kTokens.
template <class T>
MEGATRACE_DEVICE void make_routing(T& t, const Params& p, Shared& s) {
  gather_ids(t, p, s);
  const uint32_t lane = ptx::lane_id(), pairs = p.shape.rows * p.shape.top_k;
  uint32_t groups = 0, experts = 0;
#pragma unroll 1
  for (uint32_t base = 0; base < p.shape.local_experts; base += 32) {
    const uint32_t expert = base + lane < p.shape.local_experts ? base + lane : kNobody;
    uint32_t tokens = 0;
#pragma unroll 1
    for (uint32_t first = 0; first < pairs; first += 32)
      tokens += __popc(pairs_of(s, first, expert));
    const uint32_t mine = (tokens + kTokens - 1) / kTokens;
    const uint32_t up_to_mine = sum_up_to_lane(mine);
    const uint32_t group = groups + up_to_mine - mine;
    uint32_t seen = 0;
#pragma unroll 1
    for (uint32_t first = 0; first < pairs && seen < tokens; first += 32)
      for (uint32_t mask = pairs_of(s, first, expert); mask != 0; mask &= mask - 1, ++seen) {
        Group& g = s.routing.group[group + seen / kTokens];
        g.expert = static_cast<uint16_t>(expert);
        g.tokens = static_cast<uint16_t>(min(tokens - seen / kTokens * kTokens, kTokens));
        const uint32_t pair = first + static_cast<uint32_t>(__ffs(static_cast<int>(mask))) - 1;
        g.pairs[seen % kTokens] = static_cast<uint8_t>(pair);
        g.rows[seen % kTokens] = static_cast<uint8_t>(pair / p.shape.top_k);
      }
    ptx::syncwarp();
    experts += __popc(ptx::ballot(tokens != 0));
    groups += ptx::shuffle(up_to_mine, 31);
  }
  if (lane == 0) s.routing.groups = groups;
  ptx::syncwarp();
  if (lane == 0) ptx::mbar_arrive(&s.routed);
  t.instant(ev::distinct_experts{}, experts);  // every block: some SMs may not be recorded
}

// The table, once it is there; for warps that did not make it.
template <class T>
MEGATRACE_DEVICE const Routing& routing(T& t, Shared& s) {
  t.wait(ev::routing_table{}, &s.routed, 0);
  return s.routing;
}

}  // namespace muse
