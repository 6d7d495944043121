// The tensor cores' matrices: what a warp's lanes hold, put together and taken apart.
#pragma once

#include <cstdint>

#include "number.hpp"
#include "state.hpp"

namespace megatrace::host {

// What a lane brings to an mma, on its own stack while it waits there.
struct MmaLane {
  float d[4];
  uint32_t a[4], b[2];
};

struct LdmatrixLane {
  uint32_t row[4];  // the 16 bytes that the lane named
  uint32_t r[4];
};

// d += a b. Products are exact and the sums fp32, as on the GPU; the order of the sums and
// their roundings are not: here along k, then to d, each rounded to nearest.
template <class ToFloat>
inline void multiply_matrices(Lane* lanes, ToFloat&& to_float) {
  float a[16][16], b[16][8];
  for (uint32_t l = 0; l < 32; l++) {
    const auto& it = *reinterpret_cast<const MmaLane*>(lanes[l].value);
    const uint32_t g = l / 4, k = l % 4 * 2;
    for (uint32_t half = 0; half < 2; half++) {
      for (uint32_t i = 0; i < 4; i++)
        a[g + 8 * (i & 1)][k + 8 * (i >> 1) + half] = to_float(it.a[i] >> 16 * half & 0xffff);
      for (uint32_t i = 0; i < 2; i++)
        b[k + 8 * i + half][g] = to_float(it.b[i] >> 16 * half & 0xffff);
    }
  }
  for (uint32_t row = 0; row < 16; row++) {
    float sums[8] = {};
    for (uint32_t k = 0; k < 16; k++)
      for (uint32_t n = 0; n < 8; n++) sums[n] += a[row][k] * b[k][n];
    for (uint32_t n = 0; n < 8; n++) {
      auto& it = *reinterpret_cast<MmaLane*>(lanes[row % 8 * 4 + n / 2].value);
      it.d[row / 8 * 2 + n % 2] += sums[n];
    }
  }
}

// Element (row, column) of matrix m; lane 8m + row brought the row.
inline uint32_t matrix_element(const Lane* lanes, uint32_t m, uint32_t row, uint32_t column) {
  const auto& it = *reinterpret_cast<const LdmatrixLane*>(lanes[8 * m + row].value);
  return it.row[column / 2] >> 16 * (column % 2) & 0xffff;
}

inline void distribute_matrices(Lane* lanes, bool transpose) {
  for (uint32_t l = 0; l < 32; l++) {
    auto& it = *reinterpret_cast<LdmatrixLane*>(lanes[l].value);
    const uint32_t g = l / 4, k = l % 4 * 2;
    for (uint32_t m = 0; m < 4; m++)
      it.r[m] = transpose
                    ? matrix_element(lanes, m, k, g) | matrix_element(lanes, m, k + 1, g) << 16
                    : matrix_element(lanes, m, g, k) | matrix_element(lanes, m, g, k + 1) << 16;
  }
}

// The collective of a whole warp whose lanes' values point to what they bring.
inline void exchange_matrices(Collective kind, Lane* lanes) {
  switch (kind) {
    case Collective::mma_bf16:
      return multiply_matrices(lanes, [](uint32_t v) { return bf16_to_float(v); });
    case Collective::mma_f16:
      return multiply_matrices(lanes, [](uint32_t v) { return f16_to_float(v); });
    case Collective::ldmatrix:
      return distribute_matrices(lanes, false);
    case Collective::ldmatrix_trans:
      return distribute_matrices(lanes, true);
    default:
      return;
  }
}

}  // namespace megatrace::host
