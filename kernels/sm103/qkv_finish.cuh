// What the QKV projection of the next layer still needs: sums over its slices, norm and rotation
// of queries and keys, keys and values into the cache. A warp takes a head of a row.
#pragma once

#include "cache.cuh"
#include "gemm.cuh"
#include "heads.cuh"

namespace muse {

constexpr uint32_t kSlicesAtOnce = 8;

// A head of a row, and this lane's two columns of it.
struct QkvItem {
  uint32_t row, head, heads;  // heads of a row in the projection's order: q, k, v, gates
  uint32_t lane;
};

// This lane's columns summed over the first `count` slices in order.
template <class T>
MEGATRACE_DEVICE float2 sum_qkv_slices(T& t, const Params& p, const QkvItem& item, uint32_t count) {
  const uint32_t n = item.heads * kHeadDim, column = item.head * kHeadDim + 2 * item.lane;
  const uint32_t slice_bytes = p.shape.rows * n * 4;
  const char* from = reinterpret_cast<const char*>(p.handoff.qkv_part + (item.row * n + column));
  float2 sum = make_float2(0, 0);
  uint32_t first = 0;
#pragma unroll 1
  do {
    uint2 v[kSlicesAtOnce] = {};
    uint32_t missing = 0;
    const auto load = [&] {
      missing = 0;
#pragma unroll
      for (uint32_t i = 0; i < kSlicesAtOnce; ++i)
        if (first + i < count)
          v[i] =
              ptx::load_pair(reinterpret_cast<const uint32_t*>(from + uint64_t{i} * slice_bytes));
#pragma unroll
      for (uint32_t i = 0; i < kSlicesAtOnce; ++i)
        if (!filled(v[i].x) || !filled(v[i].y)) missing = i + 1;
      return missing == 0;
    };
    if (count != 0)
      poll_words(t, ev::qkv_part_wait{}, load, [&] {
        return dense_producer(p.shape.hidden, n + zero_after(missing), first + missing - 1, column);
      });
    from += uint64_t{kSlicesAtOnce} * slice_bytes;
#pragma unroll
    for (uint32_t i = 0; i < kSlicesAtOnce; ++i) {
      sum.x += __uint_as_float(v[i].x);
      sum.y += __uint_as_float(v[i].y);
    }
    first += kSlicesAtOnce;
  } while (first < count);
  return sum;
}

// Where the pair of lane `item.lane` lies in a head, in units of pairs.
MEGATRACE_DEVICE uint64_t pair_index(const QkvItem& item, uint32_t head) {
  return uint64_t{head} * (kHeadDim / 2) + item.lane;
}

// Where a head goes: queries and gates to the attention of the next launch, keys and values into
// the next layer's cache, unless their slot is 0, which pads.
template <class Cache>
MEGATRACE_DEVICE void store_qkv_head(const Params& p, const QkvItem& item, int32_t slot,
                                     uint32_t pair, bool stores) {
  const uint32_t kv_heads = p.shape.kv_heads;
  uint16_t* to = p.q;
  uint32_t head = item.head, line = item.row, width = p.shape.heads;
  if (head >= width) {
    head -= width;
    to = p.gate;
    if (head >= 2 * kv_heads) {
      head -= 2 * kv_heads;
    } else {
      if (slot <= 0) return;
      to = head < kv_heads ? p.next_kv.keys : p.next_kv.values;
      head = head < kv_heads ? head : head - kv_heads;
      line = static_cast<uint32_t>(slot);
      width = kv_heads;
      if constexpr (Cache::kBytes == 1) {
        uint16_t* out = to + pair_index(item, line * width + head);
        if (stores) *out = narrow_to_e4m3(pair);
        return;
      }
    }
  }
  uint32_t* out = reinterpret_cast<uint32_t*>(to) + pair_index(item, line * width + head);
  if (stores) *out = pair;
}

// What does not wait for the projection is asked for before it: slot and angles. The first turn
// rehearses, without slices: the code is in the instruction cache when they arrive.
template <class Cache, class T>
MEGATRACE_DEVICE void finish_qkv_head(T& t, const Params& p, const QkvItem& item,
                                      uint32_t position) {
  const bool normed = item.head < p.shape.heads + p.shape.kv_heads;
  const bool rotated = normed && p.next_kv.rope != nullptr;
  const int32_t slot = p.next_kv.slots[position];
  float cosine = 1, sine = 0;
  if (rotated) {
    const float* angles = p.next_kv.rope + (size_t{position} * kHeadDim + item.lane);
    cosine = angles[0];
    sine = angles[kHeadDim / 2];
  }
#pragma unroll 1
  for (uint32_t turn = 0; turn < 2; ++turn) {
    const float2 sum = sum_qkv_slices(t, p, item, turn * slices(p.shape.hidden));
    uint32_t pair = ptx::pack_bf16(sum.x, sum.y);
    if (normed) {
      float x = ptx::bf16_low(pair), y = ptx::bf16_high(pair);
      const float scale = head_rms_scale(x, y, p.shape.eps_norm);
      pair = ptx::pack_bf16(x * scale, y * scale);
      if (rotated) {
        x = ptx::bf16_low(pair);
        y = ptx::bf16_high(pair);
        pair = ptx::pack_bf16(x * cosine - y * sine, x * sine + y * cosine);
      }
    }
    store_qkv_head<Cache>(p, item, slot, pair, turn != 0);
  }
}

// The math warps take the first heads: they have nothing else to do, and rehearse meanwhile.
template <class Cache, class T>
MEGATRACE_DEVICE void qkv_finish(T& t, const Params& p, Shared& /*s*/) {
  const uint32_t thread = ptx::opaque(threadIdx.x), warp = thread >> 5;
  const uint32_t turn = warp < kTensorWarps ? warp + kMathWarps : warp - kTensorWarps;
  const uint32_t heads = 2 * (p.shape.heads + p.shape.kv_heads), items = p.shape.rows * heads;
  uint32_t at = quotient(items * blockIdx.x, gridDim.x) + turn;
  const uint32_t end = quotient(items * blockIdx.x + items, gridDim.x);
  if (at >= end) return;
  auto span = t.span(ev::qkv_finish{});
  const uint32_t context = static_cast<uint32_t>(*p.context);
#pragma unroll 1
  do {
    const uint32_t row = quotient(at, heads);
    finish_qkv_head<Cache>(t, p, {row, at - row * heads, heads, thread & 31}, context + row);
    at += kWorkers / 32;
  } while (at < end);
}

}  // namespace muse
