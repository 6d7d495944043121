// The experts: gate and up rows with SwiGLU, then down rows, of every local expert that some row
// was routed to.
//
// A unit is a row tile of 16 of one group of tokens, over all columns. Blocks take contiguous
// shares of the units, so a block sees one or two experts, and go through them in passes whose
// tokens fit shared memory; in a pass the tensor warps share the stages of weights.
#pragma once

#include "expert_rows.cuh"
#include "gemm.cuh"
#include "ring.cuh"
#include "routing.cuh"
#include "rowwise.cuh"
#include "weights.cuh"

namespace muse {

constexpr uint32_t kMaxExpertColumns = 4096;

struct ExpertMatrix {
  Phase phase;
  const char* weights;  // [local experts][tiles][stages]
  uint32_t tiles, columns;
  AnySpan span;
  AnyWait wait;  // for the input
};

MEGATRACE_DEVICE AnyPublish expert_publish(bool down) {
  return down ? any<AnyPublish>(ev::down{}) : any<AnyPublish>(ev::act{});
}

MEGATRACE_DEVICE uint32_t up_tiles(const Params& p) { return p.shape.expert_inner / 8; }

MEGATRACE_DEVICE ExpertMatrix expert_matrix(const Params& p, bool down) {
  if (down)
    return {kExpertsDown,         p.weights.experts_down,           p.shape.expert_width / 16,
            p.shape.expert_inner, any<AnySpan>(ev::experts_down{}), any<AnyWait>(ev::act_wait{})};
  return {kExpertsUp,           p.weights.experts_up,           up_tiles(p),
          p.shape.expert_width, any<AnySpan>(ev::experts_up{}), any<AnyWait>(ev::routes_wait{})};
}

template <class Experts>
MEGATRACE_DEVICE uint32_t tile_bytes(const ExpertMatrix& m) {
  return m.columns / 64 * Experts::kBlockBytes;
}

// Units [unit, end) of whole or part groups, whose tokens together fit. A pass of no tokens is a
// rehearsal: while the table of experts is being made, who has nothing else to do runs the code on
// nothing, so that it is in the instruction cache.
struct Pass {
  uint32_t unit, end, tokens;
};

// The passes of this block, one after the other.
class Passes {
 public:
  MEGATRACE_DEVICE Passes(const Routing& routing, uint32_t tiles)
      : routing_(routing), tiles_(tiles) {}

  // The table is there.
  MEGATRACE_DEVICE void begin() {
    const uint32_t total = routing_.groups * tiles_;
    unit_ = share_begin(total, blockIdx.x);
    end_ = share_begin(total, blockIdx.x + 1);
  }

  MEGATRACE_DEVICE bool next(Pass& pass) {
    if (unit_ == end_) return false;
    uint32_t group = quotient(unit_, tiles_);
    pass = {unit_, 0, 0};
    do {
      pass.tokens += routing_.group[group].tokens;
      pass.end = ++group * tiles_;
    } while (pass.end < end_ && pass.tokens + routing_.group[group].tokens <= kTokens);
    pass.end = min(pass.end, end_);
    unit_ = pass.end;
    return true;
  }

