// The layer kernel: its phases, in order. Included by layer.cu, which names the tracer's level.
#pragma once

#include "attention.cuh"
#include "experts.cuh"
#include "gemm.cuh"
#include "qkv_finish.cuh"
#include "route.cuh"
#include "rows.cuh"

namespace muse {

// -- projections -----------------------------------------------------------------------

MEGATRACE_DEVICE Dense o_proj(const Params& p) {
  const uint32_t width = p.shape.heads * kHeadDim;
  return {p.weights.o_proj, p.handoff.heads, p.handoff.o_part, p.shape.hidden, width};
}
MEGATRACE_DEVICE Dense router(const Params& p) {
  return {p.weights.router, p.handoff.x, p.handoff.router_part, p.shape.experts, p.shape.hidden};
}
MEGATRACE_DEVICE Dense pre_proj(const Params& p) {
  return {p.weights.pre_proj, p.handoff.x, p.handoff.pre_part, p.shape.pre_rows, p.shape.hidden};
}
MEGATRACE_DEVICE Dense post_proj(const Params& p) {
  return {p.weights.post_proj, p.handoff.sum, p.handoff.post_part, p.shape.post_rows,
          p.shape.expert_width};
}
MEGATRACE_DEVICE Dense qkv(const Params& p) {
  const uint32_t width = 2 * (p.shape.heads + p.shape.kv_heads) * kHeadDim;
  return {p.weights.next_qkv, p.handoff.a, p.handoff.qkv_part, width, p.shape.hidden};
}

MEGATRACE_DEVICE bool runs(const Params& p, Phase phase) { return p.phases >> phase & 1; }

MEGATRACE_DEVICE bool needs_routing(const Params& p) {
  return runs(p, kExpertsUp) || runs(p, kExpertsDown) || runs(p, kExpertSum);
}

// -- the loader warp -------------------------------------------------------------------

// While the router decides, the memory would idle: bring what comes after the experts closer.
template <class T>
MEGATRACE_DEVICE void prefetch_later(T& t, const Params& p) {
  if (p.l2_bytes == 0) return;
  t.publish(ev::l2_prefetch{}, kPostProj);
  const uint32_t left = prefetch_dense<Bf16Tile>(post_proj(p), p.l2_bytes);
  if (left == 0 || !runs(p, kQkv)) return;
  t.publish(ev::l2_prefetch{}, kQkv);
  prefetch_dense<Bf16Tile>(qkv(p), left);
}

template <class Experts, class T>
MEGATRACE_DEVICE void load_weights(T& t, const Params& p, Shared& s) {
  Loader loader(s);
  if (runs(p, kOProj)) load_dense<Bf16Tile>(t, loader, o_proj(p), kOProj);
  if (runs(p, kRouter)) {
    load_dense<Fp32Tile>(t, loader, router(p), kRouter);
    load_dense<Bf16Tile>(t, loader, pre_proj(p), kRouter);
  }
  if (runs(p, kExpertsUp) || runs(p, kExpertsDown)) {
    loader.wait_for_launch_before(t);
    prefetch_later(t, p);
    const Routing& r = routing(t, s);
    if (runs(p, kExpertsUp)) load_experts<Experts>(t, loader, r, up_matrix(p), kExpertsUp);
    if (runs(p, kExpertsDown)) load_experts<Experts>(t, loader, r, down_matrix(p), kExpertsDown);
  }
  if (runs(p, kPostProj)) load_dense<Bf16Tile>(t, loader, post_proj(p), kPostProj);
  if (runs(p, kQkv)) load_dense<Bf16Tile>(t, loader, qkv(p), kQkv);
  loader.wait_for_launch_before(t);
}

// -- the worker warps ------------------------------------------------------------------

template <int NT, class T>
MEGATRACE_DEVICE void project_heads(T& t, const Params& p, Shared& s, Stages& stages) {
  auto span = t.span(ev::o_proj{});
  dense<NT, Bf16Tile>(t, p, s, stages, o_proj(p), kOProj, ev::heads_wait{},
                      [&](uint32_t row, uint32_t column) {
                        const uint32_t item = row * p.shape.heads + column / kHeadDim;
                        return share_owner(p.shape.rows * p.shape.heads, item);
                      });
  t.publish(ev::o_part{}, blockIdx.x);
}

template <int NT, class T>
MEGATRACE_DEVICE void score_experts(T& t, const Params& p, Shared& s, Stages& stages) {
  auto span = t.span(ev::router{});
  const auto producer = [&](uint32_t row, uint32_t) { return row_owner(p, row); };
  dense<NT, Fp32Tile>(t, p, s, stages, router(p), kRouter, ev::x_wait{}, producer);
  dense<NT, Bf16Tile>(t, p, s, stages, pre_proj(p), kRouter, ev::x_wait{}, producer);
  t.publish(ev::router_part{}, blockIdx.x);
}

template <int NT, class T>
MEGATRACE_DEVICE void project_experts(T& t, const Params& p, Shared& s, Stages& stages) {
  auto span = t.span(ev::post_proj{});
  dense<NT, Bf16Tile>(t, p, s, stages, post_proj(p), kPostProj, ev::expert_row_wait{},
                      [&](uint32_t row, uint32_t) { return row_owner(p, row); });
  t.publish(ev::post_part{}, blockIdx.x);
}

template <int NT, class T>
MEGATRACE_DEVICE void project_qkv(T& t, const Params& p, Shared& s, Stages& stages) {
  auto span = t.span(ev::qkv{});
  dense<NT, Bf16Tile>(t, p, s, stages, qkv(p), kQkv, ev::a_wait{},
                      [&](uint32_t row, uint32_t) { return row_owner(p, row); });
  t.publish(ev::qkv_part{}, blockIdx.x);
}

template <int NT, class Experts, class T>
MEGATRACE_DEVICE void work(T& t, const Params& p, Shared& s) {
  Stages stages(s);
  const bool tensor = warp_id() < kTensorWarps;
  if (runs(p, kEmbed)) embed(t, p, s);
  if (runs(p, kAttention)) attention(t, p, s);
  if (runs(p, kAttentionMerge)) attention_merge(t, p, s);
  if (!tensor) empty_next(p, threadIdx.x - kTensorWarps * 32, kMathWarps * 32);
  if (runs(p, kOProj)) {
    if (tensor) project_heads<NT>(t, p, s, stages);
    workers_sync();
  }
  if (runs(p, kAttnBoundary)) attn_boundary(t, p, s);
  if (runs(p, kRouter)) {
    if (tensor) score_experts<NT>(t, p, s, stages);
    workers_sync();
  }
  if (runs(p, kRoute)) route(t, p, s);
  if (needs_routing(p) && warp_id() == kTensorWarps) make_routing(t, p, s);
  if (runs(p, kExpertsUp)) experts_up<Experts>(t, p, s, stages);
  if (runs(p, kExpertsDown)) experts_down<Experts>(t, p, s, stages);
  if (runs(p, kExpertSum)) {
    routing(t, s);
    expert_sum(t, p, s);
  }
  if (runs(p, kPostProj)) {
    if (tensor) project_experts<NT>(t, p, s, stages);
    workers_sync();
  }
  if (runs(p, kFfnBoundary)) ffn_boundary(t, p, s);
  if (runs(p, kQkv)) {
    if (tensor) project_qkv<NT>(t, p, s, stages);
    workers_sync();
  }
  if (runs(p, kQkvFinish)) qkv_finish(t, p, s);
}

// -- the kernel ------------------------------------------------------------------------

MEGATRACE_DEVICE void make_barriers(Shared& s) {
  for (uint32_t w = 0; w < kTensorWarps; ++w)
    for (uint32_t i = 0; i < kStages; ++i) {
      ptx::mbar_init(&s.full[w][i], 1);
      ptx::mbar_init(&s.empty[w][i], 1);
    }
  ptx::mbar_init(&s.routed, 1);
  ptx::mbar_init_fence();
}

// NT: tensor-core tiles of eight rows each that hold the step's rows.
template <class T, int NT, class Experts>
__global__ void __launch_bounds__(kThreads, 1)
    layer(const __grid_constant__ Params p, const typename T::Params trace) {
  Shared& s = *reinterpret_cast<Shared*>(ptx::dynamic_shared());
  if (threadIdx.x == 0) make_barriers(s);
  __syncthreads();
  ptx::launch_dependents();
  T t(trace);
  if (warp_id() == kLoader) {
    load_weights<Experts>(t, p, s);
    t.end();
  } else {
    ptx::dependency_wait();
    t.after_dependency();
    work<NT, Experts>(t, p, s);
    t.end();
  }
}

}  // namespace muse
