// What the paged keys and values are stored as. Queries, the weights of keys and what the tensor
// cores see are bf16 in any case: e4m3 is widened on its way there, which is exact. (SGLang's
// Triton attention narrows queries and weights to e4m3 instead, and takes a step's own keys
// unrounded.)
#pragma once

#include "shared.cuh"

namespace muse {

struct Bf16Cache {
  static constexpr uint32_t kBytes = 2;  // an element
};

// Scale 1: the value is the code. What is larger than 448 becomes 448.
struct E4m3Cache {
  static constexpr uint32_t kBytes = 1;
};

// Sixteen codes to bf16, in order.
MEGATRACE_DEVICE void widen_e4m3(uint4 (&bf16)[2], const uint4& codes) {
  const uint32_t from[4] = {codes.x, codes.y, codes.z, codes.w};
  uint32_t to[8];
#pragma unroll
  for (uint32_t i = 0; i < 8; ++i) {
    const uint32_t pair = ptx::e4m3x2_to_f16x2(from[i / 2] >> 16 * (i % 2));
    to[i] = ptx::pack_bf16(ptx::f16_low(pair), ptx::f16_high(pair));
  }
  bf16[0] = make_uint4(to[0], to[1], to[2], to[3]);
  bf16[1] = make_uint4(to[4], to[5], to[6], to[7]);
}

// A pair of bf16 to two codes.
MEGATRACE_DEVICE uint16_t narrow_to_e4m3(uint32_t pair) {
  return ptx::pack_e4m3(ptx::bf16_low(pair), ptx::bf16_high(pair));
}

}  // namespace muse
