// Data from warp to warp and from block to block, under many schedules.
#pragma once

#include "common.cuh"

// One loader warp, three consumers, three stages of 512 bytes.
struct RingShared {
  alignas(128) uint8_t tile[3][512];
  uint64_t full[3], empty[3];
};

inline void ring_kernel(const uint8_t* tiles, uint32_t count, uint32_t* sum) {
  auto& s = *reinterpret_cast<RingShared*>(ptx::dynamic_shared());
  const uint32_t consumers = blockDim.x / 32 - 1;
  if (threadIdx.x == 0) {
    for (uint32_t i = 0; i < 3; i++) {
      ptx::mbar_init(&s.full[i], 1);
      ptx::mbar_init(&s.empty[i], consumers);
    }
    ptx::mbar_init_fence();
  }
  __syncthreads();
  uint32_t mine = 0;
  for (uint32_t i = 0; i < count; i++) {
    const uint32_t stage = i % 3, parity = i / 3 & 1;
    if (threadIdx.x < 32) {
      mbar_wait("empty", &s.empty[stage], parity ^ 1);
      if (ptx::elect_one()) {
        ptx::mbar_expect_tx(&s.full[stage], 512);
        // Two copies into one phase, as a kernel with scales beside weights does.
        ptx::bulk_load(s.tile[stage], tiles + i * 512, 384, &s.full[stage]);
        ptx::bulk_load(s.tile[stage] + 384, tiles + i * 512 + 384, 128, &s.full[stage]);
      }
      continue;
    }
    mbar_wait("full", &s.full[stage], parity);
    for (uint32_t j = threadIdx.x - 32; j < 512; j += 32 * consumers) mine += s.tile[stage][j];
    ptx::syncwarp();
    if (ptx::lane_id() == 0) ptx::mbar_arrive(&s.empty[stage]);
  }
  if (threadIdx.x >= 32) ptx::atomic_add(sum, mine);
}

inline void ring_case(const Numbers& args) {
  constexpr uint32_t kTiles = 20;
  alignas(16) static uint8_t tiles[kTiles * 512];
  uint32_t expected = 0;
  for (uint32_t i = 0; i < sizeof tiles; i++)
    expected += tiles[i] = static_cast<uint8_t>(i * 7 + i / 512);
  under_seeds(args[0], [&] {
    uint32_t sum = 0;
    host::launch(2, 128, sizeof(RingShared), [&] { ring_kernel(tiles, kTiles, &sum); });
    return sum == 2 * expected;
  });
}

// All blocks give all blocks a number, round after round; data is the flag.
inline void partials_case(const Numbers& args) {
  constexpr uint32_t kBlocks = 5, kRounds = 6, kMissing = ~0u;
  under_seeds(args[0], [&] {
    std::vector<uint32_t> partials(kRounds * kBlocks, kMissing), out(kBlocks);
    host::launch(kBlocks, 64, 0, [&] {
      uint32_t v = blockIdx.x + 1;
      for (uint32_t round = 0; round < kRounds && threadIdx.x < 32; round++) {
        uint32_t* row = &partials[round * kBlocks];
        if (ptx::lane_id() == 0) ptx::store_relaxed(row + blockIdx.x, v);
        uint32_t other = 0;
        poll("partials", round, [&] {
          other = ptx::lane_id() < kBlocks ? ptx::load_relaxed(row + ptx::lane_id()) : 0;
          return ptx::ballot(other == kMissing) == 0;
        });
        v = __reduce_add_sync(0xffffffffu, other) % 1000 + blockIdx.x;
      }
      if (threadIdx.x == 0) out[blockIdx.x] = v;
    });
    std::vector<uint32_t> v(kBlocks);
    for (uint32_t b = 0; b < kBlocks; b++) v[b] = b + 1;
    for (uint32_t round = 0; round < kRounds; round++) {
      uint32_t sum = 0;
      for (uint32_t b = 0; b < kBlocks; b++) sum += v[b];
      for (uint32_t b = 0; b < kBlocks; b++) v[b] = sum % 1000 + b;
    }
    return out == v;
  });
}

// Plain data behind a released flag, from block to block.
inline void message_case(const Numbers& args) {
  under_seeds(args[0], [] {
    uint32_t flag = 0, data[32] = {}, sum = 0;
    host::launch(2, 32, 0, [&] {
      const uint32_t lane = ptx::lane_id();
      if (blockIdx.x == 0) {
        data[lane] = lane + 1;
        ptx::syncwarp();
        if (lane == 0) ptx::store_release(&flag, 1);
      } else {
        poll("flag", 0, [&] { return ptx::load_acquire(&flag) == 1; });
        ptx::atomic_add(&sum, data[lane]);
      }
    });
    return sum == 32 * 33 / 2;
  });
}

inline void atomics_case(const Numbers& args) {
  under_seeds(args[0], [] {
    uint32_t count = 0, most = 0, lock = 0, guarded = 0;
    unsigned long long wide = 0;
    float real = 0;
    host::launch(3, 64, 0, [&] {
      atomicAdd(&count, 1u);
      atomicAdd(&wide, 1ull << 33);
      atomicAdd(&real, 0.5f);
      atomicMax(&most, blockIdx.x * 64 + threadIdx.x);
      if (ptx::lane_id() != 0) return;
      while (atomicCAS(&lock, 0u, 1u) != 0) ptx::spin_pause("lock", 0);
      ptx::load_acquire(&lock);  // winning the exchange alone orders nothing
      guarded = guarded + 1;
      ptx::store_release(&lock, 0);
    });
    return count == 192 && wide == 192ull << 33 && real == 96 && most == 191 && guarded == 6;
  });
}

// Of so many seeds: how often a copy had landed by the first look.
inline void landing_case(const Numbers& args) {
  alignas(16) static uint32_t source[4] = {1, 2, 3, 4};
  uint32_t at_once = 0;
  for (uint64_t seed = 0; seed < args[0]; seed++) {
    host::set_seed(seed);
    host::launch(1, 32, 128, [&] {
      auto* bar = reinterpret_cast<uint64_t*>(ptx::dynamic_shared());
      auto* tile = reinterpret_cast<uint32_t*>(ptx::dynamic_shared() + 16);
      if (ptx::lane_id() == 0) {
        ptx::mbar_init(bar, 1);
        ptx::mbar_expect_tx(bar, 16);
        ptx::bulk_load(tile, source, 16, bar);
      }
      ptx::syncwarp();
      const bool landed = ptx::mbar_test(bar, 0);
      if (landed != (tile[3] == 4)) ptx::trap();
      if (ptx::lane_id() == 0 && landed) at_once++;
      mbar_wait("landing", bar, 0);
      if (tile[3] != 4) ptx::trap();
    });
  }
  std::printf("%u\n", at_once);
}
