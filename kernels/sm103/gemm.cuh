// A projection: out[rows][n] = in[rows][k] W^T, W bf16 (or fp32: the router) in row tiles of 16.
//
// Columns are cut into slices of 1024, and (slice, row tile) are the units that blocks share. In a
// block each tensor warp takes 128 columns of the slice: its part of the input stays in
// registers while row tiles stream by. Sums over the warps meet in shared memory, sums over
// the slices are the reader's: both in a fixed order.
#pragma once

#include "handoff.cuh"
#include "ring.cuh"

namespace muse {

// Events that a projection is told, so that all of them run the same code: what a launch has run
// once is in the instruction cache.
struct AnySpan {
  static constexpr megatrace::Kind kind = megatrace::Kind::span;
  static constexpr uint32_t args = 0;
  uint32_t id;
  const char* name;
};
struct AnyWait {
  static constexpr megatrace::Kind kind = megatrace::Kind::wait;
  static constexpr megatrace::Cause cause = megatrace::Cause::input;
  static constexpr uint32_t args = 1;
  static constexpr bool kFirstUse = false;
  uint32_t id;
  const char* name;
};
struct AnyPublish {
  static constexpr megatrace::Kind kind = megatrace::Kind::publish;
  static constexpr uint32_t args = 1;
  uint32_t id;
  const char* name;
};
template <class Any, class E>
MEGATRACE_DEVICE Any any(E) {
  return {E::id, E::name};
}

struct Dense {
  Phase phase;
  const char* weights;
  const uint32_t* in;  // [rows][k / 2] bf16 pairs, handed over
  uint32_t* out;       // [slices(k)][rows][n] fp32
  uint32_t n, k;
  uint32_t in_heads;  // the input is handed over by heads of a row, as many as this; 0: by rows
  AnySpan span;
  AnyWait wait;        // for the input
  AnyPublish publish;  // of the output
};

struct Bf16Tile {
  static constexpr uint32_t kBytes = 4096;  // 16 rows x 128 columns
  static constexpr uint32_t kPerStage = 2;
};
struct Fp32Tile {
  static constexpr uint32_t kBytes = 8192;
  static constexpr uint32_t kPerStage = 1;
};

constexpr uint32_t kSlabTiles = 8;  // row tiles whose sums fit shared memory

// Consecutive units of one slice.
struct Slab {
  uint32_t slice, tile, tiles;
};

// The slabs of this block, one after the other.
class Slabs {
 public:
  MEGATRACE_DEVICE explicit Slabs(const Dense& d)
      : tiles_(d.n / 16),
        unit_(share_begin(slices(d.k) * tiles_, blockIdx.x)),
        end_(share_begin(slices(d.k) * tiles_, blockIdx.x + 1)) {}

  MEGATRACE_DEVICE bool next(Slab& slab) {
    if (unit_ == end_) return false;
    slab.slice = unit_ / tiles_;
    slab.tile = unit_ - slab.slice * tiles_;
    slab.tiles = min(min(tiles_ - slab.tile, end_ - unit_), kSlabTiles);
    unit_ += slab.tiles;
    return true;
  }

