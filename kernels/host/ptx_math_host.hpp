// Second half of ptx_host.hpp: the names of the device half of ptx_math.cuh.
#pragma once

#include <cmath>
#include <cstdint>
#include <cstring>

#include "matrix.hpp"
#include "number.hpp"
#include "ptx_host.hpp"

namespace megatrace::ptx {

constexpr bool kHasE2m1 = true;

// -- bf16 --------------------------------------------------------------------------------

MEGATRACE_DEVICE uint32_t pack_bf16(float lo, float hi) {
  return host::pair_of(host::float_to_bf16(lo), host::float_to_bf16(hi));
}
MEGATRACE_DEVICE float bf16_low(uint32_t pair) { return host::bits_float(pair << 16); }
MEGATRACE_DEVICE float bf16_high(uint32_t pair) { return host::bits_float(pair & 0xffff0000u); }
MEGATRACE_DEVICE float bf16_float(uint16_t bits) { return host::bf16_to_float(bits); }
MEGATRACE_DEVICE uint16_t float_bf16(float v) { return host::float_to_bf16(v); }
MEGATRACE_DEVICE float round_bf16(float v) { return bf16_float(float_bf16(v)); }

// -- f16 and less ------------------------------------------------------------------------

MEGATRACE_DEVICE uint32_t pack_f16(float lo, float hi) {
  return host::pair_of(host::float_to_f16(lo, true), host::float_to_f16(hi, true));
}
MEGATRACE_DEVICE float f16_low(uint32_t pair) { return host::f16_to_float(pair & 0xffff); }
MEGATRACE_DEVICE float f16_high(uint32_t pair) { return host::f16_to_float(pair >> 16); }
// A product of two f16 is exact in a float: it is rounded once.
MEGATRACE_DEVICE uint32_t mul_f16x2(uint32_t a, uint32_t b) {
  return host::pair_of(host::float_to_f16(f16_low(a) * f16_low(b), false),
                       host::float_to_f16(f16_high(a) * f16_high(b), false));
}
MEGATRACE_DEVICE uint32_t e4m3x2_to_f16x2(uint32_t codes) {
  return host::pair_of(host::e4m3_to_f16(codes & 0xff), host::e4m3_to_f16(codes >> 8 & 0xff));
}
MEGATRACE_DEVICE uint16_t pack_e4m3(float lo, float hi) {
  return static_cast<uint16_t>(host::float_to_e4m3(lo) | host::float_to_e4m3(hi) << 8);
}
MEGATRACE_DEVICE uint32_t e2m1x2_to_f16x2(uint32_t codes) {
  return host::pair_of(host::e2m1_to_f16(codes & 15), host::e2m1_to_f16(codes >> 4 & 15));
}
MEGATRACE_DEVICE uint32_t byte_permute(uint32_t a, uint32_t b, uint32_t selector) {
  return host::permute_bytes(a, b, selector);
}
MEGATRACE_DEVICE float exp2_approx(float v) { return std::exp2(v); }
MEGATRACE_DEVICE float rsqrt(float v) {
  return static_cast<float>(1 / std::sqrt(static_cast<double>(v)));
}
MEGATRACE_DEVICE float reciprocal(float v) { return 1 / v; }

// -- matrices: whole warps only ------------------------------------------------------------

MEGATRACE_DEVICE void mma_bf16(float (&d)[4], uint32_t a0, uint32_t a1, uint32_t a2, uint32_t a3,
                               uint32_t b0, uint32_t b1) {
  host::MmaLane mine = {{d[0], d[1], d[2], d[3]}, {a0, a1, a2, a3}, {b0, b1}};
  machine().matrices(host::Collective::mma_bf16, &mine);
  std::memcpy(d, mine.d, sizeof d);
}
MEGATRACE_DEVICE void mma_f16(float (&d)[4], uint32_t a0, uint32_t a1, uint32_t a2, uint32_t a3,
                              uint32_t b0, uint32_t b1) {
  host::MmaLane mine = {{d[0], d[1], d[2], d[3]}, {a0, a1, a2, a3}, {b0, b1}};
  machine().matrices(host::Collective::mma_f16, &mine);
  std::memcpy(d, mine.d, sizeof d);
}

// Every lane reads the row it names itself, so that the sanitizers see who reads it.
MEGATRACE_DEVICE void load_matrices(host::Collective kind, uint32_t* r, const void* row) {
  machine().check_row(row);
  host::LdmatrixLane mine;
  std::memcpy(mine.row, row, sizeof mine.row);
  machine().matrices(kind, &mine);
  std::memcpy(r, mine.r, sizeof mine.r);
}
MEGATRACE_DEVICE void ldmatrix_x4(uint32_t (&r)[4], const void* row) {
  load_matrices(host::Collective::ldmatrix, r, row);
}
MEGATRACE_DEVICE void ldmatrix_x4_trans(uint32_t (&r)[4], const void* row) {
  load_matrices(host::Collective::ldmatrix_trans, r, row);
}

}  // namespace megatrace::ptx
