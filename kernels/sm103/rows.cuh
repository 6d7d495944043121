// Row-wise phases around the residual stream: its beginning, and its two gates a layer. A chunk of
// a row is always the same warp's, so the stream never leaves it.
#pragma once

#include "exchange.cuh"

namespace muse {

// S <- alpha S + beta bf(rms(b)), and what the next projections read of it: bf(S gain / rms(S)).
// b, the branch, is a row of a projection, times the gain `inner` if there is one. The stream
// begins as the embedding, passed through the same gate: alpha is 0, beta 1.
enum Branch : uint32_t { kAttended, kFed, kEmbedded };

// Told like Dense: all gates can run the same code. Asked for where it is needed, as registers
// are few.
struct Boundary {
  const float *alpha, *beta;      // null: 0 and 1
  const uint16_t *inner, *outer;  // outer: the gain of what reads the stream
  float eps;                      // of the branch's norm
  uint32_t* sums;                 // [2][rows][chunks]: of squares, of branch and stream
  uint32_t* next;                 // null: nothing reads the stream
  AnyPublish publish;
};

MEGATRACE_DEVICE AnySpan gate_span(uint32_t branch) {
  if (branch == kAttended) return any<AnySpan>(ev::attn_boundary{});
  return branch == kEmbedded ? any<AnySpan>(ev::embed{}) : any<AnySpan>(ev::ffn_boundary{});
}

MEGATRACE_DEVICE Boundary boundary_of(const Params& p, uint32_t branch) {
  const LayerWeights& w = p.weights;
  const uint32_t half = 2 * p.shape.rows * (p.shape.hidden / kWarpColumns);
  branch = ptx::opaque(branch);
  if (branch == kAttended)
    return {w.attn_alpha,     w.attn_beta,        nullptr,     w.pre_ffn_gain,
            p.shape.eps_post, p.handoff.row_sums, p.handoff.x, any<AnyPublish>(ev::x{})};
  if (branch == kEmbedded)
    return {nullptr,          nullptr,
            nullptr,          w.next_input_gain,
            p.shape.eps_norm, p.handoff.row_sums + half,
            p.handoff.a,      any<AnyPublish>(ev::a{})};
  const bool last = w.next_qkv == nullptr;
  return {w.ffn_alpha,
          w.ffn_beta,
          w.post_ffn_gain,
          last ? w.post_ffn_gain : w.next_input_gain,
          p.shape.eps_post,
          p.handoff.row_sums + half,
          last ? nullptr : p.handoff.a,
          any<AnyPublish>(ev::a{})};
}

// Shared memory of a chunk at a gate; each vector is one lane's.
struct GateWork {
  float4 stream[kChunkVectors];  // alpha S, then S
  float4 beta[kChunkVectors];
  uint2 branch[kChunkVectors], outer[kChunkVectors];
};

MEGATRACE_DEVICE GateWork& gate_work(Shared& s, const Chunk& c) {
  return reinterpret_cast<GateWork*>(s.work)[c.place];
}

MEGATRACE_DEVICE float4 ones() { return make_float4(1, 1, 1, 1); }

// -- branches --------------------------------------------------------------------------

MEGATRACE_DEVICE uint2 read_embedding(const Params& p, const Chunk& c) {
  if (!c.mine) return make_uint2(0, 0);
  const size_t token = static_cast<uint32_t>(p.tokens[c.row]);
  return vectors_of(p.embedding + token * p.shape.hidden)[c.vector];
}

// Attention adds its ranks' rows up; the projection after the experts may share its columns out.
template <class T>
MEGATRACE_DEVICE uint2 read_branch(T& t, const Params& p, uint32_t branch, const Chunk& c) {
  if (branch == kEmbedded) return read_embedding(p, c);
  const uint32_t vectors = p.shape.hidden / 4;
  Parts parts = {p.handoff.o_part, p.shape.heads * kHeadDim, p.shape.hidden};
  AnyWait wait = any<AnyWait>(ev::o_part_wait{});
  if (branch == kFed) {
    parts = {p.handoff.post_part, p.shape.expert_width, p.shape.post_rows};
    wait = any<AnyWait>(ev::post_part_wait{});
  }
  const uint32_t own = parts.n / 4;
  const Shard shard = own == vectors ? Shard{p.shape.rank, c.vector, c.mine} : shard_of(p, own, c);
  PeerVectors peers(p, p.attn_reduce, vectors, c, branch == kAttended);
  const uint2 words = pack(sum_slices<4>(t, wait, p, parts, c.row, shard.vector, shard.ours));
  if (branch == kAttended) return p.shape.ranks == 1 ? words : peers.reduce(t, kAttnReduce, words);
  return own == vectors ? words
                        : gather_ranks(t, p, p.post_gather, kPostGather, own, c, shard, words);
}

// The branch, and what the wait for it hides: all else that the gate reads.
template <class T>
MEGATRACE_DEVICE void bring_branch(T& t, const Params& p, Shared& s, uint32_t branch,
                                   const Chunk& c) {
  const Boundary b = boundary_of(p, branch);
  // Nothing is computed with it yet, or the branch would wait for it.
  float4 alpha = zeros(), before = zeros(), beta = ones();
  uint2 outer = make_uint2(0, 0), inner = make_uint2(0, 0);
  if (c.mine) {
    if (b.alpha != nullptr) {
      alpha = vectors_of(b.alpha)[c.vector];
      before = stream_of(p, c.row)[c.vector];
      beta = vectors_of(b.beta)[c.vector];
    }
    if (b.inner != nullptr) inner = vectors_of(b.inner)[c.vector];
    outer = vectors_of(b.outer)[c.vector];
  }
  uint2 words = read_branch(t, p, branch, c);
  if (b.inner != nullptr) words = pack(values(inner) * values(words));
  put_row_sum(t, b.sums + c.row * (p.shape.hidden / kWarpColumns), c, squares(values(words)));
  if (!c.mine) return;
  GateWork& work = gate_work(s, c);
  const uint32_t lane = ptx::opaque(ptx::lane_id());
  work.stream[lane] = alpha * before;
  work.beta[lane] = beta;
  work.branch[lane] = words;
  work.outer[lane] = outer;
}

// -- gates -----------------------------------------------------------------------------

MEGATRACE_DEVICE uint32_t* stream_sums(const Params& p, const Boundary& b, const Chunk& c) {
  return b.sums + (p.shape.rows + c.row) * (p.shape.hidden / kWarpColumns);
}

// Passes the gate. The draft may read the stream after this layer, bf16 and 8-byte aligned.
template <class T>
MEGATRACE_DEVICE void pass_gate(T& t, const Params& p, Shared& s, uint32_t branch, const Chunk& c) {
  const Boundary b = boundary_of(p, branch);
  const uint32_t columns = p.shape.hidden, lane = ptx::opaque(ptx::lane_id());
  const float sum = row_sum(t, p, b.sums + c.row * (columns / kWarpColumns), columns, c);
  const float scale = rms_scale(sum, reciprocal(static_cast<float>(columns)), b.eps);
  GateWork& work = gate_work(s, c);
  float4 stream = zeros();
  if (c.mine)
    stream = work.stream[lane] + work.beta[lane] * rounded(values(work.branch[lane]) * scale);
  if (b.next != nullptr) put_row_sum(t, stream_sums(p, b, c), c, squares(stream));
  if (!c.mine) return;
  work.stream[lane] = stream;
  stream_of(p, c.row)[c.vector] = stream;
  if (branch == kFed && p.tap != nullptr)
    reinterpret_cast<uint2*>(p.tap + size_t{c.row} * p.tap_stride)[c.vector] = pack(stream);
}

template <class T>
MEGATRACE_DEVICE void hand_over_normed(T& t, const Params& p, Shared& s, uint32_t branch,
                                       const Chunk& c) {
  const Boundary b = boundary_of(p, branch);
  const uint32_t columns = p.shape.hidden, lane = ptx::opaque(ptx::lane_id());
  const float sum = row_sum(t, p, stream_sums(p, b, c), columns, c);
  const float scale = rms_scale(sum, reciprocal(static_cast<float>(columns)), p.shape.eps_norm);
  if (!c.mine) return;
  const GateWork& work = gate_work(s, c);
  put(pair_row(b.next, c.row, columns / 4) + c.vector,
      pack(work.stream[lane] * scale * values(work.outer[lane])));
  t.publish(b.publish, blockIdx.x);
}

// The gate after the attention, after the experts, or at the beginning of a step.
template <class T>
MEGATRACE_DEVICE void boundary(T& t, const Params& p, Shared& s, uint32_t branch) {
  const RowChunks chunks(p, p.shape.hidden);
  {
    auto span = t.span_if(chunks.any(), gate_span(branch));
    chunks.each([&](const Chunk& c) { bring_branch(t, p, s, branch, c); });
    chunks.each([&](const Chunk& c) { pass_gate(t, p, s, branch, c); });
    if (boundary_of(p, branch).next != nullptr)
      chunks.each([&](const Chunk& c) { hand_over_normed(t, p, s, branch, c); });
  }
  if (warp_id() < kTensorWarps) tensor_sync();
}

}  // namespace muse
