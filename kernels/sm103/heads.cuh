// What is done to a head of 64 by one warp: lane l holds dims 2l and 2l + 1.
#pragma once

#include "shared.cuh"

namespace muse {

// 1 / rms of the head, in every lane.
MEGATRACE_DEVICE float head_rms_scale(float x, float y, float eps) {
  float squares = x * x + y * y;
#pragma unroll
  for (uint32_t mask = 16; mask != 0; mask /= 2) squares += ptx::shuffle_xor(squares, mask);
  return ptx::rsqrt(squares / kHeadDim + eps);
}

}  // namespace muse
