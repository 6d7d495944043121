// Launches that begin before the one before them has ended.
#pragma once

#include "common.cuh"

// A chain of launches that count: each adds to what the one before has left, and keeps a
// block waiting that the next launch must not overtake. Says too, of each seed, whether some
// launch was at its dependency_wait while the one before it still ran.
inline void chain_case(const Numbers& args) {
  constexpr uint32_t kLaunches = 5, kBlocks = 3;
  host::options().overlap = args[1] != 0;
  uint64_t early_seeds = 0;
  under_seeds(args[0], [&] {
    std::vector<uint32_t> counts((kLaunches + 1) * kBlocks), begun(kLaunches);
    uint32_t ended = 0, wrong = 0, early = 0;
    std::vector<host::Grid> chain;
    for (uint32_t i = 0; i < kLaunches; i++)
      chain.push_back({dim3(kBlocks + i % 2), dim3(64), 64 + 64 * (i % 2), [&, i] {
                         ptx::launch_dependents();
                         if (ptx::load_relaxed(&ended) < i) ptx::atomic_add(&early, 1);
                         ptx::dependency_wait();
                         const uint32_t blocks = kBlocks + i % 2;
                         if (gridDim.x != blocks || ptx::load_relaxed(&ended) != i)
                           ptx::atomic_add(&wrong, 1);
                         __syncthreads();
                         if (threadIdx.x == 0 && blockIdx.x < kBlocks) {
                           uint32_t sum = 1;
                           for (uint32_t b = 0; b < kBlocks; b++) sum += counts[i * kBlocks + b];
                           counts[(i + 1) * kBlocks + blockIdx.x] = sum;
                         }
                         if (threadIdx.x == 0 && ptx::atomic_add(&begun[i], 1) + 1 == blocks)
                           ptx::atomic_add(&ended, 1);
                       }});
    host::launch_chain(chain);
    early_seeds += early != 0;
    uint32_t expected = 0;
    for (uint32_t i = 0; i < kLaunches; i++) expected = 1 + kBlocks * expected;
    return wrong == 0 && counts.back() == expected;
  });
  std::printf("%llu\n", static_cast<unsigned long long>(early_seeds));
}

// The second launch of a chain reads what the first has written, and does not wait for it.
inline void hasty_case(const Numbers& args) {
  uint32_t data[2] = {}, wrong = 0;
  host::options().overlap = true;
  for (uint64_t seed = 0; seed < args[0]; seed++) {
    host::set_seed(seed);
    data[0] = data[1] = 0;
    const auto write = [&] {
      ptx::launch_dependents();
      ptx::syncwarp();
      if (threadIdx.x == 0) data[blockIdx.x] = 1;
    };
    const auto read = [&] {
      if (args[1] != 0) ptx::dependency_wait();
      if (threadIdx.x == 0 && data[blockIdx.x] == 0) wrong++;
    };
    host::launch_chain({{dim3(2), dim3(32), 0, write}, {dim3(2), dim3(32), 0, read}});
  }
  std::printf("%u\n", wrong);
}

// Waits for ever in the second launch of a chain, of which one has been told to begin early.
inline void stuck_chain_case(const Numbers&) {
  host::options().overlap = true;
  uint32_t flag = 0;
  for (uint64_t seed = 0; seed < 20; seed++) {
    host::set_seed(seed);
    flag = 0;
    const auto first = [&] {
      ptx::launch_dependents();
      poll("second", 0, [&] { return ptx::load_relaxed(&flag) != 0; });
    };
    const auto second = [&] {
      ptx::dependency_wait();
      if (threadIdx.x == 0) ptx::store_relaxed(&flag, 1);
    };
    host::launch_chain({{dim3(1), dim3(32), 0, first}, {dim3(1), dim3(32), 0, second}});
  }
}
