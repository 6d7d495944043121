// Row-wise phases around the experts: which ones a row goes to and with what, and the sum of what
// they say.
#pragma once

#include "rows.cuh"

namespace muse {

// -- top-k -----------------------------------------------------------------------------

constexpr uint32_t kMaxExperts = 256;
// A math warp, the one that makes the routing table next. Tensor warps make the expert input.
constexpr uint32_t kRouterWarp = kTensorWarps;

// Larger float, larger key. 0 is no float's.
MEGATRACE_DEVICE uint32_t order_key(float v) {
  const uint32_t bits = __float_as_uint(v);
  return max(bits & 0x80000000u ? ~bits : bits | 0x80000000u, 1u);
}

// The experts of a lane, in ascending order.
MEGATRACE_DEVICE uint32_t lane_expert(uint32_t i) {
  return (i / 4 * 32 + ptx::lane_id()) * 4 + i % 4;
}

// Lane j gets the expert with the j-th largest key, the lower id where keys are equal.
MEGATRACE_DEVICE uint32_t top_experts(uint32_t (&key)[8], uint32_t top_k) {
  uint32_t chosen = 0;
  for (uint32_t j = 0; j < top_k; ++j) {
    uint32_t best = 0, id = 0;
#pragma unroll
    for (uint32_t i = 0; i < 8; ++i)
      if (key[i] > best) best = key[i], id = lane_expert(i);
    const uint32_t most = __reduce_max_sync(0xffffffffu, best);
    const uint32_t winner = __reduce_min_sync(0xffffffffu, best == most ? id : kEmpty);
#pragma unroll
    for (uint32_t i = 0; i < 8; ++i)
      if (lane_expert(i) == winner) key[i] = 0;
    if (ptx::lane_id() == j) chosen = winner;
  }
  return chosen;
}

// One warp: chooses the row's experts. `chance` has room for kMaxExperts.
template <class T>
MEGATRACE_DEVICE void choose_experts(T& t, const Params& p, float* chance, const Row& row) {
  const uint32_t lane = ptx::lane_id(), experts = p.shape.experts, top_k = p.shape.top_k;
  float bias[8];
#pragma unroll
  for (uint32_t i = 0; i < 8; ++i)
    bias[i] = lane_expert(i) < experts ? p.weights.router_bias[lane_expert(i)] : 0.f;
  sum_slices<OneWarp>(t, ev::router_part_wait{}, p, row, p.handoff.router_part, p.shape.hidden,
                      experts, [&](uint32_t v, const float4& logit) {
                        const float4 x = logit * -p.shape.output_multiplier;
                        reinterpret_cast<float4*>(chance)[v] =
                            make_float4(1.f / (1.f + expf(x.x)), 1.f / (1.f + expf(x.y)),
                                        1.f / (1.f + expf(x.z)), 1.f / (1.f + expf(x.w)));
                      });
  uint32_t key[8];
#pragma unroll
  for (uint32_t i = 0; i < 8; ++i)
    key[i] = lane_expert(i) < experts ? order_key(chance[lane_expert(i)] + bias[i]) : 0;
  const uint32_t id = top_experts(key, top_k);
  if (lane < top_k) put(p.handoff.ids + row.index * top_k + lane, id);
  ptx::syncwarp();
  const float mine = lane < top_k ? chance[id] : 0.f;
  float sum = 0;
  for (uint32_t j = 0; j < top_k; ++j) sum += ptx::shuffle(mine, j);
  if (lane < top_k)
    put(p.handoff.weights + row.index * top_k + lane,
        float_word(mine / (sum + 1e-15f) * p.shape.route_scale));
  t.publish(ev::routes{}, blockIdx.x);
}

// -- expert input ----------------------------------------------------------------------

// Tensor warps: the row's normed pre-expert projection.
template <class T>
MEGATRACE_DEVICE void expert_input(T& t, const Params& p, Shared& s, const Row& row) {
  const uint32_t columns = p.shape.expert_width, vectors = columns / 4;
  uint2* line = reinterpret_cast<uint2*>(s.work);
  uint2* gain = line + vectors;
  for (uint32_t v = row.thread; v < vectors; v += TensorTeam::kSize)
    gain[v] = vectors_of(p.weights.pre_expert_gain)[v];
  projected_row<TensorTeam>(t, ev::router_part_wait{}, p, row, p.handoff.pre_part, p.shape.hidden,
                            p.shape.pre_rows, columns, p.pre_gather, kPreGather,
                            [&](uint32_t v, const uint2& words) { line[v] = words; });
  float sum = 0;
#pragma unroll 4
  for (uint32_t v = row.thread; v < vectors; v += TensorTeam::kSize)
    sum += squares(values(line[v]));
  const float scale =
      rms_scale(team_sum<TensorTeam>(s, sum, row.index & 1), columns, p.shape.eps_norm);
  uint2* out = pair_row(p.handoff.y, row.index, vectors);
#pragma unroll 4
  for (uint32_t v = row.thread; v < vectors; v += TensorTeam::kSize)
    put(out + v, pack(values(line[v]) * scale * values(gain[v])));
  if (row.count<TensorTeam>(vectors) != 0) t.publish(ev::routes{}, blockIdx.x);
}

// Experts and their input are found at the same time. The router warp touches no s.work, and goes
// on as soon as it can.
template <class T>
MEGATRACE_DEVICE void route(T& t, const Params& p, Shared& s) {
  static_assert(kMaxPairs >= kMaxExperts, "chances take the place of ids");
  bool any = false;
  for_rows(p, [&](const Row& row) {
    any = true;
    if (warp_id() == kRouterWarp) {
      auto span = t.span(ev::route{});
      choose_experts(t, p, reinterpret_cast<float*>(s.ids), row);
    } else if (warp_id() < kTensorWarps) {
      auto span = t.span(ev::route{});
      expert_input(t, p, s, row);
    }
  });
  if (any && warp_id() != kRouterWarp) ptx::barrier_sync(kInputBarrier, kWorkers - 32);
}

// -- sum over a row's experts ----------------------------------------------------------

// Of a row, the slots whose experts are on this rank, ascending.
struct Hits {
  uint32_t count;
  uint32_t slot;  // lane i: the i-th of them
  float weight;   // lane j: of slot j
};

template <class T>
MEGATRACE_DEVICE Hits local_hits(T& t, const Params& p, const Row& row) {
  const uint32_t lane = ptx::lane_id(), at = row.index * p.shape.top_k + lane;
  uint32_t id = 0, weight = 0, slot = 0;
  t.poll(ev::routes_wait{}, slot, [&] {
    return try_load(
        slot,
        [&] {
          if (lane >= p.shape.top_k) return true;
          id = ptx::load_relaxed(p.handoff.ids + at);
          weight = ptx::load_relaxed(p.handoff.weights + at);
          return filled(id) && filled(weight);
        },
        [&] { return row_owner(p, row.index); });
  });
  const bool local = lane < p.shape.top_k && id - p.shape.first_expert < p.shape.local_experts;
  const uint32_t hit = ptx::ballot(local);
  uint32_t rest = hit;
  for (uint32_t i = 0; i < lane && i < p.shape.top_k; ++i) rest &= rest - 1;
  ptx::syncwarp();
  return {static_cast<uint32_t>(__popc(hit)),
          static_cast<uint32_t>(__ffs(static_cast<int>(rest)) - 1), __uint_as_float(weight)};
}

// Who hands over down[pair][column] of a row's hits. The routing table tells; it is searched once
// that is asked.
class DownProducer {
 public:
  MEGATRACE_DEVICE DownProducer(const Params& p, const Shared& s, const Hits& hits, const Row& row)
      : p_(p), s_(s), hits_(hits), first_pair_(row.index * p.shape.top_k) {}

