// Rows between ranks: each rank pushes its row into the memory of all, itself included, and polls
// its own. The data is the flag, and each word has one writer.
#pragma once

#include "rowwise.cuh"

namespace muse {

// In the order of Params; names an exchange in a slot.
enum ExchangeId : uint32_t { kAttnReduce, kExpertReduce, kPreGather, kPostGather };

MEGATRACE_DEVICE uint32_t peer_slot(ExchangeId id, uint32_t row) { return id * kMaxRows + row; }

// Sends vector v of `vectors` of a row to all ranks, each rank beginning with itself.
MEGATRACE_DEVICE void send(const Params& p, const Exchange& e, const Row& row, uint32_t vectors,
                           uint32_t v, uint2 words) {
  uint32_t rank = p.shape.rank;
#pragma unroll 1
  for (uint32_t i = 0; i < p.shape.ranks; ++i) {
    put(pair_row(e.out[rank], row.index, vectors) + v, words);
    rank = rank + 1 == p.shape.ranks ? 0 : rank + 1;
  }
}

MEGATRACE_DEVICE const uint2* received(const Exchange& e, uint32_t rank, const Row& row,
                                       uint32_t vectors) {
  return reinterpret_cast<const uint2*>(e.in[rank]) + row.index * vectors;
}

// Sums the ranks' rows, ours being sent, in rank order: `sink(v, words)` gets the sum, rounded
// once.
template <class Team, class T, class Sink>
MEGATRACE_DEVICE void receive_sum(T& t, const Params& p, const Exchange& e, ExchangeId id,
                                  const Row& row, uint32_t vectors, Sink&& sink) {
  const uint32_t slot = peer_slot(id, row.index);
  if (row.count<Team>(vectors) != 0) t.publish(ev::peer_row{}, slot);
  sum_parts<Team, 8, uint2>(
      t, ev::peer_row_wait{}, row, vectors, p.shape.ranks,
      [&](uint32_t v, uint32_t rank) { return received(e, rank, row, vectors) + v; },
      [&](uint32_t, uint32_t) { return slot; },
      [&](uint32_t v, const float4& sum) { sink(v, pack(sum)); });
}

// Puts the ranks' columns, `own` vectors each, side by side: `sink(v, words)`.
template <class Team, class T, class Sink>
MEGATRACE_DEVICE void receive_columns(T& t, const Params& p, const Exchange& e, ExchangeId id,
                                      const Row& row, uint32_t own, Sink&& sink) {
  const uint32_t vectors = own * p.shape.ranks, slot = peer_slot(id, row.index);
  if (row.count<Team>(own) != 0) t.publish(ev::peer_row{}, slot);
  const auto vector = [&](uint32_t item) { return row.vector<Team>(item); };
  poll_words<8, uint2>(
      t, ev::peer_row_wait{}, row.count<Team>(vectors), 1,
      [&](uint32_t item, uint32_t) -> const uint2* {
        const uint32_t v = vector(item), rank = v / own;
        return v < vectors ? received(e, rank, row, own) + (v - rank * own) : nullptr;
      },
      [&](uint32_t, uint32_t) { return slot; },
      [&](uint32_t item, uint32_t, const uint2& words) {
        if (vector(item) < vectors) sink(vector(item), words);
      });
}

// A row of a projection to `columns` columns, n of them on this rank: summed over its slices,
// rounded, and gathered where ranks share the columns. `sink(v, words)`.
template <class Team, uint32_t kDepth = 8, class T, class Wait, class Sink>
MEGATRACE_DEVICE void projected_row(T& t, Wait wait, const Params& p, const Row& row,
                                    const uint32_t* parts, uint32_t k, uint32_t n, uint32_t columns,
                                    const Exchange& e, ExchangeId id, Sink&& sink) {
  const bool shared = n < columns;
  sum_slices<Team, kDepth>(t, wait, p, row, parts, k, n, [&](uint32_t v, const float4& sum) {
    if (shared)
      send(p, e, row, n / 4, v, pack(sum));
    else
      sink(v, pack(sum));
  });
  if (shared) receive_columns<Team>(t, p, e, id, row, n / 4, sink);
}

}  // namespace muse
