// Rows between ranks: each rank pushes its row into the memory of all others and polls its own for
// theirs. The data is the flag. Emptied with the hand-offs, these words are safe where the peers
// are emulated; real peers may be a launch ahead of the emptying, and will need words apart.
#pragma once

#include "rowwise.cuh"

namespace muse {

// In the order of Params; names an exchange in a slot.
enum ExchangeId : uint32_t { kAttnReduce, kExpertReduce, kPreGather, kPostGather };

MEGATRACE_DEVICE uint32_t peer_slot(ExchangeId id, uint32_t row) { return id * kMaxRows + row; }

// Sends a vector of a lane that has one to all other ranks, the first one first: real peers will
// want an order of their own each.
template <class T>
MEGATRACE_DEVICE void send(T& t, const Params& p, const Exchange& e, ExchangeId id, uint32_t row,
                           uint32_t vector, bool mine, uint2 words) {
#pragma unroll
  for (uint32_t rank = 0; rank < kMaxRanks; ++rank)
    if (mine && rank < p.shape.ranks && rank != p.shape.rank)
      put(reinterpret_cast<uint2*>(e.out[rank]) + vector, words);
  if (ptx::ballot(mine) != 0) t.publish(ev::peer_row{}, peer_slot(id, row));
}

// What the other ranks send of a lane's vector of rows of `vectors`. Asked for while this rank's
// own part is waited for: it may be here already.
class PeerVectors {
 public:
  MEGATRACE_DEVICE PeerVectors(const Params& p, const Exchange& e, uint32_t vectors, const Chunk& c,
                               bool wanted)
      : p_(p), e_(e), at_(c.row * vectors + c.vector), row_(c.row), mine_(wanted && c.mine) {
    ask();
  }

  // Our vector in, the sum of all ranks' out, in rank order and rounded once.
  template <class T>
  MEGATRACE_DEVICE uint2 reduce(T& t, ExchangeId id, uint2 words) {
    send(t, p_, e_, id, row_, at_, mine_, words);
    poll_asked(
        t, ev::peer_row_wait{},
        [&] {
          bool here = true;
#pragma unroll
          for (uint32_t rank = 0; rank < kMaxRanks; ++rank) here &= largest(words_[rank]) != kEmpty;
          return here;
        },
        [&] { ask(); }, [&] { return peer_slot(id, row_); });
    float4 sum = zeros();
#pragma unroll
    for (uint32_t rank = 0; rank < kMaxRanks; ++rank)
      sum = sum + values(rank == p_.shape.rank ? words : words_[rank]);
    return pack(sum);
  }

 private:
  MEGATRACE_DEVICE void ask() {
#pragma unroll
    for (uint32_t rank = 0; rank < kMaxRanks; ++rank)
      if (mine_ && rank < p_.shape.ranks && rank != p_.shape.rank)
        words_[rank] = load_words(reinterpret_cast<const uint2*>(e_.in[rank]) + at_);
  }

  const Params& p_;
  const Exchange& e_;
  const uint32_t at_, row_;
  const bool mine_;
  uint2 words_[kMaxRanks] = {};
};

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
