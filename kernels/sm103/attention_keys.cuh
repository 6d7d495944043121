// Attention of a step's rows over a chunk of paged keys and values: how the keys are cut, staged
// and summed. Maxima and scores live in the log2 domain.
#pragma once

#include <cmath>

#include "handoff.cuh"

namespace muse {

constexpr uint32_t kStageKeys = 64;
constexpr uint32_t kKeyVectors = kHeadDim * 2 / 16;  // 16 bytes each, of a key and head
constexpr uint32_t kKeyStride = kHeadDim * 2 + 16;   // padded: eight rows meet all banks
constexpr uint32_t kKeysBytes = kStageKeys * kKeyStride;
constexpr uint32_t kStagedBytes = 2 * kKeysBytes;  // keys, then values
static_assert(2 * kStagedBytes <= kWorkBytes, "two stages of keys and values");

constexpr float kLog2e = 1.4426950408889634f;
constexpr float kNoMaximum = -1e30f;  // of rows that see nothing yet; finite, so no inf - inf

// How the visible positions first..end of a step are cut: by lengths only, so that every block
// and every replay cuts alike.
struct Chunks {
  uint32_t context, first, end;
  uint32_t keys;    // a chunk, but for the last
  uint32_t splits;  // chunks of a kv head
};

MEGATRACE_DEVICE Chunks attention_chunks(const Params& p) {
  Chunks c;
  c.context = static_cast<uint32_t>(*p.context);
  c.first = p.kv.window != 0 && c.context >= p.kv.window ? c.context + 1 - p.kv.window : 0;
  c.end = c.context + p.shape.rows;
  uint32_t most = gridDim.x / p.shape.kv_heads;
  most = most < p.shape.max_splits ? most : p.shape.max_splits;
  most = most != 0 ? most : 1;
  const uint32_t stages = (c.end - c.first + kStageKeys - 1) / kStageKeys;
  const uint32_t stages_a_chunk = (stages + most - 1) / most;
  c.keys = stages_a_chunk * kStageKeys;
  c.splits = (stages + stages_a_chunk - 1) / stages_a_chunk;
  return c;
}

// The block that hands over a chunk of a query head.
MEGATRACE_DEVICE uint32_t attention_producer(const Params& p, const Chunks& c, uint32_t head,
                                             uint32_t split) {
  const uint32_t kv_head = head / (p.shape.heads / p.shape.kv_heads);
  return share_owner(p.shape.kv_heads * c.splits, kv_head * c.splits + split);
}

// Where a chunk's partial of (query head, row) lies, in units of what a row has.
MEGATRACE_DEVICE uint32_t partial_row(const Params& p, uint32_t split, uint32_t head,
                                      uint32_t row) {
  return (split * p.shape.heads + head) * p.shape.rows + row;
}

// -- staging -----------------------------------------------------------------------------

// A worker's part of every stage: 16 bytes of every 22nd key, asked for a stage ahead, and
// their slots two stages ahead. Counts in 32 bits: a layer's keys are less than 64 GB.
class KeyStager {
 public:
  MEGATRACE_DEVICE KeyStager(const Params& p, uint32_t kv_head, uint32_t begin, uint32_t end)
      : slots_(p.kv.slots),
        next_(begin + key()),
        end_(end),
        stride_(p.shape.kv_heads * kKeyVectors) {
    const uint16_t* plane = part() < kKeyVectors ? p.kv.keys : p.kv.values;
    from_ = reinterpret_cast<const uint4*>(plane) + kv_head * kKeyVectors + part() % kKeyVectors;
    find();
    fetch();
  }

  // Asks for the stage whose slots are known. Keys past the end or in slot 0, which pads, are
  // never read: they are zeros, for a weight of zero does not silence a NaN.
  MEGATRACE_DEVICE void fetch() {
#pragma unroll
    for (uint32_t i = 0; i < kCopies; ++i) {
      held_[i] = make_uint4(0, 0, 0, 0);
      if (slot_[i] > 0) held_[i] = from_[static_cast<uint32_t>(slot_[i]) * stride_];
    }
    find();
  }

