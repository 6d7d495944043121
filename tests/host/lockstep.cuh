// Warps, barriers, clocks: what a lane sees of its neighbours.
#pragma once

#include "common.cuh"

// Seven answers a lane, lane after lane.
inline void warp_case(const Numbers& seed) {
  host::set_seed(seed[0]);
  std::vector<uint32_t> out(32 * 7);
  host::launch(1, 32, 0, [&] {
    const uint32_t lane = ptx::lane_id();
    uint32_t* mine = &out[lane * 7];
    mine[0] = ptx::shuffle(lane * 10, lane + 1);
    mine[1] = ptx::shuffle_xor(lane * 10, 5);
    mine[2] = __shfl_down_sync(0xffffffffu, lane * 10, 3);
    mine[3] = __shfl_up_sync(0xffffffffu, lane * 10, 3);
    mine[4] = ptx::ballot(lane % 2 != 0);
    mine[5] = ptx::elect_one();
    mine[6] = __reduce_add_sync(0xffffffffu, lane);
  });
  print(out);
}

// Shuffles in segments of 8 lanes and of 64-bit values.
inline void widths_case(const Numbers&) {
  std::vector<uint64_t> out(32 * 3);
  host::launch(1, 32, 0, [&] {
    const uint32_t lane = ptx::lane_id();
    uint64_t* mine = &out[lane * 3];
    mine[0] = __shfl_sync(0xffffffffu, lane, 2, 8);
    mine[1] = __shfl_down_sync(0xffffffffu, lane, 3, 8);
    const double third = __shfl_sync(0xffffffffu, lane / 3.0, 9);
    mine[2] = third == 3.0;
  });
  print(out);
}

// Every block turns its threads' numbers round, three times.
inline void reverse_case(const Numbers& args) {
  const uint32_t threads = 384, blocks = 4;
  std::vector<uint32_t> out(blocks * threads);
  const auto run = [&] {
    host::launch(blocks, threads, threads * 4, [&] {
      auto* shared = reinterpret_cast<uint32_t*>(ptx::dynamic_shared());
      uint32_t v = blockIdx.x * 1000 + threadIdx.x;
      for (int round = 0; round < 3; round++) {
        shared[threadIdx.x] = v;
        __syncthreads();
        v = shared[blockDim.x - 1 - threadIdx.x];
        __syncthreads();
      }
      out[blockIdx.x * blockDim.x + threadIdx.x] = v;
    });
    bool right = true;
    for (uint32_t i = 0; i < out.size(); i++)
      right &= out[i] == i / threads * 1000 + threads - 1 - i % threads;
    return right;
  };
  under_seeds(args[0], run);
}

// Half of the threads leave before the barrier: the others pass it.
inline void early_exit_case(const Numbers& args) {
  under_seeds(args[0], [] {
    uint32_t passed = 0;
    host::launch(2, 128, 0, [&] {
      if (threadIdx.x >= 64) return;
      __syncthreads();
      ptx::atomic_add(&passed, 1);
    });
    return passed == 128;
  });
}

// Warps 0 and 1 take turns through barriers 1 and 2; warps 2 and 3 use 3 and 4.
inline void named_barriers_case(const Numbers& args) {
  under_seeds(args[0], [] {
    std::vector<uint32_t> log[2];
    host::launch(1, 128, 0, [&] {
      const uint32_t pair = threadIdx.x / 64, first = 1 + 2 * pair;
      const bool ping = threadIdx.x / 32 % 2 == 0;
      for (uint32_t turn = 0; turn < 6; turn++) {
        if (ping && ptx::lane_id() == 0) log[pair].push_back(2 * turn);
        ptx::barrier_sync(first, 64);
        if (!ping && ptx::lane_id() == 7) log[pair].push_back(2 * turn + 1);
        ptx::barrier_sync(first + 1, 64);
      }
    });
    bool right = true;
    for (const auto& turns : log) {
      right &= turns.size() == 12;
      for (uint32_t i = 0; i < turns.size(); i++) right &= turns[i] == i;
    }
    return right;
  });
}

