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

// To the last bit or two, in few instructions.
MEGATRACE_DEVICE float sigmoid(float v) {
  const float sum = 1.f + expf(v < -80.f ? 80.f : -v);
  const float part = reciprocal(sum);
  return part * (2.f - sum * part);
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
MEGATRACE_DEVICE void choose_experts(T& t, const Params& p, float* chance, uint32_t row) {
  const uint32_t lane = ptx::lane_id(), experts = p.shape.experts, top_k = p.shape.top_k;
  const Mine<OneWarp> mine(experts / 4);
  float4 bias[2], logit[2];
#pragma unroll
  for (uint32_t i = 0; i < 2; ++i)
    bias[i] = mine.has(i) ? vectors_of(p.weights.router_bias)[lane + i * 32] : zeros();
  sum_slices<4, OneWarp>(
      t, ev::router_part_wait{}, p, row,
      [&] { return Parts{p.handoff.router_part, p.shape.hidden, p.shape.experts}; }, logit);
  float4* vector = reinterpret_cast<float4*>(chance) + lane;
  vector[0] = logit[0];
  vector[32] = logit[1];
#pragma unroll 1
  for (uint32_t i = 0; i < 64; i += 32) {
    const float4 x = vector[i] * p.shape.output_multiplier;
    vector[i] = make_float4(sigmoid(x.x), sigmoid(x.y), sigmoid(x.z), sigmoid(x.w));
  }
  uint32_t key[8];
#pragma unroll
  for (uint32_t i = 0; i < 2; ++i) {
    const float4 sum = vector[i * 32] + bias[i];
    const float each[4] = {sum.x, sum.y, sum.z, sum.w};
#pragma unroll
    for (uint32_t j = 0; j < 4; ++j) key[i * 4 + j] = mine.has(i) ? order_key(each[j]) : 0;
  }
  const uint32_t id = top_experts(key, top_k);
  if (lane < top_k) {
    put(p.handoff.ids + row * top_k + lane, id);
    if (p.routes != nullptr) p.routes[row * top_k + lane] = id;
  }
  ptx::syncwarp();
  const float weight = lane < top_k ? chance[id] : 0.f;
  const float sum = warp_sum(weight);
  if (lane < top_k)
    put(p.handoff.weights + row * top_k + lane,
        float_word(weight / (sum + 1e-15f) * p.shape.route_scale));
  t.publish(ev::routes{}, blockIdx.x);
}

// -- expert input ----------------------------------------------------------------------

// Vectors of a row of kMaxWidth columns that a thread has.
constexpr uint32_t kMaxWidth = 4096;
constexpr uint32_t kInputVectors = kMaxWidth / 4 / TensorTeam::kSize;
constexpr uint32_t kSumVectors = (kMaxWidth / 4 + kWorkers - 1) / kWorkers;

// Tensor warps: the row's normed pre-expert projection.
template <class T>
MEGATRACE_DEVICE void expert_input(T& t, const Params& p, Shared& s, uint32_t row) {
  const uint32_t columns = p.shape.expert_width, vectors = columns / 4;
  const Mine<TensorTeam> mine(vectors);
  const float per_column = reciprocal(static_cast<float>(columns));
  uint2 gain[kInputVectors], words[kInputVectors];
#pragma unroll
  for (uint32_t i = 0; i < kInputVectors; ++i)
    gain[i] = mine.has(i) ? vectors_of(p.weights.pre_expert_gain)[mine.first + i * mine.kSize]
                          : make_uint2(0, 0);
  sum_slices<2, TensorTeam>(
      t, ev::router_part_wait{}, p, row,
      [&] { return Parts{p.handoff.pre_part, p.shape.hidden, p.shape.pre_rows}; }, words);
  if (p.shape.pre_rows < columns)
    gather_ranks<TensorTeam>(t, p, p.pre_gather, kPreGather, row, p.shape.pre_rows / 4, words);
  float4 x[kInputVectors];
#pragma unroll
  for (uint32_t i = 0; i < kInputVectors; ++i) x[i] = values(words[i]);
  const float scale =
      rms_scale(team_sum<TensorTeam>(s, squares(x), row & 1), per_column, p.shape.eps_norm);
  uint2* out = pair_row(p.handoff.y, row, vectors) + mine.first;
#pragma unroll
  for (uint32_t i = 0; i < kInputVectors; ++i)
    put_if(mine.has(i), out + i * mine.kSize, pack(x[i] * scale * values(gain[i])));
  if (mine.warp_has()) t.publish(ev::routes{}, blockIdx.x);
}

// Experts and their input are found at the same time. Neither touches s.work: each warp goes on
// as soon as it can.
template <class T>
MEGATRACE_DEVICE void route(T& t, const Params& p, Shared& s) {
  static_assert(kMaxPairs >= kMaxExperts, "chances take the place of ids");
  for_rows(p, [&](uint32_t row) {
    if (warp_id() > kRouterWarp) return;
    auto span = t.span(ev::route{});
    if (warp_id() == kRouterWarp)
      choose_experts(t, p, reinterpret_cast<float*>(s.ids), row);
    else
      expert_input(t, p, s, row);
  });
}

// -- sum over a row's experts ----------------------------------------------------------

// Shared memory of the sum, by slot: words, and their sums of squares by warp.
struct SumWork {
  uint2* words;    // [slots][h / 4]
  float* squares;  // [slots][kSumWarps]
};
constexpr uint32_t kSumWarps = 12;

MEGATRACE_DEVICE SumWork sum_work(const Params& p, Shared& s) {
  uint2* words = reinterpret_cast<uint2*>(s.work);
  return {words, reinterpret_cast<float*>(words + p.shape.top_k * (p.shape.expert_width / 4))};
}

// The slots of a row whose experts are on this rank, a bit each. The routing table is made.
MEGATRACE_DEVICE uint32_t local_slots(const Params& p, const Shared& s, uint32_t row) {
  const uint32_t lane = ptx::lane_id(), top_k = p.shape.top_k;
  return ptx::ballot(lane < top_k && s.ids[row * top_k + lane] < p.shape.local_experts);
}

MEGATRACE_DEVICE uint32_t lowest(uint32_t slots) {
  return static_cast<uint32_t>(__ffs(static_cast<int>(slots))) - 1;
}

// Who hands over down[pair][column].
MEGATRACE_DEVICE uint32_t down_producer(const Params& p, const Shared& s, uint32_t pair,
                                        uint32_t column) {
  const Routing& routing = s.routing;
  const uint32_t tiles = p.shape.expert_width / 16, key = s.ids[pair] << 8 | pair;
  uint32_t group = 0;  // the last that begins with this pair or one before
#pragma unroll 1
  for (uint32_t step = kMaxPairs / 2; step != 0; step /= 2) {
    const uint32_t next = min(group + step, kMaxPairs - 1);
    const Group& g = routing.group[next];
    if (next < routing.groups && (uint32_t{g.expert} << 8 | g.pairs[0]) <= key) group = next;
  }
  return share_owner(routing.groups * tiles, group * tiles + column / 16);
}

// Brings the rows of all local slots into shared memory, kSlots at a time.
template <class T>
MEGATRACE_DEVICE void stage_down(T& t, const Params& p, const Shared& s, uint32_t local,
                                 const SumWork& work, uint32_t row, const Mine<Workers>& mine) {
  constexpr uint32_t kSlots = 4;
  const uint32_t vectors = p.shape.expert_width / 4, first_pair = row * p.shape.top_k;
  const uint2* down = pair_row(p.handoff.down, first_pair, vectors) + mine.first;
  uint2 words[kSlots][kSumVectors] = {};
#pragma unroll 1
  for (uint32_t rest = local; rest != 0;) {
    Sources<uint2, kSlots> from;
    uint32_t slot[kSlots];
#pragma unroll
    for (uint32_t j = 0; j < kSlots; ++j) {
      slot[j] = rest != 0 ? lowest(rest) : 0;
      from.at[j] = down + slot[j] * vectors;
      from.left[j] = rest != 0 ? mine.left : 0;
      rest &= rest - 1;
    }
    poll_rows<kWorkers>(t, ev::down_wait{}, from, words, [&](uint32_t j, uint32_t i) {
      const uint32_t at = j == 0 ? slot[0] : j == 1 ? slot[1] : j == 2 ? slot[2] : slot[3];
      return down_producer(p, s, first_pair + at, (mine.first + i * kWorkers) * 4);
    });
#pragma unroll
    for (uint32_t j = 0; j < kSlots; ++j)
#pragma unroll
      for (uint32_t i = 0; i < kSumVectors; ++i)
        if (static_cast<int32_t>(i * kWorkers) < from.left[j])
          work.words[slot[j] * vectors + mine.first + i * kWorkers] = words[j][i];
  }
}

// Lane j: what slot j's row is multiplied by, its router weight over its rms.
template <class T>
MEGATRACE_DEVICE float slot_scale(T& t, const Params& p, uint32_t local, const SumWork& work,
                                  uint32_t row, uint32_t weight) {
  const uint32_t lane = ptx::lane_id();
  const bool mine = local >> lane & 1;
  uint32_t slot = 0;
  t.poll(ev::routes_wait{}, slot, [&] {
    return try_load(
        slot,
        [&] {
          if (mine && !filled(weight))
            weight = ptx::load_relaxed(p.handoff.weights + row * p.shape.top_k + lane);
          return !mine || filled(weight);
        },
        [&] { return row_owner(p, row); });
  });
  float total = 0;
  if (mine)
#pragma unroll
    for (uint32_t w = 0; w < kWorkers / 32; ++w) total += work.squares[lane * kSumWarps + w];
  return rms_scale(total, reciprocal(static_cast<float>(p.shape.expert_width)), p.shape.eps_post) *
         __uint_as_float(weight);
}

template <class T>
MEGATRACE_DEVICE void expert_sum_row(T& t, const Params& p, Shared& s, uint32_t row) {
  const uint32_t vectors = p.shape.expert_width / 4, lane = ptx::lane_id();
  const Mine<Workers> mine(vectors);
  const SumWork work = sum_work(p, s);
  const uint32_t local = local_slots(p, s, row);
  uint32_t weight = 0;
  if (local >> lane & 1) weight = ptx::load_relaxed(p.handoff.weights + row * p.shape.top_k + lane);
  float4 gain[kSumVectors], sum[kSumVectors];
  // Without a branch a vector: what a thread does not have is read of another, times 0.
  uint32_t at[kSumVectors];
#pragma unroll
  for (uint32_t i = 0; i < kSumVectors; ++i) {
    at[i] = mine.has(i) ? mine.first + i * kWorkers : mine.has(0) ? mine.first : 0;
    gain[i] = values(vectors_of(p.weights.post_expert_gain)[at[i]]);
    if (!mine.has(i)) gain[i] = zeros();
    sum[i] = zeros();
  }
  stage_down(t, p, s, local, work, row, mine);
#pragma unroll 1
  for (uint32_t rest = local; rest != 0; rest &= rest - 1) {
    const uint32_t slot = lowest(rest);
    float square = 0;
#pragma unroll
    for (uint32_t i = 0; i < kSumVectors; ++i)
      square += squares(values(work.words[slot * vectors + at[i]]) * gain[i]);
    square = warp_sum(mine.has(0) ? square : 0.f);
    if (lane == 0) work.squares[slot * kSumWarps + warp_id()] = square;
  }
  workers_sync();
  const float scales = slot_scale(t, p, local, work, row, weight);
#pragma unroll 1
  for (uint32_t rest = local; rest != 0; rest &= rest - 1) {
    const uint32_t slot = lowest(rest);
    const float scale = ptx::shuffle(scales, slot);
#pragma unroll
    for (uint32_t i = 0; i < kSumVectors; ++i)
      sum[i] = sum[i] + values(work.words[slot * vectors + at[i]]) * scale;
  }
  uint2 words[kSumVectors];
#pragma unroll
  for (uint32_t i = 0; i < kSumVectors; ++i) words[i] = pack(sum[i] * gain[i]);
  if (p.shape.ranks != 1)
    reduce_ranks<4>(t, p, p.expert_reduce, kExpertReduce, row, vectors, mine, words);
  uint2* out = pair_row(p.handoff.sum, row, vectors) + mine.first;
#pragma unroll
  for (uint32_t i = 0; i < kSumVectors; ++i) put_if(mine.has(i), out + i * kWorkers, words[i]);
  if (mine.warp_has()) t.publish(ev::expert_row{}, blockIdx.x);
}

template <class T>
MEGATRACE_DEVICE void expert_sum(T& t, const Params& p, Shared& s) {
  for_rows(p, [&](uint32_t row) {
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
