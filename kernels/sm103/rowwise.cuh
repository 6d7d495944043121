// What the row-wise phases are made of. A thread takes four neighbouring columns of a row at a
// time, a vector: 16 bytes of fp32 words or 8 of bf16 pairs. Vector v is always the same
// thread's, so rows staged in shared memory need no barrier.
#pragma once

#include "gemm.cuh"
#include "handoff.cuh"

namespace muse {

// -- vectors ---------------------------------------------------------------------------

MEGATRACE_DEVICE uint4 load_words(const uint4* p) { return ptx::load_relaxed(p); }
MEGATRACE_DEVICE uint2 load_words(const uint2* p) {
  return ptx::load_pair(reinterpret_cast<const uint32_t*>(p));
}
MEGATRACE_DEVICE bool filled(const uint2& w) { return filled(w.x) & filled(w.y); }
MEGATRACE_DEVICE void put(uint2* p, uint2 w) {
  ptx::store_relaxed(reinterpret_cast<uint64_t*>(p),
                     uint64_t{pair_word(w.y)} << 32 | pair_word(w.x));
}

MEGATRACE_DEVICE float4 values(const uint4& w) {
  return make_float4(__uint_as_float(w.x), __uint_as_float(w.y), __uint_as_float(w.z),
                     __uint_as_float(w.w));
}
MEGATRACE_DEVICE float4 values(const uint2& w) {
  return make_float4(ptx::bf16_low(w.x), ptx::bf16_high(w.x), ptx::bf16_low(w.y),
                     ptx::bf16_high(w.y));
}
MEGATRACE_DEVICE uint2 pack(const float4& v) {
  return make_uint2(ptx::pack_bf16(v.x, v.y), ptx::pack_bf16(v.z, v.w));
}

MEGATRACE_DEVICE float4 operator+(const float4& a, const float4& b) {
  return make_float4(a.x + b.x, a.y + b.y, a.z + b.z, a.w + b.w);
}
MEGATRACE_DEVICE float4 operator*(const float4& a, const float4& b) {
  return make_float4(a.x * b.x, a.y * b.y, a.z * b.z, a.w * b.w);
}
MEGATRACE_DEVICE float4 operator*(const float4& a, float b) {
  return make_float4(a.x * b, a.y * b, a.z * b, a.w * b);
}
MEGATRACE_DEVICE float4 rounded(const float4& v) { return values(pack(v)); }
MEGATRACE_DEVICE float squares(const float4& v) {
  return v.x * v.x + v.y * v.y + (v.z * v.z + v.w * v.w);
}
MEGATRACE_DEVICE float4 zeros() { return make_float4(0, 0, 0, 0); }

// A row of the weights or of the stream, as vectors.
MEGATRACE_DEVICE const uint2* vectors_of(const uint16_t* row) {
  return reinterpret_cast<const uint2*>(row);
}
MEGATRACE_DEVICE const float4* vectors_of(const float* row) {
  return reinterpret_cast<const float4*>(row);
}
MEGATRACE_DEVICE uint2* pair_row(uint32_t* words, uint32_t row, uint32_t vectors) {
  return reinterpret_cast<uint2*>(words) + row * vectors;
}

// -- teams -----------------------------------------------------------------------------

// Who shares the vectors of a row; vector v is thread v % kSize's.
struct Workers {
  static constexpr uint32_t kSize = kWorkers;
  static MEGATRACE_DEVICE void sync() { workers_sync(); }
};
struct TensorTeam {
  static constexpr uint32_t kSize = kTensorWarps * 32;
  static MEGATRACE_DEVICE void sync() { tensor_sync(); }
};
struct OneWarp {
  static constexpr uint32_t kSize = 32;
};

// A row of the step, and the thread at it.
struct Row {
  uint32_t index;
  uint32_t thread;  // of the block; opaque, or the compiler computes all addresses of all phases
                    // at once, and keeps them

