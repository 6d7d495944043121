// The only file with inline asm, but for ptx_math.cuh, its second half: numbers and matrices.
// On the device each function is one PTX instruction; in the host build
// (MEGATRACE_HOST_BUILD) kernels/host supplies the same names in C++.
#pragma once

#include <cstdint>

#if defined(MEGATRACE_HOST_BUILD)
#include "cuda_host.hpp"
#else
#include <cuda_runtime.h>

#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ < 900
#error "megatrace traces kernels of sm_90 and later: build with -arch=sm_90a or newer"
#endif

#define MEGATRACE_DEVICE __device__ __forceinline__

namespace megatrace::ptx {

// A wait that outlasts this traps, so that a broken hand-off never wedges a GPU. A kernel that
// waits for work longer than that is built with a bound of its own.
#if !defined(MEGATRACE_TRAP_CYCLES)
#define MEGATRACE_TRAP_CYCLES (1ull << 34)  // 8.7 s at 1.98 GHz
#endif
constexpr uint64_t kTrapCycles = MEGATRACE_TRAP_CYCLES;
static_assert(kTrapCycles >= 1ull << 20, "MEGATRACE_TRAP_CYCLES: half a millisecond or more");
// In a launch that keeps no lines, of a build that could, a wait is given up after this, and says
// so then.
constexpr uint64_t kGiveUpCycles = kTrapCycles / 2;
// In a launch with a timeline a wait that outlasts this is written down at once, readable from
// outside: 0.14 s. With a longer bound later, but before its cycles are more than an argument
// holds.
constexpr uint64_t kHangCycles = kTrapCycles / 64 < 1ull << 30 ? kTrapCycles / 64 : 1ull << 30;

// -- identity and clocks ---------------------------------------------------------------

MEGATRACE_DEVICE uint32_t lane_id() { return threadIdx.x & 31; }

MEGATRACE_DEVICE uint32_t sm_id() {
  uint32_t id;
  asm("mov.u32 %0, %%smid;" : "=r"(id));
  return id;
}

// The 64-bit reads are the cheap ones (CS2R: 7 cycles, the 32-bit read takes 25).
MEGATRACE_DEVICE uint64_t clock64() {
  uint64_t cycles;
  asm volatile("mov.u64 %0, %%clock64;" : "=l"(cycles));
  return cycles;
}

// The low half of a clock just read. The clock's sign, zero for a lifetime, is added, so that the
// compiler does not make a 32-bit read of it.
MEGATRACE_DEVICE uint32_t low_half(uint64_t clock) {
  return static_cast<uint32_t>(clock) + static_cast<uint32_t>(clock >> 63);
}

MEGATRACE_DEVICE uint64_t globaltimer() {
  uint64_t ns;
  asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(ns));
  return ns;
}

// Both clocks, as close together as can be.
MEGATRACE_DEVICE void read_clocks(uint64_t& ns, uint64_t& cycles) {
  ns = globaltimer();
  cycles = clock64();
}

// Is the machine so slow that 2**22 cycles between two records are nothing special? Then
// every record says the high part of its time.
constexpr bool kSlow = false;

// The same value, as far as the compiler cannot see: it computes nothing of it earlier than
// here. Keeps a load's latency out of the code before its first real use.
MEGATRACE_DEVICE uint32_t opaque(uint32_t value) {
  asm volatile("" : "+r"(value));
  return value;
}
template <class T>
MEGATRACE_DEVICE T* opaque(T* p) {
  asm volatile("" : "+l"(p));
  return p;
}

// No value, at no cost: for who will not look.
MEGATRACE_DEVICE uint32_t undefined() {
  uint32_t value;
  asm("" : "=r"(value));
  return value;
}

// -- warps -----------------------------------------------------------------------------

MEGATRACE_DEVICE void syncwarp() { __syncwarp(); }

MEGATRACE_DEVICE bool elect_one() {
  uint32_t chosen;
  asm volatile("{.reg .pred p; elect.sync _|p, 0xffffffff; selp.u32 %0, 1, 0, p;}" : "=r"(chosen));
  return chosen != 0;
}

MEGATRACE_DEVICE uint32_t shuffle(uint32_t value, uint32_t lane) {
  return __shfl_sync(0xffffffffu, value, lane);
}

MEGATRACE_DEVICE uint32_t shuffle_xor(uint32_t value, uint32_t mask) {
  return __shfl_xor_sync(0xffffffffu, value, mask);
}

MEGATRACE_DEVICE float shuffle(float value, uint32_t lane) {
  return __shfl_sync(0xffffffffu, value, lane);
}

MEGATRACE_DEVICE float shuffle_xor(float value, uint32_t mask) {
  return __shfl_xor_sync(0xffffffffu, value, mask);
}

MEGATRACE_DEVICE uint32_t ballot(bool vote) { return __ballot_sync(0xffffffffu, vote); }

MEGATRACE_DEVICE void barrier_sync(uint32_t id, uint32_t threads) {
  asm volatile("bar.sync %0, %1;" ::"r"(id), "r"(threads) : "memory");
}

