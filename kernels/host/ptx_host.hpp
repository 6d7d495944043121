// megatrace::ptx in C++: the same names as the device half of ptx.cuh.
#pragma once

#include <cstdint>

#include "launch.hpp"
#include "lockstep.hpp"
#include "memory.hpp"
#include "number.hpp"
#include "run.hpp"
#include "sync.hpp"

// Inlined even without optimisation, so that the address a call returns to tells where in the
// kernel a lane is.
#define MEGATRACE_DEVICE inline __attribute__((always_inline))

namespace megatrace::ptx {

using host::machine;

// Runs are slow here, and a deadlock is found sooner by looking at all lanes.
constexpr uint64_t kTrapCycles = 1ull << 38;

// 0 once the machine sees that nothing can go on: then every wait writes down what it knows,
// before the verdict.
template <uint64_t kCycles>
struct UnlessStuck {
  operator uint64_t() const { return machine().stuck() ? 0 : kCycles; }
};
inline constexpr UnlessStuck<kTrapCycles / 4> kHangCycles{};
inline constexpr UnlessStuck<kTrapCycles / 2> kGiveUpCycles{};

// -- identity and clocks ---------------------------------------------------------------

MEGATRACE_DEVICE uint32_t lane_id() { return machine().lane().index; }
MEGATRACE_DEVICE uint32_t sm_id() { return machine().block().sm; }
MEGATRACE_DEVICE uint64_t clock64() { return machine().op(host::OpKind::clock, nullptr); }
MEGATRACE_DEVICE uint32_t low_half(uint64_t clock) { return static_cast<uint32_t>(clock); }
MEGATRACE_DEVICE uint64_t globaltimer() { return machine().op(host::OpKind::timer, nullptr); }
MEGATRACE_DEVICE void read_clocks(uint64_t& ns, uint64_t& cycles) {
  ns = globaltimer();
  cycles = host::sm_clock(machine().block().sm, ns);
}
constexpr bool kSlow = true;

MEGATRACE_DEVICE uint32_t opaque(uint32_t value) { return value; }
template <class T>
MEGATRACE_DEVICE T* opaque(T* p) {
  return p;
}

// -- warps -----------------------------------------------------------------------------

constexpr uint32_t kWholeWarp = 0xffffffffu;

MEGATRACE_DEVICE void syncwarp() {
  machine().collective(host::Collective::syncwarp, kWholeWarp, 0, 0);
}
MEGATRACE_DEVICE bool elect_one() {
  return machine().collective(host::Collective::elect, kWholeWarp, 0, 0) != 0;
}
MEGATRACE_DEVICE uint32_t shuffle(uint32_t value, uint32_t lane) {
  return static_cast<uint32_t>(
      machine().collective(host::Collective::shuffle, kWholeWarp, value, lane & 31));
}
MEGATRACE_DEVICE uint32_t shuffle_xor(uint32_t value, uint32_t mask) {
  return shuffle(value, lane_id() ^ mask);
}
MEGATRACE_DEVICE float shuffle(float value, uint32_t lane) {
  return host::bits_float(shuffle(host::float_bits(value), lane));
}
MEGATRACE_DEVICE float shuffle_xor(float value, uint32_t mask) {
  return shuffle(value, lane_id() ^ mask);
}
MEGATRACE_DEVICE uint32_t ballot(bool vote) {
  return static_cast<uint32_t>(machine().collective(host::Collective::ballot, kWholeWarp, vote, 0));
}
MEGATRACE_DEVICE void barrier_sync(uint32_t id, uint32_t threads) {
  machine().named_barrier(id, threads);
}

// -- mbarriers and bulk copies ---------------------------------------------------------

MEGATRACE_DEVICE char* dynamic_shared() { return machine().block().shared; }
MEGATRACE_DEVICE uint32_t shared_address(const void* p) { return machine().shared_offset(p); }

MEGATRACE_DEVICE void mbar_init(uint64_t* bar, uint32_t count) { machine().mbar_init(bar, count); }
MEGATRACE_DEVICE void mbar_init_fence() {}
MEGATRACE_DEVICE void mbar_expect_tx(uint64_t* bar, uint32_t bytes) {
  machine().mbar_arrive(bar, bytes);
}
MEGATRACE_DEVICE void mbar_arrive(uint64_t* bar) { machine().mbar_arrive(bar, 0); }
MEGATRACE_DEVICE bool mbar_test(uint64_t* bar, uint32_t parity) {
  return machine().mbar_wait(host::OpKind::mbar_test, bar, parity);
}
MEGATRACE_DEVICE bool mbar_try(uint64_t* bar, uint32_t parity) {
  return machine().mbar_wait(host::OpKind::mbar_try, bar, parity);
}
MEGATRACE_DEVICE void bulk_load(void* dst, const void* src, uint32_t bytes, uint64_t* bar) {
  machine().bulk_load(dst, src, bytes, bar);
}

MEGATRACE_DEVICE void bulk_stream(void* dst, const void* src, uint32_t bytes, uint64_t* bar) {
  machine().bulk_load(dst, src, bytes, bar);
}

// -- global memory ---------------------------------------------------------------------

MEGATRACE_DEVICE void check_aligned(const void* p, size_t bytes) {
  if (reinterpret_cast<uintptr_t>(p) % bytes != 0) machine().misaligned(bytes);
}

MEGATRACE_DEVICE uint32_t load_relaxed(const uint32_t* p) {
  check_aligned(p, 4);
  return static_cast<uint32_t>(machine().op(host::OpKind::load32, p));
}
MEGATRACE_DEVICE uint64_t load_relaxed(const uint64_t* p) {
  check_aligned(p, 8);
  return machine().op(host::OpKind::load64, p);
}
MEGATRACE_DEVICE uint4 load_relaxed(const uint4* p) {
  check_aligned(p, 16);
  return machine().load_four(p);
}
MEGATRACE_DEVICE void store_relaxed(uint4* p, uint4 v) {
  check_aligned(p, 16);
  const uint32_t words[4] = {v.x, v.y, v.z, v.w}, first = machine().first_word();
  for (uint32_t i = 0; i < 4; i++) {
    const uint32_t word = (first + i) % 4;
    machine().will_store();
    __atomic_store_n(reinterpret_cast<uint32_t*>(p) + word, words[word], __ATOMIC_RELAXED);
  }
}
MEGATRACE_DEVICE uint32_t load_acquire(const uint32_t* p) {
  const uint32_t v = load_relaxed(p);
  host::sanitizer::acquire(p);
  return v;
}
MEGATRACE_DEVICE void store_relaxed(uint32_t* p, uint32_t v) {
  check_aligned(p, 4);
  machine().will_store();
  __atomic_store_n(p, v, __ATOMIC_RELAXED);
}
MEGATRACE_DEVICE void store_relaxed(uint64_t* p, uint64_t v) {
  check_aligned(p, 8);
  machine().will_store();
  __atomic_store_n(p, v, __ATOMIC_RELAXED);
}
MEGATRACE_DEVICE void store_release(uint32_t* p, uint32_t v) {
  check_aligned(p, 4);
  machine().will_store();
  __atomic_store_n(p, v, __ATOMIC_RELEASE);
}
MEGATRACE_DEVICE uint32_t atomic_add(uint32_t* p, uint32_t v) {
  check_aligned(p, 4);
  machine().will_store();
  return __atomic_fetch_add(p, v, __ATOMIC_RELAXED);
}
MEGATRACE_DEVICE uint2 load_pair(const uint32_t* p) {
  const uint64_t both = load_relaxed(reinterpret_cast<const uint64_t*>(p));
  return {static_cast<uint32_t>(both), static_cast<uint32_t>(both >> 32)};
}
// There are no caches here.
MEGATRACE_DEVICE void prefetch_l2(const void* p, uint32_t bytes) {
  machine().check_prefetch(p, bytes);
}
// What a warp keeps from launch to launch: its own, so halves need not be read at once.
MEGATRACE_DEVICE uint4 load_state(const uint4* p) {
  const auto* halves = reinterpret_cast<const uint32_t*>(p);
  const uint2 low = load_pair(halves), high = load_pair(halves + 2);
  return {low.x, low.y, high.x, high.y};
}
MEGATRACE_DEVICE void store_state(uint4* p, uint4 v) {
  auto* halves = reinterpret_cast<uint64_t*>(p);
  store_relaxed(halves, v.x | static_cast<uint64_t>(v.y) << 32);
  store_relaxed(halves + 1, v.z | static_cast<uint64_t>(v.w) << 32);
}
// Here a copy is there at once.
MEGATRACE_DEVICE void fetch_async(uint4* to, const void* from) {
  check_aligned(to, 16);
  check_aligned(from, 16);
  *to = *static_cast<const uint4*>(from);
}
MEGATRACE_DEVICE void fetch_async_commit() {}
template <int kNewer>
MEGATRACE_DEVICE void fetch_async_wait() {}
MEGATRACE_DEVICE void add_state(uint64_t* p, uint64_t v) {
  check_aligned(p, 8);
  machine().will_store();
  __atomic_fetch_add(p, v, __ATOMIC_RELAXED);
}

// All lanes of the warp call this, also those that store nothing.
MEGATRACE_DEVICE void store_line(uint32_t* line, uint32_t word, uint32_t lanes) {
  machine().store_line(line, word, lanes);
}

// -- launches --------------------------------------------------------------------------

MEGATRACE_DEVICE void spin_pause(const char* what, uint32_t slot) {
  machine().spin_pause(what, slot);
}

// Where launches run one after the other (no MEGATRACE_HOST_OVERLAP) there is nothing to let
// go and nothing to wait for.
MEGATRACE_DEVICE void launch_dependents() { machine().launch_dependents(); }
MEGATRACE_DEVICE void dependency_wait() {
  while (!machine().predecessor_complete()) spin_pause("end of the launch before", 0);
}

MEGATRACE_DEVICE void trap() { machine().trap(); }
MEGATRACE_DEVICE void misuse(const char* what) { machine().fail(what); }

}  // namespace megatrace::ptx
