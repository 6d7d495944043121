// Row-wise phases around the residual stream: its beginning, and its two gates a layer. A row is
// one block's, with all its workers.
#pragma once

#include "exchange.cuh"

namespace muse {

// A thread's vectors of a row stay in registers: rows have at most kRowVectors of them.
constexpr uint32_t kFragments = 6, kRowVectors = kFragments * kWorkers;

// -- what the stream is read as --------------------------------------------------------

// Hands over bf(S gain / rms(S)).
MEGATRACE_DEVICE void put_normed(const Params& p, Shared& s, const Mine<Workers>& mine,
                                 const float4 (&stream)[kFragments], float per_column, uint2* out,
                                 const uint2 (&gain)[kFragments]) {
  const float scale =
      rms_scale(team_sum<Workers>(s, squares(stream), 1), per_column, p.shape.eps_norm);
#pragma unroll
  for (uint32_t i = 0; i < kFragments; ++i)
    put_if(mine.has(i), out + i * kWorkers, pack(stream[i] * scale * values(gain[i])));
}

// The thread's vectors of a gain, zero where the row has none.
MEGATRACE_DEVICE void read_gain(const uint16_t* row, const Mine<Workers>& mine,
                                uint2 (&gain)[kFragments]) {
  const uint2* from = vectors_of(row) + mine.first;
#pragma unroll
  for (uint32_t i = 0; i < kFragments; ++i)
    gain[i] = mine.has(i) ? from[i * kWorkers] : make_uint2(0, 0);
}

// -- embedding -------------------------------------------------------------------------

template <class T>
MEGATRACE_DEVICE void embed_row(T& t, const Params& p, Shared& s, uint32_t row) {
  const uint32_t columns = p.shape.hidden, vectors = columns / 4;
  const Mine<Workers> mine(vectors);
  const float per_column = reciprocal(static_cast<float>(columns));
  const size_t token = static_cast<uint32_t>(p.tokens[row]);
  const uint2* embedding = vectors_of(p.embedding + token * columns) + mine.first;
  uint2 gain[kFragments];
  read_gain(p.weights.next_input_gain, mine, gain);
  float4* out = stream_of(p, row) + mine.first;
  float4 stream[kFragments];
#pragma unroll
  for (uint32_t i = 0; i < kFragments; ++i)
    stream[i] = mine.has(i) ? values(embedding[i * kWorkers]) : zeros();
  const float first =
      rms_scale(team_sum<Workers>(s, squares(stream), 0), per_column, p.shape.eps_norm);
#pragma unroll
  for (uint32_t i = 0; i < kFragments; ++i) {
    stream[i] = rounded(stream[i] * first);
    if (mine.has(i)) out[i * kWorkers] = stream[i];
  }
  put_normed(p, s, mine, stream, per_column, pair_row(p.handoff.a, row, vectors) + mine.first,
             gain);
  if (mine.warp_has()) t.publish(ev::a{}, blockIdx.x);
}

template <class T>
MEGATRACE_DEVICE void embed(T& t, const Params& p, Shared& s) {
  for_rows(p, [&](uint32_t row) {
    auto span = t.span(ev::embed{});
    embed_row(t, p, s, row);
    workers_sync();
  });
}

// -- residual gates --------------------------------------------------------------------

// S <- alpha S + beta bf(rms(b)), and what the next projections read of it. b is a projection's row,
// times the gain `inner` if there is one. Told like Dense, so that both gates can run the same code.
struct Boundary {
  const float *alpha, *beta;
  const uint16_t* inner;
  const uint32_t* parts;  // of a projection from k to n columns
  uint32_t k, n;
  AnyWait wait;  // for the parts
};
// The other end of it, which no register need hold before.
struct Handover {
  const uint16_t* gain;
  uint32_t* out;  // null: nothing reads the stream
  AnyPublish publish;
};

MEGATRACE_DEVICE Boundary boundary_of(const Params& p, bool experts) {
  const LayerWeights& w = p.weights;
  if (experts)
    return {w.ffn_alpha,
            w.ffn_beta,
            w.post_ffn_gain,
            p.handoff.post_part,
            p.shape.expert_width,
            p.shape.post_rows,
            any<AnyWait>(ev::post_part_wait{})};
  return {w.attn_alpha,
          w.attn_beta,
          nullptr,
          p.handoff.o_part,
          p.shape.heads * kHeadDim,
          p.shape.hidden,
          any<AnyWait>(ev::o_part_wait{})};
}
MEGATRACE_DEVICE Handover handover_of(const Params& p, bool experts) {
  const LayerWeights& w = p.weights;
  if (!experts) return {w.pre_ffn_gain, p.handoff.x, any<AnyPublish>(ev::x{})};
  const bool last = w.next_qkv == nullptr;
  return {last ? w.pre_ffn_gain : w.next_input_gain, last ? nullptr : p.handoff.a,
          any<AnyPublish>(ev::a{})};
}

// Shared memory of a boundary; each vector is one thread's.
struct BoundaryWork {
  float4 stream[kRowVectors];  // alpha S
  float4 beta[kRowVectors];
};
static_assert(sizeof(BoundaryWork) <= kWorkBytes, "a row must fit");

// Reads what the wait for the branch hides. What the row does not have is zero.
MEGATRACE_DEVICE void read_ahead(const Params& p, const Boundary& b, uint32_t row,
                                 const Mine<Workers>& mine, BoundaryWork& work) {
  const float4 *stream = stream_of(p, row) + mine.first, *alpha = vectors_of(b.alpha) + mine.first;
  const float4* beta = vectors_of(b.beta) + mine.first;
  float4 x[kFragments], y[kFragments];
#pragma unroll
  for (uint32_t i = 0; i < kFragments; ++i) {
    x[i] = mine.has(i) ? alpha[i * kWorkers] * stream[i * kWorkers] : zeros();
    y[i] = mine.has(i) ? beta[i * kWorkers] : zeros();
  }
#pragma unroll
  for (uint32_t i = 0; i < kFragments; ++i) {
    work.stream[mine.first + i * kWorkers] = x[i];
    work.beta[mine.first + i * kWorkers] = y[i];
  }
}

// Passes the gate with the branch, whose columns no rank misses.
MEGATRACE_DEVICE void pass_gate(const Params& p, Shared& s, const Handover& next, uint32_t row,
                                const uint2 (&branch)[kFragments], const BoundaryWork& work,
                                float4 (&stream)[kFragments]) {
  const uint32_t columns = p.shape.hidden;
  const Mine<Workers> mine(columns / 4);
  const float per_column = reciprocal(static_cast<float>(columns));
  uint2 gain[kFragments];
  read_gain(next.gain, mine, gain);
  float4* out = stream_of(p, row) + mine.first;
#pragma unroll
  for (uint32_t i = 0; i < kFragments; ++i) stream[i] = values(branch[i]);
  const float scale =
      rms_scale(team_sum<Workers>(s, squares(stream), 0), per_column, p.shape.eps_post);
#pragma unroll
  for (uint32_t i = 0; i < kFragments; ++i) {
    const uint32_t v = mine.first + i * kWorkers;
    stream[i] = work.stream[v] + work.beta[v] * rounded(stream[i] * scale);
    if (mine.has(i)) out[i * kWorkers] = stream[i];
  }
  if (next.out != nullptr)
    put_normed(p, s, mine, stream, per_column, pair_row(next.out, row, columns / 4) + mine.first,
               gain);
}

// Where the draft reads the stream after this layer, bf16; 8-byte aligned.
MEGATRACE_DEVICE void store_tap(const Params& p, uint32_t row, const float4 (&stream)[kFragments]) {
  const Mine<Workers> mine(p.shape.hidden / 4);
  uint2* tap = reinterpret_cast<uint2*>(p.tap + size_t{row} * p.tap_stride) + mine.first;
#pragma unroll
  for (uint32_t i = 0; i < kFragments; ++i)
    if (mine.has(i)) tap[i * kWorkers] = pack(stream[i]);
}

// Attention adds its ranks' rows up; the projection after the experts may share its columns out.
template <class T>
MEGATRACE_DEVICE void boundary_row(T& t, const Params& p, Shared& s, const Boundary& b,
                                   bool experts, uint32_t row) {
  BoundaryWork& work = *reinterpret_cast<BoundaryWork*>(s.work);
  const uint32_t vectors = p.shape.hidden / 4;
  const Mine<Workers> mine(vectors);
  read_ahead(p, b, row, mine, work);
  uint2 gain[kFragments] = {}, branch[kFragments];
  if (b.inner != nullptr) read_gain(b.inner, mine, gain);
  sum_slices<2>(t, b.wait, p, row, Mine<Workers>(b.n / 4), b.parts, b.k, b.n, branch);
  if (!experts && p.shape.ranks != 1)
    reduce_ranks<2>(t, p, p.attn_reduce, kAttnReduce, row, vectors, mine, branch);
  if (b.n < p.shape.hidden)
    gather_ranks<Workers>(t, p, p.post_gather, kPostGather, row, b.n / 4, branch);
  if (b.inner != nullptr)
#pragma unroll
    for (uint32_t i = 0; i < kFragments; ++i) branch[i] = pack(values(gain[i]) * values(branch[i]));
  const Handover next = handover_of(p, ptx::opaque(experts) != 0);
  float4 stream[kFragments];
  pass_gate(p, s, next, row, branch, work, stream);
  if (next.out != nullptr && mine.warp_has()) t.publish(next.publish, blockIdx.x);
  if (experts && p.tap != nullptr) store_tap(p, row, stream);
}

// The gate after the attention or after the experts.
template <class T>
MEGATRACE_DEVICE void boundary(T& t, const Params& p, Shared& s, bool experts) {
  for_rows(p, [&](uint32_t row) {
    auto span =
        t.span(experts ? any<AnySpan>(ev::ffn_boundary{}) : any<AnySpan>(ev::attn_boundary{}));
    boundary_row(t, p, s, boundary_of(p, experts), experts, row);
    workers_sync();
  });
}

}  // namespace muse
