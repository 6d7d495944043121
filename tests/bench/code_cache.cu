// Straight code of so many KB, run twice by one warp of every SM, in launches behind each other:
// what of it is still in the SM's instruction caches? Median over the SMs.
#include <algorithm>
#include <cstdio>
#include <vector>

#include "megatrace/launch.cuh"
#include "megatrace/ptx.cuh"

using namespace megatrace;

constexpr uint32_t kInstructionBytes = 16;
constexpr size_t kStreamBytes = size_t{400} << 20;

// Four chains, so that no product waits for the one before.
#define FOUR                                                  \
  asm volatile(                                               \
      "fma.rn.f32 %0, %0, %4, %5; fma.rn.f32 %1, %1, %4, %5;" \
      "fma.rn.f32 %2, %2, %4, %5; fma.rn.f32 %3, %3, %4, %5;" \
      : "+f"(v[0]), "+f"(v[1]), "+f"(v[2]), "+f"(v[3])        \
      : "f"(x), "f"(y));
#define SIXTEEN FOUR FOUR FOUR FOUR
#define SIXTY_FOUR SIXTEEN SIXTEEN SIXTEEN SIXTEEN

template <uint32_t kKb>
MEGATRACE_DEVICE void straight(float (&v)[4], float x, float y) {
  static_assert(kKb % 4 == 0, "blocks of 256 instructions");
  if constexpr (kKb != 0) {
    SIXTY_FOUR SIXTY_FOUR SIXTY_FOUR SIXTY_FOUR straight<kKb - 4>(v, x, y);
  }
}

// cycles[block][turn]
template <uint32_t kKb>
__global__ void run(uint32_t* cycles, float x, float y) {
  float v[4] = {x, y, x + 1, y + 1};
#pragma unroll 1
  for (uint32_t turn = 0; turn < 2; ++turn) {
    const uint64_t begin = ptx::clock64();
    straight<kKb>(v, x, y);
    if (threadIdx.x == 0)
      cycles[blockIdx.x * 2 + turn] = static_cast<uint32_t>(ptx::clock64() - begin);
  }
  if (v[0] + v[1] + v[2] + v[3] == 1.25f) cycles[0] = 0;  // or nothing of it is computed
}

__global__ void stream(const uint4* from, size_t vectors, uint32_t* out) {
  uint32_t sum = 0;
  for (size_t i = blockIdx.x * blockDim.x + threadIdx.x; i < vectors; i += gridDim.x * blockDim.x)
    sum ^= from[i].x;
  if (sum == 0x12345u) out[0] = sum;
}

struct Gpu {
  uint32_t sms;
  uint32_t* cycles;
  uint4* data;
};

// Cycles an instruction of both turns of the last launch.
std::vector<double> cycles_of(const Gpu& gpu, uint32_t kb) {
  check(cudaDeviceSynchronize(), "run");
  std::vector<uint32_t> all(gpu.sms * 2);
  copy_bytes(all.data(), gpu.cycles, all.size() * sizeof(uint32_t));
  std::vector<double> result;
  for (uint32_t turn = 0; turn < 2; ++turn) {
    std::vector<uint32_t> each;
    for (uint32_t sm = 0; sm < gpu.sms; ++sm) each.push_back(all[sm * 2 + turn]);
    std::nth_element(each.begin(), each.begin() + gpu.sms / 2, each.end());
    result.push_back(each[gpu.sms / 2] / (kb * 1024.0 / kInstructionBytes));
  }
  return result;
}

template <uint32_t kKb>
void measure(const Gpu& gpu, bool last) {
  const auto launch = [&] { run<kKb><<<gpu.sms, 32>>>(gpu.cycles, 1.f, 2.f); };
  launch();
  const double first = cycles_of(gpu, kKb)[0];
  for (int i = 0; i < 3; ++i) launch();
  const std::vector<double> behind = cycles_of(gpu, kKb);
  for (int i = 0; i < 3; ++i) {
    stream<<<gpu.sms, 512>>>(gpu.data, kStreamBytes / sizeof(uint4), gpu.cycles);
    launch();
  }
  const double streamed = cycles_of(gpu, kKb)[0];
  std::fprintf(stderr, "%4u KB %9.2f %14.2f %14.2f %12.2f\n", kKb, first, behind[0], streamed,
               behind[1]);
  std::printf(
      "{\"kb\": %u, \"first\": %.3f, \"behind_itself\": %.3f, \"behind_a_stream\": %.3f, "
      "\"second_turn\": %.3f}%s\n",
      kKb, first, behind[0], streamed, behind[1], last ? "" : ",");
}

int main() {
  const int failed = guarded([] {
    cudaDeviceProp properties;
    check(cudaGetDeviceProperties(&properties, 0), "properties");
    Gpu gpu = {static_cast<uint32_t>(properties.multiProcessorCount), nullptr, nullptr};
    check(cudaMalloc(&gpu.cycles, gpu.sms * 2 * sizeof(uint32_t)), "cudaMalloc");
    check(cudaMalloc(&gpu.data, kStreamBytes), "cudaMalloc");
    check(cudaMemset(gpu.data, 1, kStreamBytes), "cudaMemset");
    std::fprintf(stderr,
                 "%s: cycles an instruction\n   code     first  behind itself  behind 400 MB"
                 "  second turn\n",
                 properties.name);
    std::printf("{\"gpu\": \"%s\", \"sizes\": [\n", properties.name);
    measure<16>(gpu, false);
    measure<32>(gpu, false);
    measure<64>(gpu, false);
    measure<96>(gpu, false);
    measure<128>(gpu, false);
    measure<160>(gpu, false);
    measure<256>(gpu, true);
    std::printf("]}\n");
  });
  if (failed) std::fprintf(stderr, "%s\n", last_error().c_str());
  return failed;
}
