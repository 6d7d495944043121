// What becomes of a row tile that an expert's warp has summed: SwiGLU of gate and up rows, or down
// rows with their sums of squares, handed over by token.
#pragma once

#include "handoff.cuh"
#include "routing.cuh"

namespace muse {

// Lane (g, j) has rows g of the tokens 2 j and 2 j + 1; neighbours in g swap, so that each ends
// up with a pair of rows of one token: of token 2 j + (g & 1), rows g & ~1 and the next.
MEGATRACE_DEVICE uint32_t pair_of_rows(float even_token, float odd_token) {
  const bool odd = ptx::lane_id() >> 2 & 1;
  const float other = ptx::shuffle_xor(odd ? even_token : odd_token, 4);
  return odd ? ptx::pack_bf16(other, odd_token) : ptx::pack_bf16(even_token, other);
}

MEGATRACE_DEVICE float swiglu(float gate, float up) {
  const float g = ptx::round_bf16(gate);
  return ptx::round_bf16(g / (1.f + expf(-g))) * ptx::round_bf16(up);
}

// Where lane (g, j)'s pair of rows goes: the pair whose token it is, or kEmpty.
MEGATRACE_DEVICE uint32_t lane_pair(const Group& group) {
  const uint32_t token = (ptx::lane_id() & 3) * 2 + (ptx::lane_id() >> 2 & 1);
  return token < group.tokens ? group.pairs[token] : kEmpty;
}

template <class Experts>
MEGATRACE_DEVICE void store_up(const Params& p, const Group& group, uint32_t tile,
                               const float4& sum) {
  float gate = 1.f, up = 1.f;
  if constexpr (Experts::kScaled) {
    gate = p.weights.up_scale[2 * group.expert] * Experts::kUnit;
    up = p.weights.up_scale[2 * group.expert + 1] * Experts::kUnit;
  }
  const uint32_t word =
      pair_of_rows(swiglu(sum.x * gate, sum.z * up), swiglu(sum.y * gate, sum.w * up));
  const uint32_t pair = lane_pair(group), row = tile * 8 + (ptx::lane_id() >> 2 & ~1u);
  if (pair != kEmpty)
    put(p.handoff.act + (size_t{pair} * p.shape.expert_inner + row) / 2, pair_word(word));
}

// The gains of a lane's rows of a down tile: two pairs, eight rows apart. Asked for before the
// tile's weights are here.
MEGATRACE_DEVICE uint2 down_gains(const Params& p, Phase phase, uint32_t tile) {
  if (phase != kExpertsDown) return make_uint2(0, 0);
  const uint32_t row = tile * 16 + (ptx::lane_id() >> 2 & ~1u);
  const uint32_t* at = reinterpret_cast<const uint32_t*>(p.weights.post_expert_gain + row);
  return make_uint2(at[0], at[4]);
}

MEGATRACE_DEVICE float pair_squares(uint32_t pair, uint32_t gain) {
  const float low = ptx::bf16_low(pair) * ptx::bf16_low(gain);
  const float high = ptx::bf16_high(pair) * ptx::bf16_high(gain);
  return low * low + high * high;
}

// Rows, and what they add to the sum of squares that the norm after them divides by.
template <class Experts>
MEGATRACE_DEVICE void store_down(const Params& p, const Group& group, uint32_t tile,
                                 const float4& sum, uint2 gains) {
  float scale = 1.f;
  if constexpr (Experts::kScaled) scale = p.weights.down_scale[group.expert] * Experts::kUnit;
  const uint32_t low = pair_of_rows(sum.x * scale, sum.y * scale);
  const uint32_t high = pair_of_rows(sum.z * scale, sum.w * scale);
  float squares = pair_squares(low, gains.x) + pair_squares(high, gains.y);
  squares += ptx::shuffle_xor(squares, 8);  // the lanes of a token differ in the row
  squares += ptx::shuffle_xor(squares, 16);
  const uint32_t pair = lane_pair(group), row = tile * 16 + (ptx::lane_id() >> 2 & ~1u);
  if (pair == kEmpty) return;
  if (ptx::lane_id() < 8)
    put(p.handoff.down_sums + pair * (p.shape.expert_width / 16) + tile, float_word(squares));
  uint32_t* out = p.handoff.down + (size_t{pair} * p.shape.expert_width + row) / 2;
  put(out, pair_word(low));
  put(out + 4, pair_word(high));
}

}  // namespace muse
