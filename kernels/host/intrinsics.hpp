// CUDA's own keywords and intrinsics, as far as the kernels use them.
#pragma once

#include <cmath>
#include <algorithm>
#include <cstdint>
#include <cstring>
#include <type_traits>

#include "ptx_host.hpp"
#include "ptx_math_host.hpp"

#define __global__
#define __device__
#define __host__
#define __constant__
#define __grid_constant__
#define __launch_bounds__(...)
#define __forceinline__ inline __attribute__((always_inline))
#define __align__(n) __attribute__((aligned(n)))
// Blocks run interleaved on one thread: a variable cannot be one per block.
#define __shared__ \
  static_assert(false, "no __shared__ variables here: use megatrace::ptx::dynamic_shared()");

namespace megatrace::host {

template <class T>
inline T shuffle_from(uint32_t mask, T value, uint32_t source) {
  static_assert(std::is_trivially_copyable_v<T> && sizeof(T) <= 8);
  uint64_t bits = 0;
  std::memcpy(&bits, &value, sizeof value);
  bits = machine().collective(Collective::shuffle, mask, bits, source);
  std::memcpy(&value, &bits, sizeof value);
  return value;
}

// A lane outside of the segment of `width` lanes gives its own value, as on the GPU.
inline uint32_t shuffle_source(int source, int width) {
  const int lane = static_cast<int>(machine().lane().index);
  const int first = lane & -width;
  return static_cast<uint32_t>(source < first || source >= first + width ? lane : source);
}

inline uint32_t reduce(Collective kind, uint32_t mask, uint32_t value) {
  return static_cast<uint32_t>(machine().collective(kind, mask, value, 0));
}

// Applies `change` to *p and returns what was there.
template <class T, class Change>
inline T atomic_change(T* p, Change&& change) {
  machine().will_store();
  T before, after;
  __atomic_load(p, &before, __ATOMIC_RELAXED);
  do after = change(before);
  while (!__atomic_compare_exchange(p, &before, &after, false, __ATOMIC_RELAXED, __ATOMIC_RELAXED));
  return before;
}

}  // namespace megatrace::host

// -- warps -----------------------------------------------------------------------------------

inline void __syncthreads() { megatrace::host::machine().syncthreads(); }
inline void __syncwarp(uint32_t mask = 0xffffffffu) {
  megatrace::host::machine().collective(megatrace::host::Collective::syncwarp, mask, 0, 0);
}

template <class T>
inline T __shfl_sync(uint32_t mask, T value, int source, int width = 32) {
  const int first = static_cast<int>(megatrace::host::machine().lane().index) & -width;
  return megatrace::host::shuffle_from(mask, value,
                                       static_cast<uint32_t>(first + (source & (width - 1))));
}
template <class T>
inline T __shfl_xor_sync(uint32_t mask, T value, int lane_mask, int width = 32) {
  const int lane = static_cast<int>(megatrace::host::machine().lane().index);
  return megatrace::host::shuffle_from(mask, value,
                                       megatrace::host::shuffle_source(lane ^ lane_mask, width));
}
template <class T>
inline T __shfl_down_sync(uint32_t mask, T value, unsigned delta, int width = 32) {
  const int lane = static_cast<int>(megatrace::host::machine().lane().index);
  return megatrace::host::shuffle_from(
      mask, value, megatrace::host::shuffle_source(lane + static_cast<int>(delta), width));
}
template <class T>
inline T __shfl_up_sync(uint32_t mask, T value, unsigned delta, int width = 32) {
  const int lane = static_cast<int>(megatrace::host::machine().lane().index);
  return megatrace::host::shuffle_from(
      mask, value, megatrace::host::shuffle_source(lane - static_cast<int>(delta), width));
}

inline uint32_t __ballot_sync(uint32_t mask, int vote) {
  using megatrace::host::Collective;
  return megatrace::host::reduce(Collective::ballot, mask, vote != 0);
}
inline int __any_sync(uint32_t mask, int vote) { return __ballot_sync(mask, vote) != 0; }
inline int __all_sync(uint32_t mask, int vote) { return __ballot_sync(mask, !vote) == 0; }

inline uint32_t __reduce_add_sync(uint32_t mask, uint32_t value) {
  return megatrace::host::reduce(megatrace::host::Collective::sum, mask, value);
}
inline uint32_t __reduce_min_sync(uint32_t mask, uint32_t value) {
  return megatrace::host::reduce(megatrace::host::Collective::min, mask, value);
}
inline uint32_t __reduce_max_sync(uint32_t mask, uint32_t value) {
  return megatrace::host::reduce(megatrace::host::Collective::max, mask, value);
}

// -- memory ----------------------------------------------------------------------------------

template <class T>
inline T atomicAdd(T* p, T v) {
  return megatrace::host::atomic_change(p, [v](T before) { return static_cast<T>(before + v); });
}
template <class T>
inline T atomicMax(T* p, T v) {
  return megatrace::host::atomic_change(p, [v](T before) { return before < v ? v : before; });
}
template <class T>
inline T atomicMin(T* p, T v) {
  return megatrace::host::atomic_change(p, [v](T before) { return v < before ? v : before; });
}
template <class T>
inline T atomicOr(T* p, T v) {
  return megatrace::host::atomic_change(p, [v](T before) { return static_cast<T>(before | v); });
}
template <class T>
inline T atomicExch(T* p, T v) {
  return megatrace::host::atomic_change(p, [v](T) { return v; });
}
template <class T>
inline T atomicCAS(T* p, T expected, T v) {
  return megatrace::host::atomic_change(p,
                                        [=](T before) { return before == expected ? v : before; });
}

inline void __threadfence_block() { __atomic_thread_fence(__ATOMIC_SEQ_CST); }
inline void __threadfence() { __atomic_thread_fence(__ATOMIC_SEQ_CST); }
inline void __threadfence_system() { __atomic_thread_fence(__ATOMIC_SEQ_CST); }
template <class T>
inline T __ldg(const T* p) {
  return *p;
}

// -- numbers ---------------------------------------------------------------------------------

using std::max;
using std::min;

// -- bits ------------------------------------------------------------------------------------

inline int __popc(uint32_t v) { return __builtin_popcount(v); }
inline int __ffs(int v) { return __builtin_ffs(v); }
inline int __clz(int v) { return v == 0 ? 32 : __builtin_clz(static_cast<unsigned>(v)); }
inline uint32_t __float_as_uint(float v) { return megatrace::host::float_bits(v); }
inline float __uint_as_float(uint32_t bits) { return megatrace::host::bits_float(bits); }

// -- math: what <cmath> lacks ------------------------------------------------------------------

#if defined(__GLIBC__) && defined(__GLIBC_PREREQ)
#if __GLIBC_PREREQ(2, 42)
#define MEGATRACE_HOST_HAS_RSQRTF 1
#endif
#endif
#if !defined(MEGATRACE_HOST_HAS_RSQRTF)
inline float rsqrtf(float v) { return megatrace::ptx::rsqrt(v); }
#endif