  // Called by a whole warp.
  MEGATRACE_DEVICE uint32_t operator()(uint32_t hit, uint32_t column) {
    if (!known_) look_up();
    known_ = true;
    const uint32_t group = ptx::shuffle(group_, ptx::shuffle(hits_.slot, hit));
    const uint32_t tiles = p_.shape.expert_width / 16;
    return share_owner(s_.routing.groups * tiles, group * tiles + column / 16);
  }

 private:
  // Lane j gets the group of slot j, where it is among `hits`.
  MEGATRACE_DEVICE void look_up() {
    const Routing& routing = s_.routing;
    for (uint32_t base = 0; base < routing.groups; base += 32) {
      const uint32_t g = base + ptx::lane_id();
      const uint32_t tokens = g < routing.groups ? routing.group[g].tokens : 0;
      for (uint32_t hit = 0; hit < hits_.count; ++hit) {
        const uint32_t slot = ptx::shuffle(hits_.slot, hit), pair = first_pair_ + slot;
        bool holds = false;
#pragma unroll
        for (uint32_t i = 0; i < kTokens; ++i)
          holds |= i < tokens && routing.group[g].pairs[i] == pair;
        const uint32_t holder = ptx::ballot(holds);
        if (holder != 0 && ptx::lane_id() == slot)
          group_ = base + static_cast<uint32_t>(__ffs(static_cast<int>(holder)) - 1);
      }
    }
  }

