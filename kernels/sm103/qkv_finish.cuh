// What the QKV projection of the next layer still needs: sums over its slices, norm and rotation
// of queries and keys, keys and values into the cache. A warp takes a head of a row.
#pragma once

#include "gemm.cuh"
#include "heads.cuh"

namespace muse {

constexpr uint32_t kSlicesAtOnce = 8;

// Heads of a row in the order of the projection: queries, keys, values, gates.
MEGATRACE_DEVICE uint32_t qkv_heads(const Params& p) {
  return 2 * (p.shape.heads + p.shape.kv_heads);
}

// This lane's two columns of a head, summed over the slices in order.
template <class T>
MEGATRACE_DEVICE float2 sum_qkv_slices(T& t, const Params& p, uint32_t row, uint32_t head) {
  const uint32_t n = qkv_heads(p) * kHeadDim, column = head * kHeadDim + 2 * ptx::lane_id();
  const uint32_t count = slices(p.shape.hidden);
  float2 sum = make_float2(0, 0);
  for (uint32_t first = 0; first < count; first += kSlicesAtOnce) {
    uint2 v[kSlicesAtOnce];
    uint32_t slot = 0, missing = 0;
    t.poll(ev::qkv_part_wait{}, slot, [&] {
      return try_load(
          slot,
          [&] {
            bool here = true;
#pragma unroll
            for (uint32_t i = 0; i < kSlicesAtOnce; ++i) {
              v[i] = make_uint2(0, 0);
              if (first + i < count)
                v[i] = ptx::load_pair(p.handoff.qkv_part +
                                      (size_t{first + i} * p.shape.rows + row) * n + column);
            }
#pragma unroll
            for (uint32_t i = 0; i < kSlicesAtOnce; ++i)
              if (!(filled(v[i].x) && filled(v[i].y))) here = false, missing = first + i;
            return here;
          },
          [&] { return dense_producer(p.shape.hidden, n, missing, column); });
    });
#pragma unroll
    for (uint32_t i = 0; i < kSlicesAtOnce; ++i) {
      sum.x += __uint_as_float(v[i].x);
      sum.y += __uint_as_float(v[i].y);
    }
  }
  return sum;
}

// Where a lane's pair of a query or gate head goes: to the attention of the next launch.
MEGATRACE_DEVICE uint32_t* query_place(const Params& p, uint32_t row, uint32_t head) {
  const uint32_t heads = p.shape.heads, first_gate = heads + 2 * p.shape.kv_heads;
  uint16_t* to = head < heads ? p.q : p.gate;
  const uint32_t index = row * heads + (head < heads ? head : head - first_gate);
  return reinterpret_cast<uint32_t*>(to) + index * (kHeadDim / 2) + ptx::lane_id();
}

// And of a key or value head: into the cache of the next layer.
MEGATRACE_DEVICE uint32_t* cache_place(const Params& p, uint32_t head, uint32_t slot) {
  const uint32_t kv_heads = p.shape.kv_heads, kv_head = head - p.shape.heads;
  uint16_t* to = kv_head < kv_heads ? p.next_kv.keys : p.next_kv.values;
  const size_t index = size_t{slot} * kv_heads + kv_head % kv_heads;
  return reinterpret_cast<uint32_t*>(to) + index * (kHeadDim / 2) + ptx::lane_id();
}

// What does not wait for the projection is asked for before it: slot and angles.
template <class T>
MEGATRACE_DEVICE void finish_qkv_head(T& t, const Params& p, uint32_t row, uint32_t head,
                                      uint32_t position) {
  const uint32_t heads = p.shape.heads, kv_heads = p.shape.kv_heads;
  const bool normed = head < heads + kv_heads, rotated = normed && p.next_kv.rope != nullptr;
  const bool cached = head >= heads && head < heads + 2 * kv_heads;
  const int32_t slot = cached ? p.next_kv.slots[position] : 0;
  float cosine = 1, sine = 0;
  if (rotated) {
    const float* angles = p.next_kv.rope + size_t{position} * kHeadDim + ptx::lane_id();
    cosine = angles[0];
    sine = angles[kHeadDim / 2];
  }
  const float2 sum = sum_qkv_slices(t, p, row, head);
  float x = ptx::round_bf16(sum.x), y = ptx::round_bf16(sum.y);
  if (normed) {
    const float scale = head_rms_scale(x, y, p.shape.eps_norm);
    x = ptx::round_bf16(x * scale);
    y = ptx::round_bf16(y * scale);
  }
  const uint32_t pair =
      rotated ? ptx::pack_bf16(x * cosine - y * sine, x * sine + y * cosine) : ptx::pack_bf16(x, y);
  if (!cached)
    *query_place(p, row, head) = pair;
  else if (slot > 0)  // slot 0 pads
    *cache_place(p, head, static_cast<uint32_t>(slot)) = pair;
}

template <class T>
MEGATRACE_DEVICE void qkv_finish(T& t, const Params& p, Shared& /*s*/) {
  const uint32_t heads = qkv_heads(p), items = p.shape.rows * heads;
  const uint32_t begin = share_begin(items, blockIdx.x) + warp_id();
  const uint32_t end = share_begin(items, blockIdx.x + 1);
  if (begin >= end) return;
  auto span = t.span(ev::qkv_finish{});
  const uint32_t context = static_cast<uint32_t>(*p.context);
  for (uint32_t item = begin; item < end; item += kWorkers / 32) {
    const uint32_t row = item / heads;
    finish_qkv_head(t, p, row, item - row * heads, context + row);
  }
}

}  // namespace muse
