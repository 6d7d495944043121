// Row-wise phases around the experts: which ones a row goes to and with what, and the sum of what
// they say.
#pragma once

#include "rows.cuh"

namespace muse {

// -- top-k -----------------------------------------------------------------------------

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
MEGATRACE_DEVICE uint32_t lane_expert(uint32_t lane, uint32_t i) {
  return (i / 4 * 32 + lane) * 4 + i % 4;
}

// Lane j gets the expert with the j-th largest key, the lower id where keys are equal.
MEGATRACE_DEVICE uint32_t top_experts(uint32_t (&key)[8], uint32_t lane, uint32_t top_k) {
  uint32_t chosen = 0;
  for (uint32_t j = 0; j < top_k; ++j) {
    uint32_t best = 0, id = 0;
#pragma unroll
    for (uint32_t i = 0; i < 8; ++i)
      if (key[i] > best) best = key[i], id = lane_expert(lane, i);
    const uint32_t most = __reduce_max_sync(0xffffffffu, best);
    const uint32_t winner = __reduce_min_sync(0xffffffffu, best == most ? id : kEmpty);
#pragma unroll
    for (uint32_t i = 0; i < 8; ++i)
      if (lane_expert(lane, i) == winner) key[i] = 0;
    if (lane == j) chosen = winner;
  }
  return chosen;
}

// A row's router logits, in one warp: lane l has those of experts 4 l .. and 4 (l + 32) ..
template <class T>
MEGATRACE_DEVICE void sum_logits(T& t, const Params& p, uint32_t row, float4 (&logit)[2]) {
  constexpr uint32_t kSlices = 4;  // at once
  const uint32_t lane = ptx::opaque(ptx::lane_id()), vectors = p.shape.experts / 4;
  const uint32_t count = slices(p.shape.hidden);
  const uint4* part = reinterpret_cast<const uint4*>(p.handoff.router_part) + row * vectors + lane;
  logit[0] = logit[1] = zeros();
#pragma unroll 1
  for (uint32_t first = 0; first < count; first += kSlices) {
    uint4 words[2 * kSlices] = {};
    Sources<uint4, 2 * kSlices> from;
#pragma unroll
    for (uint32_t j = 0; j < kSlices; ++j, part += p.shape.rows * vectors)
#pragma unroll
      for (uint32_t half = 0; half < 2; ++half) {
        from.at[2 * j + half] = part + 32 * half;
        from.wanted[2 * j + half] = first + j < count && lane + 32 * half < vectors;
      }
    poll_rows(t, ev::router_part_wait{}, from, words, [&](uint32_t j) {
      return dense_producer(p.shape.hidden, p.shape.experts + zero_after(j), first + j / 2,
                            (lane + j % 2 * 32) * 4);
    });
#pragma unroll
    for (uint32_t j = 0; j < 2 * kSlices; ++j) logit[j % 2] = logit[j % 2] + values(words[j]);
  }
}

// One warp: chooses the row's experts. Their chances lie where the table of experts will be, which
// nobody makes before the last of them is chosen.
template <class T>
MEGATRACE_DEVICE void choose_experts(T& t, const Params& p, Shared& s, uint32_t row) {
  // Opaque, or the compiler keeps what comes of it in registers from launch start.
  const uint32_t lane = ptx::opaque(ptx::lane_id());
  const uint32_t experts = p.shape.experts, top_k = p.shape.top_k;
  float4 bias[2], logit[2];
#pragma unroll
  for (uint32_t i = 0; i < 2; ++i)
    bias[i] =
        lane + i * 32 < experts / 4 ? vectors_of(p.weights.router_bias)[lane + i * 32] : zeros();
  sum_logits(t, p, row, logit);
  static_assert(sizeof(Routing) >= kMaxExperts * 4, "a chance each");
  const float* const chance = reinterpret_cast<const float*>(&s.routing);
  float4* vector = reinterpret_cast<float4*>(&s.routing) + lane;
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
    for (uint32_t j = 0; j < 4; ++j)
      key[i * 4 + j] = lane + i * 32 < experts / 4 ? order_key(each[j]) : 0;
  }
  const uint32_t id = top_experts(key, lane, top_k);
  ptx::syncwarp();
  const float weight = lane < top_k ? chance[id] : 0.f;
  if (lane < top_k) {
    put(p.handoff.ids + row * top_k + lane, id);
    if (p.routes != nullptr) p.routes[row * top_k + lane] = id;
  }
  const float sum = warp_sum(weight);
  if (lane < top_k)
    put(p.handoff.weights + row * top_k + lane,
        float_word(weight / (sum + 1e-15f) * p.shape.route_scale));
  t.publish(ev::routes{}, blockIdx.x);
}

