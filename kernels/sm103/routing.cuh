// Which local experts this step's rows hit, and with which rows. Every block makes the same table
// from the same ids: no queue, no atomics.
#pragma once

#include "handoff.cuh"
#include "heads.cuh"

namespace muse {

// The ids of the first `pairs` pairs, as local experts (others wrap around to something large), in
// s.ids; kEmpty after them.
template <class T>
MEGATRACE_DEVICE void gather_ids(T& t, const Params& p, Shared& s, uint32_t pairs) {
#pragma unroll 1
  for (uint32_t vector = 0; vector < kMaxPairs; vector += 128) {
    // The lane is opaque, or the compiler keeps all of this in registers from launch start.
    const uint32_t pair = vector + ptx::opaque(ptx::lane_id()) * 4;
    uint4 id = make_uint4(0, 0, 0, 0);
    if (pairs != 0)
      poll_words(
          t, ev::routes_wait{},
          [&] {
            if (pair < pairs)
              id = ptx::load_relaxed(reinterpret_cast<const uint4*>(p.handoff.ids + pair));
            if (pair + 1 >= pairs) id.y = 0;
            if (pair + 2 >= pairs) id.z = 0;
            if (pair + 3 >= pairs) id.w = 0;
            return filled(id);
          },
          [&] { return row_owner(p, quotient(pair, ptx::opaque(p.shape.top_k))); });
    const uint32_t first = p.shape.first_expert;
    *reinterpret_cast<uint4*>(s.ids + pair) = make_uint4(
        pair < pairs ? id.x - first : kEmpty, pair + 1 < pairs ? id.y - first : kEmpty,
        pair + 2 < pairs ? id.z - first : kEmpty, pair + 3 < pairs ? id.w - first : kEmpty);
  }
  ptx::syncwarp();
}

// Sum over the lanes up to this one.
MEGATRACE_DEVICE uint32_t sum_up_to_lane(uint32_t v) {
  const uint32_t lane = ptx::opaque(ptx::lane_id());
#pragma unroll 1
  for (uint32_t step = 1; step < 32; step *= 2) {
    const uint32_t other = ptx::shuffle(v, (lane - step) & 31);
    if (lane >= step) v += other;
  }
  return v;
}

// Lane l's share of 32 ids: a bit for each lane whose id is l.
MEGATRACE_DEVICE uint32_t lanes_with_own(uint32_t id) {
  const uint32_t lane = ptx::opaque(ptx::lane_id());
  uint32_t with = ptx::ballot(id < 32);
#pragma unroll
  for (uint32_t bit = 1; bit < 32; bit *= 2) {
    const uint32_t set = ptx::ballot((id & bit) != 0);
    with &= (lane & bit) != 0 ? set : ~set;
  }
  return with;
}

// Counts the tokens of 32 experts from `base` on, or puts them at their places, which `next`
// counts for the lane's expert.
MEGATRACE_DEVICE uint32_t take_tokens(const Params& p, Shared& s, uint32_t base, uint32_t next,
                                      bool places) {
  const uint32_t lane = ptx::opaque(ptx::lane_id()),
                 experts = min(p.shape.local_experts - base, 32u);
  const uint32_t pairs = p.shape.rows * p.shape.top_k;
#pragma unroll 1
  for (uint32_t at = 0; at < pairs; at += 32) {
    const uint32_t pair = at + lane;
    uint32_t id = s.ids[pair] - base;
    if (id >= experts) id = kEmpty;
    const uint32_t own = lanes_with_own(id);
    const uint32_t same = ptx::shuffle(own, id & 31), first = ptx::shuffle(next, id & 31);
    if (places && id < 32) {
      const uint32_t place = first + __popc(same & ((1u << lane) - 1));
      Group& g = s.routing.group[place / kTokens];
      g.pairs[place % kTokens] = static_cast<uint8_t>(pair);
      g.rows[place % kTokens] = static_cast<uint8_t>(quotient(pair, p.shape.top_k));
    }
    next += __popc(own);
  }
  return next;
}

// Experts ascend, and so do the pairs of one expert, in groups of kTokens. Returns the experts. A
// rehearsal writes nothing: the attention may still have its sums there.
MEGATRACE_DEVICE uint32_t fill_table(const Params& p, Shared& s, bool rehearsal) {
  uint32_t groups = 0, experts = 0;
#pragma unroll 1
  for (uint32_t base = 0; base < p.shape.local_experts; base += 32) {
    uint32_t next = 0;
#pragma unroll 1
    for (uint32_t pass = 0; pass < 2; ++pass) {
      const uint32_t tokens = take_tokens(p, s, base, next, pass != 0);
      if (pass != 0) break;
      const uint32_t mine = (tokens + kTokens - 1) / kTokens;
      const uint32_t up_to_mine = sum_up_to_lane(mine);
      uint32_t group = groups + up_to_mine - mine;
      next = group * kTokens;
#pragma unroll 1
      for (uint32_t left = tokens; left != 0; left -= min(left, kTokens), ++group) {
        s.routing.group[group].expert = static_cast<uint16_t>(base + ptx::lane_id());
        s.routing.group[group].tokens = static_cast<uint16_t>(min(left, kTokens));
      }
      experts += __popc(ptx::ballot(tokens != 0));
      groups += ptx::shuffle(up_to_mine, 31);
    }
  }
  if (ptx::lane_id() == 0 && !rehearsal) s.routing.groups = groups;
  ptx::syncwarp();
  return experts;
}

// Made by one warp, which rehearses it without ids: its code is in the instruction cache when they
// arrive.
template <class T>
MEGATRACE_DEVICE void make_routing(T& t, const Params& p, Shared& s) {
  uint32_t experts = 0;
#pragma unroll 1
  for (uint32_t turn = 0; turn < 2; ++turn) {
    gather_ids(t, p, s, turn * p.shape.rows * p.shape.top_k);
    experts = fill_table(p, s, turn == 0);
  }
  if (ptx::lane_id() == 0) ptx::mbar_arrive(&s.routed);
  t.instant(ev::distinct_experts{}, experts);  // every block: some SMs may not be recorded
}

// The table, once it is there; for warps that did not make it.
template <class T>
MEGATRACE_DEVICE const Routing& routing(T& t, Shared& s) {
  t.wait(ev::routing_table{}, &s.routed, 0);
  return s.routing;
}

}  // namespace muse
