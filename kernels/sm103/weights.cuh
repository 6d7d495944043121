// Expert weights in a stage of the ring, and how they become tensor-core operands.
//
// A stage holds 16 rows of some k-blocks (64 columns). Of each, lane (g, j) owns the columns 16 j
// to 16 j + 15 of rows g and g + 8: one NVFP4 scale group a row, and 32 bytes of a token.
#pragma once

#include "shared.cuh"

namespace muse {

struct Bf16Experts {
  static constexpr uint32_t kStageColumns = 256;
  static constexpr uint32_t kBlockBytes = 2048;  // of a k-block
  static constexpr bool kScaled = false;

  // Expert inputs as the tensor cores take them here: bf16 as they are.
  static MEGATRACE_DEVICE uint32_t operand(uint32_t bf16_pair) { return bf16_pair; }

  static MEGATRACE_DEVICE void multiply(float (&even)[2][4], float (&odd)[2][4], const char* stage,
                                        uint32_t /*blocks*/, uint32_t block, const uint4& x0,
                                        const uint4& x1) {
    const uint4* a = reinterpret_cast<const uint4*>(stage + block * kBlockBytes) + ptx::lane_id();
    const uint4 w0 = a[0], w1 = a[32], w2 = a[64], w3 = a[96];
    ptx::mma_bf16(even[0], w0.x, w0.y, w0.z, w0.w, x0.x, x0.y);
    ptx::mma_bf16(odd[0], w1.x, w1.y, w1.z, w1.w, x0.z, x0.w);
    ptx::mma_bf16(even[0], w2.x, w2.y, w2.z, w2.w, x1.x, x1.y);
    ptx::mma_bf16(odd[0], w3.x, w3.y, w3.z, w3.w, x1.z, x1.w);
  }
};

// Four pairs of e2m1 codes as f16, times 2^-14: their bits are packed so that a mask and a
// shift put sign, exponent and mantissa where f16 has them (see megatrace/muse/pack.py).
struct BitLayout {
  static constexpr float kUnit = 128.f;  // 2^14, less the 2^7 that scale() adds
  static MEGATRACE_DEVICE void decode(uint32_t q, uint32_t (&pair)[4]) {
    pair[0] = q & 0x8E008E00u;
    pair[1] = (q * 8u) & 0x8E008E00u;
    pair[2] = ((q & 0x40384038u) * 66u) & 0x8E008E00u;
    pair[3] = ((q & 0x20072007u) * 516u) & 0x8E008E00u;
  }
  static MEGATRACE_DEVICE uint32_t scale(uint32_t e4m3_pair) {
    return ptx::mul_f16x2(ptx::e4m3x2_to_f16x2(e4m3_pair), 0x58005800u);  // 128
  }
};

// The order of the checkpoint, for chips that convert e2m1 themselves.
struct NativeLayout {
  static constexpr float kUnit = 1.f;
  static MEGATRACE_DEVICE void decode(uint32_t q, uint32_t (&pair)[4]) {
    for (uint32_t i = 0; i < 4; ++i) pair[i] = ptx::e2m1x2_to_f16x2(q >> (8 * i) & 0xff);
  }
  static MEGATRACE_DEVICE uint32_t scale(uint32_t e4m3_pair) {
    return ptx::e4m3x2_to_f16x2(e4m3_pair);
  }
};

// Products of code and scale have 5 bits of mantissa: exact in f16. Inputs are bf16, exact in f16
// from 2^-17 to 65504; beyond, they saturate.
template <class Layout>
struct Nvfp4Experts {
  static constexpr uint32_t kStageColumns = 1024;
  static constexpr uint32_t kBlockBytes = 512 + 64;  // codes, then the scales of all blocks
  static constexpr bool kScaled = true;
  static constexpr float kUnit = Layout::kUnit;

  static MEGATRACE_DEVICE uint32_t operand(uint32_t bf16_pair) {
    return ptx::pack_f16(ptx::bf16_low(bf16_pair), ptx::bf16_high(bf16_pair));
  }

  static MEGATRACE_DEVICE void multiply(float (&even)[2][4], float (&odd)[2][4], const char* stage,
                                        uint32_t blocks, uint32_t block, const uint4& x0,
                                        const uint4& x1) {
    const uint32_t lane = ptx::lane_id();
    const uint4 q = reinterpret_cast<const uint4*>(stage)[block * 32 + lane];
    const uint32_t scales =
        Layout::scale(reinterpret_cast<const uint16_t*>(stage + blocks * 512)[block * 32 + lane]);
    const uint32_t low = ptx::byte_permute(scales, scales, 0x1010);   // of row g
    const uint32_t high = ptx::byte_permute(scales, scales, 0x3232);  // of row g + 8
    half(even[0], odd[0], q.x, q.z, low, high, x0);
    half(even[1], odd[1], q.y, q.w, low, high, x1);
  }

 private:
  // Two k-steps: a word of row g, a word of row g + 8.
  static MEGATRACE_DEVICE void half(float (&even)[4], float (&odd)[4], uint32_t q, uint32_t q8,
                                    uint32_t scale, uint32_t scale8, const uint4& x) {
    uint32_t a[4], b[4];
    Layout::decode(q, a);
    Layout::decode(q8, b);
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      a[i] = ptx::mul_f16x2(a[i], scale);
      b[i] = ptx::mul_f16x2(b[i], scale8);
    }
    ptx::mma_f16(even, a[0], b[0], a[1], b[1], x.x, x.y);
    ptx::mma_f16(odd, a[2], b[2], a[3], b[3], x.z, x.w);
  }
};

}  // namespace muse