// -- expert input ----------------------------------------------------------------------

// The vectors of a chunk of an expert's row, each one lane's.
struct InputWork {
  uint2 words[kChunkVectors], gain[kChunkVectors];
};

MEGATRACE_DEVICE InputWork& input_work(Shared& s, const Chunk& c) {
  return reinterpret_cast<InputWork*>(s.work)[c.place];
}

// The pre-expert projection, whole.
template <class T>
MEGATRACE_DEVICE void bring_input(T& t, const Params& p, Shared& s, const Chunk& c) {
  const uint32_t columns = p.shape.expert_width, own = p.shape.pre_rows / 4;
  const Parts parts = {p.handoff.pre_part, p.shape.hidden, p.shape.pre_rows};
  const Shard shard = shard_of(p, own, c);
  const bool whole = p.shape.pre_rows == columns;
  uint2 gain = make_uint2(0, 0);
  if (c.mine) gain = vectors_of(p.weights.pre_expert_gain)[c.vector];
  uint2 words = pack(sum_slices<4>(t, ev::router_part_wait{}, p, parts, c.row, shard.vector,
                                   whole ? c.mine : shard.ours));
  if (!whole) words = gather_ranks(t, p, p.pre_gather, kPreGather, own, c, shard, words);
  put_row_sum(t, p.handoff.input_sums + c.row * (columns / kWarpColumns), c,
              squares(values(words)));
  if (!c.mine) return;
  const uint32_t lane = ptx::opaque(ptx::lane_id());  // as RowChunks' thread
  input_work(s, c).words[lane] = words;
  input_work(s, c).gain[lane] = gain;
}

template <class T>
MEGATRACE_DEVICE void hand_over_input(T& t, const Params& p, Shared& s, const Chunk& c) {
  const uint32_t columns = p.shape.expert_width, lane = ptx::opaque(ptx::lane_id());
  const uint32_t* sums = p.handoff.input_sums + c.row * (columns / kWarpColumns);
  const float sum = row_sum(t, p, sums, columns, c);
  const float scale = rms_scale(sum, reciprocal(static_cast<float>(columns)), p.shape.eps_norm);
  if (!c.mine) return;
  const InputWork& work = input_work(s, c);
  put(pair_row(p.handoff.y, c.row, columns / 4) + c.vector,
      pack(values(work.words[lane]) * scale * values(work.gain[lane])));
  t.publish(ev::routes{}, blockIdx.x);
}

// Experts and their input are found at the same time.
template <class T>
MEGATRACE_DEVICE void route(T& t, const Params& p, Shared& s) {
  if (warp_id() == kRouterWarp)
    for_rows(p, [&](uint32_t row) {
      auto span = t.span(ev::route{});
      choose_experts(t, p, s, row);
    });
  const RowChunks chunks(p, p.shape.expert_width);
  auto span = t.span_if(chunks.any(), ev::route{});
  chunks.each([&](const Chunk& c) { bring_input(t, p, s, c); });
  chunks.each([&](const Chunk& c) { hand_over_input(t, p, s, c); });
  // Before other warps write where a warp has its input.
  if (warp_id() < kTensorWarps) tensor_sync();
}

// -- sum over a row's experts ----------------------------------------------------------