 private:
  const Routing& routing_;
  const uint32_t tiles_;
  uint32_t unit_ = 0, end_ = 0;
};

// The block that computes a row of an expert's matrix for a (row, slot) pair.
MEGATRACE_DEVICE uint32_t expert_producer(const Routing& routing, uint32_t tiles, uint32_t pair,
                                          uint32_t tile) {
  for (uint32_t group = 0; group < routing.groups; ++group)
    for (uint32_t i = 0; i < routing.group[group].tokens; ++i)
      if (routing.group[group].pairs[i] == pair)
        return share_owner(routing.groups * tiles, group * tiles + tile);
  return kEmpty;
}

// The stages of a pass, tile after tile, are shared out over the tensor warps evenly, so that all
// end at once: a warp's stretch of them may begin and end inside a tile. What a warp has of
// a tile that it does not begin, the warp that does adds up.
struct Stretch {
  uint32_t at, end;
};
MEGATRACE_DEVICE Stretch stretch_of(const Pass& pass, uint32_t tile_stages, uint32_t warp) {
  const uint32_t total = (pass.end - pass.unit) * tile_stages;
  return {total * warp / kTensorWarps, total * (warp + 1) / kTensorWarps};
}

template <class Experts>
MEGATRACE_DEVICE uint32_t tile_stages(const ExpertMatrix& m) {
  return (m.columns + Experts::kStageColumns - 1) / Experts::kStageColumns;
}

// -- loader ----------------------------------------------------------------------------

template <class Experts, class T>
MEGATRACE_DEVICE void load_pass(T& t, Loader& loader, const Routing& routing, const ExpertMatrix& m,
                                const Pass& pass) {
  const uint32_t bytes = tile_bytes<Experts>(m), stages = tile_stages<Experts>(m);
  const uint32_t stage_bytes = Experts::kStageColumns / 64 * Experts::kBlockBytes;
  Stretch mine = stretch_of(pass, stages, loader.warp());
  if (!loader.serves(kTensorWarps)) mine.at = mine.end;
  uint32_t unit = pass.unit + quotient(mine.at, stages);
  uint32_t done = (mine.at - (unit - pass.unit) * stages) * stage_bytes;  // bytes of its tile
  const char* source = nullptr;
  bool begins = true;
#pragma unroll 1
  do {
    if (begins && mine.at < mine.end) {
      const uint32_t group = quotient(unit, m.tiles), tile = unit - group * m.tiles;
      const size_t row = size_t{routing.group[group].expert} * m.tiles + tile;
      source = m.weights + row * bytes + done;
    }
    const uint32_t now = min(stage_bytes, bytes - done);
    if (loader.load(t, mine.at < mine.end, source, now)) {
      source += now;
      done += now;
      begins = done == bytes;
      if (begins) done = 0, ++unit;
      ++mine.at;
    }
  } while (ptx::ballot(mine.at < mine.end) != 0);
}

template <class Experts, class T>
MEGATRACE_DEVICE void load_experts(T& t, Loader& loader, Shared& s, const ExpertMatrix& m) {
  Passes passes(s.routing, m.tiles);
  Pass pass = {0, 0, 0};
  loader.begin(t, m.phase);
#pragma unroll 1
  do {
    load_pass<Experts>(t, loader, s.routing, m, pass);
    if (pass.tokens == 0) {
      routing(t, s);
      passes.begin();
    }
  } while (passes.next(pass));
}

// -- inputs ----------------------------------------------------------------------------

// Bytes from one token of the pass to the next: 16 more than it has, so that the eight tokens
// of a fragment lie in different banks.
MEGATRACE_DEVICE uint32_t token_stride(uint32_t columns) { return columns * 2 + 16; }

// Which row of the input a token of the pass has, a row of the step or a pair.
MEGATRACE_DEVICE uint32_t token_source(const Routing& routing, const ExpertMatrix& m,
                                       const Pass& pass, uint32_t token) {
  uint32_t group = quotient(pass.unit, m.tiles);
  if (token >= pass.tokens) return 0;
#pragma unroll 1
  for (; token >= routing.group[group].tokens; ++group) token -= routing.group[group].tokens;
  const Group& g = routing.group[group];
  return m.phase == kExpertsDown ? g.pairs[token] : g.rows[token];
}

// The block that owes a column of a token's input.
MEGATRACE_DEVICE uint32_t input_producer(const Params& p, const Routing& routing,
                                         const ExpertMatrix& m, uint32_t source, uint32_t column) {
  if (m.phase == kExpertsDown) return expert_producer(routing, up_tiles(p), source, column / 8);
  return chunk_owner(p, p.shape.expert_width, source, column);
}

// All workers bring the tokens of a pass, which others hand over, into shared memory.
template <class Experts, class T>
MEGATRACE_DEVICE void stage_tokens(T& t, const Params& p, Shared& s, const Routing& routing,
                                   const ExpertMatrix& m, const Pass& pass) {
  constexpr uint32_t kBatch = 6;  // loads in flight
  const uint32_t vectors = m.columns / 8, total = pass.tokens * vectors;
  const uint4* const rows =
      reinterpret_cast<const uint4*>(m.phase == kExpertsDown ? p.handoff.act : p.handoff.y);
  const uint32_t source = token_source(routing, m, pass, ptx::lane_id());
  uint32_t base = threadIdx.x;
#pragma unroll 1
  do {
    uint4 words[kBatch] = {};
    Sources<uint4, kBatch> from;
    uint32_t at[kBatch];
#pragma unroll
    for (uint32_t k = 0; k < kBatch; ++k) {
      const uint32_t v = base + k * kWorkers;
      from.wanted[k] = v < total;
      const uint32_t token = from.wanted[k] ? quotient(v, vectors) : 0;
      const uint32_t vector = v - token * vectors;
      from.at[k] = rows + (ptx::shuffle(source, token) * vectors + vector);
      at[k] = token * token_stride(m.columns) + vector * 16;
    }
    poll_rows(t, m.wait, from, words, [&](uint32_t j) {
      const uint32_t v = base + j * kWorkers, token = quotient(v, vectors);
      const uint32_t vector = v - token * vectors;
      return input_producer(p, routing, m, ptx::shuffle(source, token), vector * 8);
    });
#pragma unroll
    for (uint32_t k = 0; k < kBatch; ++k)
      if (from.wanted[k])
        *reinterpret_cast<uint4*>(s.work + at[k]) =
            make_uint4(Experts::operand(words[k].x), Experts::operand(words[k].y),
                       Experts::operand(words[k].z), Experts::operand(words[k].w));
    base += kWorkers * kBatch;
  } while (base - ptx::lane_id() < total);
}

// -- tensor warps ----------------------------------------------------------------------

// Some stages of a tile, from `stage` on: 16 rows for the tokens of one group, which begin at
// token `first` of the pass.
template <class Experts, class T>
MEGATRACE_DEVICE float4 multiply_stages(T& t, Shared& s, Stages& stages, const ExpertMatrix& m,
                                        uint32_t first, uint32_t stage, uint32_t count) {
  const uint32_t lane = ptx::lane_id();
  // Columns of tokens that the group does not have are somebody else's words, and nobody's sums.
  const uint32_t token = min(first + (lane >> 2), kTokens - 1);
  uint32_t column = stage * Experts::kStageColumns;
  const char* x = s.work + token * token_stride(m.columns) + (lane & 3) * 32 + column * 2;
  // Four sums: a product that adds to the one before waits for it.
  float even[2][4] = {}, odd[2][4] = {};
#pragma unroll 1
  for (; count != 0; --count, column += Experts::kStageColumns) {
    const uint32_t blocks = min(Experts::kStageColumns, m.columns - column) / 64;
    const char* weights = stages.next(t);
#pragma unroll 4
    for (uint32_t block = 0; block < blocks; ++block) {
      const uint4 x0 = *reinterpret_cast<const uint4*>(x);
      const uint4 x1 = *reinterpret_cast<const uint4*>(x + 16);
      Experts::multiply(even, odd, weights, blocks, block, x0, x1);
      x += 128;
    }
    stages.release(t);
  }
  float sum[4];
#pragma unroll
  for (int i = 0; i < 4; ++i) sum[i] = (even[0][i] + odd[0][i]) + (even[1][i] + odd[1][i]);
  return make_float4(sum[0], sum[1], sum[2], sum[3]);
}

// Where a warp leaves what it has of a tile that another one begins: behind the tokens.
struct Partials {
  float4 of[kTensorWarps][32];
};
static_assert(kTokens * (kMaxExpertColumns * 2 + 16) + sizeof(Partials) <= kWorkBytes, "both fit");
MEGATRACE_DEVICE Partials& partials(Shared& s) {
  return *reinterpret_cast<Partials*>(s.work + kWorkBytes - sizeof(Partials));
}

// Adds what the warps after this one have of a tile whose stages end at `tile_end`.
MEGATRACE_DEVICE void add_partials(Shared& s, const Pass& pass, uint32_t tile_stages,
                                   uint32_t tile_end, float4& sum) {
  uint32_t warp = warp_id() + 1;
#pragma unroll 1
  for (uint32_t end = 0; end < tile_end; ++warp) {
    const Stretch its = stretch_of(pass, tile_stages, warp);
    end = its.end;
    if (its.at < its.end) sum = sum + partials(s).of[warp][ptx::lane_id()];
  }
}

// This warp's stretch of a pass.
template <class Experts, class T>
MEGATRACE_DEVICE void multiply_pass(T& t, const Params& p, Shared& s, Stages& stages,
                                    const Routing& routing, const ExpertMatrix& m,
                                    const Pass& pass) {
  const uint32_t tile_stages = muse::tile_stages<Experts>(m);
  Stretch mine = stretch_of(pass, tile_stages, warp_id());
  uint32_t unit = pass.unit + quotient(mine.at, tile_stages);
  uint32_t group = quotient(pass.unit, m.tiles), first = 0;
  bool met = false;  // the other warps, where a tile goes on
#pragma unroll 1
  for (; mine.at < mine.end; ++unit) {
    for (; unit >= (group + 1) * m.tiles; ++group) first += routing.group[group].tokens;
    const uint32_t tile_end = (unit + 1 - pass.unit) * tile_stages;
    const uint32_t stage = mine.at + tile_stages - tile_end, end = min(mine.end, tile_end);
    const uint32_t tile = unit - group * m.tiles;
    const uint2 gains = down_gains(p, m.phase, tile);
    float4 sum = multiply_stages<Experts>(t, s, stages, m, first, stage, end - mine.at);
    mine.at = end;
    if (stage != 0) {
      partials(s).of[warp_id()][ptx::lane_id()] = sum;
      continue;
    }
    if (end < tile_end) {
      tensor_sync();
      met = true;
      add_partials(s, pass, tile_stages, tile_end, sum);
    }
    if (m.phase == kExpertsUp)
      store_up<Experts>(p, routing.group[group], tile, sum);
    else
      store_down<Experts>(p, routing.group[group], tile, sum, gains);
  }
  if (!met) tensor_sync();
}

// Says which experts a pass is about.
template <class T>
MEGATRACE_DEVICE void name_experts(T& t, const Routing& routing, const ExpertMatrix& m,
                                   const Pass& pass) {
  uint32_t group = quotient(pass.unit, m.tiles);
#pragma unroll 1
  for (uint32_t unit = pass.unit; unit < pass.end; unit = ++group * m.tiles)
    t.instant(ev::expert{}, routing.group[group].expert, routing.group[group].tokens);
}

// -- the phases, up and down -----------------------------------------------------------

MEGATRACE_DEVICE bool rehearses(const ExpertMatrix& m) {
  return m.phase == kExpertsUp && warp_id() == kSpareWarp;
}

template <class Experts, class T>
MEGATRACE_DEVICE void run_experts(T& t, const Params& p, Shared& s, Stages& stages,
                                  const ExpertMatrix& m) {
  const Routing& r = s.routing;
  Passes passes(r, m.tiles);
  Pass pass = {0, 0, 0};
  bool rehearsal = rehearses(m);
  auto span = t.span(m.span);
  stages.begin(m.phase);
#pragma unroll 1
  for (;;) {
    if (!rehearsal) {
      if (pass.tokens == 0) {
        routing(t, s);
        passes.begin();
      }
      if (!passes.next(pass)) break;
      if (warp_id() == 0) name_experts(t, r, m, pass);
      workers_sync();  // whoever was at s.work is done
    }
    stage_tokens<Experts>(t, p, s, r, m, pass);
    if (!rehearsal) workers_sync();
    if (warp_id() < kTensorWarps) multiply_pass<Experts>(t, p, s, stages, r, m, pass);
    rehearsal = false;
  }
  if (warp_id() < kTensorWarps) t.publish(expert_publish(m.phase == kExpertsDown), blockIdx.x);
}

}  // namespace muse
