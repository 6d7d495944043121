// The machine's launches: sets the grid up, ends it, says why it could not end.
#pragma once

#include <algorithm>
#include <cstdio>

#include "machine.hpp"

namespace megatrace::host {

inline void Machine::restart_seed(uint64_t seed) {
  options.seed = seed;
  launches_ = 0;
  schedule_hash_ = 0xCBF29CE484222325ull;
}

inline void Machine::launch(dim3 grid, dim3 block, size_t shared_bytes,
                            const std::function<void()>& body) {
  if (owner_ == std::this_thread::get_id()) fail("a kernel cannot launch a kernel here");
  const std::lock_guard<std::mutex> lock(one_launch_);
  owner_ = std::this_thread::get_id();
  body_ = &body;
  {
    const sanitizer::Quiet quiet;
    build(grid, block, shared_bytes);
    main_.shadow = sanitizer::current_fiber();
    sanitizer::release(&body_);
    run();
    lane_ = nullptr;
    owner_ = std::thread::id();
    if (failed_) stacks_.abandon(main_);
  }
  finish();
}

inline void Machine::build(dim3 grid, dim3 block, size_t shared_bytes) {
  constexpr size_t kMaxShared = 227 << 10;
  const size_t blocks = size_t{grid.x} * grid.y * grid.z;
  const uint32_t threads = block.x * block.y * block.z;
  if (blocks == 0 || threads == 0 || threads > 1024)
    throw std::runtime_error("host build: a launch needs blocks, of 1 to 1024 threads");
  if (shared_bytes > kMaxShared)
    throw std::runtime_error("host build: " + std::to_string(shared_bytes) +
                             " bytes of shared memory asked for, a block has 227 KiB at most");
  const uint32_t warps = (threads + 31) / 32;

  gridDim = grid;
  blockDim = block;
  random_ = Random(options.seed * 0x2545F4914F6CDD1Dull + launches_++);
  // Every schedule has a temper of its own: hasty or patient warps, prompt or late copies.
  stay_ = 1u << random_.below(6);
  bulk_every_ = 1u << random_.below(8);
  wake_every_ = 1u << random_.below(4);
  const bool some_slow = random_.one_in(2);

  stacks_.reserve(blocks * threads);
  lanes_.assign(blocks * threads, Lane{});
  warps_.assign(blocks * warps, Warp{});
  blocks_.assign(blocks, Block{});
  if (shared_bytes != shared_bytes_ || shared_.size() < blocks) {
    shared_.clear();
    shared_bytes_ = shared_bytes;
  }
  const size_t padded = std::max<size_t>(1, (shared_bytes + 127) / 128) * 128;
  while (shared_.size() < blocks)
    shared_.emplace_back(static_cast<char*>(std::aligned_alloc(128, padded)));

  runnable_.clear();
  spinners_.clear();
  bulks_.clear();
  live_ = blocks * threads;
  progress_ = woken_at_ = idle_at_ = watched_ = 0;
  idle_rounds_ = 0;
  stuck_ = failed_ = must_wake_ = false;
  error_.clear();
  thrown_ = nullptr;

  for (uint32_t b = 0; b < blocks; b++) {
    Block& it = blocks_[b];
    it.number = b;
    it.index = {b % grid.x, b / grid.x % grid.y, b / grid.x / grid.y};
    it.sm = b % options.sms;
    it.live = threads;
    it.shared = shared_[b].get();
    std::memset(it.shared, kFreshShared, shared_bytes);
    it.warps = &warps_[size_t{b} * warps];
    it.warp_count = warps;
    for (uint32_t t = 0; t < threads; t++) {
      Warp& warp = it.warps[t / 32];
      Lane& lane = lanes_[size_t{b} * threads + t];
      if (t % 32 == 0) {
        warp.block = &it;
        warp.index = t / 32;
        warp.lanes = &lane;
        warp.slow = some_slow && random_.one_in(4);
        make_runnable(warp);
      }
      warp.exists |= 1u << (t % 32);
      warp.ready |= 1u << (t % 32);
      lane.fiber = &stacks_[size_t{b} * threads + t];
      lane.fiber->reset(&Machine::lane_main);
      lane.warp = &warp;
      lane.index = t % 32;
      lane.thread = {t % block.x, t / block.x % block.y, t / block.x / block.y};
    }
  }
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
  sanitizer::acquire(&m.body_);
  try {
    (*m.body_)();
  } catch (...) {
    const sanitizer::Quiet quiet;
    if (m.thrown_ == nullptr) m.thrown_ = std::current_exception();
    m.failed_ = true;
  }
  sanitizer::release(&m);
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
  live_--;
  progress_++;
  if (warp.block->barriers[0].arrived != 0) check_barrier(*warp.block, 0);
}

inline std::string Machine::where(const Lane& lane) const {
  const Warp& warp = *lane.warp;
  std::string text =
      "block " + std::to_string(warp.block->number) + " warp " + std::to_string(warp.index);
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
