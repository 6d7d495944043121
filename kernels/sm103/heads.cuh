// Small things of the attention phases: division, and what a warp does to a head of 64, whose
// dims 2l and 2l + 1 lane l holds.
#pragma once

#include "shared.cuh"

namespace muse {

// 1 / v to 21 bits: a true division would be code that runs once, uncached.
MEGATRACE_DEVICE float reciprocal(float v) { return ptx::reciprocal(v); }

// a / b, for a < 2^20: half a unit keeps the quotient away from whole numbers.
MEGATRACE_DEVICE uint32_t quotient(uint32_t a, uint32_t b) {
  return static_cast<uint32_t>((static_cast<float>(a) + 0.5f) * reciprocal(static_cast<float>(b)));
}

// Zero, for a small number: the compiler cannot know. What is computed with it stays where
// `late` is known, instead of in front of the loop.
MEGATRACE_DEVICE uint32_t zero_after(uint32_t late) { return ptx::opaque(late) >> 31; }

// 1 / rms of the head, in every lane.
MEGATRACE_DEVICE float head_rms_scale(float x, float y, float eps) {
  float squares = x * x + y * y;
#pragma unroll
  for (uint32_t mask = 16; mask != 0; mask /= 2) squares += ptx::shuffle_xor(squares, mask);
  return ptx::rsqrt(squares / kHeadDim + eps);
}

}  // namespace muse
