// What the row-wise phases are made of. A warp takes a chunk of a row, 128 columns, and a lane a
// vector of it: four neighbouring columns, 16 bytes of fp32 words or 8 of bf16 pairs. The chunks of
// all rows are the units that blocks share. What a row's chunks must know of each other is
// one number, a sum, and it is handed over like any other word.
//
// A launch runs this once, and branching code that no warp ran just before costs ten to twenty
// cycles an instruction, as this kernel's own records say. So the math warps, which have no chunks,
// run the same code on nothing, as early as they can: the tensor warps find it in the cache.
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
MEGATRACE_DEVICE uint32_t first_empty(const uint4& w) {
  return w.x == kEmpty ? 0 : w.y == kEmpty ? 1 : w.z == kEmpty ? 2 : 3;
}
// Of pack() or received: never kEmpty.
MEGATRACE_DEVICE void put(uint2* p, uint2 w) {
  ptx::store_relaxed(reinterpret_cast<uint64_t*>(p), uint64_t{w.y} << 32 | w.x);
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

// -- chunks ----------------------------------------------------------------------------

constexpr uint32_t kChunkVectors = kWarpColumns / 4;
static_assert(kChunkVectors == 32, "a vector a lane");

// A lane's vector of a row; `mine`: there is one.
struct Chunk {
  uint32_t row, chunk, vector;
  uint32_t place;  // of this chunk among the block's
  bool mine;
};

// The chunks of all rows of `columns` columns that are this block's, and of them this warp's:
// tensor warps share them out.
class RowChunks {
 public:
  MEGATRACE_DEVICE RowChunks(const Params& p, uint32_t columns)
      : row_chunks_(columns / kWarpColumns) {
    // The thread is opaque, or the compiler computes all addresses of all phases at once.
    const uint32_t thread = ptx::opaque(threadIdx.x), total = p.shape.rows * row_chunks_;
    lane_ = thread & 31;
    begin_ = quotient(total * blockIdx.x, gridDim.x);
    end_ = quotient(total * blockIdx.x + total, gridDim.x);
    first_ = thread < kTensorWarps * 32 ? begin_ + (thread >> 5) : end_;
  }

  MEGATRACE_DEVICE bool any() const { return first_ < end_; }

  // Calls `body(chunk)` for every chunk of the warp, and once for none where it has none.
  template <class Body>
  MEGATRACE_DEVICE void each(Body&& body) const {
    uint32_t unit = first_;
#pragma unroll 1
    do {
      const bool mine = unit < end_;
      const uint32_t row = mine ? quotient(unit, row_chunks_) : 0;
      const uint32_t chunk = mine ? unit - row * row_chunks_ : 0;
      body(Chunk{row, chunk, chunk * kChunkVectors + lane_, unit - begin_, mine});
      unit += kTensorWarps;
    } while (unit < end_);
  }

 private:
  const uint32_t row_chunks_;
  uint32_t lane_, begin_, end_, first_;
};

MEGATRACE_DEVICE float warp_sum(float v) {
#pragma unroll
  for (uint32_t mask = 16; mask != 0; mask /= 2) v += ptx::shuffle_xor(v, mask);
  return v;
}

MEGATRACE_DEVICE float rms_scale(float sum_of_squares, float per_column, float eps) {
  return ptx::rsqrt(sum_of_squares * per_column + eps);
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

// Words of some rows, as a lane sees them: where, and whether they are asked for.
template <class Words, uint32_t kRows>
struct Sources {
  const Words* at[kRows];
  bool wanted[kRows];
};

// Polls until all that is asked for is there; the rest is left alone. `producer(j)` names who owes
// row j.
template <uint32_t kRows, class Words, class T, class Wait, class Producer>
MEGATRACE_DEVICE void poll_rows(T& t, Wait wait, const Sources<Words, kRows>& from,
                                Words (&words)[kRows], Producer&& producer) {
  uint32_t missing = 0;
  poll_words(
      t, wait,
      [&] {
        missing = 0;
#pragma unroll
        for (uint32_t j = 0; j < kRows; ++j)
          if (from.wanted[j]) words[j] = load_words(from.at[j]);
#pragma unroll
        for (uint32_t j = 0; j < kRows; ++j)
          if (from.wanted[j] && largest(words[j]) == kEmpty) missing = j + 1;
        return missing == 0;
      },
      [&] { return producer(max(missing, 1u) - 1); });
}

// Sums rows 0.. of words in that order, kDepth of them at a time. `at(row)` is where the lane's
// words are, `producer(row)` names who owes them; nothing is `wanted` of a lane without a vector.
template <uint32_t kDepth, class Words, class T, class Wait, class At, class Producer>
MEGATRACE_DEVICE float4 sum_rows(T& t, Wait wait, bool wanted, uint32_t rows, At&& at,
                                 Producer&& producer) {
  float4 sum = zeros();
#pragma unroll 1
  for (uint32_t row = 0; row < rows; row += kDepth) {
    Words words[kDepth] = {};
    Sources<Words, kDepth> from;
#pragma unroll
    for (uint32_t j = 0; j < kDepth; ++j) {
      from.at[j] = at(row + j);
      from.wanted[j] = wanted && row + j < rows;
    }
    poll_rows(t, wait, from, words, [&](uint32_t j) { return producer(row + j); });
#pragma unroll
    for (uint32_t j = 0; j < kDepth; ++j) sum = sum + values(words[j]);
  }
  return sum;
}

// What a projection from k to n columns hands over: [slices(k)][rows][n] fp32.
struct Parts {
  const uint32_t* words;
  uint32_t k, n;
};

// A vector of a row of a projection, summed over its slices, where it is wanted.
template <uint32_t kDepth, class T, class Wait>
MEGATRACE_DEVICE float4 sum_slices(T& t, Wait wait, const Params& p, const Parts& parts,
                                   uint32_t row, uint32_t vector, bool wanted) {
  const uint4* const first =
      reinterpret_cast<const uint4*>(parts.words) + (row * (parts.n / 4) + vector);
  const uint32_t slice = p.shape.rows * (parts.n / 4);
  return sum_rows<kDepth, uint4>(
      t, wait, wanted, slices(parts.k), [&](uint32_t part) { return first + part * slice; },
      // n, but not before the part is known, or the division begins ahead of the loop.
      [&](uint32_t part) {
        return dense_producer(parts.k, parts.n + zero_after(part), part, vector * 4);
      });
}

// -- sums over a row -------------------------------------------------------------------

// Hands over what this chunk adds to a row's sum; `sums` has a word a chunk of the row.
template <class T>
MEGATRACE_DEVICE void put_row_sum(T& t, uint32_t* sums, const Chunk& c, float v) {
  v = warp_sum(v);
  if (!c.mine) return;
  if (ptx::lane_id() == 0) put(sums + c.chunk, float_word(v));
  t.publish(ev::row_sum{}, blockIdx.x);
}

// The sum over a row of `columns` columns, at most 8192, in every lane.
template <class T>
MEGATRACE_DEVICE float row_sum(T& t, const Params& p, const uint32_t* sums, uint32_t columns,
                               const Chunk& c) {
  const uint32_t chunks = c.mine ? columns / kWarpColumns : 0;
  const uint32_t lane = ptx::opaque(ptx::lane_id());  // as RowChunks' thread
  uint32_t low = 0, high = 0;
  poll_words(
      t, ev::row_sum_wait{},
      [&] {
        if (lane < chunks) low = ptx::load_relaxed(sums + lane);
        if (lane + 32 < chunks) high = ptx::load_relaxed(sums + lane + 32);
        return filled(low) && filled(high);
      },
      [&] {
        return chunk_owner(p, columns, c.row, (lane + (filled(low) ? 32 : 0)) * kWarpColumns);
      });
  return warp_sum(__uint_as_float(low) + __uint_as_float(high));
}

}  // namespace muse
