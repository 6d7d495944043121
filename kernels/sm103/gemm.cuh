// A projection: out[rows][n] = in[rows][k] W^T, W bf16 (or fp32: the router) in row tiles of 16.
//
// Columns are cut into slices of 1024, and each slice is so many blocks'. They share its row tiles,
// so a block loads its part of the input once. In a block each tensor warp takes 128 columns of
// the slice: its part of the input stays in registers while row tiles stream by. Sums over the
// warps meet in shared memory, sums over the slices are the reader's: both in a fixed order.
#pragma once

#include "handoff.cuh"
#include "heads.cuh"
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
  uint32_t in_heads;      // the input is handed over by heads of a row, as many as this; 0: by rows
  bool fp32;              // the weights, else bf16
  Moment moment;          // that the weights are held back for,
  uint32_t first_stages;  // but for so many stages of a warp
  AnySpan span;
  AnyWait wait;        // for the input
  AnyPublish publish;  // of the output
};

// A row tile of a tensor warp's columns, and a stage of one or two of them.
MEGATRACE_DEVICE uint32_t tile_bytes(const Dense& d) { return d.fp32 ? 8192 : 4096; }
constexpr uint32_t kDenseStageBytes = 8192;

constexpr uint32_t kSlabTiles = 9;  // row tiles whose sums fit shared memory

// Blocks that share the row tiles of a slice. Where there are more slices than blocks, a block
// takes the places of several: `places`, counted slice by slice, go round the grid.
MEGATRACE_DEVICE uint32_t slice_places(uint32_t k) {
  return max(quotient(ptx::opaque(gridDim.x), slices(k)), 1u);
}

// Some row tiles of one slice.
struct Slab {
  uint32_t slice, tile, tiles;
};

// The slabs of this block, one after the other, those of a slice side by side.
class Slabs {
 public:
  MEGATRACE_DEVICE explicit Slabs(const Dense& d)
      : tiles_(d.n / 16), places_(slice_places(d.k)), end_place_(slices(d.k) * places_) {}

  MEGATRACE_DEVICE bool next(Slab& slab) {
    while (tile_ == end_) {
      if (place_ >= end_place_) return false;
      slice_ = quotient(place_, places_);
      const uint32_t first = (place_ - slice_ * places_) * tiles_;
      tile_ = quotient(first, places_);
      end_ = quotient(first + tiles_, places_);
      place_ += gridDim.x;
    }
    slab = {slice_, tile_, min(end_ - tile_, kSlabTiles)};
    tile_ += slab.tiles;
    return true;
  }

 private:
  const uint32_t tiles_, places_, end_place_;
  uint32_t place_ = blockIdx.x;
  uint32_t slice_ = 0, tile_ = 0, end_ = 0;
};

// Who hands over out[slice][...][output_row].
MEGATRACE_DEVICE uint32_t dense_producer(uint32_t k, uint32_t n, uint32_t slice,
                                         uint32_t output_row) {
  const uint32_t places = slice_places(k);
  const uint32_t place = slice * places + quotient(output_row / 16 * places + places - 1, n / 16);
  return place - quotient(place, gridDim.x) * gridDim.x;
}

// Tensor warps that have columns of a slice.
MEGATRACE_DEVICE uint32_t slice_warps(uint32_t k, uint32_t slice) {
  return min(kSlice, k - slice * kSlice) / kWarpColumns;
}

MEGATRACE_DEVICE const char* tile_address(const Dense& d, const Slab& slab, uint32_t warp) {
  const uint32_t chunk = slab.slice * (kSlice / kWarpColumns) + warp;
  return d.weights + (size_t{chunk} * (d.n / 16) + slab.tile) * tile_bytes(d);
}

// -- loader ----------------------------------------------------------------------------

template <class T>
MEGATRACE_DEVICE void load_dense(T& t, Loader& loader, const Dense& d) {
  Slabs slabs(d);
  Slab slab;
  loader.begin(t, d.phase, d.moment, d.first_stages);
#pragma unroll 1
  while (slabs.next(slab)) {
    const char* source = tile_address(d, slab, loader.warp());
    uint32_t left = loader.serves(slice_warps(d.k, slab.slice)) ? slab.tiles * tile_bytes(d) : 0;
#pragma unroll 1
    do {
      const uint32_t now = min(kDenseStageBytes, left);
      if (loader.load(t, left != 0, source, now)) {
        source += now;
        left -= now;
      }
    } while (ptx::ballot(left != 0) != 0);
  }
}

// -- tensor warps ----------------------------------------------------------------------

// A warp's 128 columns of the input: lane (g, j) holds of row g (and g + 8) 16 columns of each
// of two k-blocks, eight words of pairs each.
template <int NT>
struct Operand {
  uint32_t word[NT][16];
};

// The block whose chunk holds a column of a row of `columns`.
MEGATRACE_DEVICE uint32_t chunk_owner(const Params& p, uint32_t columns, uint32_t row,
                                      uint32_t column) {
  const uint32_t chunks = columns / kWarpColumns, unit = row * chunks + column / kWarpColumns;
  return quotient(unit * gridDim.x + gridDim.x - 1, p.shape.rows * chunks);
}

