// What the row-wise phases are made of. A thread takes four neighbouring columns of a row at a
// time, a vector: 16 bytes of fp32 words or 8 of bf16 pairs. Vector v is always the same
// thread's, so a row stays in registers, or in shared memory without a barrier.
//
// A launch runs this once, and what is not in the cache costs ten to twenty cycles an instruction:
// what is repeated is a loop, and only loads stand side by side.
#pragma once

#include "gemm.cuh"
#include "handoff.cuh"
#include "heads.cuh"

namespace muse {

// -- vectors ---------------------------------------------------------------------------

MEGATRACE_DEVICE uint4 load_words(const uint4* p) { return ptx::load_relaxed(p); }
MEGATRACE_DEVICE uint2 load_words(const uint2* p) {
  return ptx::load_pair(reinterpret_cast<const uint32_t*>(p));
}
// kEmpty where some word is.
MEGATRACE_DEVICE uint32_t largest(const uint4& w) { return max(max(w.x, w.y), max(w.z, w.w)); }
MEGATRACE_DEVICE uint32_t largest(const uint2& w) { return max(w.x, w.y); }
// Of pack() or received: never kEmpty.
MEGATRACE_DEVICE void put(uint2* p, uint2 w) {
  ptx::store_relaxed(reinterpret_cast<uint64_t*>(p), uint64_t{w.y} << 32 | w.x);
}

// The words are made whether they are stored or not, so that only the store is conditional.
MEGATRACE_DEVICE void put_if(bool store, uint2* p, uint2 w) {
  w = make_uint2(ptx::opaque(w.x), ptx::opaque(w.y));
  if (store) put(p, w);
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
MEGATRACE_DEVICE float4* stream_of(const Params& p, uint32_t row) {
  return reinterpret_cast<float4*>(p.stream) + row * (p.shape.hidden / 4);
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

// The thread's vectors of a row of `vectors`: `first`, first + kSize, ...
template <class Team>
struct Mine {
  static constexpr uint32_t kSize = Team::kSize;
  const uint32_t first;
  const int32_t left;  // vectors of the row from `first` on

  // The thread is opaque, or the compiler computes all addresses of all phases at once.
  MEGATRACE_DEVICE explicit Mine(uint32_t vectors)
      : first(ptx::opaque(kSize == 32 ? ptx::lane_id() : threadIdx.x)),
        left(static_cast<int32_t>(vectors - first)) {}

  MEGATRACE_DEVICE bool has(uint32_t i) const { return static_cast<int32_t>(i * kSize) < left; }
  // Has some lane of the warp any?
  MEGATRACE_DEVICE bool warp_has() const { return left + static_cast<int32_t>(ptx::lane_id()) > 0; }
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

MEGATRACE_DEVICE float rms_scale(float sum_of_squares, float per_column, float eps) {
  return ptx::rsqrt(sum_of_squares * per_column + eps);
}

template <uint32_t kMost>
MEGATRACE_DEVICE float squares(const float4 (&row)[kMost]) {
  float sum = 0;
#pragma unroll
  for (uint32_t i = 0; i < kMost; ++i) sum += squares(row[i]);
  return sum;
}

// Calls `body(row)` for every row of this block: where row_owner() says so, without a division.
template <class Body>
MEGATRACE_DEVICE void for_rows(const Params& p, Body&& body) {
  const uint32_t rows = p.shape.rows, row = ptx::opaque(threadIdx.x) & 31;
  uint32_t mine = ptx::ballot(row < rows && row * gridDim.x - blockIdx.x * rows < rows);
#pragma unroll 1
  for (; mine != 0; mine &= mine - 1)
    body(static_cast<uint32_t>(__ffs(static_cast<int>(mine))) - 1);
}

// -- words that others hand over -------------------------------------------------------

// The same pointer, opaque: computed here and once.
template <class Words>
MEGATRACE_DEVICE const Words* pinned(const Words* p) {
  const uint64_t at = reinterpret_cast<uintptr_t>(p);
  const uint64_t high = ptx::opaque(static_cast<uint32_t>(at >> 32));
  return reinterpret_cast<const Words*>(
      static_cast<uintptr_t>(high << 32 | ptx::opaque(static_cast<uint32_t>(at))));
}

// Some rows of words, as a thread sees them: where its first vector is, and how many vectors there
// are from there on, which is none of a row not asked for.
template <class Words, uint32_t kRows>
struct Sources {
  const Words* at[kRows];
  int32_t left[kRows];
};

// Polls vectors kSize apart until all of their words are there; what there is not, is left alone.
// `producer(j, i)` names who owes a vector.
template <uint32_t kSize, uint32_t kRows, uint32_t kMost, class Words, class T, class Wait,
          class Producer>
MEGATRACE_DEVICE void poll_rows(T& t, Wait wait, const Sources<Words, kRows>& from,
                                Words (&words)[kRows][kMost], Producer&& producer) {
  uint32_t slot = 0;
  t.poll(wait, slot, [&] {
    return try_load(
        slot,
        [&] {
#pragma unroll
          for (uint32_t j = 0; j < kRows; ++j) {
            // Opaque, or a predicate for each vector is kept, and there are only seven.
            const int32_t left =
                static_cast<int32_t>(ptx::opaque(static_cast<uint32_t>(from.left[j])));
#pragma unroll
            for (uint32_t i = 0; i < kMost; ++i)
              if (static_cast<int32_t>(i * kSize) < left)
                words[j][i] = load_words(from.at[j] + i * kSize);
          }
          uint32_t most = 0;
#pragma unroll
          for (uint32_t j = 0; j < kRows; ++j)
#pragma unroll
            for (uint32_t i = 0; i < kMost; ++i) most = max(most, largest(words[j][i]));
          return most != kEmpty;
        },
        [&] {
          uint32_t row = 0, vector = 0;
      // Opaque, or all that was looked at is kept for this.
#pragma unroll
          for (uint32_t j = 0; j < kRows; ++j)
#pragma unroll
            for (uint32_t i = 0; i < kMost; ++i) words[j][i].x = ptx::opaque(words[j][i].x);
#pragma unroll
          for (uint32_t j = 0; j < kRows; ++j)
#pragma unroll
            for (uint32_t i = 0; i < kMost; ++i)
              if (largest(words[j][i]) == kEmpty) row = j, vector = i;
          return producer(row, vector);
        });
  });
}

// A row that need not be polled, if there is one.
struct NoRow {
  MEGATRACE_DEVICE bool is(uint32_t) const { return false; }
  template <class Words>
  MEGATRACE_DEVICE void take(Words&) const {}
};

// Sums rows 0.. of words in that order, kDepth of them at a time. `at(row)` is where the thread's
// first vector is, `producer(row, i)` names who owes vector i.
template <uint32_t kDepth, class Words, class Team, uint32_t kMost, class T, class Wait, class At,
          class Producer, class Held>
MEGATRACE_DEVICE void sum_rows(T& t, Wait wait, const Mine<Team>& mine, uint32_t rows, At&& at,
                               Producer&& producer, const Held& held, float4 (&sum)[kMost]) {
  Words words[kDepth][kMost] = {};
#pragma unroll
  for (uint32_t i = 0; i < kMost; ++i) sum[i] = zeros();
#pragma unroll 1
  for (uint32_t row = 0; row < rows; row += kDepth) {
    Sources<Words, kDepth> from;
#pragma unroll
    for (uint32_t j = 0; j < kDepth; ++j) {
      from.at[j] = pinned(at(row + j));
      from.left[j] = row + j < rows && !held.is(row + j) ? mine.left : 0;
      if (held.is(row + j)) held.take(words[j]);
    }
    poll_rows<Team::kSize>(t, wait, from, words,
                           [&](uint32_t j, uint32_t i) { return producer(row + j, i); });
#pragma unroll
    for (uint32_t j = 0; j < kDepth; ++j) {
      if (row + j >= rows) break;
#pragma unroll
      for (uint32_t i = 0; i < kMost; ++i) sum[i] = sum[i] + values(words[j][i]);
    }
  }
}

// What a projection from k to n columns hands over: [slices(k)][rows][n] fp32.
struct Parts {
  const uint32_t* words;
  uint32_t k, n;
};

// A row of a projection, summed over its slices; rounded where words are asked for. `of()` says of
// which one, once more where a part is missing: no register holds it.
template <uint32_t kDepth, class Team, uint32_t kMost, class T, class Wait, class Of>
MEGATRACE_DEVICE void sum_slices(T& t, Wait wait, const Params& p, uint32_t row, Of&& of,
                                 float4 (&sum)[kMost]) {
  const Parts parts = of();
  const Mine<Team> mine(parts.n / 4);
  const uint32_t first = row * (parts.n / 4) + mine.first, slice = p.shape.rows * (parts.n / 4);
  sum_rows<kDepth, uint4>(
      t, wait, mine, slices(parts.k),
      [&](uint32_t part) {
        return reinterpret_cast<const uint4*>(parts.words) + (first + part * slice);
      },
      [&](uint32_t part, uint32_t i) {
        const Parts again = of();
        // n, but not before i is known, or the division begins ahead of the loop.
        const uint32_t n = again.n + (ptx::opaque(i) >> 16);
        return dense_producer(again.k, n, part, (mine.first + i * Team::kSize) * 4);
      },
      NoRow{}, sum);
}
template <uint32_t kDepth, class Team, uint32_t kMost, class T, class Wait, class Of>
MEGATRACE_DEVICE void sum_slices(T& t, Wait wait, const Params& p, uint32_t row, Of&& of,
                                 uint2 (&rounded)[kMost]) {
  float4 sum[kMost];
  sum_slices<kDepth, Team>(t, wait, p, row, of, sum);
#pragma unroll
  for (uint32_t i = 0; i < kMost; ++i) rounded[i] = pack(sum[i]);
}

}  // namespace muse
