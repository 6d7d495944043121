// Who waits for what, as a table, when nothing can go on.
#pragma once

#include <cstdio>
#include <string>
#include <vector>

#include "options.hpp"
#include "state.hpp"

namespace megatrace::host {

inline std::string lane_list(uint32_t mask) {
  std::string text;
  for (uint32_t lane = 0; lane < 32; lane++) {
    if (!(mask >> lane & 1)) continue;
    uint32_t last = lane;
    while (last < 31 && (mask >> (last + 1) & 1)) last++;
    if (!text.empty()) text += ",";
    text += std::to_string(lane);
    if (last > lane) text += "-" + std::to_string(last);
    lane = last;
  }
  return text;
}

// Which of several launches that run together, for messages.
inline std::string launch_of(const Block& block) {
  return block.grid->number == 0 ? "" : "launch +" + std::to_string(block.grid->number) + " ";
}

inline std::string role_of(const Warp& warp, const Options& options) {
  return warp.index < options.roles.size() ? options.roles[warp.index] : std::string("-");
}

inline std::string describe_mbarrier(const Lane& lane, const Block& block) {
  const auto at = static_cast<const char*>(lane.tried) - block.shared;
  return "mbarrier at shared+" + std::to_string(at) + ", parity " + std::to_string(lane.parity) +
         " (" + Mbarrier::load(lane.tried).describe() + ")";
}

inline std::string describe_wait(const Lane& lane) {
  const Warp& warp = *lane.warp;
  const Block& block = *warp.block;
  const std::string spin =
      lane.what == nullptr ? ""
                           : "'" + std::string(lane.what) + "' slot " + std::to_string(lane.slot);
  switch (lane.state) {
    case State::spinning:
      return "spin " + spin + (lane.tried == nullptr ? "" : ": " + describe_mbarrier(lane, block));
    case State::mbarrier:
      return (spin.empty() ? "" : "spin " + spin + ": ") + describe_mbarrier(lane, block);
    case State::barrier: {
      const NamedBarrier& barrier = block.barriers[lane.barrier];
      const uint32_t wanted = barrier.threads == 0 ? block.live : barrier.threads;
      return (barrier.threads == 0 ? std::string("syncthreads")
                                   : "named barrier " + std::to_string(lane.barrier)) +
             ": " + std::to_string(barrier.arrived) + " of " + std::to_string(wanted) +
             " threads there";
    }
    case State::collective: {
      const uint32_t gone = lane.mask & warp.exited;
      const uint32_t elsewhere = lane.mask & ~warp.collective & ~gone;
      std::string text = "collective " + std::string(name(lane.collective));
      if (elsewhere != 0) text += ": lanes " + lane_list(elsewhere) + " are elsewhere";
      if (gone != 0) text += ": lanes " + lane_list(gone) + " have exited";
      if (elsewhere == 0 && gone == 0) text += ": other lanes are at another collective";
      return text;
    }
    default:
      return "nothing: it runs";
  }
}

// One row for the lanes of a warp that wait for the same thing.
inline std::string wait_table(const std::vector<Warp>& warps, const Options& options) {
  constexpr size_t kMaxRows = 80;
  char row[160];
  std::snprintf(row, sizeof row, "  %5s %4s %-10s %-14s %s", "block", "warp", "role", "lanes",
                "waits for");
  std::string text = row;
  size_t rows = 0, hidden = 0;
  for (const Warp& warp : warps) {
    uint32_t left = warp.block->grid->started ? warp.exists & ~warp.exited : 0;
    while (left != 0) {
      const Lane& first = warp.lanes[__builtin_ctz(left)];
      const std::string wait = describe_wait(first);
      uint32_t same = 0;
      for_lanes(left, [&](uint32_t i) {
        if (describe_wait(warp.lanes[i]) == wait) same |= 1u << i;
      });
      left &= ~same;
      if (++rows > kMaxRows) {
        hidden++;
        continue;
      }
      const std::string count =
          std::to_string(__builtin_popcount(same)) + " (" + lane_list(same) + ")";
      std::snprintf(row, sizeof row, "\n  %5u %4u %-10s %-14s ", warp.block->number, warp.index,
                    role_of(warp, options).c_str(), count.c_str());
      text += row + launch_of(*warp.block) + wait;
    }
  }
  if (hidden != 0) text += "\n  ... and " + std::to_string(hidden) + " rows more";
  return text;
}

}  // namespace megatrace::host