  MEGATRACE_DEVICE void place(char* stage) const {
    char* to = stage + (part() < kKeyVectors ? 0 : kKeysBytes) + part() % kKeyVectors * 16;
#pragma unroll
    for (uint32_t i = 0; i < kCopies; ++i)
      if (key() + i * kStep < kStageKeys)
        *reinterpret_cast<uint4*>(to + (key() + i * kStep) * kKeyStride) = held_[i];
  }

 private:
  static constexpr uint32_t kStep = kWorkers / (2 * kKeyVectors);  // keys that workers take at once
  static constexpr uint32_t kCopies = (kStageKeys + kStep - 1) / kStep;

  static MEGATRACE_DEVICE uint32_t key() { return threadIdx.x / (2 * kKeyVectors); }
  static MEGATRACE_DEVICE uint32_t part() { return threadIdx.x % (2 * kKeyVectors); }

  MEGATRACE_DEVICE void find() {
#pragma unroll
    for (uint32_t i = 0; i < kCopies; ++i) {
      const uint32_t position = next_ + i * kStep;
      const bool wanted = key() + i * kStep < kStageKeys && position < end_;
      slot_[i] = wanted ? slots_[position] : 0;
    }
    next_ += kStageKeys;
  }

  const uint4* from_;
  const int32_t* slots_;
  uint32_t next_;  // position of this worker's first key in the stage that find() is for
  const uint32_t end_, stride_;
  int32_t slot_[kCopies];
  uint4 held_[kCopies];
};

// -- tensor warps ------------------------------------------------------------------------

// A query head's sums over the keys so far. Lane (g, j) holds rows g and g + 8, and of eight dims
// each the pair 2j, 2j + 1.
struct Attended {
  float out[8][4] = {};
  float maximum[2] = {kNoMaximum, kNoMaximum};
  float sum[2] = {};  // of this lane's keys
};

MEGATRACE_DEVICE void load_query(uint32_t (&q)[4][4], const Params& p, uint32_t head) {
  const uint32_t g = ptx::lane_id() >> 2, j = ptx::lane_id() & 3;
#pragma unroll
  for (uint32_t half = 0; half < 2; ++half) {
    const uint32_t row = g + 8 * half;
    const uint32_t* from =
        reinterpret_cast<const uint32_t*>(p.q) + (row * p.shape.heads + head) * (kHeadDim / 2) + j;
#pragma unroll
    for (uint32_t step = 0; step < 4; ++step) {
      q[step][half] = row < p.shape.rows ? from[8 * step] : 0;
      q[step][half + 2] = row < p.shape.rows ? from[8 * step + 4] : 0;
    }
  }
}

// A tensor warp takes this many keys of a stage at once: more would not fit its registers.
constexpr uint32_t kTileKeys = 32;

// Of 32 keys: s[i] has keys 8 i .. 8 i + 7, rows and pairs of keys as Attended has dims.
using Scores = float[kTileKeys / 8][4];

MEGATRACE_DEVICE void score_keys(Scores& s, const uint32_t (&q)[4][4], const char* keys) {
  const uint32_t lane = ptx::lane_id();
  const char* row = keys + (lane & 7) * kKeyStride + (lane >> 3) * 16;
#pragma unroll
  for (uint32_t i = 0; i < kTileKeys / 8; ++i) {
    s[i][0] = s[i][1] = s[i][2] = s[i][3] = 0;
#pragma unroll
    for (uint32_t half = 0; half < 2; ++half) {
      uint32_t k[4];
      ptx::ldmatrix_x4(k, row + i * 8 * kKeyStride + half * 64);
      const uint32_t (&a)[4] = q[2 * half], (&b)[4] = q[2 * half + 1];
      ptx::mma_bf16(s[i], a[0], a[1], a[2], a[3], k[0], k[1]);
      ptx::mma_bf16(s[i], b[0], b[1], b[2], b[3], k[2], k[3]);
    }
  }
}

// Takes out what a row must not see of the keys from `position` on.
MEGATRACE_DEVICE void hide_keys(Scores& s, const Params& p, const Chunks& c, uint32_t position) {
  const uint32_t window = p.kv.window;
  if (position + kTileKeys <= c.context + 1 && (window == 0 || position + window >= c.end)) return;
  const uint32_t g = ptx::lane_id() >> 2, j = ptx::lane_id() & 3;
#pragma unroll
  for (uint32_t half = 0; half < 2; ++half) {
    const uint32_t last = c.context + g + 8 * half;
    const uint32_t first = window != 0 && last >= window ? last + 1 - window : 0;
#pragma unroll
    for (uint32_t i = 0; i < kTileKeys / 4; ++i) {
      const uint32_t key = position + (i >> 1) * 8 + 2 * j + (i & 1);
      if (key < first || key > last) s[i >> 1][2 * half + (i & 1)] = -INFINITY;
    }
  }
}

// Scores to weights, relative to the maximum so far; what was summed before shrinks to it.
MEGATRACE_DEVICE void weigh_keys(Scores& s, Attended& a, float scale) {
#pragma unroll
  for (uint32_t half = 0; half < 2; ++half) {
    float top = s[0][2 * half];
#pragma unroll
    for (uint32_t i = 0; i < kTileKeys / 8; ++i)
      top = fmaxf(top, fmaxf(s[i][2 * half], s[i][2 * half + 1]));
    top = fmaxf(top, ptx::shuffle_xor(top, 1));
    top = fmaxf(top, ptx::shuffle_xor(top, 2));
    const float maximum = fmaxf(a.maximum[half], top * scale);
    const float shrink = ptx::exp2_approx(a.maximum[half] - maximum);
    a.maximum[half] = maximum;
    float sum = 0;
#pragma unroll
    for (uint32_t i = 0; i < kTileKeys / 8; ++i) {
#pragma unroll
      for (uint32_t e = 2 * half; e < 2 * half + 2; ++e) {
        s[i][e] = ptx::exp2_approx(s[i][e] * scale - maximum);
        sum += s[i][e];
      }
    }
    a.sum[half] = a.sum[half] * shrink + sum;
#pragma unroll
    for (uint32_t i = 0; i < 8; ++i) {
      a.out[i][2 * half] *= shrink;
      a.out[i][2 * half + 1] *= shrink;
    }
  }
}

MEGATRACE_DEVICE void add_values(Attended& a, const Scores& s, const char* values) {
  const uint32_t lane = ptx::lane_id();
  const char* row = values + (lane & 15) * kKeyStride + (lane >> 4) * 16;
#pragma unroll
  for (uint32_t step = 0; step < kTileKeys / 16; ++step) {
    const float (&lo)[4] = s[2 * step], (&hi)[4] = s[2 * step + 1];
    const uint32_t w0 = ptx::pack_bf16(lo[0], lo[1]), w1 = ptx::pack_bf16(lo[2], lo[3]);
    const uint32_t w2 = ptx::pack_bf16(hi[0], hi[1]), w3 = ptx::pack_bf16(hi[2], hi[3]);
#pragma unroll
    for (uint32_t i = 0; i < 8; i += 2) {
      uint32_t v[4];
      ptx::ldmatrix_x4_trans(v, row + step * 16 * kKeyStride + i * 16);
      ptx::mma_bf16(a.out[i], w0, w1, w2, w3, v[0], v[1]);
      ptx::mma_bf16(a.out[i + 1], w0, w1, w2, w3, v[2], v[3]);
    }
  }
}

// One stage of keys, the first at `position`; those past the end are all hidden.
MEGATRACE_DEVICE void attend_stage(Attended& a, const uint32_t (&q)[4][4], const Params& p,
                                   const Chunks& c, const char* stage, uint32_t position) {
#pragma unroll 1
  for (uint32_t tile = 0; tile < kStageKeys; tile += kTileKeys) {
    if (position + tile >= c.end) break;
    Scores s;
    score_keys(s, q, stage + tile * kKeyStride);
    hide_keys(s, p, c, position + tile);
    weigh_keys(s, a, p.shape.softmax_scale * kLog2e);
    add_values(a, s, stage + kKeysBytes + tile * kKeyStride);
  }
}

}  // namespace muse
