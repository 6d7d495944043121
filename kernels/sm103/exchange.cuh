// Rows between ranks: each rank pushes its row into the memory of all others and polls its own for
// theirs. The data is the flag. Emptied with the hand-offs, these words are safe where the peers
// are emulated; real peers may be a launch ahead of the emptying, and will need words apart.
#pragma once

#include "rowwise.cuh"

namespace muse {

// In the order of Params; names an exchange in a slot.
enum ExchangeId : uint32_t { kAttnReduce, kExpertReduce, kPreGather, kPostGather };

MEGATRACE_DEVICE uint32_t peer_slot(ExchangeId id, uint32_t row) { return id * kMaxRows + row; }

// Sends a vector of a lane that has one to all other ranks, each rank beginning with the next.
template <class T>
MEGATRACE_DEVICE void send(T& t, const Params& p, const Exchange& e, ExchangeId id, uint32_t row,
                           uint32_t vector, bool mine, uint2 words) {
  uint32_t rank = p.shape.rank;
#pragma unroll 1
  for (uint32_t i = 1; i < p.shape.ranks; ++i) {
    rank = rank + 1 == p.shape.ranks ? 0 : rank + 1;
    if (mine) put(reinterpret_cast<uint2*>(e.out[rank]) + vector, words);
  }
  if (ptx::ballot(mine) != 0) t.publish(ev::peer_row{}, peer_slot(id, row));
}

// This rank's own row.
struct OwnRow {
  const uint32_t rank;
  const uint2 words;

  MEGATRACE_DEVICE bool is(uint32_t row) const { return row == rank; }
  MEGATRACE_DEVICE void take(uint2& to) const { to = words; }
};

// Our vector of a row of `vectors` in, the sum of all ranks' out, in rank order and rounded once.
template <class T>
MEGATRACE_DEVICE uint2 reduce_ranks(T& t, const Params& p, const Exchange& e, ExchangeId id,
                                    uint32_t vectors, const Chunk& c, uint2 words) {
  const uint32_t at = c.row * vectors + c.vector, last = p.shape.ranks - 1;
  send(t, p, e, id, c.row, at, c.mine, words);
  return pack(sum_rows<kMaxRanks, uint2>(
      t, ev::peer_row_wait{}, c.mine, p.shape.ranks,
      [&](uint32_t rank) { return reinterpret_cast<const uint2*>(e.in[min(rank, last)]) + at; },
      [&](uint32_t) { return peer_slot(id, c.row); }, OwnRow{p.shape.rank, words}));
}

// Whose vector of a row it is, where ranks have `own` vectors each, side by side.
struct Shard {
  uint32_t rank, vector;  // of that rank's
  bool ours;              // and there is one
};
MEGATRACE_DEVICE Shard shard_of(const Params& p, uint32_t own, const Chunk& c) {
  const uint32_t rank = quotient(c.vector, own);
  return {rank, c.vector - rank * own, c.mine && rank == p.shape.rank};
}

// Our vector in, if it is ours; out whoever's it is.
template <class T>
MEGATRACE_DEVICE uint2 gather_ranks(T& t, const Params& p, const Exchange& e, ExchangeId id,
                                    uint32_t own, const Chunk& c, const Shard& shard, uint2 words) {
  const uint32_t at = c.row * own + shard.vector;
  send(t, p, e, id, c.row, at, shard.ours, words);
  uint2 all[1] = {words};
  const Sources<uint2, 1> from = {{reinterpret_cast<const uint2*>(e.in[shard.rank]) + at},
                                  {c.mine && !shard.ours}};
  poll_rows(t, ev::peer_row_wait{}, from, all, [&](uint32_t) { return peer_slot(id, c.row); });
  return all[0];
}

}  // namespace muse
