// Attention of a step's rows over the paged keys and values, split over the blocks.
//
// The visible positions are cut into chunks; (chunk, kv head) are the units that blocks share.
// In a block the tensor warps stage 64 keys at a time, and each takes one query head of the
// group: its 16 rows are the rows of the step. The chunks of a (row, head) meet in the
// merge, which a team of warps does.
#pragma once

#include "attention_keys.cuh"

namespace muse {

// Where a chunk's partial of item = row * heads + head lies, in units of what a partial has.
MEGATRACE_DEVICE uint32_t partial_index(const Params& p, uint32_t split, uint32_t item) {
  return split * (p.shape.rows * p.shape.heads) + item;
}

// As float_word, but one instruction: a sum is never kEmpty, for arithmetic makes other NaNs.
MEGATRACE_DEVICE uint32_t sum_word(float v) { return __float_as_uint(v + 0.0f); }

MEGATRACE_DEVICE uint64_t sum_words(float low, float high) {
  return uint64_t{sum_word(high)} << 32 | sum_word(low);
}

// Hands a chunk of a head over. A lane stores what it has: vector 4 k + j of a partial is the
// pairs that lane j has of dims 16 k .. 16 k + 7 and of the eight after them. Of the first `rows`.
MEGATRACE_DEVICE void store_attended(const Params& p, const Attended& a, uint32_t lane,
                                     uint32_t split, uint32_t head, uint32_t rows) {
  float sum[2] = {a.sum[0], a.sum[1]};
#pragma unroll
  for (float& x : sum) {
    x += ptx::shuffle_xor(x, 1);
    x += ptx::shuffle_xor(x, 2);
  }
#pragma unroll
  for (uint32_t half = 0; half < 2; ++half) {
    const uint32_t row = (lane >> 2) + 8 * half, j = lane & 3;
    const uint32_t at = partial_index(p, split, row * p.shape.heads + head);
    if (row >= rows) continue;
    uint4* to = reinterpret_cast<uint4*>(p.handoff.attn_out) + at * (kHeadDim / 4) + j;
#pragma unroll
    for (uint32_t k = 0; k < 4; ++k) {
      const float (&x)[4] = a.out[2 * k], (&y)[4] = a.out[2 * k + 1];
      put(to + 4 * k, make_uint4(sum_word(x[2 * half]), sum_word(x[2 * half + 1]),
                                 sum_word(y[2 * half]), sum_word(y[2 * half + 1])));
    }
    if (j == 0)
      ptx::store_relaxed(reinterpret_cast<uint64_t*>(p.handoff.attn_sum) + at,
                         sum_words(a.maximum[half], sum[half]));
  }
}

// Waits, if it has not yet, until the launch before has ended.
template <class T>
MEGATRACE_DEVICE void wait_for_launch_before(T& t, bool& runs_ahead) {
  if (!runs_ahead) return;
  runs_ahead = false;
  ptx::dependency_wait();
  t.after_dependency();
  t.head();
}

// One chunk of a kv head; the tensor warps. Keys are asked for kStagesHeld - 1 stages ahead.
//
// Where the block runs ahead of the launch before, it goes as far without it as keys of earlier
// steps go. Who rehearses computes on whatever is in the first stage, all hidden, and stores
// nothing: that brings the code into the instruction cache while the first keys are on their way.
// The widening of a stage is rehearsed by those who do it, on one that is not there yet.
template <class Cache, class T>
MEGATRACE_DEVICE void attend_chunk(T& t, const Params& p, Shared& s, const Chunks& c,
                                   uint32_t thread, uint32_t kv_head, uint32_t split,
                                   bool& runs_ahead, bool rehearses) {
  const uint32_t begin = c.first + split * c.keys, end = min(begin + c.keys, c.end);
  KeyStager<Cache> stager(p, thread % (kTensorWarps * 32), kv_head, begin, end);
  const uint32_t group = quotient(p.shape.heads, p.shape.kv_heads);
  const uint32_t warp = thread >> 5, lane = thread & 31, head = kv_head * group + warp;
  const bool attends = rehearses || warp < group;
  uint32_t q[4][4] = {};
  Attended a;
  bool asked = rehearses;                                         // for the queries
  bool first = split * p.shape.kv_heads + kv_head == blockIdx.x;  // of the block
  uint32_t position = begin, ahead = rehearses ? 0 : kStagesHeld - 1;
#pragma unroll 1
  for (;;) {
    const uint32_t next = min(stager.next(), end - 1);
    if (!asked && (ahead == 0 || min(next + kStageKeys, end) > c.context)) {
      wait_for_launch_before(t, runs_ahead);
      if (attends) load_query(q, p, lane, head);
      asked = true;
    }
    if (!rehearses) {
      if (ahead == 0) ptx::fetch_async_wait<kStagesHeld - 2>();
      if (Cache::kBytes == 1 && ahead < 2) {
        const uint32_t turn = (position - begin) / kStageKeys;
        stager.widen(s.work + turn % kStagesHeld * kStagedBytes, ahead == 0);
      }
      if (ahead == 0) tensor_sync();
      if (ahead == 0 && first) reach(s, kKeysHere);
      if (ahead == 0) first = false;
      stager.fetch(s.work);
      if (ahead != 0) {
        --ahead;
        continue;
      }
    }
    const bool last = rehearses || position + kStageKeys >= end;
    if (attends) {
      const uint32_t turn = (position - begin) / kStageKeys;
      attend_stage(a, q, p, c, s.work + turn % kStagesHeld * kStagedBytes, lane,
                   rehearses ? c.end : position);
      if (last) store_attended(p, a, lane, split, head, rehearses ? 0 : p.shape.rows);
    }
    if (last) break;
    position += kStageKeys;
  }
  if (!rehearses) tensor_sync();
}

// The tensor warps; the spare warp rehearses. `runs_ahead`: the launch before may not have ended.
// Says whether this block has keys to attend to.
template <class Cache, class T>
MEGATRACE_DEVICE bool attention(T& t, const Params& p, Shared& s, bool& runs_ahead) {
  const uint32_t thread = ptx::opaque(threadIdx.x), kv_heads = p.shape.kv_heads;
  const bool rehearses = thread >= kTensorWarps * 32;
  if (rehearses && warp_id() != kSpareWarp) return false;
  const Chunks c = attention_chunks(p, static_cast<uint32_t>(*p.context));
  uint32_t unit = blockIdx.x, split = quotient(unit, kv_heads);
  if (c.first + split * c.keys >= c.end) return false;
  auto span = t.span_if(!rehearses, ev::attention{});
#pragma unroll 1
  do {
    attend_chunk<Cache>(t, p, s, c, thread, unit - split * kv_heads, split, runs_ahead, rehearses);
    if (rehearses) return true;
    unit += gridDim.x;
    split = quotient(unit, kv_heads);
  } while (c.first + split * c.keys < c.end);
  if ((thread >> 5) < quotient(p.shape.heads, kv_heads)) t.publish(ev::attn_part{}, blockIdx.x);
  return true;
}

// -- merge -------------------------------------------------------------------------------

// Chunks of one item that a warp has merged: lane l holds vector l % 16 of the even ones of them
// (l < 16) or of the odd ones.
struct Merged {
  float out[4] = {};
  float maximum = kNoMaximum;
  float sum = 0;
};

constexpr uint32_t kMergeVectors = 8;  // a lane asks for at once
constexpr uint32_t kMergeChunks = 2 * kMergeVectors;
constexpr uint32_t kMergedFloats = kHeadDim + 4;  // in shared memory: out, maximum, sum

// A warp's place in the merge of an item: chunks index, index + team, ... are its.
struct Member {
  uint32_t item, index, team;
  uint32_t keys, length;  // chunk i is there if i * keys < length
};

// Asks again for what is missing, bit i for vector i of this lane and the last bit for the sums
// of chunk lane % 16, of the warp's chunks from `first` on. Says whether all is there.
MEGATRACE_DEVICE bool try_chunks(uint32_t& missing, uint4 (&v)[kMergeVectors], uint2& sums,
                                 const Params& p, const Member& m, uint32_t lane, uint32_t first) {
  const uint32_t mine = first + (lane & 15) * m.team, chunk = first + (lane >> 4) * m.team;
  const uint32_t step = partial_index(p, 2 * m.team, 0) * (kHeadDim * 4);
  const char* from = reinterpret_cast<const char*>(p.handoff.attn_out) +
                     (partial_index(p, chunk, m.item) * (kHeadDim * 4) + (lane & 15) * 16);
  if (missing >> kMergeVectors != 0 && mine * m.keys < m.length)
    sums = ptx::load_pair(p.handoff.attn_sum + partial_index(p, mine, m.item) * 2);
#pragma unroll
  for (uint32_t i = 0; i < kMergeVectors; ++i)
    if ((missing & 1u << i) != 0 && (chunk + 2 * i * m.team) * m.keys < m.length)
      v[i] = ptx::load_relaxed(reinterpret_cast<const uint4*>(from + uint64_t{i} * step));
  if (filled(sums.x) && filled(sums.y)) missing &= (1u << kMergeVectors) - 1;
#pragma unroll
  for (uint32_t i = 0; i < kMergeVectors; ++i)
    if (filled(v[i])) missing &= ~(1u << i);
  return missing == 0;
}

// Who owes the first of them that is missing.
MEGATRACE_DEVICE uint32_t missing_producer(uint32_t missing, const Params& p, const Member& m,
                                           uint32_t lane, uint32_t first) {
  const uint32_t bit = static_cast<uint32_t>(__ffs(static_cast<int>(missing))) - 1;
  const uint32_t chunk = bit == kMergeVectors ? lane & 15 : 2 * bit + (lane >> 4);
  const uint32_t zero = zero_after(missing), item = m.item + zero, heads = p.shape.heads + zero;
  return attention_producer(p, item - quotient(item, heads) * heads, heads, first + chunk * m.team);
}

// The next kMergeChunks of the warp's chunks, from `first` on.
template <class T>
MEGATRACE_DEVICE void merge_chunks(T& t, Merged& a, const Params& p, const Member& m, uint32_t lane,
                                   uint32_t first) {
  uint2 sums = make_uint2(__float_as_uint(kNoMaximum), 0);
  uint4 v[kMergeVectors] = {};
  uint32_t missing = (2u << kMergeVectors) - 1;
  if (m.length != 0)
    poll_words(
        t, ev::attn_part_wait{}, [&] { return try_chunks(missing, v, sums, p, m, lane, first); },
        [&] { return missing_producer(missing, p, m, lane, first); });
  float top = __uint_as_float(sums.x);
#pragma unroll
  for (uint32_t mask = 8; mask != 0; mask /= 2) top = fmaxf(top, ptx::shuffle_xor(top, mask));
  const float maximum = fmaxf(a.maximum, top), shrink = ptx::exp2_approx(a.maximum - maximum);
  const float weight = ptx::exp2_approx(__uint_as_float(sums.x) - maximum);
  float sum = weight * __uint_as_float(sums.y);
#pragma unroll
  for (uint32_t mask = 8; mask != 0; mask /= 2) sum += ptx::shuffle_xor(sum, mask);
  a.maximum = maximum;
  a.sum = a.sum * shrink + sum;
#pragma unroll
  for (uint32_t k = 0; k < 4; ++k) a.out[k] *= shrink;
#pragma unroll
  for (uint32_t i = 0; i < kMergeVectors; ++i) {
    const float w = ptx::shuffle(weight, 2 * i + (lane >> 4));
    a.out[0] += w * __uint_as_float(v[i].x);
    a.out[1] += w * __uint_as_float(v[i].y);
    a.out[2] += w * __uint_as_float(v[i].z);
    a.out[3] += w * __uint_as_float(v[i].w);
  }
}

// A team member's share of an item, into shared memory.
template <class T>
MEGATRACE_DEVICE void merge_share(T& t, float* merged, const Params& p, const Member& m,
                                  uint32_t lane) {
  Merged a;
  uint32_t first = m.index;
#pragma unroll 1
  do {
    merge_chunks(t, a, p, m, lane, first);
    first += kMergeChunks * m.team;
  } while (first * m.keys < m.length);
#pragma unroll
  for (uint32_t k = 0; k < 4; ++k) a.out[k] += ptx::shuffle_xor(a.out[k], 16);
  if (lane < 16)
    reinterpret_cast<float4*>(merged)[lane] = make_float4(a.out[0], a.out[1], a.out[2], a.out[3]);
  if (lane == 0) *reinterpret_cast<float2*>(merged + kHeadDim) = make_float2(a.maximum, a.sum);
}

// The team's shares, `stride` floats apart, in order, then norm and gate:
// o = bf(rms(bf(attention)) * sigmoid(gate)). Lane l makes the pair of dims 2l, 2l + 1.
MEGATRACE_DEVICE void finish_head_out(const Params& p, const float* merged, const Member& m,
                                      uint32_t stride, uint32_t lane, uint32_t gate, bool stores) {
  const uint32_t pair = (lane & 24) | (lane & 3) << 1 | (lane >> 2 & 1);
  float maximum = kNoMaximum, sum = 0, x = 0, y = 0;
#pragma unroll 1
  for (uint32_t i = 0; i < m.team; ++i, merged += stride) {
    const float2 share = *reinterpret_cast<const float2*>(merged + kHeadDim);
    const float2 out = *reinterpret_cast<const float2*>(merged + 2 * pair);
    const float top = fmaxf(maximum, share.x);
    const float shrink = ptx::exp2_approx(maximum - top);
    const float weight = ptx::exp2_approx(share.x - top);
    maximum = top;
    sum = sum * shrink + weight * share.y;
    x = x * shrink + weight * out.x;
    y = y * shrink + weight * out.y;
  }
  const float part = reciprocal(sum);
  const uint32_t rounded = ptx::pack_bf16(x * part, y * part);
  x = ptx::bf16_low(rounded);
  y = ptx::bf16_high(rounded);
  const float scale = head_rms_scale(x, y, p.shape.eps_norm);
  const float gx = reciprocal(1 + ptx::exp2_approx(-kLog2e * ptx::bf16_low(gate)));
  const float gy = reciprocal(1 + ptx::exp2_approx(-kLog2e * ptx::bf16_high(gate)));
  const uint32_t word = pair_word(ptx::pack_bf16(x * scale * gx, y * scale * gy));
  if (stores) put(p.handoff.heads + m.item * (kHeadDim / 2) + lane, word);
}

// The shares of the warps lie where later the routing is: neither the staged keys, at which
// tensor warps may still be, nor what the next phase writes are there. So the warps that need
// not finish an item go on, and nobody routes before every block's heads are merged. The math
// warps, which are early, rehearse a merge of nothing: that brings the code into the instruction
// cache.
template <class T>
MEGATRACE_DEVICE void attention_merge(T& t, const Params& p, Shared& s) {
  constexpr uint32_t kWorkerWarps = kWorkers / 32;
  static_assert(sizeof(Routing) >= kWorkerWarps * kMergedFloats * 4, "a share each");
  static_assert(offsetof(Shared, routing) % 16 == 0, "vectors");
  const uint32_t lane = ptx::opaque(ptx::lane_id()), warp = ptx::opaque(warp_id());
  const uint32_t items = p.shape.rows * p.shape.heads;
  const uint32_t begin = quotient(items * blockIdx.x, gridDim.x);
  const uint32_t end = quotient(items * blockIdx.x + items, gridDim.x);
  if (begin == end) return;
  const Chunks c = attention_chunks(p, static_cast<uint32_t>(*p.context));
  const uint32_t at_once = min(end - begin, kWorkerWarps), index = quotient(warp, at_once);
  // No more warps an item than ask for all its chunks at once: each share takes time to add up.
  const uint32_t length = c.end - c.first, chunks = quotient(length + c.keys - 1, c.keys);
  const uint32_t team =
      min(quotient(kWorkerWarps, at_once), quotient(chunks + kMergeChunks - 1, kMergeChunks));
  bool rehearses = warp >= kTensorWarps;
  auto span = t.span_if(rehearses || index < team, ev::attention_merge{});
  const auto members_sync = [&] { ptx::barrier_sync(kMergeBarrier, at_once * team * 32); };
  Member m = {begin + warp - index * at_once, index, team, c.keys, length};
  float* merged = reinterpret_cast<float*>(&s.routing) + warp * kMergedFloats;
  uint32_t left = end - begin;
#pragma unroll 1
  while (rehearses || m.index < team) {
    const Member now = rehearses ? Member{m.item, 0, 1, m.keys, 0} : m;
    const bool mine = now.index < now.team && now.item < end;
    const bool finishes = mine && now.index == 0;
    uint32_t gate = 0;  // asked for early
    if (finishes)
      gate = reinterpret_cast<const uint32_t*>(p.gate)[now.item * (kHeadDim / 2) + lane];
    if (mine) merge_share(t, merged, p, now, lane);
    if (rehearses)
      ptx::syncwarp();
    else
      members_sync();
    if (finishes) finish_head_out(p, merged, now, at_once * kMergedFloats, lane, gate, !rehearses);
    if (!rehearses) {
      if (left <= at_once) break;
      members_sync();
      m.item += at_once;
      left -= at_once;
    }
    ptx::syncwarp();
    rehearses = false;
  }
  if (m.index == 0) t.publish(ev::heads{}, blockIdx.x);
}

}  // namespace muse