// The block's dynamic shared memory, aligned to 128 bytes. Kernels take all their shared
// memory from here: a `__shared__` variable has no meaning in the host build.
MEGATRACE_DEVICE char* dynamic_shared() {
  extern __shared__ __align__(128) char megatrace_dynamic_shared[];
  return megatrace_dynamic_shared;
}

// -- mbarriers and bulk copies ---------------------------------------------------------

MEGATRACE_DEVICE uint32_t shared_address(const void* p) {
  return static_cast<uint32_t>(__cvta_generic_to_shared(p));
}

MEGATRACE_DEVICE void mbar_init(uint64_t* bar, uint32_t count) {
  asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(shared_address(bar)), "r"(count));
}

MEGATRACE_DEVICE void mbar_init_fence() {
  asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
}

MEGATRACE_DEVICE void mbar_expect_tx(uint64_t* bar, uint32_t bytes) {
  asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(shared_address(bar)),
               "r"(bytes)
               : "memory");
}

MEGATRACE_DEVICE void mbar_arrive(uint64_t* bar) {
  asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(shared_address(bar)) : "memory");
}

// Has the phase of this parity ended? Never blocks.
MEGATRACE_DEVICE bool mbar_test(uint64_t* bar, uint32_t parity) {
  uint32_t done;
  asm volatile(
      "{.reg .pred p; mbarrier.test_wait.parity.shared::cta.b64 p, [%1], %2; selp.u32 %0, 1, 0, p;}"
      : "=r"(done)
      : "r"(shared_address(bar)), "r"(parity)
      : "memory");
  return done != 0;
}

// The same, but the hardware may suspend the warp for a while before it answers no.
MEGATRACE_DEVICE bool mbar_try(uint64_t* bar, uint32_t parity) {
  uint32_t done;
  asm volatile(
      "{.reg .pred p; mbarrier.try_wait.parity.shared::cta.b64 p, [%1], %2; selp.u32 %0, 1, 0, p;}"
      : "=r"(done)
      : "r"(shared_address(bar)), "r"(parity)
      : "memory");
  return done != 0;
}

// The same, by the barrier's shared address.
MEGATRACE_DEVICE bool mbar_try_at(uint32_t bar, uint32_t parity) {
  uint32_t done;
  asm volatile(
      "{.reg .pred p; mbarrier.try_wait.parity.shared::cta.b64 p, [%1], %2; selp.u32 %0, 1, 0, p;}"
      : "=r"(done)
      : "r"(bar), "r"(parity)
      : "memory");
  return done != 0;
}

MEGATRACE_DEVICE void bulk_load(void* dst, const void* src, uint32_t bytes, uint64_t* bar) {
  asm volatile(
      "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::
          "r"(shared_address(dst)),
      "l"(src), "r"(bytes), "r"(shared_address(bar))
      : "memory");
}

// The same for what is read once: it is the first to leave the L2 cache, and does not push out
// what others want to find there, instructions among it.
constexpr uint64_t kStream = 0x12F0000000000000ull;  // L2::evict_first, whole

MEGATRACE_DEVICE void bulk_stream(void* dst, const void* src, uint32_t bytes, uint64_t* bar) {
  asm volatile(
      "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes.L2::cache_hint "
      "[%0], [%1], %2, [%3], %4;" ::"r"(shared_address(dst)),
      "l"(src), "r"(bytes), "r"(shared_address(bar)), "l"(kStream)
      : "memory");
}

// -- global memory ---------------------------------------------------------------------

MEGATRACE_DEVICE uint32_t load_relaxed(const uint32_t* p) {
  uint32_t v;
  asm volatile("ld.relaxed.gpu.global.u32 %0, [%1];" : "=r"(v) : "l"(p) : "memory");
  return v;
}

MEGATRACE_DEVICE void store_relaxed(uint32_t* p, uint32_t v) {
  asm volatile("st.relaxed.gpu.global.u32 [%0], %1;" ::"l"(p), "r"(v) : "memory");
}

MEGATRACE_DEVICE uint64_t load_relaxed(const uint64_t* p) {
  uint64_t v;
  asm volatile("ld.relaxed.gpu.global.u64 %0, [%1];" : "=l"(v) : "l"(p) : "memory");
  return v;
}

MEGATRACE_DEVICE void store_relaxed(uint64_t* p, uint64_t v) {
  asm volatile("st.relaxed.gpu.global.u64 [%0], %1;" ::"l"(p), "l"(v) : "memory");
}

// Four words, each of them whole: another thread's four may be seen in part.
MEGATRACE_DEVICE uint4 load_relaxed(const uint4* p) {
  uint4 v;
  asm volatile("ld.relaxed.gpu.global.v4.u32 {%0, %1, %2, %3}, [%4];"
               : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
               : "l"(p)
               : "memory");
  return v;
}

MEGATRACE_DEVICE void store_relaxed(uint4* p, uint4 v) {
  asm volatile("st.relaxed.gpu.global.v4.u32 [%0], {%1, %2, %3, %4};" ::"l"(p), "r"(v.x), "r"(v.y),
               "r"(v.z), "r"(v.w)
               : "memory");
}

