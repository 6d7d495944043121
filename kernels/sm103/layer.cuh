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

template <class Span, class Wait, class Publish>
MEGATRACE_DEVICE Dense projection(Phase phase, const char* weights, const uint32_t* in,
                                  uint32_t* out, uint32_t n, uint32_t k, Span span, Wait wait,
                                  Publish publish) {
  Dense d;
  d.phase = phase;
  d.weights = weights;
  d.in = in;
  d.out = out;
  d.n = n;
  d.k = k;
  d.in_heads = 0;
  d.fp32 = false;
  d.moment = kAnyMoment;
  d.first_stages = 0;
  d.span = any<AnySpan>(span);
  d.wait = any<AnyWait>(wait);
  d.publish = any<AnyPublish>(publish);
  return d;
}

MEGATRACE_DEVICE Dense o_proj(const Params& p) {
  Dense d = projection(kOProj, p.weights.o_proj, p.handoff.heads, p.handoff.o_part, p.shape.hidden,
                       p.shape.heads * kHeadDim, ev::o_proj{}, ev::heads_wait{}, ev::o_part{});
  d.in_heads = p.shape.heads;
  d.moment = kKeysHere;
  d.first_stages = 1;
  return d;
}
MEGATRACE_DEVICE Dense router(const Params& p) {
  Dense d =
      projection(kRouter, p.weights.router, p.handoff.x, p.handoff.router_part, p.shape.experts,
                 p.shape.hidden, ev::router{}, ev::x_wait{}, ev::router_part{});
  d.fp32 = true;
  return d;
}
MEGATRACE_DEVICE Dense pre_proj(const Params& p) {
  Dense d =
      projection(kRouter, p.weights.pre_proj, p.handoff.x, p.handoff.pre_part, p.shape.pre_rows,
                 p.shape.hidden, ev::router{}, ev::x_wait{}, ev::router_part{});
  d.moment = kRouterInputHere;
  return d;
}
MEGATRACE_DEVICE Dense post_proj(const Params& p) {
  return projection(kPostProj, p.weights.post_proj, p.handoff.sum, p.handoff.post_part,
                    p.shape.post_rows, p.shape.expert_width, ev::post_proj{}, ev::expert_row_wait{},
                    ev::post_part{});
}
MEGATRACE_DEVICE Dense qkv(const Params& p) {
  const uint32_t width = 2 * (p.shape.heads + p.shape.kv_heads) * kHeadDim;
  return projection(kQkv, p.weights.next_qkv, p.handoff.a, p.handoff.qkv_part, width,
                    p.shape.hidden, ev::qkv{}, ev::a_wait{}, ev::qkv_part{});
}

// The bf16 projections of a launch, in order.
constexpr uint32_t kProjections = 4;
MEGATRACE_DEVICE Dense projection_of(const Params& p, uint32_t i) {
  switch (i) {
    case 0:
      return o_proj(p);
    case 1:
      return pre_proj(p);
    case 2:
      return post_proj(p);
    default:
      return qkv(p);
  }
}

// The router comes before the second of them and reads the same input: `part` 0 is the router.
MEGATRACE_DEVICE uint32_t first_part(uint32_t i) { return i == 1 ? 0 : 1; }
MEGATRACE_DEVICE Dense projection_part(const Params& p, uint32_t i, uint32_t part) {
  return part == 0 ? router(p) : projection_of(p, i);
}

MEGATRACE_DEVICE bool runs(const Params& p, Phase phase) { return p.phases >> phase & 1; }

MEGATRACE_DEVICE bool needs_routing(const Params& p) {
  return runs(p, kExpertsUp) || runs(p, kExpertsDown) || runs(p, kExpertSum);
}

// -- the loader warp -------------------------------------------------------------------

template <class Experts, class T>
MEGATRACE_DEVICE void load_all_experts(T& t, Loader& loader, const Params& p, Shared& s) {
  loader.wait_for_launch_before(t);
#pragma unroll 1
  for (uint32_t down = 0; down < 2; ++down) {
    const ExpertMatrix m = expert_matrix(p, down != 0);
    if (runs(p, m.phase)) load_experts<Experts>(t, loader, s, m);
  }
}

template <class Experts, class T>
MEGATRACE_DEVICE void load_weights(T& t, const Params& p, Shared& s) {
  Loader loader(s);
#pragma unroll 1
  for (uint32_t i = 0; i < kProjections; ++i) {
    if (i == 2 && (runs(p, kExpertsUp) || runs(p, kExpertsDown)))
      load_all_experts<Experts>(t, loader, p, s);
    if (!runs(p, projection_of(p, i).phase)) continue;
#pragma unroll 1
    for (uint32_t part = first_part(i); part < 2; ++part)
      load_dense(t, loader, projection_part(p, i, part));
  }
  loader.wait_for_launch_before(t);
}

// -- the worker warps ------------------------------------------------------------------

template <int NT, class T>
MEGATRACE_DEVICE void project(T& t, const Params& p, Shared& s, Stages& stages, uint32_t i,
                              bool rehearses) {
  if (!rehearses && warp_id() >= kTensorWarps) return;
  auto span = t.span_if(!rehearses, projection_of(p, i).span);
  Operand<NT> x = {};
  uint32_t held = kNoSlice;
#pragma unroll 1
  for (uint32_t part = first_part(i); part < 2; ++part)
    dense<NT>(t, p, s, stages, projection_part(p, i, part), x, held, rehearses);
  if (!rehearses) t.publish(projection_of(p, i).publish, blockIdx.x);
}

