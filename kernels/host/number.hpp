// Numbers of 16 bits and less, bit for bit as the GPU has them.
#pragma once

#include <cstdint>
#include <cstring>

namespace megatrace::host {

inline uint32_t float_bits(float v) {
  uint32_t bits;
  std::memcpy(&bits, &v, sizeof bits);
  return bits;
}

inline float bits_float(uint32_t bits) {
  float v;
  std::memcpy(&v, &bits, sizeof v);
  return v;
}

// What the GPU makes of every NaN that it converts to 16 bits.
constexpr uint16_t kNan16 = 0x7fff;

inline float bf16_to_float(uint32_t bits) { return bits_float(bits << 16); }

// To nearest, ties to even.
inline uint16_t float_to_bf16(float v) {
  const uint32_t bits = float_bits(v);
  if ((bits & 0x7fffffffu) > 0x7f800000u) return kNan16;
  return static_cast<uint16_t>((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
}

// Adds to a subnormal's bits what makes the float unit normalise it: no float is subnormal on
// the way, which some CPUs are slow at and some programs switch off.
inline float f16_to_float(uint32_t half) {
  const uint32_t sign = (half & 0x8000) << 16, rest = (half & 0x7fff) << 13;
  constexpr uint32_t kRebias = 112u << 23, kInfinite = 0x7c00u << 13, kNormal = 0x0400u << 13;
  const float small = bits_float(rest + kRebias + kNormal) - bits_float(kRebias + kNormal);
  const uint32_t large = rest + kRebias + (rest >= kInfinite ? kRebias : 0);
  return bits_float(sign | (rest < kNormal ? float_bits(small) : large));
}

// To nearest, ties to even; what is too large becomes infinite, or the largest number.
inline uint16_t float_to_f16(float v, bool saturate) {
  const uint32_t bits = float_bits(v), magnitude = bits & 0x7fffffffu;
  const auto sign = static_cast<uint16_t>(bits >> 16 & 0x8000);
  if (magnitude > 0x7f800000u) return kNan16;
  if (magnitude >= 0x477ff000u)  // 65520: halfway between 65504 and the next
    return static_cast<uint16_t>(sign | (saturate ? 0x7bff : 0x7c00));
  uint32_t half;
  if (magnitude >= 0x38800000u) {  // 2^-14, the smallest normal one
    half = (magnitude - (112u << 23) + 0xfff + (magnitude >> 13 & 1)) >> 13;
  } else {
    // Next to 0.5 a float's last place is 2^-24, that of a subnormal: the sum is rounded.
    half = float_bits(bits_float(magnitude) + 0.5f) - 0x3f000000u;
  }
  return static_cast<uint16_t>(sign | half);
}

inline uint32_t pair_of(uint16_t low, uint16_t high) { return low | uint32_t{high} << 16; }

// 4 bits of exponent, 3 of mantissa, no infinity: 0x7f and 0xff are NaN.
inline uint16_t e4m3_to_f16(uint32_t code) {
  if ((code & 0x7f) == 0x7f) return kNan16;
  const uint32_t exponent = code >> 3 & 15, mantissa = code & 7;
  const float magnitude = exponent == 0 ? static_cast<float>(mantissa) / 512
                                        : bits_float((exponent + 120) << 23 | mantissa << 20);
  return static_cast<uint16_t>((code & 0x80) << 8 | float_to_f16(magnitude, true));
}

// To nearest, ties to even; what is too large becomes the largest number.
inline uint8_t float_to_e4m3(float v) {
  const uint32_t bits = float_bits(v), magnitude = bits & 0x7fffffffu;
  const uint32_t sign = bits >> 24 & 0x80;
  if (magnitude > 0x7f800000u) return 0x7f;
  uint32_t code;
  if (magnitude >= 0x43e00000u) {  // 448
    code = 0x7e;
  } else if (magnitude >= 0x3c800000u) {  // 2^-6, the smallest normal one
    code = (magnitude - (120u << 23) + 0x7ffff + (magnitude >> 20 & 1)) >> 20;
  } else {
    // Next to 2^14 a float's last place is 2^-9, that of a subnormal: the sum is rounded.
    code = float_bits(bits_float(magnitude) + 16384.0f) - 0x46800000u;
  }
  return static_cast<uint8_t>(sign | code);
}

// 2 bits of exponent, 1 of mantissa: 0, 0.5, 1, 1.5, 2, 3, 4, 6 and their negatives.
inline uint16_t e2m1_to_f16(uint32_t code) {
  constexpr uint16_t kValues[] = {0x0000, 0x3800, 0x3c00, 0x3e00, 0x4000, 0x4200, 0x4400, 0x4600};
  return static_cast<uint16_t>((code & 8) << 12 | kValues[code & 7]);
}

inline uint32_t permute_bytes(uint32_t a, uint32_t b, uint32_t selector) {
  const uint64_t both = a | uint64_t{b} << 32;
  uint32_t result = 0;
  for (uint32_t i = 0; i < 4; i++) {
    const uint32_t pick = selector >> 4 * i & 15;
    uint32_t byte = both >> 8 * (pick & 7) & 0xff;
    if (pick & 8) byte = byte & 0x80 ? 0xff : 0;
    result |= byte << 8 * i;
  }
  return result;
}

}  // namespace megatrace::host
