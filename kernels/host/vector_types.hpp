// CUDA's small vector types, as far as the kernels use them.
#pragma once

#include <cstdint>

#define MEGATRACE_VECTOR2(type, name, bytes)    \
  struct alignas(bytes) name##2 { type x, y; }; \
  inline name##2 make_##name##2(type x, type y) { return {x, y}; }

#define MEGATRACE_VECTOR4(type, name, bytes)          \
  struct alignas(bytes) name##4 { type x, y, z, w; }; \
  inline name##4 make_##name##4(type x, type y, type z, type w) { return {x, y, z, w}; }

MEGATRACE_VECTOR2(int, int, 8)
MEGATRACE_VECTOR4(int, int, 16)
MEGATRACE_VECTOR2(unsigned, uint, 8)
MEGATRACE_VECTOR4(unsigned, uint, 16)
MEGATRACE_VECTOR2(float, float, 8)
MEGATRACE_VECTOR4(float, float, 16)
MEGATRACE_VECTOR2(double, double, 16)
MEGATRACE_VECTOR2(unsigned long long, ulonglong, 16)

#undef MEGATRACE_VECTOR2
#undef MEGATRACE_VECTOR4

struct uint3 {
  unsigned x, y, z;
};

struct dim3 {
  unsigned x, y, z;
  constexpr dim3(unsigned x = 1, unsigned y = 1, unsigned z = 1) : x(x), y(y), z(z) {}
};
