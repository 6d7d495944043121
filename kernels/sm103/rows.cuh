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

// S <- alpha S + beta bf(rms(b)), and what the next projections read of it. b is a projection's
// row, times the gain `inner` if there is one. Told like Dense: both gates can run the same code.
// Asked for where it is needed, as registers are few.
struct Boundary {
  const float *alpha, *beta;
  const uint16_t *inner, *outer;  // outer: the gain of what reads the stream
  Parts parts;
  uint32_t* next;  // null: nothing reads the stream
  AnySpan span;
  AnyWait wait;
  AnyPublish publish;
};

MEGATRACE_DEVICE Boundary boundary_of(const Params& p, uint32_t experts) {
  const LayerWeights& w = p.weights;
  if (ptx::opaque(experts) == 0)
    return {w.attn_alpha,
            w.attn_beta,
            nullptr,
            w.pre_ffn_gain,
            {p.handoff.o_part, p.shape.heads * kHeadDim, p.shape.hidden},
            p.handoff.x,
            any<AnySpan>(ev::attn_boundary{}),
            any<AnyWait>(ev::o_part_wait{}),
            any<AnyPublish>(ev::x{})};
  const bool last = w.next_qkv == nullptr;
  return {w.ffn_alpha,
          w.ffn_beta,
          w.post_ffn_gain,
          last ? w.post_ffn_gain : w.next_input_gain,
          {p.handoff.post_part, p.shape.expert_width, p.shape.post_rows},
          last ? nullptr : p.handoff.a,
          any<AnySpan>(ev::ffn_boundary{}),
          any<AnyWait>(ev::post_part_wait{}),
          any<AnyPublish>(ev::a{})};
}

// Shared memory of a boundary; each vector is one thread's.
struct BoundaryWork {
  float4 stream[kRowVectors];  // alpha S
  uint2 inner[kRowVectors], outer[kRowVectors];
};
static_assert(sizeof(BoundaryWork) <= kWorkBytes, "a row must fit");

// Reads what the wait for the branch hides. What the row does not have is zero.
MEGATRACE_DEVICE void read_ahead(const Params& p, const Boundary& b, uint32_t row,
                                 BoundaryWork& work) {
  const Mine<Workers> mine(p.shape.hidden / 4);
  const float4 *stream = stream_of(p, row) + mine.first, *alpha = vectors_of(b.alpha) + mine.first;
  float4 scaled[kFragments];
  uint2 inner[kFragments] = {}, outer[kFragments];
#pragma unroll
  for (uint32_t i = 0; i < kFragments; ++i)
    scaled[i] = mine.has(i) ? alpha[i * kWorkers] * stream[i * kWorkers] : zeros();
  if (b.inner != nullptr) read_gain(b.inner, mine, inner);
  read_gain(b.outer, mine, outer);
#pragma unroll
  for (uint32_t i = 0; i < kFragments; ++i) {
    work.stream[mine.first + i * kWorkers] = scaled[i];
    work.inner[mine.first + i * kWorkers] = inner[i];
    work.outer[mine.first + i * kWorkers] = outer[i];
  }
}

// Passes the gate with the branch, whose columns no rank misses.
MEGATRACE_DEVICE void pass_gate(const Params& p, Shared& s, const Boundary& b, uint32_t row,
                                const uint2 (&branch)[kFragments], const BoundaryWork& work,
                                float4 (&stream)[kFragments]) {
  const uint32_t columns = p.shape.hidden;
  const Mine<Workers> mine(columns / 4);
  const float per_column = reciprocal(static_cast<float>(columns));
  const float4* from = vectors_of(b.beta) + mine.first;
  float4* out = stream_of(p, row) + mine.first;
  float4 beta[kFragments];
#pragma unroll
  for (uint32_t i = 0; i < kFragments; ++i) {
    beta[i] = mine.has(i) ? from[i * kWorkers] : zeros();  // the sum hides it
    stream[i] = values(branch[i]);
  }
  const float scale =
      rms_scale(team_sum<Workers>(s, squares(stream), 0), per_column, p.shape.eps_post);
#pragma unroll
  for (uint32_t i = 0; i < kFragments; ++i) {
    const uint32_t v = mine.first + i * kWorkers;
    stream[i] = work.stream[v] + beta[i] * rounded(stream[i] * scale);
    if (mine.has(i)) out[i * kWorkers] = stream[i];
  }
  if (b.next == nullptr) return;
  uint2 gain[kFragments];
#pragma unroll
  for (uint32_t i = 0; i < kFragments; ++i) gain[i] = work.outer[mine.first + i * kWorkers];
  put_normed(p, s, mine, stream, per_column, pair_row(b.next, row, columns / 4) + mine.first, gain);
}

// Where the draft reads the stream after this layer, bf16; 8-byte aligned.
MEGATRACE_DEVICE void store_tap(const Params& p, uint32_t row, const float4 (&stream)[kFragments]) {
  const Mine<Workers> mine(p.shape.hidden / 4);
  uint2* tap = reinterpret_cast<uint2*>(p.tap + size_t{row} * p.tap_stride) + mine.first;
#pragma unroll
  for (uint32_t i = 0; i < kFragments; ++i)
    if (mine.has(i)) tap[i * kWorkers] = pack(stream[i]);
}

// The branch, whole: attention adds its ranks' rows up; the projection after the experts may share
// its columns out.
template <class T>
MEGATRACE_DEVICE void read_branch(T& t, const Params& p, const BoundaryWork& work, uint32_t experts,
                                  uint32_t row, uint2 (&branch)[kFragments]) {
  const auto parts = [&] { return boundary_of(p, experts).parts; };
  sum_slices<2, Workers>(t, boundary_of(p, experts).wait, p, row, parts, branch);
  const uint32_t vectors = p.shape.hidden / 4;
  const Mine<Workers> mine(vectors);
  if (experts == 0) {
    if (p.shape.ranks != 1)
      reduce_ranks<2>(t, p, p.attn_reduce, kAttnReduce, row, vectors, mine, branch);
    return;
  }
  if (p.shape.post_rows < p.shape.hidden)
    gather_ranks<Workers>(t, p, p.post_gather, kPostGather, row, p.shape.post_rows / 4, branch);
#pragma unroll
  for (uint32_t i = 0; i < kFragments; ++i)
    branch[i] = pack(values(work.inner[mine.first + i * kWorkers]) * values(branch[i]));
}

// The gate after the attention or after the experts.
template <class T>
MEGATRACE_DEVICE void boundary(T& t, const Params& p, Shared& s, bool after_experts) {
  const uint32_t experts = after_experts;
  for_rows(p, [&](uint32_t row) {
    BoundaryWork& work = *reinterpret_cast<BoundaryWork*>(s.work);
    auto span = t.span(boundary_of(p, experts).span);
    read_ahead(p, boundary_of(p, experts), row, work);
    uint2 branch[kFragments];
    read_branch(t, p, work, experts, row, branch);
    const Boundary b = boundary_of(p, experts);
    float4 stream[kFragments];
    pass_gate(p, s, b, row, branch, work, stream);
    if (b.next != nullptr && Mine<Workers>(p.shape.hidden / 4).warp_has())
      t.publish(b.publish, blockIdx.x);
    if (experts != 0 && p.tap != nullptr) store_tap(p, row, stream);
    workers_sync();
  });
}

}  // namespace muse
