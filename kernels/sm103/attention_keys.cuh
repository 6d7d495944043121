// Attention of a step's rows over a chunk of paged keys and values: how the keys are cut, staged
// and summed. Maxima and scores live in the log2 domain.
#pragma once

#include <cmath>

#include "cache.cuh"
#include "handoff.cuh"
#include "heads.cuh"

namespace muse {

constexpr uint32_t kStageKeys = 64;
constexpr uint32_t kKeyStride = kHeadDim * 2 + 16;  // padded: eight rows meet all banks
constexpr uint32_t kKeysBytes = kStageKeys * kKeyStride;
constexpr uint32_t kStagedBytes = 2 * kKeysBytes;  // keys, then values
constexpr uint32_t kStagesHeld = 4;                // one is looked at, the others are on their way
static_assert(kStagesHeld * kStagedBytes <= kWorkBytes, "stages of keys and values");

constexpr float kLog2e = 1.4426950408889634f;
constexpr float kNoMaximum = -1e30f;  // of rows that see nothing yet; finite, so no inf - inf

// The oldest position that a query at `last` sees; window 0 is all.
MEGATRACE_DEVICE uint32_t oldest_seen(const Params& p, uint32_t last) {
  const uint32_t before = p.kv.window - 1;
  return (last > before ? last : before) - before;
}

// How the visible positions first..end of a step are cut: by lengths only, so that every block
// and every replay cuts alike.
struct Chunks {
  uint32_t context, first, end;
  uint32_t keys;  // a chunk, but for the last
};

MEGATRACE_DEVICE Chunks attention_chunks(const Params& p, uint32_t context) {
  const uint32_t first = oldest_seen(p, context), end = context + p.shape.rows;
  const uint32_t stages = (end - first + kStageKeys - 1) / kStageKeys;
  const uint32_t most = p.shape.max_splits;
  return {context, first, end, quotient(stages + most - 1, most) * kStageKeys};
}

// The block that hands over a chunk of a query head of `heads`: (chunk, kv head) are the units.
MEGATRACE_DEVICE uint32_t attention_producer(const Params& p, uint32_t head, uint32_t heads,
                                             uint32_t split) {
  const uint32_t group = quotient(heads, p.shape.kv_heads);
  const uint32_t unit = split * p.shape.kv_heads + quotient(head, group);
  return unit - quotient(unit, gridDim.x) * gridDim.x;
}

// -- staging -----------------------------------------------------------------------------

// A tensor warp's part of every stage: eight keys and their values, which it copies into shared
// memory, 16 bytes a lane of kKeysAtOnce of them at once; a lane's codes lie where their bf16 will.
// Stages take turns in kStagesHeld places; lane l knows the slot of key l % 8 of the stage that has
// turn l / 8.
template <class Cache>
class KeyStager {
 public:
  MEGATRACE_DEVICE KeyStager(const Params& p, uint32_t thread, uint32_t kv_head, uint32_t begin,
                             uint32_t end)
      : begin_(begin),
        end_(end),
        next_(begin),
        key_bytes_(p.shape.kv_heads * kHeadDim * Cache::kBytes) {
    lane_ = thread & 31;
    const uint32_t first = (thread >> 5) * kWarpKeys, part = thread & (kKeyLanes - 1);
    slots_ = p.kv.slots;
    lookup_ = begin + (lane_ / kWarpKeys) * kStageKeys + first + lane_ % kWarpKeys;
    find();
    const bool is_key = part < kVectors;
    const uint32_t vector = part & (kVectors - 1);
    from_ = reinterpret_cast<const char*>(is_key ? p.kv.keys : p.kv.values) +
            (kv_head * kVectors + vector) * 16;
    place_ = (first + lane_ / kKeyLanes) * kKeyStride + vector * (32 / Cache::kBytes) +
             (is_key ? 0 : kKeysBytes);
  }

  // First position of the stage that is asked for next.
  MEGATRACE_DEVICE uint32_t next() const { return next_; }

  // Asks for it. Keys past the end or in slot 0, which pads, are never read: they are zeros, for
  // a weight of zero does not silence a NaN.
  MEGATRACE_DEVICE void fetch(char* stages) {
    if (next_ < end_) {
      const uint32_t turn = (next_ - begin_) / kStageKeys % kStagesHeld;
      if (turn == 0) {
        slot_ = found_;
        find();
      }
      char* to = stages + (turn * kStagedBytes + place_);
      const uint32_t first = turn * kWarpKeys + lane_ / kKeyLanes;
#pragma unroll 1
      for (uint32_t i = 0; i < kWarpKeys; i += kKeysAtOnce) {
        const uint32_t slot = ptx::shuffle(slot_, first + i);
        if (static_cast<int32_t>(slot) > 0)
          ptx::fetch_async(reinterpret_cast<uint4*>(to), from_ + uint64_t{slot} * key_bytes_);
        else
          *reinterpret_cast<uint4*>(to) = make_uint4(0, 0, 0, 0);
        to += kKeysAtOnce * kKeyStride;
      }
      next_ += kStageKeys;
    }
    ptx::fetch_async_commit();
  }

