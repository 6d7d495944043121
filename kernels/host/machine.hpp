// The machine that stands in for a GPU: blocks x warps x 32 lanes, a fiber each, on one OS
// thread, in a seeded random order.
//
// It proves the logic of a kernel under many schedules (hand-offs, deadlocks, divergence),
// and under ThreadSanitizer that every hand-off is ordered. It does not show the GPU's
// memory ordering: here all lanes see every store at once and in one order, and nothing that
// passes here says a fence or a scope on the GPU is right.
#pragma once

#include <time.h>

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <exception>
#include <functional>
#include <memory>
#include <mutex>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include "options.hpp"
#include "state.hpp"

// Set at every switch; a lane reads its own.
MEGATRACE_HOST_HIDDEN inline uint3 threadIdx;
MEGATRACE_HOST_HIDDEN inline uint3 blockIdx;
MEGATRACE_HOST_HIDDEN inline dim3 blockDim;
MEGATRACE_HOST_HIDDEN inline dim3 gridDim;

namespace megatrace::host {

inline uint64_t monotonic_ns() {
  timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return static_cast<uint64_t>(t.tv_sec) * 1000000000ull + static_cast<uint64_t>(t.tv_nsec);
}

// SM clocks run at 2 cycles a nanosecond and start apart, as real ones do: up to 5.4 ms.
inline uint64_t sm_clock(uint32_t sm, uint64_t ns) {
  return ns * 2 + (sm + 1) * 0x9E3779B97F4A7C15ull % 10800000;
}

class MEGATRACE_HOST_HIDDEN Machine {
 public:
  Options options = Options::from_environment();

  // -- from outside (launch.hpp) ------------------------------------------------------------
  void launch(std::vector<Grid> grids);
  uint32_t overlapping(size_t launches);
  // Changes with every decision of the scheduler since the process began.
  uint64_t schedule_hash() const { return schedule_hash_; }
  void restart_seed(uint64_t seed);

  // -- called by lanes: time, waiting, order (lockstep.hpp, sync.hpp) ---------------------------
  uint64_t op(OpKind kind, const void* address);
  uint4 load_four(const uint4* address);
  void spin_pause(const char* what, uint32_t slot);
  uint64_t collective(Collective kind, uint32_t mask, uint64_t value, uint32_t source);
  void matrices(Collective kind, void* mine);
  void syncthreads() { barrier(0, 0); }
  void named_barrier(uint32_t id, uint32_t threads);
  [[noreturn]] void fail(const std::string& reason);
  [[noreturn]] void trap();
  [[noreturn]] void misaligned(size_t bytes);
  bool stuck() const { return stuck_; }
  void launch_dependents();
  bool predecessor_complete();

  // -- called by lanes: memory (memory.hpp) -------------------------------------------------
  void will_store();      // before every store that others may wait for
  uint32_t first_word();  // of a vector, to be stored
  void check_row(const void* row);
  void check_prefetch(const void* p, uint32_t bytes);
  void mbar_init(uint64_t* bar, uint32_t count);
  void mbar_arrive(uint64_t* bar, uint32_t expected_bytes);
  bool mbar_wait(OpKind kind, const uint64_t* bar, uint32_t parity);
  void bulk_load(void* dst, const void* src, uint32_t bytes, uint64_t* bar);
  void store_line(uint32_t* line, uint32_t word, uint32_t lanes);
  uint32_t shared_offset(const void* p);
  Lane& lane() {
    if (lane_ == nullptr) fail("a device function");
    return *lane_;
  }
  Block& block() { return *lane().warp->block; }

 private:
  struct Bulk {
    Block* block;
    uint64_t* bar;
    char* dst;
    const void* src;
    uint32_t bytes;
  };
  struct FreeShared {
    void operator()(char* p) const { std::free(p); }
  };
  // A block's shared memory, spoilt anew for every launch, of just the size that the block has.
  struct Shared {
    size_t bytes = 0;
    std::unique_ptr<char, FreeShared> p;
    char* of(size_t wanted) {
      if (p == nullptr || bytes != wanted)
        p.reset(static_cast<char*>(
            std::aligned_alloc(128, std::max<size_t>(1, (wanted + 127) / 128) * 128)));
      bytes = wanted;
      std::memset(p.get(), kFreshShared, wanted);
      return p.get();
    }
  };

  static void measure(Grid& grid);
  void build();
  void build_block(Grid& grid, size_t at, uint32_t b, size_t warp, size_t lane);
  void start(Grid& grid);
  void let_next_start(Block& block);
  void run();
  void finish();
  static void lane_main();

  uint64_t op_at(OpKind kind, const void* address, const void* pc);
  void park();
  void leave(bool for_good);
  void enter(Lane& lane);
  Lane* next_in_pass();
  void run_pass(Warp& warp);
  void turn(Warp& warp, bool even_if_held);
  uint32_t choose_group(const Warp& warp, bool even_if_held) const;
  void resolve(Warp& warp, uint32_t group);
  void make_ready(Lane& lane, uint64_t result);
  void make_runnable(Warp& warp);
  void update_place(Warp& warp);
  Warp& pick();
  bool may_wake() const { return !spinners_.empty() && (must_wake_ || progress_ != woken_at_); }
  void wake_spinners();
  void watch();
  bool unstick();
  bool idle_round();
  void complete_collective(Warp& warp, uint32_t mask);
  void barrier(uint32_t id, uint32_t threads);
  void check_barrier(Block& block, uint32_t id);
  void exit_lane(Lane& lane);
  void complete_bulk(size_t i);
  void settle(Block& block, uint64_t* bar, Mbarrier after, Mbarrier::Change change);
  void check_shared(const void* p, size_t bytes, size_t alignment, const char* what);
  std::string where(const Lane& lane) const;
  void note(uint64_t decision) { schedule_hash_ = (schedule_hash_ ^ decision) * 0x100000001B3ull; }

  std::mutex one_launch_;
  std::atomic<std::thread::id> owner_{};
  StackPool stacks_;
  Fiber main_;
  std::vector<Lane> lanes_;
  std::vector<Warp> warps_;
  std::vector<Block> blocks_;
  std::vector<Shared> shared_;
  std::vector<Grid> grids_;

  Random random_{1};
  uint64_t launches_ = 0;
  uint64_t schedule_hash_ = 0xCBF29CE484222325ull;
  uint32_t stay_ = 1;  // a warp goes on with chance 1 - 1/stay
  uint32_t bulk_every_ = 1;
  uint32_t wake_every_ = 1;
  bool some_slow_ = false;

  Lane* lane_ = nullptr;  // running now
  uint32_t pass_ = 0;     // lanes still to run in this pass
  uint32_t pass_first_ = 0;
  bool from_main_ = false;
  size_t live_ = 0;
  std::vector<Warp*> runnable_;
  std::vector<Warp*> spinners_;
  std::vector<Bulk> bulks_;

  uint64_t progress_ = 0;  // everything that may end somebody's wait counts it up
  uint64_t woken_at_ = 0;
  bool must_wake_ = false;
  uint64_t idle_at_ = 0;
  uint32_t idle_rounds_ = 0;
  uint64_t idle_since_ns_ = 0;
  uint64_t watched_ = 0;
  uint64_t watched_ns_ = 0;
  bool stuck_ = false;  // long waits are told to write down what they wait for

  bool failed_ = false;
  std::string error_;
  std::exception_ptr thrown_;
};

// Never destroyed: threads of the program may still hold on to it at exit.
MEGATRACE_HOST_HIDDEN inline Machine& machine() {
  static Machine& one = *new Machine;
  return one;
}

}  // namespace megatrace::host