  template <class Team>
  MEGATRACE_DEVICE uint32_t vector(uint32_t i) const {
    return (Team::kSize == 32 ? thread & 31 : thread) + i * Team::kSize;
  }
  // How many of `vectors` a thread of this warp has at most: the same in all lanes.
  template <class Team>
  MEGATRACE_DEVICE uint32_t count(uint32_t vectors) const {
    const uint32_t first = vector<Team>(0) & ~31u;
    return vectors > first ? (vectors - first + Team::kSize - 1) / Team::kSize : 0;
  }
};

MEGATRACE_DEVICE float warp_sum(float v) {
  for (uint32_t mask = 16; mask != 0; mask /= 2) v += ptx::shuffle_xor(v, mask);
  return v;
}

// The sum over the team, in every thread. Sums that follow each other take turns 0 and 1.
template <class Team>
MEGATRACE_DEVICE float team_sum(Shared& s, float v, uint32_t turn) {
  v = warp_sum(v);
  if (ptx::lane_id() == 0) s.reduce[turn][warp_id()] = v;
  Team::sync();
  float sum = s.reduce[turn][0];
#pragma unroll
  for (uint32_t w = 1; w < Team::kSize / 32; ++w) sum += s.reduce[turn][w];
  return sum;
}

MEGATRACE_DEVICE float rms_scale(float sum_of_squares, uint32_t columns, float eps) {
  return ptx::rsqrt(sum_of_squares / static_cast<float>(columns) + eps);
}

// Calls `body(row)` for every row of this block.
template <class Body>
MEGATRACE_DEVICE void for_rows(const Params& p, Body&& body) {
  uint32_t row = (blockIdx.x * p.shape.rows + gridDim.x - 1) / gridDim.x;
  for (; row < p.shape.rows && row_owner(p, row) == blockIdx.x; ++row)
    body(Row{row, ptx::opaque(threadIdx.x)});
}

// -- words that others hand over -------------------------------------------------------

// Polls parts 0.. of items 0.., as many in every lane, up to kDepth vectors in flight.
// `from(item, part)` says where, null for nothing; `producer(item, part)` who owes it;
// `take(item, part, words)` gets all of them in that order.
template <uint32_t kDepth, class Words, class T, class Wait, class From, class Producer, class Take>
MEGATRACE_DEVICE void poll_words(T& t, Wait wait, uint32_t items, uint32_t parts, From&& from,
                                 Producer&& producer, Take&& take) {
  uint32_t item = parts == 0 ? items : 0, part = 0;
  const auto next = [&](uint32_t& i, uint32_t& q) {
    if (++q == parts) q = 0, ++i;
  };
#pragma unroll 1
  while (item < items) {
    Words words[kDepth];
    uint32_t i = item, q = part;
#pragma unroll
    for (uint32_t j = 0; j < kDepth; ++j) {
      words[j] = Words{};
      if (i < items && from(i, q) != nullptr) words[j].x = kEmpty;
      next(i, q);
    }
    uint32_t slot = 0, missed = 0;
    t.poll(wait, slot, [&] {
      return try_load(
          slot,
          [&] {
            bool here = true;
            uint32_t i = item, q = part;
#pragma unroll
            for (uint32_t j = 0; j < kDepth; ++j) {
              const Words* at = i < items ? from(i, q) : nullptr;
              if (!filled(words[j])) words[j] = load_words(at);
              next(i, q);
            }
#pragma unroll
            for (uint32_t j = 0; j < kDepth; ++j)
              if (!filled(words[j])) here = false, missed = j;
            return here;
          },
          [&] {
            const uint32_t index = part + missed;
            return producer(item + index / parts, index % parts);
          });
    });
#pragma unroll
    for (uint32_t j = 0; j < kDepth; ++j) {
      if (item < items) take(item, part, words[j]);
      next(item, part);
    }
  }
}

// The sum over parts 0.. in that order, for each of the team's vectors: `sink(v, sum)`.
// `from(v, part)` says where, `producer(v, part)` who owes it.
template <class Team, uint32_t kDepth, class Words, class T, class Wait, class From, class Producer,
          class Sink>
MEGATRACE_DEVICE void sum_parts(T& t, Wait wait, const Row& row, uint32_t vectors, uint32_t parts,
                                From&& from, Producer&& producer, Sink&& sink) {
  const auto vector = [&](uint32_t item) { return row.vector<Team>(item); };
  float4 sum = zeros();
  poll_words<kDepth, Words>(
      t, wait, row.count<Team>(vectors), parts,
      [&](uint32_t item, uint32_t part) -> const Words* {
        return vector(item) < vectors ? from(vector(item), part) : nullptr;
      },
      [&](uint32_t item, uint32_t part) { return producer(vector(item), part); },
      [&](uint32_t item, uint32_t part, const Words& words) {
        sum = part == 0 ? values(words) : sum + values(words);
        if (part + 1 == parts && vector(item) < vectors) sink(vector(item), sum);
      });
}

// A row of a projection [slices(k)][rows][n], summed over its slices: `sink(v, sum)`.
template <class Team, uint32_t kDepth = 8, class T, class Wait, class Sink>
MEGATRACE_DEVICE void sum_slices(T& t, Wait wait, const Params& p, const Row& row,
                                 const uint32_t* parts, uint32_t k, uint32_t n, Sink&& sink) {
  const uint4* first = reinterpret_cast<const uint4*>(parts) + row.index * (n / 4);
  const uint32_t slice = p.shape.rows * (n / 4);
  sum_parts<Team, kDepth, uint4>(
      t, wait, row, n / 4, slices(k),
      [&](uint32_t v, uint32_t part) { return first + (part * slice + v); },
      [&](uint32_t v, uint32_t part) { return dense_producer(k, n, part, v * 4); }, sink);
}

}  // namespace muse
