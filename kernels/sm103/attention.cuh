// Attention of a step's rows over the paged keys and values, split over the blocks.
//
// The visible positions are cut into chunks; (kv head, chunk) are the units that blocks share.
// In a block all workers stage 64 keys at a time, and a tensor warp takes one query head of
// the group: its 16 rows are the rows of the step. The chunks of a (row, head) meet in the
// merge, which a team of warps does.
#pragma once

#include "attention_keys.cuh"
#include "heads.cuh"

namespace muse {

// Hands a chunk of a head over. Lanes 2m and 2m + 1 trade pairs, so that each stores four dims.
MEGATRACE_DEVICE void store_attended(const Params& p, const Attended& a, uint32_t split,
                                     uint32_t head) {
  const uint32_t g = ptx::lane_id() >> 2, j = ptx::lane_id() & 3, odd = j & 1;
#pragma unroll
  for (uint32_t half = 0; half < 2; ++half) {
    const uint32_t row = g + 8 * half;
    const uint32_t at = partial_row(p, split, head, row);
    float sum = a.sum[half];
    sum += ptx::shuffle_xor(sum, 1);
    sum += ptx::shuffle_xor(sum, 2);
    if (row < p.shape.rows && j == 0) {
      put(p.handoff.attn_sum + 2 * at, float_word(a.maximum[half]));
      put(p.handoff.attn_sum + 2 * at + 1, float_word(sum));
    }
#pragma unroll
    for (uint32_t i = 0; i < 8; i += 2) {
      const float (&even)[4] = a.out[i], (&other)[4] = a.out[i + 1];
      const float x = odd ? other[2 * half] : even[2 * half];
      const float y = odd ? other[2 * half + 1] : even[2 * half + 1];
      const float u = ptx::shuffle_xor(odd ? even[2 * half] : other[2 * half], 1);
      const float v = ptx::shuffle_xor(odd ? even[2 * half + 1] : other[2 * half + 1], 1);
      const uint32_t x0 = float_word(x), y0 = float_word(y), u0 = float_word(u), v0 = float_word(v);
      uint32_t* to = p.handoff.attn_out + at * kHeadDim + (i + odd) * 8 + (j & 2) * 2;
      if (row < p.shape.rows)
        put(reinterpret_cast<uint4*>(to),
            odd ? make_uint4(u0, v0, x0, y0) : make_uint4(x0, y0, u0, v0));
    }
  }
}

// One chunk of a kv head; all workers. `stage` goes on from chunk to chunk, so that one barrier
// a stage keeps readers and writers apart.
MEGATRACE_DEVICE void attend_chunk(const Params& p, Shared& s, const Chunks& c, uint32_t kv_head,
                                   uint32_t split, uint32_t& stage) {
  const uint32_t group = p.shape.heads / p.shape.kv_heads, head = kv_head * group + warp_id();
  const uint32_t begin = c.first + split * c.keys;
  const uint32_t end = begin + c.keys < c.end ? begin + c.keys : c.end;
  KeyStager stager(p, kv_head, begin, end);
  uint32_t q[4][4];
  Attended a;
  if (warp_id() < group) load_query(q, p, head);
  for (uint32_t position = begin; position < end; position += kStageKeys) {
    char* staged = s.work + (stage++ & 1) * kStagedBytes;
    stager.place(staged);
    workers_sync();
    stager.fetch();
    if (warp_id() < group) attend_stage(a, q, p, c, staged, position);
  }
  if (warp_id() < group) store_attended(p, a, split, head);
}

template <class T>
MEGATRACE_DEVICE void attention(T& t, const Params& p, Shared& s) {
  const Chunks c = attention_chunks(p);
  const uint32_t units = p.shape.kv_heads * c.splits;
  const uint32_t begin = share_begin(units, blockIdx.x), end = share_begin(units, blockIdx.x + 1);
  if (begin == end) return;
  auto span = t.span(ev::attention{});
  uint32_t stage = 0;
  for (uint32_t unit = begin; unit < end; ++unit)
    attend_chunk(p, s, c, unit / c.splits, unit % c.splits, stage);
  if (warp_id() < p.shape.heads / p.shape.kv_heads) t.publish(ev::attn_part{}, blockIdx.x);
  workers_sync();
}

// -- merge -------------------------------------------------------------------------------

// Chunks of one (row, head) that a warp has merged. Lane l holds dims 4 (l % 16) .. + 3, of the
// even chunks (l < 16) or of the odd ones.
struct Merged {
  float out[4] = {};
  float maximum = kNoMaximum;
  float sum = 0;
};

constexpr uint32_t kMergeChunks = 16;             // asked for at once
constexpr uint32_t kMergedFloats = kHeadDim + 4;  // in shared memory: out, maximum, sum

// The chunks split .. split + count - 1 of one (row, head), at most kMergeChunks.
struct ChunkRun {
  uint32_t row, head, split, count;
};

// One try at maxima and sums: lane l gets those of chunk l % 16.
MEGATRACE_DEVICE bool try_sums(uint32_t& slot, uint2& sum, const Params& p, const Chunks& c,
                               const ChunkRun& run) {
  const uint32_t i = ptx::lane_id() & 15;
  const uint32_t at = partial_row(p, run.split + i, run.head, run.row);
  return try_load(
      slot,
      [&] {
        sum = make_uint2(0, 0);
        if (i < run.count) sum = ptx::load_pair(p.handoff.attn_sum + 2 * at);
        return filled(sum.x) && filled(sum.y);
      },
      [&] { return attention_producer(p, c, run.head, run.split + i); });
}

// One try at v[i] = this lane's dims of chunk 2 i + l / 16, zero past the run.
MEGATRACE_DEVICE bool try_outs(uint32_t& slot, uint4 (&v)[kMergeChunks / 2], const Params& p,
                               const Chunks& c, const ChunkRun& run) {
  const uint32_t odd = ptx::lane_id() >> 4, step = partial_row(p, 2, 0, 0) * (kHeadDim / 4);
  const uint32_t first =
      partial_row(p, run.split + odd, run.head, run.row) * (kHeadDim / 4) + (ptx::lane_id() & 15);
  uint32_t missing = 0;
  return try_load(
      slot,
      [&] {
        bool here = true;
#pragma unroll
        for (uint32_t i = 0; i < kMergeChunks / 2; ++i) {
          v[i] = make_uint4(0, 0, 0, 0);
          if (2 * i + odd < run.count)
            v[i] = ptx::load_relaxed(reinterpret_cast<const uint4*>(p.handoff.attn_out) + first +
                                     i * step);
        }
#pragma unroll
        for (uint32_t i = 0; i < kMergeChunks / 2; ++i)
          if (!filled(v[i])) here = false, missing = 2 * i + odd;
        return here;
      },
      [&] { return attention_producer(p, c, run.head, run.split + missing); });
}

// The sums are asked for first: few bytes to try again and again while chunks are in the making.
template <class T>
MEGATRACE_DEVICE void merge_run(T& t, Merged& m, const Params& p, const Chunks& c,
                                const ChunkRun& run) {
  uint2 sums;
  uint4 v[kMergeChunks / 2];
  uint32_t slot = 0;
  t.poll(ev::attn_part_wait{}, slot,
         [&] { return try_sums(slot, sums, p, c, run) && try_outs(slot, v, p, c, run); });
  const bool mine = (ptx::lane_id() & 15) < run.count;
  const float my_maximum = mine ? __uint_as_float(sums.x) : kNoMaximum;
  float top = my_maximum;
#pragma unroll
  for (uint32_t mask = 8; mask != 0; mask /= 2) top = fmaxf(top, ptx::shuffle_xor(top, mask));
  const float maximum = fmaxf(m.maximum, top), shrink = ptx::exp2_approx(m.maximum - maximum);
  const float weight = mine ? ptx::exp2_approx(my_maximum - maximum) : 0;
  float sum = weight * __uint_as_float(sums.y);
#pragma unroll
  for (uint32_t mask = 8; mask != 0; mask /= 2) sum += ptx::shuffle_xor(sum, mask);
  m.maximum = maximum;
  m.sum = m.sum * shrink + sum;
#pragma unroll
  for (uint32_t k = 0; k < 4; ++k) m.out[k] *= shrink;
#pragma unroll
  for (uint32_t i = 0; i < kMergeChunks / 2; ++i) {
    const float w = ptx::shuffle(weight, 2 * i + (ptx::lane_id() >> 4));
    m.out[0] += w * __uint_as_float(v[i].x);
    m.out[1] += w * __uint_as_float(v[i].y);
    m.out[2] += w * __uint_as_float(v[i].z);
    m.out[3] += w * __uint_as_float(v[i].w);
  }
}

// A team member's share of the chunks of a (row, head), into shared memory.
template <class T>
MEGATRACE_DEVICE void merge_share(T& t, float* merged, const Params& p, const Chunks& c,
                                  uint32_t item, uint32_t member, uint32_t team) {
  Merged m;
  const uint32_t end = c.splits * (member + 1) / team;
  ChunkRun run = {item / p.shape.heads, item % p.shape.heads, c.splits * member / team, 0};
  for (; run.split < end; run.split += run.count) {
    run.count = end - run.split < kMergeChunks ? end - run.split : kMergeChunks;
    merge_run(t, m, p, c, run);
  }
#pragma unroll
  for (uint32_t k = 0; k < 4; ++k) m.out[k] += ptx::shuffle_xor(m.out[k], 16);
  const uint32_t lane = ptx::lane_id();
  float4* out = reinterpret_cast<float4*>(merged);
  if (lane < 16) out[lane] = make_float4(m.out[0], m.out[1], m.out[2], m.out[3]);
  if (lane == 16) out[16] = make_float4(m.maximum, m.sum, 0, 0);
}

// The team's shares in order, then norm and gate: o = bf(rms(bf(attention)) * sigmoid(gate)).
// Lane l makes the pair of dims 2l, 2l + 1.
MEGATRACE_DEVICE void finish_head_out(const Params& p, const float* merged, uint32_t item,
                                      uint32_t team, uint32_t gate) {
  const uint32_t lane = ptx::lane_id();
  float maximum = kNoMaximum, sum = 0, x = 0, y = 0;
  for (uint32_t i = 0; i < team; ++i)
    maximum = fmaxf(maximum, merged[i * kMergedFloats + kHeadDim]);
  for (uint32_t i = 0; i < team; ++i) {
    const float* share = merged + i * kMergedFloats;
    const float weight = ptx::exp2_approx(share[kHeadDim] - maximum);
    sum += weight * share[kHeadDim + 1];
    x += weight * share[2 * lane];
    y += weight * share[2 * lane + 1];
  }
  x = ptx::round_bf16(x / sum);
  y = ptx::round_bf16(y / sum);
  const float scale = head_rms_scale(x, y, p.shape.eps_norm);
  const float gx = 1 / (1 + expf(-ptx::bf16_low(gate))), gy = 1 / (1 + expf(-ptx::bf16_high(gate)));
  put(p.handoff.heads + item * (kHeadDim / 2) + lane,
      pair_word(ptx::pack_bf16(x * scale * gx, y * scale * gy)));
}

template <class T>
MEGATRACE_DEVICE void attention_merge(T& t, const Params& p, Shared& s) {
  constexpr uint32_t kWorkerWarps = kWorkers / 32;
  const uint32_t items = p.shape.rows * p.shape.heads;
  const uint32_t begin = share_begin(items, blockIdx.x), end = share_begin(items, blockIdx.x + 1);
  if (begin == end) return;
  auto span = t.span(ev::attention_merge{});
  const Chunks c = attention_chunks(p);
  const uint32_t team = end - begin < kWorkerWarps ? kWorkerWarps / (end - begin) : 1;
  const uint32_t teams = kWorkerWarps / team, member = warp_id() % team;
  bool stored = false;
  float* merged = reinterpret_cast<float*>(s.work) + warp_id() * kMergedFloats;
  for (uint32_t first = begin; first < end; first += teams) {
    const uint32_t item = first + warp_id() / team;
    const bool mine = warp_id() < teams * team && item < end;
    uint32_t gate = 0;  // asked for early
    if (mine && member == 0)
      gate = reinterpret_cast<const uint32_t*>(p.gate)[item * (kHeadDim / 2) + ptx::lane_id()];
    if (mine) merge_share(t, merged, p, c, item, member, team);
    workers_sync();
    if (mine && member == 0) {
      finish_head_out(p, merged, item, team, gate);
      stored = true;
    }
    workers_sync();
  }
  if (stored) t.publish(ev::heads{}, blockIdx.x);
}

}  // namespace muse