// Counts the moments at which lanes of one warp got different answers: none may.
inline void answers_case(const Numbers& args) {
  constexpr uint32_t kAnswers = 40;
  under_seeds(args[0], [] {
    alignas(8) uint32_t flag[2] = {};
    std::vector<uint64_t> got(32 * kAnswers);
    host::launch(1, 96, 128, [&] {
      auto* bar = reinterpret_cast<uint64_t*>(ptx::dynamic_shared());
      if (threadIdx.x == 0) ptx::mbar_init(bar, 1);
      __syncthreads();
      if (threadIdx.x / 32 == 1 && ptx::lane_id() == 0) ptx::mbar_arrive(bar);
      if (threadIdx.x / 32 == 2)
        for (uint32_t i = 0; i < 20; i++) ptx::store_relaxed(flag, i);
      if (threadIdx.x >= 32) return;
      for (uint32_t i = 0; i < kAnswers; i++)
        got[ptx::lane_id() * kAnswers + i] = i % 4 == 0   ? ptx::mbar_test(bar, 0)
                                             : i % 4 == 1 ? ptx::load_relaxed(flag)
                                             : i % 4 == 2 ? ptx::clock64()
                                                          : ptx::load_pair(flag).x;
    });
    for (uint32_t i = kAnswers; i < got.size(); i++)
      if (got[i] != got[i - kAnswers]) return false;
    return true;
  });
}

// One lane polls on its own in every turn of a loop; the warp is together again after it.
inline void rejoin_case(const Numbers& args) {
  under_seeds(args[0], [] {
    uint32_t ticket = 0;
    std::vector<uint64_t> together(32 * 8);
    host::launch(1, 64, 0, [&] {
      for (uint32_t turn = 0; turn < 8; turn++) {
        if (threadIdx.x >= 32) {
          if (ptx::lane_id() == 0) {
            poll("even", turn, [&] { return ptx::load_relaxed(&ticket) == 2 * turn; });
            ptx::store_relaxed(&ticket, 2 * turn + 1);
          }
          continue;
        }
        if (ptx::lane_id() == 5) {
          poll("odd", turn, [&] { return ptx::load_relaxed(&ticket) == 2 * turn + 1; });
          ptx::store_relaxed(&ticket, 2 * turn + 2);
        }
        together[ptx::lane_id() * 8 + turn] = ptx::clock64();
      }
    });
    for (uint32_t i = 8; i < together.size(); i++)
      if (together[i] != together[i - 8]) return false;
    return true;
  });
}

// Per block: SM, then (globaltimer, clock64) early and late.
inline void clocks_case(const Numbers&) {
  host::options().sms = 3;
  std::vector<uint64_t> out(4 * 5);
  host::launch(4, 32, 0, [&] {
    uint64_t* mine = &out[blockIdx.x * 5];
    const uint64_t begin_ns = ptx::globaltimer(), begin = ptx::clock64();
    while (ptx::globaltimer() < begin_ns + 20000000) ptx::spin_pause("time", 0);
    const uint64_t end_ns = ptx::globaltimer(), end = ptx::clock64();
    if (ptx::lane_id() != 0) return;
    mine[0] = ptx::sm_id();
    mine[1] = begin_ns;
    mine[2] = begin;
    mine[3] = end_ns;
    mine[4] = end;
  });
  print(out);
}

// The digest of three launches under a seed.
inline void schedule_case(const Numbers& seed) {
  host::set_seed(seed[0]);
  uint32_t sum = 0;
  for (int i = 0; i < 3; i++)
    host::launch(2, 128, 0, [&] {
      __syncthreads();
      ptx::atomic_add(&sum, ptx::shuffle_xor(threadIdx.x, 1));
      __syncthreads();
    });
  std::printf("%llx\n", static_cast<unsigned long long>(host::schedule_hash()));
}
