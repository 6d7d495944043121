// Rows between ranks: each rank pushes its row into the memory of all, itself included, and polls
// its own. The data is the flag. Emptied with the hand-offs, these words are safe where the peers
// are emulated; real peers may be a launch ahead of the emptying, and will need words apart.
#pragma once

#include "rowwise.cuh"

namespace muse {

// In the order of Params; names an exchange in a slot.
enum ExchangeId : uint32_t { kAttnReduce, kExpertReduce, kPreGather, kPostGather };

MEGATRACE_DEVICE uint32_t peer_slot(ExchangeId id, uint32_t row) { return id * kMaxRows + row; }

// Sends a row of `vectors` to all ranks, each rank beginning with itself.
template <class T, class Team, uint32_t kMost>
MEGATRACE_DEVICE void send(T& t, const Params& p, const Exchange& e, ExchangeId id, uint32_t row,
                           uint32_t vectors, const Mine<Team>& mine, const uint2 (&words)[kMost]) {
  uint32_t rank = p.shape.rank;
#pragma unroll 1
  for (uint32_t i = 0; i < p.shape.ranks; ++i) {
    uint2* out = reinterpret_cast<uint2*>(e.out[rank]) + ptx::opaque(row * vectors + mine.first);
#pragma unroll
    for (uint32_t v = 0; v < kMost; ++v)
      if (mine.has(v)) put(out + v * Team::kSize, words[v]);
    rank = rank + 1 == p.shape.ranks ? 0 : rank + 1;
  }
  if (mine.warp_has()) t.publish(ev::peer_row{}, peer_slot(id, row));
}

// This rank's own row.
template <uint32_t kMost>
struct OwnRow {
  const uint32_t rank;
  const uint2 (&words)[kMost];

  MEGATRACE_DEVICE bool is(uint32_t row) const { return row == rank; }
  MEGATRACE_DEVICE void take(uint2 (&to)[kMost]) const {
#pragma unroll
    for (uint32_t i = 0; i < kMost; ++i) to[i] = words[i];
  }
};

// Our row in, the sum of all ranks' rows out, in rank order and rounded once.
template <uint32_t kDepth, class T, class Team, uint32_t kMost>
MEGATRACE_DEVICE void reduce_ranks(T& t, const Params& p, const Exchange& e, ExchangeId id,
                                   uint32_t row, uint32_t vectors, const Mine<Team>& mine,
                                   uint2 (&words)[kMost]) {
  send(t, p, e, id, row, vectors, mine, words);
  const uint32_t last = p.shape.ranks - 1;
  float4 sum[kMost];
  sum_rows<kDepth, uint2>(
      t, ev::peer_row_wait{}, mine, p.shape.ranks,
      [&](uint32_t rank) {
        return reinterpret_cast<const uint2*>(e.in[min(rank, last)]) + (row * vectors + mine.first);
      },
      [&](uint32_t, uint32_t) { return peer_slot(id, row); }, OwnRow<kMost>{p.shape.rank, words},
      sum);
#pragma unroll
  for (uint32_t i = 0; i < kMost; ++i) words[i] = pack(sum[i]);
}

// Our columns in, `own` vectors of them; out the thread's vectors of all ranks' side by side.
template <class Team, class T, uint32_t kMost>
MEGATRACE_DEVICE void gather_ranks(T& t, const Params& p, const Exchange& e, ExchangeId id,
                                   uint32_t row, uint32_t own, uint2 (&words)[kMost]) {
  send(t, p, e, id, row, own, Mine<Team>(own), words);
  const Mine<Team> mine(own * p.shape.ranks);
  const float ranks = reciprocal(static_cast<float>(own));
  Sources<uint2, kMost> from;
  uint2 all[kMost][1] = {};
#pragma unroll
  for (uint32_t i = 0; i < kMost; ++i) {
    const uint32_t v = mine.has(i) ? mine.first + i * Team::kSize : 0;
    // Far enough from the next integer to be exact.
    const uint32_t rank = static_cast<uint32_t>((static_cast<float>(v) + .5f) * ranks);
    from.at[i] = reinterpret_cast<const uint2*>(e.in[rank]) + (row * own + (v - rank * own));
    from.left[i] = mine.has(i);
  }
  poll_rows<1>(t, ev::peer_row_wait{}, from, all,
               [&](uint32_t, uint32_t) { return peer_slot(id, row); });
#pragma unroll
  for (uint32_t i = 0; i < kMost; ++i) words[i] = all[i][0];
}

}  // namespace muse
