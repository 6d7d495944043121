// The machine's launches: sets the grid up, ends it, says why it could not end.
#pragma once

#include <algorithm>
#include <cstdio>

#include "machine.hpp"
#include "report.hpp"

namespace megatrace::host {

inline void Machine::restart_seed(uint64_t seed) {
  options.seed = seed;
  launches_ = 0;
  schedule_hash_ = 0xCBF29CE484222325ull;
}

// Runs launches to the end of the last one. Each begins when every block of the one before has
// let it (launch_dependents) or is gone.
inline void Machine::launch(std::vector<Grid> grids) {
  if (owner_ == std::this_thread::get_id()) fail("a kernel cannot launch a kernel here");
  const std::lock_guard<std::mutex> lock(one_launch_);
  {
    const sanitizer::Quiet quiet;
    grids_ = std::move(grids);
    build();
    owner_ = std::this_thread::get_id();
    main_.shadow = sanitizer::current_fiber();
    sanitizer::release(&grids_);
    run();
    lane_ = nullptr;
    owner_ = std::thread::id();
    if (failed_) stacks_.abandon(main_);
  }
  finish();
}

// How many of the next launches of a chain run together: one without the option.
inline uint32_t Machine::overlapping(size_t launches) {
  if (!options.overlap) return 1;
  constexpr size_t kMost = 4;  // a stack for every lane of them
  return 1 + Random(options.seed + launches_).below(std::min(launches, kMost));
}

inline void Machine::measure(Grid& grid) {
  constexpr size_t kMaxShared = 227 << 10;
  const size_t blocks = size_t{grid.size.x} * grid.size.y * grid.size.z;
  grid.threads = grid.block.x * grid.block.y * grid.block.z;
  if (blocks == 0 || grid.threads == 0 || grid.threads > 1024)
    throw std::runtime_error("host build: a launch needs blocks, of 1 to 1024 threads");
  if (grid.shared_bytes > kMaxShared)
    throw std::runtime_error("host build: " + std::to_string(grid.shared_bytes) +
                             " bytes of shared memory asked for, a block has 227 KiB at most");
  grid.blocks = grid.holding = static_cast<uint32_t>(blocks);
  grid.live = blocks * grid.threads;
}

inline void Machine::build() {
  size_t blocks = 0, lanes = 0, warps = 0;
  for (Grid& grid : grids_) {
    measure(grid);
    blocks += grid.blocks;
    lanes += grid.live;
    warps += size_t{grid.blocks} * grid.warps();
  }
  random_ = Random(options.seed * 0x2545F4914F6CDD1Dull + launches_);
  launches_ += grids_.size();
  // Every schedule has a temper of its own: hasty or patient warps, prompt or late copies.
  stay_ = 1u << random_.below(6);
  bulk_every_ = 1u << random_.below(8);
  wake_every_ = 1u << random_.below(4);
  some_slow_ = random_.one_in(2);

  stacks_.reserve(lanes);
  lanes_.assign(lanes, Lane{});
  warps_.assign(warps, Warp{});
  blocks_.assign(blocks, Block{});
  if (shared_.size() < blocks) shared_.resize(blocks);
  runnable_.clear();
  spinners_.clear();
  bulks_.clear();
  live_ = lanes;
  progress_ = woken_at_ = idle_at_ = watched_ = 0;
  idle_rounds_ = 0;
  stuck_ = failed_ = must_wake_ = false;
  error_.clear();
  thrown_ = nullptr;

  blocks = lanes = warps = 0;
  for (Grid& grid : grids_) {
    grid.first = &blocks_[blocks];
    grid.number = static_cast<uint32_t>(&grid - grids_.data());
    for (uint32_t b = 0; b < grid.blocks; b++, blocks++) {
      build_block(grid, blocks, b, warps, lanes);
      warps += grid.warps();
      lanes += grid.threads;
    }
  }
  start(grids_[0]);
}

// Block `b` of the grid, which is number `at` of all.
inline void Machine::build_block(Grid& grid, size_t at, uint32_t b, size_t warp, size_t lane) {
  Block& it = blocks_[at];
  it.grid = &grid;
  it.number = b;
  it.index = {b % grid.size.x, b / grid.size.x % grid.size.y, b / grid.size.x / grid.size.y};
  it.sm = b % options.sms;
  it.live = grid.threads;
  it.shared = shared_[at].of(grid.shared_bytes);
  it.warps = &warps_[warp];
  it.warp_count = grid.warps();
  for (uint32_t t = 0; t < grid.threads; t++) {
    Warp& mine = it.warps[t / 32];
    Lane& me = lanes_[lane + t];
    if (t % 32 == 0) {
      mine.block = &it;
      mine.index = t / 32;
      mine.lanes = &me;
      mine.slow = some_slow_ && random_.one_in(4);
    }
    mine.exists |= 1u << (t % 32);
    mine.ready |= 1u << (t % 32);
    me.fiber = &stacks_[lane + t];
    me.fiber->reset(&Machine::lane_main);
    me.warp = &mine;
    me.index = t % 32;
    me.thread = {t % grid.block.x, t / grid.block.x % grid.block.y,
                 t / grid.block.x / grid.block.y};
  }
}

inline void Machine::start(Grid& grid) {
  grid.started = true;
  for (uint32_t b = 0; b < grid.blocks; b++)
    for (uint32_t w = 0; w < grid.warps(); w++) make_runnable(grid.first[b].warps[w]);
}

inline void Machine::launch_dependents() {
  const sanitizer::Quiet quiet;
  let_next_start(block());
}

inline void Machine::let_next_start(Block& block) {
  Grid& grid = *block.grid;
  if (!block.holds) return;
  block.holds = false;
  if (--grid.holding == 0 && &grid != &grids_.back()) start(*(&grid + 1));
}

// Have all threads of the launch before exited?
inline bool Machine::predecessor_complete() {
  const sanitizer::Quiet quiet;
  const Grid& grid = *block().grid;
  if (&grid == grids_.data()) return true;
  const Grid& before = *(&grid - 1);
  if (before.live == 0) sanitizer::acquire(&before);
  return before.live == 0;
}

inline void Machine::finish() {
  sanitizer::acquire(this);
  if (!failed_ && !bulks_.empty()) {
    failed_ = true;
    error_ = "the launch ended with " + std::to_string(bulks_.size()) +
             " bulk copies in flight: wait for them before the block exits";
  }
  if (!failed_)
    for (Warp& warp : warps_)
      if (!warp.stage.empty()) {
        failed_ = true;
        error_ = where(warp.lanes[0]) + ": the launch ended with a line that not all lanes stored";
      }
  if (thrown_ != nullptr) std::rethrow_exception(thrown_);
  if (failed_) {
    std::fprintf(stderr, "megatrace host build: %s\n", error_.c_str());
    throw std::runtime_error(error_);
  }
}

inline void Machine::lane_main() {
  Machine& m = machine();
  // Only a switch from the scheduler shows its stack.
  if (m.from_main_)
    sanitizer::finish_switch(nullptr, &m.main_.low, &m.main_.bytes);
  else
    sanitizer::finish_switch(nullptr, nullptr, nullptr);
  sanitizer::acquire(&m.grids_);
  Grid& grid = *m.block().grid;
  try {
    grid.body();
  } catch (...) {
    const sanitizer::Quiet quiet;
    if (m.thrown_ == nullptr) m.thrown_ = std::current_exception();
    m.failed_ = true;
  }
  sanitizer::release(&m);
  sanitizer::release(&grid);
  {
    const sanitizer::Quiet quiet;
    m.exit_lane(*m.lane_);
  }
  m.leave(true);
  __builtin_unreachable();
}

inline void Machine::exit_lane(Lane& lane) {
  Warp& warp = *lane.warp;
  warp.move(lane, State::exited);
  warp.block->live--;
  warp.block->grid->live--;
  live_--;
  if (warp.block->live == 0) let_next_start(*warp.block);
  progress_++;
  if (warp.block->barriers[0].arrived != 0) check_barrier(*warp.block, 0);
}

inline std::string Machine::where(const Lane& lane) const {
  const Warp& warp = *lane.warp;
  std::string text = launch_of(*warp.block) + "block " + std::to_string(warp.block->number) +
                     " warp " + std::to_string(warp.index);
  if (warp.index < options.roles.size()) text += " '" + options.roles[warp.index] + "'";
  return text + " lane " + std::to_string(lane.index);
}

// Leaves all lanes where they stand: unwinding them would run destructors that wait.
inline void Machine::fail(const std::string& reason) {
  if (lane_ == nullptr)
    throw std::runtime_error("host build: " + reason + " was called outside of a launch");
  const sanitizer::Quiet quiet;
  if (!failed_) error_ = where(*lane_) + ": " + reason;
  failed_ = true;
  leave(false);
  __builtin_unreachable();
}

inline void Machine::trap() {
  const Lane& me = lane();
  fail(me.what == nullptr ? std::string("trap")
                          : "trap while it waits for '" + std::string(me.what) + "' slot " +
                                std::to_string(me.slot));
}

}  // namespace megatrace::host