// The block that owes a column of the input.
MEGATRACE_DEVICE uint32_t input_producer(const Params& p, const Dense& d, uint32_t row,
                                         uint32_t column) {
  if (d.in_heads == 0) return chunk_owner(p, d.k, row, column);
  return share_owner(p.shape.rows * d.in_heads, row * d.in_heads + column / kHeadDim);
}

// Waits for the input of a slice.
template <int NT, class T>
MEGATRACE_DEVICE void load_operand(T& t, Operand<NT>& x, const Params& p, const Dense& d,
                                   uint32_t slice) {
  const uint32_t lane = ptx::lane_id(), g = lane >> 2;
  const uint32_t column = slice * kSlice + warp_id() * kWarpColumns + (lane & 3) * 16;
  uint32_t missing_row = 0;
  poll_words(
      t, d.wait,
      [&] {
        bool here = true;
#pragma unroll
        for (int nt = 0; nt < NT; ++nt) {
          const uint32_t row = g + 8 * nt;
          const uint32_t* in = d.in + (row * d.k + column) / 2;
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
}

// One row tile times the operand: eight k-steps. Products that follow each other go to different
// sums, or each would wait for the one before.
template <int NT>
MEGATRACE_DEVICE void multiply_bf16(float (&sum)[NT][4], const Operand<NT>& x, const char* tile) {
  const uint4* a = reinterpret_cast<const uint4*>(tile) + ptx::lane_id();
  float odd[NT][4] = {};
#pragma unroll
  for (int step = 0; step < 8; ++step) {
    const uint4 w = a[step * 32];
#pragma unroll
    for (int nt = 0; nt < NT; ++nt)
      ptx::mma_bf16(step % 2 == 0 ? sum[nt] : odd[nt], w.x, w.y, w.z, w.w, x.word[nt][2 * step],
                    x.word[nt][2 * step + 1]);
  }
#pragma unroll
  for (int nt = 0; nt < NT; ++nt)
#pragma unroll
    for (int i = 0; i < 4; ++i) sum[nt][i] += odd[nt][i];
}

MEGATRACE_DEVICE uint32_t take_part(float& lo, float& hi) {
  const uint32_t part = ptx::pack_bf16(lo, hi);
  lo -= ptx::bf16_low(part);
  hi -= ptx::bf16_high(part);
  return part;
}

// Words 4 quarter .. 4 quarter + 3 of a token's 16.
MEGATRACE_DEVICE uint32_t quarter_word(const uint32_t (&word)[16], uint32_t quarter, int i) {
  const uint32_t early = quarter & 1 ? word[4 + i] : word[i];
  const uint32_t late = quarter & 1 ? word[12 + i] : word[8 + i];
  return quarter & 2 ? late : early;
}

// fp32 weights as three bf16 parts, which hold all 24 bits: the products are exact. A loop, though
// it has to choose among registers: a launch runs it once.
template <int NT>
MEGATRACE_DEVICE void multiply_fp32(float (&sum)[NT][4], const Operand<NT>& x, const char* tile) {
  const float4* a = reinterpret_cast<const float4*>(tile) + ptx::lane_id();
  float rest[2][NT][4] = {};
#pragma unroll 1
  for (uint32_t quarter = 0; quarter < 4; ++quarter) {
#pragma unroll
    for (int step = 0; step < 2; ++step) {
      float4 low = a[step * 64], high = a[step * 64 + 32];
#pragma unroll
      for (int part = 0; part < 3; ++part) {
        const uint32_t a0 = take_part(low.x, low.y), a1 = take_part(low.z, low.w);
        const uint32_t a2 = take_part(high.x, high.y), a3 = take_part(high.z, high.w);
#pragma unroll
        for (int nt = 0; nt < NT; ++nt)
          ptx::mma_bf16(part == 0 ? sum[nt] : rest[part - 1][nt], a0, a1, a2, a3,
                        quarter_word(x.word[nt], quarter, 2 * step),
                        quarter_word(x.word[nt], quarter, 2 * step + 1));
      }
    }
    a += 128;
  }
#pragma unroll
  for (int nt = 0; nt < NT; ++nt)
#pragma unroll
    for (int i = 0; i < 4; ++i) sum[nt][i] += rest[0][nt][i] + rest[1][nt][i];
}

// Sums of a slab by warp, in the tensor core's own order: [warp][kSlabTiles][nt][lane].
constexpr uint32_t kSlabVectors = kSlabTiles * (kMaxRows / 8) * 32;  // of a warp
static_assert(kTensorWarps * kSlabVectors * 16 <= kWorkBytes, "a slab's sums must fit");
static_assert(kWorkBytes >= kDenseStageBytes, "a tile to rehearse with");
MEGATRACE_DEVICE float4* slab_sums(Shared& s, uint32_t warp) {
  return reinterpret_cast<float4*>(s.work) + warp * kSlabVectors;
}

// The sums of a rehearsal go where later the ids are: the attention may be at work in `s.work`.
template <int NT>
MEGATRACE_DEVICE float4* rehearsed_sums(Shared& s) {
  static_assert(sizeof(s.ids) >= NT * 32 * sizeof(float4), "a tile's sums");
  return reinterpret_cast<float4*>(s.ids);
}

MEGATRACE_DEVICE void add(float4& sum, const float4& v) {
  sum.x += v.x;
  sum.y += v.y;
  sum.z += v.z;
  sum.w += v.w;
}

// Adds the warps' sums up and hands them over. Lane (g, j) has of a tile the rows g and g + 8 of
// tokens 2 j and 2 j + 1. A sum is never kEmpty: arithmetic makes other NaNs.
template <int NT>
MEGATRACE_DEVICE void store_slab(Shared& s, const Dense& d, const Slab& slab, uint32_t all_rows,
                                 uint32_t rows, uint32_t thread) {
  constexpr uint32_t kTilesAtOnce = kTensorWarps / NT;
  const uint32_t warp = thread >> 5, lane = thread & 31, row = warp % NT * 8 + (lane & 3) * 2;
  const float4* from = slab_sums(s, 0) + thread;
  uint32_t* out = d.out + (size_t{slab.slice} * all_rows + row) * d.n +
                  ((slab.tile + warp / NT) * 16 + (lane >> 2));
#pragma unroll 1
  for (uint32_t tile = warp / NT; tile < slab.tiles; tile += kTilesAtOnce) {
    float4 sum = *from;
#pragma unroll
    for (uint32_t w = 1; w < kTensorWarps; ++w) add(sum, from[w * kSlabVectors]);
    if (row < rows) {
      put(out, __float_as_uint(sum.x));
      put(out + 8, __float_as_uint(sum.z));
    }
    if (row + 1 < rows) {
      put(out + d.n, __float_as_uint(sum.y));
      put(out + d.n + 8, __float_as_uint(sum.w));
    }
    from += kTensorWarps * 32;
    out += kTilesAtOnce * 16;
  }
}

// A warp's columns of a slab; of one tile where it rehearses.
template <int NT, class T>
MEGATRACE_DEVICE void multiply_slab(T& t, Shared& s, Stages& stages, const Dense& d,
                                    const Operand<NT>& x, uint32_t tiles, float4* sums,
                                    bool rehearses) {
  const uint32_t bytes = tile_bytes(d);
  const char* tile = s.work;
  sums += ptx::lane_id();
  uint32_t left = rehearses ? bytes : tiles * bytes;
#pragma unroll 1
  do {
    const uint32_t stage_bytes = min(kDenseStageBytes, left);
    if (!rehearses) tile = stages.next(t);
    left -= stage_bytes;
#pragma unroll 1
    for (const char* const end = tile + stage_bytes; tile != end; tile += bytes) {
      float sum[NT][4] = {};
      if (d.fp32)
        multiply_fp32<NT>(sum, x, tile);
      else
        multiply_bf16<NT>(sum, x, tile);
#pragma unroll
      for (int nt = 0; nt < NT; ++nt)
        sums[nt * 32] = make_float4(sum[nt][0], sum[nt][1], sum[nt][2], sum[nt][3]);
      sums += NT * 32;
    }
    if (!rehearses) stages.release(t);
  } while (left != 0);
}

constexpr uint32_t kNoSlice = ~0u;

// All slabs of this block; the tensor warps. `x` holds slice `held` of the input, or kNoSlice.
// Who rehearses multiplies a tile of whatever is in shared memory: so the code is in the
// instruction cache when the input arrives.
template <int NT, class T>
MEGATRACE_DEVICE void dense(T& t, const Params& p, Shared& s, Stages& stages, const Dense& d,
                            Operand<NT>& x, uint32_t& held, bool rehearses) {
  const uint32_t thread = ptx::opaque(threadIdx.x);
  Slabs slabs(d);
  Slab slab;
  bool reaches = d.fp32 && !rehearses;
  stages.begin(d.phase);
#pragma unroll 1
  while (slabs.next(slab)) {
    const bool mine = rehearses || thread >> 5 < slice_warps(d.k, slab.slice);
    float4* sums = rehearses ? rehearsed_sums<NT>(s) : slab_sums(s, thread >> 5);
    if (!rehearses && slab.slice != held) {
      if (mine) load_operand(t, x, p, d, slab.slice);
      held = slab.slice;
      if (reaches) reach(s, kRouterInputHere);
      reaches = false;
    }
    if (mine) {
      multiply_slab<NT>(t, s, stages, d, x, slab.tiles, sums, rehearses);
    } else {
#pragma unroll 1
      for (uint32_t i = thread & 31; i < slab.tiles * NT * 32; i += 32)
        sums[i] = make_float4(0, 0, 0, 0);
    }
    if (!rehearses) tensor_sync();
    store_slab<NT>(s, d, slab, p.shape.rows, rehearses ? 0 : p.shape.rows,
                   thread % (kTensorWarps * 32));
    if (rehearses) break;
    tensor_sync();
  }
  if (reaches) reach(s, kRouterInputHere);
}

}  // namespace muse
