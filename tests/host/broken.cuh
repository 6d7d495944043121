// Kernels that cannot end, or break a rule.
#pragma once

#include <stdexcept>

#include "common.cuh"

// Block 1: one warp for each way to wait for ever.
inline void stuck_case(const Numbers&) {
  uint32_t flag = 0;
  host::set_roles({"loader", "math", "store", "copy"});
  host::launch(2, 128, 128, [&] {
    auto* bar = reinterpret_cast<uint64_t*>(ptx::dynamic_shared() + 64);
    if (threadIdx.x == 0) ptx::mbar_init(bar, 3);
    __syncthreads();
    if (blockIdx.x == 0) return;
    if (threadIdx.x / 32 == 0) mbar_wait("full", bar, 0);
    if (threadIdx.x / 32 == 1) poll("partials", 7, [&] { return ptx::load_relaxed(&flag) == 1; });
    if (threadIdx.x / 32 == 2) ptx::barrier_sync(2, 64);
    __syncthreads();
  });
}

// Lanes that have exited are missing at a collective.
inline void left_behind_case(const Numbers&) {
  host::launch(1, 32, 0, [&] {
    if (ptx::lane_id() == 3 || ptx::lane_id() == 9) return;
    ptx::syncwarp();
  });
}

inline void mixed_case(const Numbers&) {
  host::launch(1, 32, 0, [&] {
    if (ptx::lane_id() < 16)
      ptx::syncwarp();
    else
      ptx::ballot(true);
  });
}

inline void bare_spin_case(const Numbers&) {
  uint32_t flag = 0;
  host::options().stuck_ms = 1;
  host::launch(1, 32, 0, [&] {
    while (ptx::load_relaxed(&flag) == 0) {
    }
  });
}

// One unlawful instruction, by number.
inline void unlawful_case(const Numbers& args) {
  alignas(16) static char source[64];
  host::launch(2, 64, 256, [&] {
    char* shared = ptx::dynamic_shared();
    auto* bar = reinterpret_cast<uint64_t*>(shared);
    if (threadIdx.x == 0) ptx::mbar_init(bar, 1);
    __syncthreads();
    if (blockIdx.x != 1 || threadIdx.x != 37) return;
    switch (args[0]) {
      case 0:
        return ptx::bulk_load(shared + 24, source, 16, bar);
      case 1:
        return ptx::bulk_load(shared + 32, source + 4, 16, bar);
      case 2:
        return ptx::bulk_load(shared + 32, source, 24, bar);
      case 3:
        return ptx::bulk_load(shared + 224, source, 64, bar);
      case 4:
        return ptx::bulk_load(source, source, 16, bar);
      case 5:
        return ptx::mbar_arrive(bar + 1);
      case 6:
        return ptx::mbar_init(bar, 0);
      case 7:
        return ptx::barrier_sync(16, 32);
      case 8:
        return ptx::barrier_sync(1, 40);
      case 9:
        return ptx::store_relaxed(reinterpret_cast<uint64_t*>(source + 4), 1);
      case 10:
        return ptx::trap();
      case 11:
        ptx::mbar_expect_tx(bar, 16);
        return ptx::mbar_arrive(bar);
      case 13:
        return ptx::store_relaxed(reinterpret_cast<uint4*>(source + 8), uint4{});
      case 14:
        return ptx::prefetch_l2(source, 24);
      case 15: {
        uint32_t r[4];
        return ptx::ldmatrix_x4(r, shared + 8);
      }
      case 16: {
        uint32_t r[4];
        return ptx::ldmatrix_x4_trans(r, source);
      }
      default:
        __syncwarp(1);
    }
  });
}

// Prints how many lanes were told to write down their wait before the verdict.
inline void hang_case(const Numbers&) {
  uint32_t told = 0;
  try {
    host::launch(1, 64, 0, [&] {
      bool mine = false;
      megatrace::spin_bounded(
          "never", threadIdx.x, [] { return false; },
          [&](uint64_t) {
            if (!mine) told++;
            mine = true;
          },
          [] { megatrace::ptx::trap(); }, megatrace::ptx::clock64());
    });
  } catch (const std::runtime_error&) {
    std::printf("%u\n", told);
  }
}

inline void throws_case(const Numbers&) {
  host::launch(2, 64, 0, [&] {
    __syncthreads();
    if (blockIdx.x == 1 && threadIdx.x == 33) throw std::invalid_argument("of the body");
    __syncthreads();
  });
}

// A launch after one that failed.
inline void again_case(const Numbers&) {
  uint32_t sum = 0;
  for (int i = 0; i < 3; i++) {
    try {
      host::launch(1, 64, 0, [&] { poll("never", 0, [] { return false; }); });
    } catch (const std::runtime_error&) {
    }
    host::launch(2, 64, 0, [&] {
      __syncthreads();
      ptx::atomic_add(&sum, 1);
    });
  }
  std::printf("%u\n", sum);
}

inline void outside_case(const Numbers&) { ptx::syncwarp(); }

inline void unwaited_case(const Numbers&) {
  alignas(16) static char source[16];
  // Of some schedules: a copy that happens to land in time is not seen.
  for (uint64_t seed = 0; seed < 100; seed++) {
    host::set_seed(seed);
    host::launch(1, 32, 128, [&] {
      auto* bar = reinterpret_cast<uint64_t*>(ptx::dynamic_shared());
      if (ptx::lane_id() != 0) return;
      ptx::mbar_init(bar, 1);
      ptx::mbar_expect_tx(bar, 16);
      ptx::bulk_load(ptx::dynamic_shared() + 16, source, 16, bar);
    });
  }
}

// Without its first barrier, for ThreadSanitizer; with it where asked.
inline void missing_barrier_case(const Numbers& args) {
  uint32_t sum = 0;
  host::launch(1, 64, 256, [&] {
    auto* shared = reinterpret_cast<uint32_t*>(ptx::dynamic_shared());
    shared[threadIdx.x] = threadIdx.x;
    if (args[0] != 0) __syncthreads();
    ptx::atomic_add(&sum, shared[63 - threadIdx.x]);
  });
  std::printf("%u\n", sum);
}

// Writes one word past the shared memory, for AddressSanitizer.
inline void overflow_case(const Numbers& args) {
  host::launch(2, 64, 256, [&] {
    auto* shared = reinterpret_cast<volatile uint32_t*>(ptx::dynamic_shared());
    shared[threadIdx.x + args[0]] = 1;
  });
}