// The slots of a row whose experts are on this rank, a bit each. The routing table is made.
MEGATRACE_DEVICE uint32_t local_slots(const Params& p, const Shared& s, const Chunk& c) {
  const uint32_t lane = ptx::opaque(ptx::lane_id()), top_k = p.shape.top_k;
  return ptx::ballot(c.mine && lane < top_k && s.ids[c.row * top_k + lane] < p.shape.local_experts);
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

// What an expert says to a chunk, and its row's sums of squares: four down tiles a vector.
struct ExpertWords {
  uint2 words;
  uint4 squares[2];
};
constexpr uint32_t kSlotsAtOnce = 2;

// Of these slots of a row (kEmpty: of none).
template <class T>
MEGATRACE_DEVICE void bring_experts(T& t, const Params& p, const Shared& s, const Chunk& c,
                                    const uint32_t (&slot)[kSlotsAtOnce],
                                    ExpertWords (&said)[kSlotsAtOnce]) {
  const uint32_t vectors = p.shape.expert_width / 4, sum_vectors = p.shape.expert_width / 64;
  const uint32_t lane = ptx::opaque(ptx::lane_id()), first_pair = c.row * p.shape.top_k;
  uint32_t late_slot = 0, late_column = 0;
  poll_words(
      t, ev::down_wait{},
      [&] {
        bool here = true;
#pragma unroll
        for (uint32_t j = 0; j < kSlotsAtOnce; ++j) {
          if (slot[j] == kEmpty) continue;
          const uint32_t pair = first_pair + slot[j];
          const uint4* squares =
              reinterpret_cast<const uint4*>(p.handoff.down_sums) + pair * sum_vectors;
          said[j].words = load_words(pair_row(p.handoff.down, pair, vectors) + c.vector);
#pragma unroll
          for (uint32_t i = 0; i < 2; ++i)
            if (lane + 32 * i < sum_vectors)
              said[j].squares[i] = load_words(squares + lane + 32 * i);
        }
#pragma unroll
        for (uint32_t j = 0; j < kSlotsAtOnce; ++j) {
          if (slot[j] == kEmpty) continue;
          const bool words = largest(said[j].words) != kEmpty;
          const bool low = largest(said[j].squares[0]) != kEmpty;
          if (words && low && largest(said[j].squares[1]) != kEmpty) continue;
          here = false;
          late_slot = slot[j];
          const uint32_t tile =
              low ? 128 + first_empty(said[j].squares[1]) : first_empty(said[j].squares[0]);
          late_column = words ? (lane * 4 + tile) * 16 : c.vector * 4;
        }
        return here;
      },
      [&] { return down_producer(p, s, first_pair + late_slot, late_column); });
}

// The router weights of a row's local slots, lane j's of slot j. Asked for before the experts are
// waited for, and then long here.
class RouterWeights {
 public:
  MEGATRACE_DEVICE RouterWeights(const Params& p, uint32_t local, const Chunk& c)
      : p_(p), row_(c.row), lane_(ptx::opaque(ptx::lane_id())), mine_(local >> lane_ & 1) {
    ask();
  }
  template <class T>
  MEGATRACE_DEVICE void wait(T& t) {
    poll_asked(
        t, ev::routes_wait{}, [&] { return filled(weight_); }, [&] { ask(); },
        [&] { return row_owner(p_, row_); });
  }
  MEGATRACE_DEVICE float of(uint32_t slot) const {
    return __uint_as_float(ptx::shuffle(weight_, slot & 31));
  }

 private:
  MEGATRACE_DEVICE void ask() {
    if (mine_) weight_ = ptx::load_relaxed(p_.handoff.weights + row_ * p_.shape.top_k + lane_);
  }

  const Params& p_;
  const uint32_t row_, lane_;
  const bool mine_;
  uint32_t weight_ = 0;
};

// Each slot's row by its router weight over its rms, summed over slots and ranks.
template <class T>
MEGATRACE_DEVICE void hand_over_sum(T& t, const Params& p, Shared& s, const Chunk& c) {
  const uint32_t columns = p.shape.expert_width, local = local_slots(p, s, c);
  const float per_column = reciprocal(static_cast<float>(columns));
  uint2 gain = make_uint2(0, 0);
  if (c.mine) gain = vectors_of(p.weights.post_expert_gain)[c.vector];
  RouterWeights weights(p, local, c);
  PeerVectors peers(p, p.expert_reduce, columns / 4, c, true);
  float4 sum = zeros();
  uint32_t rest = local;
#pragma unroll 1
  do {  // at least once: the math warps rehearse
    const uint32_t others = rest & (rest - 1);
    const uint32_t slot[] = {rest != 0 ? lowest(rest) : kEmpty,
                             others != 0 ? lowest(others) : kEmpty};
    ExpertWords said[kSlotsAtOnce] = {};
    bring_experts(t, p, s, c, slot, said);
    weights.wait(t);
#pragma unroll
    for (uint32_t j = 0; j < kSlotsAtOnce; ++j) {
      const float4 squares = values(said[j].squares[0]) + values(said[j].squares[1]);
      const float of_row = warp_sum((squares.x + squares.y) + (squares.z + squares.w));
      const float scale = rms_scale(of_row, per_column, p.shape.eps_post);
      sum = sum + values(said[j].words) * (scale * weights.of(slot[j]));
    }
    rest = others & (others - 1);
  } while (rest != 0);
  uint2 words = pack(sum * values(gain));
  if (p.shape.ranks != 1) words = peers.reduce(t, kExpertReduce, words);
  if (!c.mine) return;
  put(pair_row(p.handoff.sum, c.row, columns / 4) + c.vector, words);
  t.publish(ev::expert_row{}, blockIdx.x);
}

template <class T>
MEGATRACE_DEVICE void expert_sum(T& t, const Params& p, Shared& s) {
  const RowChunks chunks(p, p.shape.expert_width);
  {
    auto span = t.span_if(chunks.any(), ev::expert_sum{});
    chunks.each([&](const Chunk& c) { hand_over_sum(t, p, s, c); });
  }
  if (warp_id() < kTensorWarps) tensor_sync();
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
