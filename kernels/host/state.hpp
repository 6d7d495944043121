// What the machine knows of a lane, a warp and a block.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "fiber.hpp"
#include "lines.hpp"
#include "mbarrier.hpp"
#include "vector_types.hpp"

namespace megatrace::host {

struct Warp;
struct Block;

enum class State : uint8_t { ready, at_op, collective, barrier, mbarrier, spinning, exited };

// Instructions whose answer depends on the moment. The lanes of a warp that reach one
// together get their answers at one moment, as in the lockstep of a real warp.
enum class OpKind : uint8_t {
  clock,
  timer,
  load32,
  load64,
  load128,
  mbar_test,
  mbar_try,
  spin,
  pause
};

struct Op {
  OpKind kind;
  const void* pc;  // where in the kernel, to tell which lanes are together
  const void* address;
};

enum class Collective : uint8_t {
  syncwarp,
  shuffle,
  ballot,
  elect,
  sum,
  min,
  max,
  // matrix.hpp: a lane's value points to what it brings.
  mma_bf16,
  mma_f16,
  ldmatrix,
  ldmatrix_trans
};

inline bool of_matrices(Collective kind) { return kind >= Collective::mma_bf16; }

inline const char* name(Collective kind) {
  constexpr const char* kNames[] = {"syncwarp",   "shuffle",    "ballot",        "elect",
                                    "reduce add", "reduce min", "reduce max",    "mma bf16",
                                    "mma f16",    "ldmatrix",   "ldmatrix trans"};
  return kNames[static_cast<int>(kind)];
}

struct Lane {
  Fiber* fiber = nullptr;
  Warp* warp = nullptr;
  uint32_t index = 0;
  State state = State::ready;
  Collective collective = Collective::syncwarp;
  uint32_t mask = 0;     // lanes that this collective needs
  uint32_t source = 0;   // lane to shuffle from
  uint32_t barrier = 0;  // named barrier
  uint64_t value = 0;    // what the lane gives to a collective
  uint64_t result = 0;   // what a collective or an op gives it
  uint64_t more = 0;     // the upper half of 16 bytes
  uint32_t stores = 0;   // lines stored so far
  uint64_t looked = 0;   // progress when its spin last began to look
  Op op = {};
  uint3 thread = {};
  // For messages: the last spin_pause, and the mbarrier tried before it.
  const char* what = nullptr;
  uint32_t slot = 0;
  const void* tried = nullptr;
  uint32_t parity = 0;
  const void* tried_pc = nullptr;
};

struct Warp {
  Block* block = nullptr;
  uint32_t index = 0;  // in its block
  Lane* lanes = nullptr;
  uint32_t exists = 0;  // lanes that the launch has
  // Masks of lanes by State; every lane is in exactly one.
  uint32_t ready = 0, at_op = 0, collective = 0, barrier = 0, mbarrier = 0, spinning = 0,
           exited = 0;
  int32_t place = -1;  // among the runnable warps
  bool held = false;   // at an op, but lanes behind it still spin
  bool in_spinners = false;
  bool slow = false;
  LineStage stage;

  uint32_t& mask_of(State state) {
    switch (state) {
      case State::ready:
        return ready;
      case State::at_op:
        return at_op;
      case State::collective:
        return collective;
      case State::barrier:
        return barrier;
      case State::mbarrier:
        return mbarrier;
      case State::spinning:
        return spinning;
      default:
        return exited;
    }
  }
  void move(Lane& lane, State to) {
    mask_of(lane.state) &= ~(1u << lane.index);
    lane.state = to;
    mask_of(to) |= 1u << lane.index;
  }
};

struct NamedBarrier {
  uint32_t threads = 0;  // 0: all that have not exited
  uint32_t arrived = 0;
};

// One launch.
struct Grid {
  dim3 size, block;
  size_t shared_bytes = 0;
  std::function<void()> body;
  uint32_t number = 0;  // among those that run together
  bool started = false;
  Block* first = nullptr;
  uint32_t blocks = 0;
  uint32_t threads = 0;  // of a block
  uint32_t holding = 0;  // blocks that have not let the next launch start
  size_t live = 0;       // threads that have not exited

  uint32_t warps() const { return (threads + 31) / 32; }
};

struct Block {
  Grid* grid = nullptr;
  bool holds = true;  // the next launch
  uint32_t number = 0;
  uint3 index = {};
  uint32_t sm = 0;
  uint32_t live = 0;  // threads that have not exited
  char* shared = nullptr;
  Warp* warps = nullptr;
  uint32_t warp_count = 0;
  NamedBarrier barriers[16];
};

// Calls f(lane index) for every set bit.
template <class F>
inline void for_lanes(uint32_t mask, F&& f) {
  for (; mask != 0; mask &= mask - 1) f(static_cast<uint32_t>(__builtin_ctz(mask)));
}

}  // namespace megatrace::host
