// The experts: gate and up rows with SwiGLU, then down rows, of every local expert that some row
// was routed to.
//
// A unit is a row tile of 16 of one group of tokens, over all columns, by one tensor warp: no
// sums over warps. Blocks take contiguous shares of the units, so a block sees one or two experts,
// and go through them in passes whose tokens fit shared memory.
#pragma once

#include "gemm.cuh"
#include "ring.cuh"
#include "routing.cuh"
#include "weights.cuh"

namespace muse {

struct ExpertMatrix {
  Phase phase;
  const char* weights;  // [local experts][tiles][stages]
  uint32_t tiles, columns;
  AnySpan span;
  AnyWait wait;  // for the input
  AnyPublish publish;
};

MEGATRACE_DEVICE uint32_t up_tiles(const Params& p) { return p.shape.expert_inner / 8; }

MEGATRACE_DEVICE ExpertMatrix expert_matrix(const Params& p, bool down) {
  if (down)
    return {kExpertsDown,
            p.weights.experts_down,
            p.shape.expert_width / 16,
            p.shape.expert_inner,
            any<AnySpan>(ev::experts_down{}),
            any<AnyWait>(ev::act_wait{}),
            any<AnyPublish>(ev::down{})};
  return {kExpertsUp,
          p.weights.experts_up,
          up_tiles(p),
          p.shape.expert_width,
          any<AnySpan>(ev::experts_up{}),
          any<AnyWait>(ev::routes_wait{}),
          any<AnyPublish>(ev::act{})};
}

template <class Experts>
MEGATRACE_DEVICE uint32_t tile_bytes(const ExpertMatrix& m) {
  return m.columns / 64 * Experts::kBlockBytes;
}

// Units [unit, end) of whole or part groups, whose tokens together fit.
struct Pass {
  uint32_t unit, end, tokens;
};

// The passes of this block, one after the other.
class Passes {
 public:
  MEGATRACE_DEVICE Passes(const Routing& routing, uint32_t tiles)
      : routing_(routing),
        tiles_(tiles),
        unit_(share_begin(routing.groups * tiles, blockIdx.x)),
        end_(share_begin(routing.groups * tiles, blockIdx.x + 1)) {}

