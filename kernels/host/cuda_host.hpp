// CUDA on the CPU: enough of the machine to run the kernels' own sources, warps and all, with
// a C++ compiler (-std=c++17 -DMEGATRACE_HOST_BUILD). Included by megatrace/ptx.cuh.
//
//   MEGATRACE_HOST_SEED=7        which of the many schedules
//   MEGATRACE_HOST_CHAOS=1       switch warps at stores too, spoil what a copy will overwrite
//   MEGATRACE_HOST_OVERLAP=1     a launch may begin before the one before it has ended
//   MEGATRACE_HOST_SMS=4         SMs that the blocks go round
//   MEGATRACE_HOST_STUCK_MS=100  no progress for so long is a deadlock
//
// Kernels take shared memory from megatrace::ptx::dynamic_shared(), hand data over with the
// loads, stores and barriers of ptx.cuh only (a plain store that another warp polls is not
// seen as progress), and call ptx::spin_pause() in every spin.
//
// Lanes are fibers, yet the lanes of a warp that read a clock, load, or test an mbarrier
// together get their answers at one moment, as a converged warp does. Where lanes have parted
// the machine guesses where they meet again: a ptx::syncwarp() there makes it sure.
#pragma once

#include "intrinsics.hpp"
#include "machine.hpp"
#include "ptx_host.hpp"
#include "ptx_math_host.hpp"
#include "vector_types.hpp"

namespace megatrace::host {

// Runs one grid to its end, all blocks at once: they may hand data to each other. Throws
// std::runtime_error with the reason on a deadlock, a trap or an unlawful instruction, after
// printing it to stderr.
inline void launch(dim3 grid, dim3 block, size_t dynamic_shared_bytes,
                   const std::function<void()>& per_lane_body) {
  machine().launch({{grid, block, dynamic_shared_bytes, per_lane_body}});
}

// Runs launches in their order; with MEGATRACE_HOST_OVERLAP some of them, as the seed chooses,
// begin before the one before them has ended, as programmatic dependent launches do.
inline void launch_chain(const std::vector<Grid>& chain) {
  for (size_t i = 0; i < chain.size();) {
    const size_t end = i + machine().overlapping(chain.size() - i);
    machine().launch({chain.begin() + i, chain.begin() + end});
    i = end;
  }
}

inline Options& options() { return machine().options; }

// Starts the sequence of schedules over: the same seed, the same launches, the same order.
inline void set_seed(uint64_t seed) { machine().restart_seed(seed); }

// A digest of every decision since the start or set_seed().
inline uint64_t schedule_hash() { return machine().schedule_hash(); }

// Names a block's warps in messages.
inline void set_roles(std::vector<std::string> roles) { options().roles = std::move(roles); }

}  // namespace megatrace::host