 private:
  const uint32_t tiles_;
  uint32_t unit_;
  const uint32_t end_;
};

// Who hands over out[slice][...][output_row].
MEGATRACE_DEVICE uint32_t dense_producer(uint32_t k, uint32_t n, uint32_t slice,
                                         uint32_t output_row) {
  const uint32_t tiles = n / 16;
  return share_owner(slices(k) * tiles, slice * tiles + output_row / 16);
}

MEGATRACE_DEVICE uint32_t slice_columns(uint32_t k, uint32_t slice) {
  return min(kSlice, k - slice * kSlice);
}

template <class Tile>
MEGATRACE_DEVICE const char* tile_address(const Dense& d, const Slab& slab, uint32_t warp) {
  const uint32_t chunk = slab.slice * (kSlice / kWarpColumns) + warp;
  return d.weights + (size_t{chunk} * (d.n / 16) + slab.tile) * Tile::kBytes;
}

// -- loader ----------------------------------------------------------------------------

template <class Tile, class T>
MEGATRACE_DEVICE void load_dense(T& t, Loader& loader, const Dense& d) {
  Slabs slabs(d);
  Slab slab;
  loader.begin(t, d.phase);
#pragma unroll 1
  while (slabs.next(slab)) {
    const uint32_t warps = slice_columns(d.k, slab.slice) / kWarpColumns;
    const char* source = tile_address<Tile>(d, slab, ptx::lane_id() % kTensorWarps);
#pragma unroll 1
    for (uint32_t i = 0; i < slab.tiles; i += Tile::kPerStage) {
      const uint32_t bytes = min(Tile::kPerStage, slab.tiles - i) * Tile::kBytes;
      loader.load(t, warps, source, bytes);
      source += bytes;
    }
  }
}

// Asks this block's share into the L2 cache, at most `budget` bytes of it; says what is left.
template <class Tile>
MEGATRACE_DEVICE uint32_t prefetch_dense(const Dense& d, uint32_t budget) {
  Slabs slabs(d);
  Slab slab;
#pragma unroll 1
  while (slabs.next(slab)) {
    const uint32_t warps = slice_columns(d.k, slab.slice) / kWarpColumns;
    const uint32_t bytes = min(slab.tiles * Tile::kBytes, budget / warps & ~15u);
    if (bytes == 0) return 0;
    budget -= warps * bytes;
    if (ptx::lane_id() < warps)
      ptx::prefetch_l2(tile_address<Tile>(d, slab, ptx::lane_id()), bytes);
  }
  return budget;
}

// -- tensor warps ----------------------------------------------------------------------

// A warp's 128 columns of the input: lane (g, j) holds of row g (and g + 8) 16 columns of each
// of two k-blocks, eight words of pairs each.
template <int NT>
struct Operand {
  uint32_t word[NT][16];
};

// The block that owes a column of the input.
MEGATRACE_DEVICE uint32_t input_producer(const Params& p, const Dense& d, uint32_t row,
                                         uint32_t column) {
  if (d.in_heads == 0) return row_owner(p, row);
  return share_owner(p.shape.rows * d.in_heads, row * d.in_heads + column / kHeadDim);
}

// Waits for the input of a slice.
template <int NT, class T>
MEGATRACE_DEVICE void load_operand(T& t, Operand<NT>& x, const Params& p, const Dense& d,
                                   uint32_t slice) {
  const uint32_t lane = ptx::lane_id(), g = lane >> 2;
  const uint32_t column = slice * kSlice + warp_id() * kWarpColumns + (lane & 3) * 16;
  uint32_t missing_row = 0, slot = 0;
  t.poll(d.wait, slot, [&] {
    return try_load(
        slot,
        [&] {
          bool here = true;
#pragma unroll
          for (int nt = 0; nt < NT; ++nt) {
            const uint32_t row = g + 8 * nt;
            const uint32_t* in = d.in + (size_t{row} * d.k + column) / 2;
#pragma unroll
            for (int v = 0; v < 4; ++v) {
              uint4 words = make_uint4(0, 0, 0, 0);
              if (row < p.shape.rows)
                words = ptx::load_relaxed(
                    reinterpret_cast<const uint4*>(in + (v >> 1) * 32 + (v & 1) * 4));
              if (!filled(words)) here = false, missing_row = row;
              x.word[nt][4 * v] = words.x;
              x.word[nt][4 * v + 1] = words.y;
              x.word[nt][4 * v + 2] = words.z;
              x.word[nt][4 * v + 3] = words.w;
            }
          }
          return here;
        },
        [&] { return input_producer(p, d, missing_row, column); });
  });
}

// One row tile times the operand: eight k-steps.
template <int NT>
MEGATRACE_DEVICE void multiply(float (&sum)[NT][4], const Operand<NT>& x, const char* tile,
                               Bf16Tile) {
  const uint4* a = reinterpret_cast<const uint4*>(tile) + ptx::lane_id();
#pragma unroll
  for (int step = 0; step < 8; ++step) {
    const uint4 w = a[step * 32];
#pragma unroll
    for (int nt = 0; nt < NT; ++nt)
      ptx::mma_bf16(sum[nt], w.x, w.y, w.z, w.w, x.word[nt][2 * step], x.word[nt][2 * step + 1]);
  }
}

// fp32 weights as three bf16 parts, which hold all 24 bits: the products are exact.
MEGATRACE_DEVICE uint32_t take_part(float& lo, float& hi) {
  const uint32_t part = ptx::pack_bf16(lo, hi);
  lo -= ptx::bf16_low(part);
  hi -= ptx::bf16_high(part);
  return part;
}

template <int NT>
MEGATRACE_DEVICE void multiply(float (&sum)[NT][4], const Operand<NT>& x, const char* tile,
                               Fp32Tile) {
  const float4* a = reinterpret_cast<const float4*>(tile) + ptx::lane_id();
#pragma unroll
  for (int step = 0; step < 8; ++step) {
    // Opaque, or the weights of all steps are asked for at once and fill the registers.
    const uint32_t at = ptx::opaque(step * 64);
    float4 low = a[at], high = a[at + 32];
#pragma unroll
    for (int part = 0; part < 3; ++part) {
      const uint32_t a0 = take_part(low.x, low.y), a1 = take_part(low.z, low.w);
      const uint32_t a2 = take_part(high.x, high.y), a3 = take_part(high.z, high.w);
#pragma unroll
      for (int nt = 0; nt < NT; ++nt)
        ptx::mma_bf16(sum[nt], a0, a1, a2, a3, x.word[nt][2 * step], x.word[nt][2 * step + 1]);
    }
  }
}

// Sums of a slab by warp, in the tensor core's own order: [tile][warp][nt][lane] float4.
template <int NT>
MEGATRACE_DEVICE float4* slab_sums(Shared& s, uint32_t tile, uint32_t warp) {
  return reinterpret_cast<float4*>(s.work) + ((tile * kTensorWarps + warp) * NT) * 32;
}

// Adds the warps' sums up and hands them over.
template <int NT>
MEGATRACE_DEVICE void store_slab(const Params& p, Shared& s, const Dense& d, const Slab& slab,
                                 uint32_t warps) {
  constexpr uint32_t kRows = 8 * NT;
  const uint32_t rows = p.shape.rows;
#pragma unroll 1
  for (uint32_t i = threadIdx.x; i < slab.tiles * kRows * 16; i += kTensorWarps * 32) {
    const uint32_t r = i & 15, row = (i >> 4) % kRows, tile = (i >> 4) / kRows;
    if (row >= rows) continue;
    const uint32_t lane = (r & 7) * 4 + ((row & 7) >> 1), part = (r >> 3) * 2 + (row & 1);
    float sum = 0;
    for (uint32_t w = 0; w < warps; ++w)
      sum +=
          reinterpret_cast<const float*>(slab_sums<NT>(s, tile, w) + (row >> 3) * 32 + lane)[part];
    put(d.out + (size_t{slab.slice} * rows + row) * d.n + (slab.tile + tile) * 16 + r,
        float_word(sum));
  }
}

// All slabs of this block; tensor warps only.
template <int NT, class Tile, class T>
MEGATRACE_DEVICE void dense(T& t, const Params& p, Shared& s, Stages& stages, const Dense& d) {
  Slabs slabs(d);
  Slab slab;
  stages.begin(d.phase);
  while (slabs.next(slab)) {
    const uint32_t warps = slice_columns(d.k, slab.slice) / kWarpColumns;
    if (warp_id() < warps) {
      Operand<NT> x;
      load_operand(t, x, p, d, slab.slice);
      for (uint32_t i = 0; i < slab.tiles; i += Tile::kPerStage) {
        const char* stage = stages.next(t);
#pragma unroll
        for (uint32_t k = 0; k < Tile::kPerStage; ++k) {
          if (i + k >= slab.tiles) break;
          float sum[NT][4] = {};
          multiply<NT>(sum, x, stage + k * Tile::kBytes, Tile{});
          float4* out = slab_sums<NT>(s, i + k, warp_id()) + ptx::lane_id();
#pragma unroll
          for (int nt = 0; nt < NT; ++nt)
            out[nt * 32] = make_float4(sum[nt][0], sum[nt][1], sum[nt][2], sum[nt][3]);
        }
        stages.release(t);
      }
    }
    tensor_sync();
    store_slab<NT>(p, s, d, slab, warps);
    tensor_sync();
  }
}

}  // namespace muse
