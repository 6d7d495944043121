// Vectors between blocks, matrices within a warp, under many schedules.
#pragma once

#include "common.cuh"

constexpr uint32_t kNothing = ~0u;

inline bool whole(const uint4& v) {
  return v.x != kNothing && v.y != kNothing && v.z != kNothing && v.w != kNothing;
}

// A warp of each block waits for the vectors of the block before it, round after round.
inline void vectors_case(const Numbers& args) {
  constexpr uint32_t kBlocks = 3, kRounds = 5;
  under_seeds(args[0], [] {
    const uint4 nothing = {kNothing, kNothing, kNothing, kNothing};
    std::vector<uint4> rows(kRounds * kBlocks * 32, nothing);
    uint32_t wrong = 0;
    host::launch(kBlocks, 64, 0, [&] {
      if (threadIdx.x >= 32) return;
      const uint32_t lane = ptx::lane_id(), before = (blockIdx.x + kBlocks - 1) % kBlocks;
      uint32_t v = 1000 * blockIdx.x + lane;
      for (uint32_t round = 0; round < kRounds; round++) {
        uint4* row = &rows[round * kBlocks * 32];
        ptx::store_relaxed(row + blockIdx.x * 32 + lane, make_uint4(v, v + 1, v + 2, v + 3));
        uint4 got = nothing;
        poll("before", round, [&] {
          got = ptx::load_relaxed(static_cast<const uint4*>(row) + before * 32 + lane);
          return ptx::ballot(!whole(got)) == 0;
        });
        if (got.y != got.x + 1 || got.z != got.x + 2 || got.w != got.x + 3)
          ptx::atomic_add(&wrong, 1);
        v = got.x;
      }
      // After five turns round three blocks: the vector of two blocks before.
      if (v != 1000 * ((blockIdx.x + 1) % kBlocks) + lane) ptx::atomic_add(&wrong, 1);
    });
    return wrong == 0;
  });
}

// Of so many seeds, without chaos and with it: how often a vector was seen in part.
inline void torn_case(const Numbers& args) {
  for (const bool chaos : {false, true}) {
    uint32_t torn = 0;
    for (uint64_t seed = 0; seed < args[0]; seed++) {
      host::set_seed(seed);
      host::options().chaos = chaos;
      uint4 vector = {kNothing, kNothing, kNothing, kNothing};
      host::launch(2, 32, 0, [&] {
        if (ptx::lane_id() != 0) return;
        if (blockIdx.x == 0) return ptx::store_relaxed(&vector, make_uint4(1, 2, 3, 4));
        bool part = false;
        poll("vector", 0, [&] {
          const uint4 v = ptx::load_relaxed(static_cast<const uint4*>(&vector));
          part |= !whole(v) && (v.x & v.y & v.z & v.w) != kNothing;
          return whole(v);
        });
        torn += part;
      });
    }
    std::printf("%u ", torn);
  }
}

// From shared memory through ldmatrix to mma: each warp its own product of small integers,
// which another warp has written.
inline void matrices_case(const Numbers& args) {
  constexpr uint32_t kWarps = 3, kBytes = 16 * 16 * 2 + 16 * 8 * 2;
  const auto a_of = [](uint32_t w, uint32_t row, uint32_t k) {
    return static_cast<float>((w * 5 + row * 3 + k * 7) % 11) - 5;
  };
  const auto b_of = [](uint32_t w, uint32_t k, uint32_t n) {
    return static_cast<float>((w + k * 5 + n * 3) % 13) - 6;
  };
  under_seeds(args[0], [&] {
    uint32_t wrong = 0;
    host::launch(2, kWarps * 32, kWarps * kBytes, [&] {
      const uint32_t lane = ptx::lane_id(), mine = threadIdx.x / 32, next = (mine + 1) % kWarps;
      auto* a = reinterpret_cast<uint16_t*>(ptx::dynamic_shared() + next * kBytes);
      for (uint32_t i = lane; i < 256; i += 32) a[i] = ptx::float_bf16(a_of(next, i / 16, i % 16));
      for (uint32_t i = lane; i < 128; i += 32)
        a[256 + i] = ptx::float_bf16(b_of(next, i / 8, i % 8));
      __syncthreads();
      a = reinterpret_cast<uint16_t*>(ptx::dynamic_shared() + mine * kBytes);
      uint32_t fa[4], fb[4];
      ptx::ldmatrix_x4(fa, a + lane % 16 * 16 + lane / 16 * 8);
      ptx::ldmatrix_x4_trans(fb, a + 256 + lane % 16 * 8);
      float d[4] = {1, 2, 3, 4};
      ptx::mma_bf16(d, fa[0], fa[1], fa[2], fa[3], fb[0], fb[1]);
      for (uint32_t i = 0; i < 4; i++) {
        const uint32_t row = lane / 4 + i / 2 * 8, n = lane % 4 * 2 + i % 2;
        float sum = static_cast<float>(i + 1);
        for (uint32_t k = 0; k < 16; k++) sum += a_of(mine, row, k) * b_of(mine, k, n);
        if (d[i] != sum) ptx::atomic_add(&wrong, 1);
      }
    });
    return wrong == 0;
  });
}

// With 0 as argument a warp loads rows that its own lanes have only just written.
inline void unwritten_rows_case(const Numbers& args) {
  const bool ordered = args[0] != 0;
  host::launch(1, 32, 512, [&] {
    auto* rows = reinterpret_cast<uint4*>(ptx::dynamic_shared());
    rows[31 - ptx::lane_id()] = make_uint4(1, 2, 3, 4);
    if (ordered) ptx::syncwarp();
    uint32_t r[4];
    ptx::ldmatrix_x4(r, rows + ptx::lane_id());
  });
}

// 48 threads: the second warp is half a one.
inline void half_warp_case(const Numbers&) {
  host::launch(1, 48, 0, [] {
    float d[4] = {};
    ptx::mma_f16(d, 0, 0, 0, 0, 0, 0);
  });
}

// Half of a warp multiplies bf16, the other f16.
inline void mixed_matrices_case(const Numbers&) {
  host::launch(1, 32, 0, [] {
    float d[4] = {};
    if (ptx::lane_id() < 16)
      ptx::mma_f16(d, 0, 0, 0, 0, 0, 0);
    else
      ptx::mma_bf16(d, 0, 0, 0, 0, 0, 0);
  });
}

// Matrix products a second, times 1000 of them: of eight warps of one block.
inline void mma_speed_case(const Numbers& args) {
  const auto count = static_cast<uint32_t>(args[0]);
  float sink = 0;
  const uint64_t begin = host::monotonic_ns();
  host::launch(1, 256, 0, [&] {
    float d[4] = {};
    const uint32_t word = ptx::pack_bf16(1, static_cast<float>(ptx::lane_id()));
    for (uint32_t i = 0; i < count; i++) ptx::mma_bf16(d, word, word, word, word, word, word);
    sink += d[0];
  });
  const double seconds = static_cast<double>(host::monotonic_ns() - begin) * 1e-9;
  std::printf("%.0f\n", 8 * count / seconds);
}