  const Params& p_;
  const Shared& s_;
  const Hits& hits_;
  const uint32_t first_pair_;
  uint32_t group_ = 0;
  bool known_ = false;
};

// Shared memory of the sum: words of all hits, then their sums of squares by warp.
struct SumWork {
  uint2* words;    // [hits][h / 4]
  float* squares;  // [hits][kSumWarps]
};
constexpr uint32_t kSumWarps = 12;

MEGATRACE_DEVICE SumWork sum_work(const Params& p, Shared& s) {
  uint2* words = reinterpret_cast<uint2*>(s.work);
  return {words, reinterpret_cast<float*>(words + p.shape.top_k * (p.shape.expert_width / 4))};
}

template <class T>
MEGATRACE_DEVICE void stage_down(T& t, const Params& p, Shared& s, const Hits& hits,
                                 const SumWork& work, const Row& row) {
  const uint32_t vectors = p.shape.expert_width / 4;
  const uint2* down = reinterpret_cast<const uint2*>(p.handoff.down);
  DownProducer producer(p, s, hits, row);
  poll_words<8, uint2>(
      t, ev::down_wait{}, hits.count, row.count<Workers>(vectors),
      [&](uint32_t hit, uint32_t i) -> const uint2* {
        const uint32_t pair = row.index * p.shape.top_k + ptx::shuffle(hits.slot, hit);
        const uint2* line = down + size_t{pair} * vectors;
        return fragment(row, i) < vectors ? line + fragment(row, i) : nullptr;
      },
      [&](uint32_t hit, uint32_t i) { return producer(hit, fragment(row, i) * 4); },
      [&](uint32_t hit, uint32_t i, const uint2& words) {
        if (fragment(row, i) < vectors) work.words[hit * vectors + fragment(row, i)] = words;
      });
}

// This warp's sums of squares of all hits, four at a time.
MEGATRACE_DEVICE void store_squares(const Row& row, const Hits& hits, const SumWork& work,
                                    const uint2 (&gain)[kFragments], uint32_t vectors) {
  for (uint32_t first = 0; first < hits.count; first += 4) {
    float sum[4] = {};
#pragma unroll
    for (uint32_t e = 0; e < 4; ++e) {
      if (first + e >= hits.count) continue;
#pragma unroll
      for (uint32_t i = 0; i < kFragments; ++i)
        if (fragment(row, i) < vectors)
          sum[e] += squares(values(gain[i]) *
                            values(work.words[(first + e) * vectors + fragment(row, i)]));
    }
#pragma unroll
    for (uint32_t mask = 16; mask != 0; mask /= 2)
#pragma unroll
      for (uint32_t e = 0; e < 4; ++e) sum[e] += ptx::shuffle_xor(sum[e], mask);
#pragma unroll
    for (uint32_t e = 0; e < 4; ++e)
      if (ptx::lane_id() == 0 && first + e < hits.count)
        work.squares[(first + e) * kSumWarps + warp_id()] = sum[e];
  }
}

// Adds the weighted norms of all hits up, in slot order.
MEGATRACE_DEVICE void add_experts(const Params& p, const Row& row, const Hits& hits,
                                  const SumWork& work, const uint2 (&gain)[kFragments],
                                  float4 (&sum)[kFragments]) {
  const uint32_t columns = p.shape.expert_width, vectors = columns / 4;
  for (uint32_t hit = 0; hit < hits.count; ++hit) {
    float total = 0;
#pragma unroll
    for (uint32_t w = 0; w < kWorkers / 32; ++w) total += work.squares[hit * kSumWarps + w];
    const float scale = rms_scale(total, columns, p.shape.eps_post);
    const float weight = ptx::shuffle(hits.weight, ptx::shuffle(hits.slot, hit));
#pragma unroll
    for (uint32_t i = 0; i < kFragments; ++i)
      if (fragment(row, i) < vectors)
        sum[i] = sum[i] + values(gain[i]) * values(work.words[hit * vectors + fragment(row, i)]) *
                              scale * weight;
  }
}

template <class T>
MEGATRACE_DEVICE void expert_sum_row(T& t, const Params& p, Shared& s, const Row& row) {
  const uint32_t vectors = p.shape.expert_width / 4;
  const SumWork work = sum_work(p, s);
  uint2 gain[kFragments];
#pragma unroll
  for (uint32_t i = 0; i < kFragments; ++i)
    gain[i] = fragment(row, i) < vectors ? vectors_of(p.weights.post_expert_gain)[fragment(row, i)]
                                         : make_uint2(0, 0);
  const Hits hits = local_hits(t, p, row);
  stage_down(t, p, s, hits, work, row);
  store_squares(row, hits, work, gain, vectors);
  workers_sync();
  float4 sum[kFragments] = {};
  add_experts(p, row, hits, work, gain, sum);

  const bool alone = p.shape.ranks == 1;
  uint2* out = pair_row(p.handoff.sum, row.index, vectors);
#pragma unroll
  for (uint32_t i = 0; i < kFragments; ++i) {
    if (fragment(row, i) >= vectors) continue;
    if (alone)
      put(out + fragment(row, i), pack(sum[i]));
    else
      send(p, p.expert_reduce, row, vectors, fragment(row, i), pack(sum[i]));
  }
  if (!alone)
    receive_sum<Workers>(t, p, p.expert_reduce, kExpertReduce, row, vectors,
                         [&](uint32_t v, const uint2& words) { put(out + v, words); });
  if (row.count<Workers>(vectors) != 0) t.publish(ev::expert_row{}, blockIdx.x);
}

template <class T>
MEGATRACE_DEVICE void expert_sum(T& t, const Params& p, Shared& s) {
  for_rows(p, [&](const Row& row) {
    auto span = t.span(ev::expert_sum{});
    expert_sum_row(t, p, s, row);
    workers_sync();
  });
}

// -- gains and gates -------------------------------------------------------------------

// One warp, early in a launch: asks what all rows multiply by into the L2 cache, once.
template <class T>
MEGATRACE_DEVICE void prefetch_rows(T& t, const Params& p) {
  if (blockIdx.x != row_owner(p, 0)) return;
  t.publish(ev::l2_prefetch{}, kAttnBoundary);
  const LayerWeights& w = p.weights;
  const uint32_t floats = p.shape.hidden * 4, gains = p.shape.hidden * 2;
  const void* at = nullptr;
  uint32_t bytes = 0;
  const auto lane = [&](uint32_t i, const void* weights, uint32_t size) {
    if (ptx::lane_id() == i) at = weights, bytes = size;
  };
  lane(0, w.attn_alpha, floats);
  lane(1, w.attn_beta, floats);
  lane(2, w.ffn_alpha, floats);
  lane(3, w.ffn_beta, floats);
  lane(4, w.pre_ffn_gain, gains);
  lane(5, w.post_ffn_gain, gains);
  lane(6, w.next_input_gain, gains);
  lane(7, w.pre_expert_gain, p.shape.expert_width * 2);
  lane(8, w.post_expert_gain, p.shape.expert_width * 2);
  lane(9, w.router_bias, p.shape.experts * 4);
  if (at != nullptr) ptx::prefetch_l2(at, bytes);
}

}  // namespace muse