  MEGATRACE_DEVICE bool next(Pass& pass) {
    if (unit_ == end_) return false;
    uint32_t group = unit_ / tiles_;
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
  uint32_t unit_;
  const uint32_t end_;
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

// -- loader ----------------------------------------------------------------------------

template <class Experts, class T>
MEGATRACE_DEVICE void load_experts(T& t, Loader& loader, const Routing& routing,
                                   const ExpertMatrix& m) {
  const uint32_t bytes = tile_bytes<Experts>(m);
  const uint32_t stage_bytes = Experts::kStageColumns / 64 * Experts::kBlockBytes;
  loader.begin(t, m.phase);
  Passes passes(routing, m.tiles);
  Pass pass;
#pragma unroll 1
  while (passes.next(pass)) {
#pragma unroll 1
    for (uint32_t unit = pass.unit; unit < pass.end; unit += kTensorWarps) {
      const uint32_t mine = min(unit + ptx::lane_id() % kTensorWarps, pass.end - 1);
      const uint32_t group = mine / m.tiles, tile = mine - group * m.tiles;
      const size_t row = size_t{routing.group[group].expert} * m.tiles + tile;
      const char* source = m.weights + row * bytes;
#pragma unroll 1
      for (uint32_t left = bytes; left != 0;) {
        const uint32_t now = min(stage_bytes, left);
        loader.load(t, min(kTensorWarps, pass.end - unit), source, now);
        source += now;
        left -= now;
      }
    }
  }
}

// -- inputs ----------------------------------------------------------------------------

// Bytes from one token of the pass to the next: 16 more than it has, so that the eight tokens
// of a fragment lie in different banks.
MEGATRACE_DEVICE uint32_t token_stride(uint32_t columns) { return columns * 2 + 16; }

// The block that owes a column of a (row, slot) pair's input.
MEGATRACE_DEVICE uint32_t input_producer(const Params& p, const Routing& routing,
                                         const ExpertMatrix& m, uint32_t pair, uint32_t column) {
  if (m.phase == kExpertsDown) return expert_producer(routing, up_tiles(p), pair, column / 8);
  return row_owner(p, pair / p.shape.top_k);
}

// All workers bring the tokens of a pass, which others hand over, into shared memory.
template <class Experts, class T>
MEGATRACE_DEVICE void stage_tokens(T& t, const Params& p, Shared& s, const Routing& routing,
                                   const ExpertMatrix& m, const Pass& pass) {
  constexpr uint32_t kBatch = 2;  // loads in flight
  const uint32_t vectors = m.columns / 8, stride = token_stride(m.columns);
  const uint4* const rows =
      reinterpret_cast<const uint4*>(m.phase == kExpertsDown ? p.handoff.act : p.handoff.y);
  uint32_t group = pass.unit / m.tiles, i = 0;
#pragma unroll 1
  for (uint32_t token = 0; token < pass.tokens; ++token, ++i) {
    if (i == routing.group[group].tokens) ++group, i = 0;
    const uint32_t pair = routing.group[group].pairs[i];
    const uint32_t row = m.phase == kExpertsDown ? pair : routing.group[group].rows[i];
    const uint4* const in = rows + row * vectors;
    char* const line = s.work + token * stride;
#pragma unroll 1
    for (uint32_t base = threadIdx.x; base < ((vectors + 31) & ~31u); base += kWorkers * kBatch) {
      uint4 words[kBatch];
      uint32_t slot = 0, missing = 0;
      t.poll(m.wait, slot, [&] {
        return try_load(
            slot,
            [&] {
              bool here = true;
#pragma unroll
              for (uint32_t k = 0; k < kBatch; ++k) {
                const uint32_t v = base + k * kWorkers;
                words[k] = make_uint4(0, 0, 0, 0);
                if (v < vectors) words[k] = ptx::load_relaxed(in + v);
                if (!filled(words[k])) here = false, missing = v;
              }
              return here;
            },
            [&] { return input_producer(p, routing, m, pair, missing * 8); });
      });
#pragma unroll
      for (uint32_t k = 0; k < kBatch; ++k) {
        const uint32_t v = base + k * kWorkers;
        const uint4 w = words[k];
        if (v < vectors)
          *reinterpret_cast<uint4*>(line + v * 16) =
              make_uint4(Experts::operand(w.x), Experts::operand(w.y), Experts::operand(w.z),
                         Experts::operand(w.w));
      }
    }
  }
}

// -- tensor warps ----------------------------------------------------------------------

// One unit: 16 rows for the tokens of one group, which begin at token `first` of the pass.
template <class Experts, class T>
MEGATRACE_DEVICE void multiply_unit(T& t, Shared& s, Stages& stages, const ExpertMatrix& m,
                                    uint32_t first, float (&sum)[4]) {
  const uint32_t lane = ptx::lane_id();
  // Columns of tokens that the group does not have are somebody else's words, and nobody's sums.
  const uint32_t token = min(first + (lane >> 2), kTokens - 1);
  const char* x = s.work + token * token_stride(m.columns) + (lane & 3) * 32;
  float odd[4] = {};
  for (uint32_t column = 0; column < m.columns; column += Experts::kStageColumns) {
    const uint32_t blocks = min(Experts::kStageColumns, m.columns - column) / 64;
    const char* stage = stages.next(t);
#pragma unroll 2
    for (uint32_t block = 0; block < blocks; ++block) {
      const uint4 x0 = *reinterpret_cast<const uint4*>(x);
      const uint4 x1 = *reinterpret_cast<const uint4*>(x + 16);
      Experts::multiply(sum, odd, stage, blocks, block, x0, x1);
      x += 128;
    }
    stages.release(t);
  }
  for (int i = 0; i < 4; ++i) sum[i] += odd[i];
}

// Lane (g, j) has rows g of the tokens 2 j and 2 j + 1; neighbours in g swap, so that each ends
// up with a pair of rows of one token: of token 2 j + (g & 1), rows g & ~1 and the next.
MEGATRACE_DEVICE uint32_t pair_of_rows(float even_token, float odd_token) {
  const bool odd = ptx::lane_id() >> 2 & 1;
  const float other = ptx::shuffle_xor(odd ? even_token : odd_token, 4);
  return odd ? ptx::pack_bf16(other, odd_token) : ptx::pack_bf16(even_token, other);
}

MEGATRACE_DEVICE float swiglu(float gate, float up) {
  const float g = ptx::round_bf16(gate);
  return ptx::round_bf16(g / (1.f + expf(-g))) * ptx::round_bf16(up);
}

// Where lane (g, j)'s pair of rows goes: the pair whose token it is, or kEmpty.
MEGATRACE_DEVICE uint32_t lane_pair(const Group& group) {
  const uint32_t token = (ptx::lane_id() & 3) * 2 + (ptx::lane_id() >> 2 & 1);
  return token < group.tokens ? group.pairs[token] : kEmpty;
}

template <class Experts>
MEGATRACE_DEVICE void store_up(const Params& p, const Group& group, uint32_t tile,
                               const float (&sum)[4]) {
  float gate = 1.f, up = 1.f;
  if constexpr (Experts::kScaled) {
    gate = p.weights.up_scale[2 * group.expert] * Experts::kUnit;
    up = p.weights.up_scale[2 * group.expert + 1] * Experts::kUnit;
  }
  const uint32_t word =
      pair_of_rows(swiglu(sum[0] * gate, sum[2] * up), swiglu(sum[1] * gate, sum[3] * up));
  const uint32_t pair = lane_pair(group), row = tile * 8 + (ptx::lane_id() >> 2 & ~1u);
  if (pair != kEmpty)
    put(p.handoff.act + (size_t{pair} * p.shape.expert_inner + row) / 2, pair_word(word));
}

template <class Experts>
MEGATRACE_DEVICE void store_down(const Params& p, const Group& group, uint32_t tile,
                                 const float (&sum)[4]) {
  float scale = 1.f;
  if constexpr (Experts::kScaled) scale = p.weights.down_scale[group.expert] * Experts::kUnit;
  const uint32_t low = pair_of_rows(sum[0] * scale, sum[1] * scale);
  const uint32_t high = pair_of_rows(sum[2] * scale, sum[3] * scale);
  const uint32_t pair = lane_pair(group), row = tile * 16 + (ptx::lane_id() >> 2 & ~1u);
  if (pair == kEmpty) return;
  uint32_t* out = p.handoff.down + (size_t{pair} * p.shape.expert_width + row) / 2;
  put(out, pair_word(low));
  put(out + 4, pair_word(high));
}

// The units of one pass that are this warp's.
template <class Experts, class T>
MEGATRACE_DEVICE void multiply_pass(T& t, const Params& p, Shared& s, Stages& stages,
                                    const Routing& routing, const ExpertMatrix& m,
                                    const Pass& pass) {
  uint32_t group = pass.unit / m.tiles, first = 0;
#pragma unroll 1
  for (uint32_t unit = pass.unit + warp_id(); unit < pass.end; unit += kTensorWarps) {
    for (; unit >= (group + 1) * m.tiles; ++group) first += routing.group[group].tokens;
    float sum[4] = {};
    multiply_unit<Experts>(t, s, stages, m, first, sum);
    const uint32_t tile = unit - group * m.tiles;
    if (m.phase == kExpertsUp)
      store_up<Experts>(p, routing.group[group], tile, sum);
    else
      store_down<Experts>(p, routing.group[group], tile, sum);
  }
}

// Says which experts a pass is about.
template <class T>
MEGATRACE_DEVICE void name_experts(T& t, const Routing& routing, const ExpertMatrix& m,
                                   const Pass& pass) {
  uint32_t group = pass.unit / m.tiles;
#pragma unroll 1
  for (uint32_t unit = pass.unit; unit < pass.end; unit = ++group * m.tiles)
    t.instant(ev::expert{}, routing.group[group].expert, routing.group[group].tokens);
}

// -- the phases, up and down -----------------------------------------------------------

template <class Experts, class T>
MEGATRACE_DEVICE void run_experts(T& t, const Params& p, Shared& s, Stages& stages,
                                  const ExpertMatrix& m) {
  const Routing& r = routing(t, s);
  auto span = t.span(m.span);
  stages.begin(m.phase);
  Passes passes(r, m.tiles);
  Pass pass;
#pragma unroll 1
  while (passes.next(pass)) {
    if (warp_id() == 0) name_experts(t, r, m, pass);
    stage_tokens<Experts>(t, p, s, r, m, pass);
    workers_sync();
    if (warp_id() < kTensorWarps) multiply_pass<Experts>(t, p, s, stages, r, m, pass);
    workers_sync();
  }
  if (warp_id() < kTensorWarps) t.publish(m.publish, blockIdx.x);
}

}  // namespace muse
