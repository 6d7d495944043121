// Row-wise phases around the residual stream: its beginning, and its two gates a layer. A row is
// one block's, with all its workers.
#pragma once

#include "exchange.cuh"

namespace muse {

// A thread's vectors of a row stay in registers: rows have at most kRowVectors of them.
constexpr uint32_t kFragments = 6, kRowVectors = kFragments * kWorkers;
constexpr uint32_t kMaxHidden = 4 * kRowVectors;

// The thread's vector i, whether the row has it or not.
MEGATRACE_DEVICE uint32_t fragment(const Row& row, uint32_t i) { return row.vector<Workers>(i); }

// Hands over bf(S gain / rms(S)).
template <class Gain>
MEGATRACE_DEVICE void put_normed(const Row& row, const float4 (&stream)[kFragments], float scale,
                                 Gain&& gain, uint2* out, uint32_t vectors) {
#pragma unroll
  for (uint32_t i = 0; i < kFragments; ++i)
    if (fragment(row, i) < vectors)
      put(out + fragment(row, i), pack(stream[i] * scale * values(gain(fragment(row, i)))));
}

MEGATRACE_DEVICE float squares(const float4 (&row)[kFragments]) {
  float sum = 0;
#pragma unroll
  for (uint32_t i = 0; i < kFragments; ++i) sum += squares(row[i]);
  return sum;
}

// -- embedding -------------------------------------------------------------------------

template <class T>
MEGATRACE_DEVICE void embed_row(T& t, const Params& p, Shared& s, const Row& row) {
  const uint32_t columns = p.shape.hidden, vectors = columns / 4;
  const size_t token = static_cast<uint32_t>(p.tokens[row.index]);
  const uint2* embedding = vectors_of(p.embedding + token * columns);
  const uint2* gain = vectors_of(p.weights.next_input_gain);
  float4* out = reinterpret_cast<float4*>(p.stream + size_t{row.index} * columns);
  float4 stream[kFragments];
#pragma unroll
  for (uint32_t i = 0; i < kFragments; ++i)
    stream[i] = fragment(row, i) < vectors ? values(embedding[fragment(row, i)]) : zeros();
  const float first =
      rms_scale(team_sum<Workers>(s, squares(stream), 0), columns, p.shape.eps_norm);
#pragma unroll
  for (uint32_t i = 0; i < kFragments; ++i) {
    stream[i] = rounded(stream[i] * first);
    if (fragment(row, i) < vectors) out[fragment(row, i)] = stream[i];
  }
  const float scale =
      rms_scale(team_sum<Workers>(s, squares(stream), 1), columns, p.shape.eps_norm);
  put_normed(
      row, stream, scale, [&](uint32_t v) { return gain[v]; },
      pair_row(p.handoff.a, row.index, vectors), vectors);
  if (row.count<Workers>(vectors) != 0) t.publish(ev::a{}, blockIdx.x);
}

template <class T>
MEGATRACE_DEVICE void embed(T& t, const Params& p, Shared& s) {
  for_rows(p, [&](const Row& row) {
    auto span = t.span(ev::embed{});
    embed_row(t, p, s, row);
    workers_sync();
  });
}

// -- residual gates --------------------------------------------------------------------

// S <- alpha S + beta bf(rms(b)), and what the next projections read of it: `outer` is null where
// they read nothing. b is a branch, times the gain `inner` if there is one.
struct Boundary {
  const float *alpha, *beta;
  const uint16_t *inner, *outer;
};

// Shared memory of a boundary; each vector is one thread's.
struct BoundaryWork {
  float4 stream[kRowVectors];  // alpha S
  uint2 outer[kRowVectors];
  uint2 branch[kRowVectors];  // inner, then b
};
static_assert(sizeof(BoundaryWork) <= kWorkBytes, "a row must fit");

// Reads all but the branch: the wait for that hides it.
MEGATRACE_DEVICE void read_ahead(const Params& p, const Boundary& boundary, const Row& row,
                                 BoundaryWork& work, float4 (&beta)[kFragments]) {
  const uint32_t vectors = p.shape.hidden / 4;
  const float4* stream = vectors_of(p.stream) + row.index * vectors;
#pragma unroll
  for (uint32_t i = 0; i < kFragments; ++i) {
    const uint32_t v = fragment(row, i);
    beta[i] = zeros();
    if (v >= vectors) continue;
    work.stream[v] = vectors_of(boundary.alpha)[v] * stream[v];
    beta[i] = vectors_of(boundary.beta)[v];
    if (boundary.inner != nullptr) work.branch[v] = vectors_of(boundary.inner)[v];
    if (boundary.outer != nullptr) work.outer[v] = vectors_of(boundary.outer)[v];
  }
}

// Passes the gate with b of work.branch; the new stream is in `stream`.
MEGATRACE_DEVICE void pass_gate(const Params& p, Shared& s, const Row& row,
                                const BoundaryWork& work, const float4 (&beta)[kFragments],
                                float4 (&stream)[kFragments]) {
  const uint32_t columns = p.shape.hidden, vectors = columns / 4;
  float4* out = reinterpret_cast<float4*>(p.stream + size_t{row.index} * columns);
#pragma unroll
  for (uint32_t i = 0; i < kFragments; ++i) {
    stream[i] = fragment(row, i) < vectors ? values(work.branch[fragment(row, i)]) : zeros();
  }
  const float scale =
      rms_scale(team_sum<Workers>(s, squares(stream), 0), columns, p.shape.eps_post);
#pragma unroll
  for (uint32_t i = 0; i < kFragments; ++i) {
    if (fragment(row, i) >= vectors) continue;
    stream[i] = work.stream[fragment(row, i)] + beta[i] * rounded(stream[i] * scale);
    out[fragment(row, i)] = stream[i];
  }
}

// Hands the next input over.
MEGATRACE_DEVICE void put_next(const Params& p, Shared& s, const Row& row, const BoundaryWork& work,
                               const float4 (&stream)[kFragments], uint32_t* next) {
  const uint32_t columns = p.shape.hidden, vectors = columns / 4;
  const float scale =
      rms_scale(team_sum<Workers>(s, squares(stream), 1), columns, p.shape.eps_norm);
  put_normed(
      row, stream, scale, [&](uint32_t v) { return work.outer[v]; },
      pair_row(next, row.index, vectors), vectors);
}

template <class T>
MEGATRACE_DEVICE void attn_boundary_row(T& t, const Params& p, Shared& s, const Row& row) {
  BoundaryWork& work = *reinterpret_cast<BoundaryWork*>(s.work);
  const Boundary boundary{p.weights.attn_alpha, p.weights.attn_beta, nullptr,
                          p.weights.pre_ffn_gain};
  const uint32_t hidden = p.shape.hidden, vectors = hidden / 4;
  const bool alone = p.shape.ranks == 1;
  float4 beta[kFragments];
  read_ahead(p, boundary, row, work, beta);
  sum_slices<Workers, kFragments>(t, ev::o_part_wait{}, p, row, p.handoff.o_part,
                                  p.shape.heads * kHeadDim, hidden,
                                  [&](uint32_t v, const float4& sum) {
                                    if (alone)
                                      work.branch[v] = pack(sum);
                                    else
                                      send(p, p.attn_reduce, row, vectors, v, pack(sum));
                                  });
  if (!alone)
    receive_sum<Workers>(t, p, p.attn_reduce, kAttnReduce, row, vectors,
                         [&](uint32_t v, const uint2& words) { work.branch[v] = words; });
  float4 stream[kFragments];
  pass_gate(p, s, row, work, beta, stream);
  put_next(p, s, row, work, stream, p.handoff.x);
  if (row.count<Workers>(vectors) != 0) t.publish(ev::x{}, blockIdx.x);
}

template <class T>
MEGATRACE_DEVICE void attn_boundary(T& t, const Params& p, Shared& s) {
  for_rows(p, [&](const Row& row) {
    auto span = t.span(ev::attn_boundary{});
    attn_boundary_row(t, p, s, row);
    workers_sync();
  });
}

// Where the draft reads the stream after this layer, bf16; 8-byte aligned.
MEGATRACE_DEVICE void store_tap(const Params& p, const Row& row,
                                const float4 (&stream)[kFragments]) {
  uint2* tap = reinterpret_cast<uint2*>(p.tap + size_t{row.index} * p.tap_stride);
#pragma unroll
  for (uint32_t i = 0; i < kFragments; ++i)
    if (fragment(row, i) < p.shape.hidden / 4) tap[fragment(row, i)] = pack(stream[i]);
}

template <class T>
MEGATRACE_DEVICE void ffn_boundary_row(T& t, const Params& p, Shared& s, const Row& row) {
  BoundaryWork& work = *reinterpret_cast<BoundaryWork*>(s.work);
  const uint32_t hidden = p.shape.hidden;
  const bool last = p.weights.next_qkv == nullptr;
  const Boundary boundary{p.weights.ffn_alpha, p.weights.ffn_beta, p.weights.post_ffn_gain,
                          last ? nullptr : p.weights.next_input_gain};
  float4 beta[kFragments];
  read_ahead(p, boundary, row, work, beta);
  projected_row<Workers, kFragments>(
      t, ev::post_part_wait{}, p, row, p.handoff.post_part, p.shape.expert_width, p.shape.post_rows,
      hidden, p.post_gather, kPostGather, [&](uint32_t v, const uint2& words) {
        work.branch[v] = pack(values(work.branch[v]) * values(words));
      });
  float4 stream[kFragments];
  pass_gate(p, s, row, work, beta, stream);
  if (!last) {
    put_next(p, s, row, work, stream, p.handoff.a);
    if (row.count<Workers>(hidden / 4) != 0) t.publish(ev::a{}, blockIdx.x);
  }
  if (p.tap != nullptr) store_tap(p, row, stream);
}

template <class T>
MEGATRACE_DEVICE void ffn_boundary(T& t, const Params& p, Shared& s) {
  for_rows(p, [&](const Row& row) {
    auto span = t.span(ev::ffn_boundary{});
    ffn_boundary_row(t, p, s, row);
    workers_sync();
  });
}

}  // namespace muse