MEGATRACE_DEVICE uint32_t load_acquire(const uint32_t* p) {
  uint32_t v;
  asm volatile("ld.acquire.gpu.global.u32 %0, [%1];" : "=r"(v) : "l"(p) : "memory");
  return v;
}

MEGATRACE_DEVICE void store_release(uint32_t* p, uint32_t v) {
  asm volatile("st.release.gpu.global.u32 [%0], %1;" ::"l"(p), "r"(v) : "memory");
}

MEGATRACE_DEVICE uint32_t atomic_add(uint32_t* p, uint32_t v) { return atomicAdd(p, v); }

// Two neighbouring words in one read (8-byte aligned).
MEGATRACE_DEVICE uint2 load_pair(const uint32_t* p) {
  uint2 v;
  asm volatile("ld.relaxed.gpu.global.v2.u32 {%0, %1}, [%2];"
               : "=r"(v.x), "=r"(v.y)
               : "l"(p)
               : "memory");
  return v;
}

// Asks for memory that will be read soon; `p` and `bytes` are multiples of 16.
MEGATRACE_DEVICE void prefetch_l2(const void* p, uint32_t bytes) {
  asm volatile("cp.async.bulk.prefetch.L2.global [%0], %1;" ::"l"(p), "r"(bytes));
}

// What a warp keeps from launch to launch. It asks the L2 cache to hold on to it: a stream
// of weights would push it out, and then each write costs the stream a turn of the DRAM bus.
constexpr uint64_t kKeep = 0x14F0000000000000ull;  // L2::evict_last, whole

MEGATRACE_DEVICE uint4 load_state(const uint4* p) {
  uint4 v;
  asm volatile("ld.relaxed.gpu.global.L2::cache_hint.v4.u32 {%0, %1, %2, %3}, [%4], %5;"
               : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
               : "l"(p), "l"(kKeep)
               : "memory");
  return v;
}

MEGATRACE_DEVICE void store_state(uint4* p, uint4 v) {
  asm volatile("st.global.L2::cache_hint.v4.u32 [%0], {%1, %2, %3, %4}, %5;" ::"l"(p), "r"(v.x),
               "r"(v.y), "r"(v.z), "r"(v.w), "l"(kKeep)
               : "memory");
}

// Sixteen bytes of such memory into shared memory, past the L1 cache. The wait is for all that
// this thread asked for in this way or by fetch_async().
MEGATRACE_DEVICE void fetch_state_async(void* to, const void* from) {
  asm volatile(
      "cp.async.cg.shared.global.L2::cache_hint [%0], [%1], 16, %2;" ::"r"(shared_address(to)),
      "l"(from), "l"(kKeep)
      : "memory");
}
MEGATRACE_DEVICE void fetch_async_wait_all() { asm volatile("cp.async.wait_all;" ::: "memory"); }

// Sixteen bytes of global memory into shared memory, past the L1 cache. A commit closes a group of
// such copies; a wait leaves at most the kNewer last groups of this thread on their way.
MEGATRACE_DEVICE void fetch_async(uint4* to, const void* from) {
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(shared_address(to)), "l"(from)
               : "memory");
}
MEGATRACE_DEVICE void fetch_async_commit() { asm volatile("cp.async.commit_group;" ::: "memory"); }
template <int kNewer>
MEGATRACE_DEVICE void fetch_async_wait() {
  asm volatile("cp.async.wait_group %0;" ::"n"(kNewer) : "memory");
}

// Adds and does not wait for the sum.
MEGATRACE_DEVICE void add_state(uint64_t* p, uint64_t v) {
  asm volatile("red.relaxed.gpu.global.add.L2::cache_hint.u64 [%0], %1, %2;" ::"l"(p), "l"(v),
               "l"(kKeep)
               : "memory");
}

// One line of a ring: the first `lanes` lanes of the warp (16 or 32) store a word each, and
// the hardware makes one posted write of it. Weak on purpose: nobody on the GPU reads it.
MEGATRACE_DEVICE void store_line(uint32_t* line, uint32_t word, uint32_t lanes) {
  if (lane_id() < lanes)
    asm volatile("st.global.u32 [%0], %1;" ::"l"(line + lane_id()), "r"(word) : "memory");
}

// -- launches --------------------------------------------------------------------------

// Programmatic dependent launch: let the next launch start, wait for the one before.
MEGATRACE_DEVICE void launch_dependents() { asm volatile("griddepcontrol.launch_dependents;"); }
MEGATRACE_DEVICE void dependency_wait() { asm volatile("griddepcontrol.wait;" ::: "memory"); }

// Called in every turn of a spin, with what it waits for: the host build runs other warps
// here and names the wait when all of them are stuck.
MEGATRACE_DEVICE void spin_pause(const char* /*what*/, uint32_t /*slot*/) {}

MEGATRACE_DEVICE void trap() { asm volatile("trap;"); }

// A mistake of the kernel's author. The host build looks for them and says what.
MEGATRACE_DEVICE void misuse(const char* /*what*/) { trap(); }

}  // namespace megatrace::ptx
#endif

#include "megatrace/ptx_math.cuh"