template <class Cache, class T>
MEGATRACE_DEVICE void attend(T& t, const Params& p, Shared& s) {
  // From the third launch of a step on, a block may read what the step does not write before the
  // launch before has ended: context, slots, keys of earlier steps. A launch fills the GPU, so the
  // first launch has long waited for all that came before the step.
  bool runs_ahead = true;
  if (p.early == 0) wait_for_launch_before(t, runs_ahead);
  const bool attends = runs(p, kAttention) && attention<Cache>(t, p, s, runs_ahead);
  wait_for_launch_before(t, runs_ahead);
  if (!attends) reach(s, kKeysHere);
  if (runs(p, kAttentionMerge)) attention_merge(t, p, s);
  // Opaque, or the compiler computes its addresses at launch start.
  if (warp_id() >= kTensorWarps)
    empty_next(p, ptx::opaque(threadIdx.x) - kTensorWarps * 32, kMathWarps * 32);
  if (warp_id() == kTableWarp && runs(p, kAttnBoundary)) prefetch_rows(t, p);
}

template <class Experts, class T>
MEGATRACE_DEVICE void feed_experts(T& t, const Params& p, Shared& s, Stages& stages) {
  if (runs(p, kRoute)) route(t, p, s);
  if (needs_routing(p) && warp_id() == kTableWarp) make_routing(t, p, s);
#pragma unroll 1
  for (uint32_t down = 0; down < 2; ++down) {
    const ExpertMatrix m = expert_matrix(p, down != 0);
    if (runs(p, m.phase)) run_experts<Experts>(t, p, s, stages, m);
  }
  if (runs(p, kExpertSum)) {
    routing(t, s);
    expert_sum(t, p, s);
  }
}

// The gate before projection i, if there is one. Math warps that pass the first rehearse it.
MEGATRACE_DEVICE uint32_t branch_of(const Params& p, uint32_t i) {
  return i < 2 ? kAttended : runs(p, kEmbed) ? kEmbedded : kFed;
}
MEGATRACE_DEVICE bool passes_gate(const Params& p, uint32_t i) {
  if (i == 0) return runs(p, kAttnBoundary) && warp_id() == kRouterWarp;
  if (i == 1) return runs(p, kAttnBoundary);
  return i == 3 && (runs(p, kEmbed) || runs(p, kFfnBoundary));
}

// What comes between projections, then the projection: in a loop, so that all of them are the
// same code: what a launch runs must fit the 128 KB of code that an SM keeps from launch to launch
// (tests/bench/bench_code_cache.py), and branching code that no warp ran just before costs ten to
// twenty cycles an instruction, as this kernel's own records say. The math warps, which have
// nothing else to do yet, rehearse first of all: one a gate, one a projection (turn 0), one the
// attention.
template <int NT, class Experts, class Cache, class T>
MEGATRACE_DEVICE void work(T& t, const Params& p, Shared& s) {
  Stages stages(s);
#pragma unroll 1
  for (uint32_t turn = warp_id() == kTableWarp ? 0 : 1; turn <= kProjections; ++turn) {
    const bool rehearses = turn == 0;
    const uint32_t i = rehearses ? 1 : turn - 1;
    if (!rehearses) {
      if (passes_gate(p, i)) boundary(t, p, s, branch_of(p, i));
      if (i == 0) attend<Cache>(t, p, s);
      if (i == 2) feed_experts<Experts>(t, p, s, stages);
    }
    // Opaque, or the compiler keeps in registers what it says of the projection, from turn start.
    const uint32_t now = ptx::opaque(i);
    if (runs(p, projection_of(p, now).phase)) project<NT>(t, p, s, stages, now, turn == 0);
  }
  if (runs(p, kQkvFinish)) qkv_finish<Cache>(t, p, s);
}

// -- the kernel ------------------------------------------------------------------------

MEGATRACE_DEVICE void make_barriers(Shared& s) {
  for (uint32_t w = 0; w < kTensorWarps; ++w)
    for (uint32_t i = 0; i < kStages; ++i) {
      ptx::mbar_init(&s.full[w][i], 1);
      ptx::mbar_init(&s.empty[w][i], 1);
    }
  ptx::mbar_init(&s.routed, 1);
  for (uint64_t& moment : s.moment) ptx::mbar_init(&moment, 1);
  ptx::mbar_init_fence();
}

// NT: tensor-core tiles of eight rows each that hold the step's rows.
template <class T, int NT, class Experts, class Cache>
__global__ void __launch_bounds__(kThreads, 1)
    layer(const __grid_constant__ Params p, const typename T::Params trace) {
  Shared& s = *reinterpret_cast<Shared*>(ptx::dynamic_shared());
  megatrace::Launch<T> launch(trace);
  if (threadIdx.x == 0) make_barriers(s);
  __syncthreads();
  ptx::launch_dependents();
  launch.run([&](auto& t) {
    if (warp_id() == kLoader) {
      load_weights<Experts>(t, p, s);
      t.end();
    } else {
      work<NT, Experts, Cache>(t, p, s);
      t.end();
    }
  });
}

}  // namespace muse
