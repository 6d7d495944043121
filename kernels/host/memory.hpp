// The machine's shared memory, mbarriers and bulk copies.
#pragma once

#include "machine.hpp"

namespace megatrace::host {

__attribute__((noinline)) inline void Machine::will_store() {
  const sanitizer::Quiet quiet;
  if (options.chaos) op_at(OpKind::pause, nullptr, __builtin_return_address(0));
  progress_++;  // the store follows before anybody else runs
}

// The words of a vector come one by one: under chaos in any order, others looking in between.
inline uint32_t Machine::first_word() {
  const sanitizer::Quiet quiet;
  return options.chaos ? random_.below(4) : 0;
}

inline void Machine::check_row(const void* row) {
  const sanitizer::Quiet quiet;
  check_shared(row, 16, 16, "ldmatrix: a row");
}

inline void Machine::check_prefetch(const void* p, uint32_t bytes) {
  if (bytes % 16 != 0 || reinterpret_cast<uintptr_t>(p) % 16 != 0)
    fail("prefetch_l2: address and bytes must be multiples of 16");
}

inline void Machine::check_shared(const void* p, size_t bytes, size_t alignment, const char* what) {
  const char* const base = block().shared;
  const size_t all = block().grid->shared_bytes;
  const auto* at = static_cast<const char*>(p);
  if (at < base || at + bytes > base + all)
    fail(std::string(what) + " of " + std::to_string(bytes) + " bytes is not inside the block's " +
         std::to_string(all) + " bytes of dynamic shared memory");
  if (static_cast<size_t>(at - base) % alignment != 0)
    fail(std::string(what) + " at shared+" + std::to_string(at - base) + " must be aligned to " +
         std::to_string(alignment) + " bytes");
}

inline void Machine::misaligned(size_t bytes) {
  fail("a load or store of " + std::to_string(bytes) + " bytes is not aligned");
}

inline uint32_t Machine::shared_offset(const void* p) {
  return static_cast<uint32_t>(static_cast<const char*>(p) - block().shared);
}

inline void Machine::mbar_init(uint64_t* bar, uint32_t count) {
  const sanitizer::Quiet quiet;
  check_shared(bar, 8, 8, "mbarrier");
  if (count == 0 || count > Mbarrier::kMaxCount)
    fail("mbar_init: a count of " + std::to_string(count) + " is not within 1 and 2^20 - 1");
  Mbarrier::make(count).store(bar);
  progress_++;
}

__attribute__((noinline)) inline void Machine::mbar_arrive(uint64_t* bar, uint32_t expected_bytes) {
  const sanitizer::Quiet quiet;
  if (options.chaos) op_at(OpKind::pause, nullptr, __builtin_return_address(0));
  check_shared(bar, 8, 8, "mbarrier");
  Mbarrier it = Mbarrier::load(bar);
  if (!it.made()) fail("arrives at an mbarrier that mbar_init never made");
  sanitizer::release(bar);
  Mbarrier::Change change = it.expect(expected_bytes);
  if (change.error == nullptr) change = it.arrive();
  settle(block(), bar, it, change);
  if (failed_) fail("");
}

// Stores a changed mbarrier and wakes whom its phase held.
inline void Machine::settle(Block& block, uint64_t* bar, Mbarrier after, Mbarrier::Change change) {
  if (change.error != nullptr) {
    failed_ = true;
    error_ = "block " + std::to_string(block.number) + ", mbarrier at shared+" +
             std::to_string(reinterpret_cast<char*>(bar) - block.shared) + ": " + change.error;
    if (lane_ != nullptr) error_ = where(*lane_) + ": " + error_;
    return;
  }
  after.store(bar);
  progress_++;
  if (!change.phase_ended) return;
  for (uint32_t w = 0; w < block.warp_count; w++) {
    Warp& warp = block.warps[w];
    for_lanes(warp.mbarrier, [&](uint32_t i) {
      Lane& lane = warp.lanes[i];
      if (lane.tried == bar && after.ended(lane.parity)) make_ready(lane, 1);
    });
  }
}

__attribute__((noinline)) inline bool Machine::mbar_wait(OpKind kind, const uint64_t* bar,
                                                         uint32_t parity) {
  const sanitizer::Quiet quiet;
  const void* const pc = __builtin_return_address(0);
  check_shared(bar, 8, 8, "mbarrier");
  if (!Mbarrier::load(bar).made()) fail("waits for an mbarrier that mbar_init never made");
  Lane& me = lane();
  if (me.tried_pc != pc) me.what = nullptr;
  me.tried_pc = pc;
  me.tried = bar;
  me.parity = parity;
  const bool ended = op_at(kind, bar, pc) != 0;
  if (ended) sanitizer::acquire(bar);
  return ended;
}

inline void Machine::bulk_load(void* dst, const void* src, uint32_t bytes, uint64_t* bar) {
  const sanitizer::Quiet quiet;
  const std::string size = std::to_string(bytes);
  if (bytes == 0 || bytes % 16 != 0)
    fail("bulk_load: " + size + " bytes is not a positive multiple of 16");
  if (reinterpret_cast<uintptr_t>(src) % 16 != 0)
    fail("bulk_load: the source must be aligned to 16 bytes");
  check_shared(dst, bytes, 16, "bulk_load: the destination");
  check_shared(bar, 8, 8, "mbarrier");
  if (!Mbarrier::load(bar).made()) fail("bulk_load: its mbarrier was never made by mbar_init");
  // Nobody may look there before it has landed.
  if (options.chaos) std::memset(dst, kFreshShared, bytes);
  bulks_.push_back({&block(), bar, static_cast<char*>(dst), src, bytes});
  sanitizer::release(bar);
}

// The copy happens here, all at once and in any order with the others: at a moment that the
// seed chooses.
inline void Machine::complete_bulk(size_t i) {
  const Bulk bulk = bulks_[i];
  bulks_[i] = bulks_.back();
  bulks_.pop_back();
  note(~uint64_t{i});
  std::memcpy(bulk.dst, bulk.src, bulk.bytes);
  Mbarrier it = Mbarrier::load(bulk.bar);
  const Mbarrier::Change change = it.complete(bulk.bytes);
  lane_ = nullptr;
  settle(*bulk.block, bulk.bar, it, change);
}

inline void Machine::store_line(uint32_t* line, uint32_t word, uint32_t lanes) {
  const sanitizer::Quiet quiet;
  Lane& me = lane();
  const char* error = me.warp->stage.add(line, word, lanes, me.index, me.stores++, me.warp->exists);
  if (error != nullptr) fail(error);
}

}  // namespace megatrace::host