  // What this lane has asked for of a stage, from codes to bf16: in place, for what it reads and
  // writes is its own. Where it does not store, it rehearses, and it may all be on its way.
  MEGATRACE_DEVICE void widen(char* stage, bool stores) {
    uint4* at = reinterpret_cast<uint4*>(stage + place_);
#pragma unroll 1
    for (uint32_t i = 0; i < kWarpKeys; i += kKeysAtOnce) {
      uint4 bf16[2];
      widen_e4m3(bf16, *at);
      if (stores) {
        at[0] = bf16[0];
        at[1] = bf16[1];
      }
      at += kKeysAtOnce * kKeyStride / 16;
    }
  }

 private:
  static constexpr uint32_t kWarpKeys = kStageKeys / kTensorWarps;
  static_assert(kStagesHeld * kWarpKeys == 32, "a slot a lane");
  // 16 bytes each of a key or a value and head, and the lanes that take both.
  static constexpr uint32_t kVectors = kHeadDim * Cache::kBytes / 16, kKeyLanes = 2 * kVectors;
  static constexpr uint32_t kKeysAtOnce = 32 / kKeyLanes;

  MEGATRACE_DEVICE void find() {
    found_ = 0;
    if (lookup_ < end_) found_ = static_cast<uint32_t>(slots_[lookup_]);
    lookup_ += kStagesHeld * kStageKeys;
  }

  const char* from_;
  const int32_t* slots_;
  const uint32_t begin_, end_;
  uint32_t next_, lookup_;
  const uint32_t key_bytes_;
  uint32_t lane_, place_;
  uint32_t slot_ = 0, found_;  // of the stages asked for, and of those after them
};

// -- tensor warps ------------------------------------------------------------------------

// A query head's sums over the keys so far. Lane (g, j) holds rows g and g + 8, and of eight dims
// each the pair 2j, 2j + 1.
struct Attended {
  float out[8][4] = {};
  float maximum[2] = {kNoMaximum, kNoMaximum};
  float sum[2] = {};  // of this lane's keys
};

// Rows past the last repeat it; nobody stores what becomes of them.
MEGATRACE_DEVICE void load_query(uint32_t (&q)[4][4], const Params& p, uint32_t lane,
                                 uint32_t head) {
  lane = ptx::opaque(lane);  // see hide_keys()
#pragma unroll
  for (uint32_t half = 0; half < 2; ++half) {
    const uint32_t row = min((lane >> 2) + 8 * half, p.shape.rows - 1);
    const uint32_t* from = reinterpret_cast<const uint32_t*>(p.q) +
                           (row * p.shape.heads + head) * (kHeadDim / 2) + (lane & 3);
#pragma unroll
    for (uint32_t step = 0; step < 4; ++step) {
      q[step][half] = from[8 * step];
      q[step][half + 2] = from[8 * step + 4];
    }
  }
}

// A tensor warp takes this many keys of a stage at once: more would not fit its registers.
constexpr uint32_t kTileKeys = 32;

// Of 32 keys: s[i] has keys 8 i .. 8 i + 7, rows and pairs of keys as Attended has dims.
using Scores = float[kTileKeys / 8][4];

MEGATRACE_DEVICE void score_keys(Scores& s, const uint32_t (&q)[4][4], const char* keys,
                                 uint32_t lane) {
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

// One bit for each key of a tile at `position` that lies before `end`.
MEGATRACE_DEVICE uint32_t keys_before(uint32_t end, uint32_t position) {
  const uint32_t count = (end > position ? end : position) - position;
  return count < kTileKeys ? (1u << count) - 1 : ~0u;
}

// Takes out what a row must not see of the keys from `position` on.
MEGATRACE_DEVICE void hide_keys(Scores& s, const Params& p, const Chunks& c, uint32_t lane,
                                uint32_t position) {
  if (position + kTileKeys <= c.context + 1 && position >= oldest_seen(p, c.end - 1)) return;
  // Opaque, or the compiler keeps what comes of it in registers while it sums: there are none left.
  lane = ptx::opaque(lane);
#pragma unroll
  for (uint32_t half = 0; half < 2; ++half) {
    const uint32_t last = c.context + (lane >> 2) + 8 * half;
    const uint32_t seen =
        keys_before(last + 1, position) & ~keys_before(oldest_seen(p, last), position);
    const uint32_t mine = seen >> 2 * (lane & 3);
#pragma unroll
    for (uint32_t i = 0; i < kTileKeys / 4; ++i) {
      float& score = s[i >> 1][2 * half + (i & 1)];
      if ((mine & 1u << ((i >> 1) * 8 + (i & 1))) == 0) score = -INFINITY;
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

MEGATRACE_DEVICE void add_values(Attended& a, const Scores& s, const char* values, uint32_t lane) {
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
                                   const Chunks& c, const char* stage, uint32_t lane,
                                   uint32_t position) {
  uint32_t tile = 0;
#pragma unroll 1
  do {
    Scores s;
    score_keys(s, q, stage, lane);
    hide_keys(s, p, c, lane, position + tile);
    weigh_keys(s, a, p.shape.softmax_scale * kLog2e);
    add_values(a, s, stage + kKeysBytes, lane);
    stage += kTileKeys * kKeyStride;
    tile += kTileKeys;
  } while (tile < kStageKeys && position + tile < c.end);
}

}  // namespace muse
