// Second half of ptx.cuh, which includes it: numbers of 16 bits and less, and the tensor cores'
// matrices. Pairs of 16-bit numbers stand in a word, the first in the low half.
#pragma once

#include "megatrace/ptx.cuh"

#if !defined(MEGATRACE_HOST_BUILD)

namespace megatrace::ptx {

// Does the chip convert e2m1 itself? True where code for Blackwell's own features is made.
#if defined(__CUDA_ARCH_FEAT_SM100_ALL) || defined(__CUDA_ARCH_FEAT_SM103_ALL) || \
    (defined(__CUDA_ARCH_FAMILY_SPECIFIC__) && __CUDA_ARCH_FAMILY_SPECIFIC__ >= 1000)
#define MEGATRACE_HAS_E2M1 1
#else
#define MEGATRACE_HAS_E2M1 0
#endif
constexpr bool kHasE2m1 = MEGATRACE_HAS_E2M1;

// -- bf16 --------------------------------------------------------------------------------

// All roundings here are to the nearest, ties to even.
MEGATRACE_DEVICE uint32_t pack_bf16(float lo, float hi) {
  uint32_t pair;
  asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(pair) : "f"(hi), "f"(lo));
  return pair;
}

MEGATRACE_DEVICE float bf16_low(uint32_t pair) { return __uint_as_float(pair << 16); }
MEGATRACE_DEVICE float bf16_high(uint32_t pair) { return __uint_as_float(pair & 0xffff0000u); }
MEGATRACE_DEVICE float bf16_float(uint16_t bits) { return __uint_as_float(uint32_t{bits} << 16); }

MEGATRACE_DEVICE uint16_t float_bf16(float v) {
  uint16_t bits;
  asm("cvt.rn.bf16.f32 %0, %1;" : "=h"(bits) : "f"(v));
  return bits;
}

MEGATRACE_DEVICE float round_bf16(float v) { return bf16_float(float_bf16(v)); }

// -- f16 and less ------------------------------------------------------------------------

// What is too large becomes +-65504; NaN stays NaN.
MEGATRACE_DEVICE uint32_t pack_f16(float lo, float hi) {
  uint32_t pair;
  asm("cvt.rn.satfinite.f16x2.f32 %0, %1, %2;" : "=r"(pair) : "f"(hi), "f"(lo));
  return pair;
}

MEGATRACE_DEVICE float f16_low(uint32_t pair) {
  float v;
  asm("{.reg .b16 lo, hi; mov.b32 {lo, hi}, %1; cvt.f32.f16 %0, lo;}" : "=f"(v) : "r"(pair));
  return v;
}

MEGATRACE_DEVICE float f16_high(uint32_t pair) {
  float v;
  asm("{.reg .b16 lo, hi; mov.b32 {lo, hi}, %1; cvt.f32.f16 %0, hi;}" : "=f"(v) : "r"(pair));
  return v;
}

// Subnormals are kept, what is too large becomes infinite.
MEGATRACE_DEVICE uint32_t mul_f16x2(uint32_t a, uint32_t b) {
  uint32_t pair;
  asm("mul.rn.f16x2 %0, %1, %2;" : "=r"(pair) : "r"(a), "r"(b));
  return pair;
}

// Two codes in the low 16 bits; exact.
MEGATRACE_DEVICE uint32_t e4m3x2_to_f16x2(uint32_t codes) {
  uint32_t pair;
  asm("{.reg .b16 lo, hi; mov.b32 {lo, hi}, %1; cvt.rn.f16x2.e4m3x2 %0, lo;}"
      : "=r"(pair)
      : "r"(codes));
  return pair;
}

// What is too large becomes +-448; NaN stays NaN.
MEGATRACE_DEVICE uint16_t pack_e4m3(float lo, float hi) {
  uint16_t codes;
  asm("cvt.rn.satfinite.e4m3x2.f32 %0, %1, %2;" : "=h"(codes) : "f"(hi), "f"(lo));
  return codes;
}

// Two codes in the low 8 bits; exact. Only where kHasE2m1: traps elsewhere.
MEGATRACE_DEVICE uint32_t e2m1x2_to_f16x2(uint32_t codes) {
#if MEGATRACE_HAS_E2M1
  uint32_t pair;
  asm("{.reg .b8 b0, b1, b2, b3; mov.b32 {b0, b1, b2, b3}, %1; cvt.rn.f16x2.e2m1x2 %0, b0;}"
      : "=r"(pair)
      : "r"(codes));
  return pair;
#else
  trap();
  return codes;
#endif
}
#undef MEGATRACE_HAS_E2M1

// Byte i of the result is byte `selector >> 4 * i & 7` of b:a (a's are 0 to 3), or eight times
// that byte's sign where the nibble's high bit is set.
MEGATRACE_DEVICE uint32_t byte_permute(uint32_t a, uint32_t b, uint32_t selector) {
  uint32_t bytes;
  asm("prmt.b32 %0, %1, %2, %3;" : "=r"(bytes) : "r"(a), "r"(b), "r"(selector));
  return bytes;
}

// Each is one instruction, within 2 ulp; numbers below 2^-126 are zero to it.
MEGATRACE_DEVICE float exp2_approx(float v) {
  float power;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(power) : "f"(v));
  return power;
}
MEGATRACE_DEVICE float rsqrt(float v) {
  float root;
  asm("rsqrt.approx.ftz.f32 %0, %1;" : "=f"(root) : "f"(v));
  return root;
}
MEGATRACE_DEVICE float reciprocal(float v) {
  float part;
  asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(part) : "f"(v));
  return part;
}

// -- matrices: whole warps only ------------------------------------------------------------

// d += a b, a is 16 x 16 and b 16 x 8. With g = lane / 4 and j = lane % 4 a lane holds
//   a0, a1, a2, a3   a[g][2j..], a[g + 8][2j..], a[g][2j + 8..], a[g + 8][2j + 8..], pairs along k
//   b0, b1           b[2j..][g], b[2j + 8..][g], pairs along k
//   d                d[g][2j], d[g][2j + 1], d[g + 8][2j], d[g + 8][2j + 1]
MEGATRACE_DEVICE void mma_bf16(float (&d)[4], uint32_t a0, uint32_t a1, uint32_t a2, uint32_t a3,
                               uint32_t b0, uint32_t b1) {
  asm volatile(
      "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, "
      "{%8, %9}, {%0, %1, %2, %3};"
      : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
      : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(b0), "r"(b1));
}

MEGATRACE_DEVICE void mma_f16(float (&d)[4], uint32_t a0, uint32_t a1, uint32_t a2, uint32_t a3,
                              uint32_t b0, uint32_t b1) {
  asm volatile(
      "mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, "
      "{%8, %9}, {%0, %1, %2, %3};"
      : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
      : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(b0), "r"(b1));
}

// Four 8 x 8 matrices of 16-bit numbers from shared memory: lane 8m + i names row i of matrix m
// (16 bytes, aligned so), and r[m] becomes its elements [g][2j], [g][2j + 1].
MEGATRACE_DEVICE void ldmatrix_x4(uint32_t (&r)[4], const void* row) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
               : "r"(shared_address(row))
               : "memory");
}

// The same, but r[m] becomes [2j][g], [2j + 1][g].
MEGATRACE_DEVICE void ldmatrix_x4_trans(uint32_t (&r)[4], const void* row) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
               : "r"(shared_address(row))
               : "memory");
}

}  // namespace megatrace::ptx
#endif
