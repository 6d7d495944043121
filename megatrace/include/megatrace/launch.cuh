// Launches a chain of kernels many times: one CUDA graph with programmatic dependent launch
// on the GPU, the same launches in order in the host build; or into a stream of somebody else,
// who may be capturing it. Host code only. Errors are std::runtime_error with the runtime's
// own words.
#pragma once

#include <cstddef>
#include <functional>
#include <stdexcept>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "megatrace/ptx.cuh"
#include "megatrace/tracer_off.cuh"

namespace megatrace {

inline std::string& last_error() {
  thread_local std::string text;
  return text;
}

// Runs `body` behind a C interface: 0, or 1 with the reason in megatrace_last_error().
template <class Body>
int guarded(Body&& body) {
  try {
    body();
    return 0;
  } catch (const std::exception& e) {
    last_error() = e.what();
    return 1;
  }
}

// Throws where a launch is not the one that the agent was told of: a ring has a place for each warp
// of the grid, a warp finds its own by its number, and its role is that of its place in the block.
// Chain::add() calls it; who launches without a Chain does.
inline void check_launch(const TraceParams& p, dim3 grid, uint32_t threads) {
  if (p.warps == 0) return;  // nobody records
  if (grid.y != 1 || grid.z != 1)
    throw std::invalid_argument("a grid of " + std::to_string(grid.x) + " x " +
                                std::to_string(grid.y) + " x " + std::to_string(grid.z) +
                                " blocks: a traced kernel's has one dimension");
  if (threads == 0 || threads % 32 != 0)
    throw std::invalid_argument(
        std::to_string(threads) +
        " threads a block: a traced kernel has whole warps, 32 threads each");
  const uint64_t warps = uint64_t{grid.x} * (threads / 32);
  const uint32_t each = block_warps(p);
  if (warps == p.warps && (each == 0 || each == threads / 32)) return;
  std::string told = std::to_string(p.warps);
  if (each != 0) told = std::to_string(p.warps / each) + " blocks of " + std::to_string(each);
  throw std::invalid_argument("a launch of " + std::to_string(grid.x) + " blocks of " +
                              std::to_string(threads / 32) + " warps has " + std::to_string(warps) +
                              " warps, the agent was told of " + told +
                              ": give it these blocks, and a role for each warp of a block");
}

// Of a kernel's arguments, the one that is the tracer's.
template <class A>
void check_argument(const A& arg, dim3 grid, uint32_t threads) {
  if constexpr (std::is_same_v<A, TraceParams>) check_launch(arg, grid, threads);
}

#if defined(MEGATRACE_HOST_BUILD)

inline uint32_t sm_count() { return 4; }

template <class T>
T* device_alloc(size_t count) {
  void* p = std::aligned_alloc(128, (count * sizeof(T) + 127) / 128 * 128);
  if (p == nullptr) throw std::runtime_error("out of memory");
  std::memset(p, 0, count * sizeof(T));
  return static_cast<T*>(p);
}
inline void device_free(void* p) { std::free(p); }
inline void copy_bytes(void* dst, const void* src, size_t bytes) { std::memcpy(dst, src, bytes); }

// One launch, apart from any chain.
template <class... P, class... A>
void launch_one(void*, void (*kernel)(P...), dim3 grid, uint32_t threads, size_t shared_bytes,
                A... args) {
  host::launch_chain({{grid, dim3(threads), shared_bytes, [=] { kernel(args...); }}});
}

class Chain {
 public:
  template <class... P, class... A>
  void add(void (*kernel)(P...), dim3 grid, uint32_t threads, size_t shared_bytes, A... args) {
    (check_argument(args, grid, threads), ...);
    launches_.push_back({grid, dim3(threads), shared_bytes, [=] { kernel(args...); }});
  }
  void finish() {}
  void replay() { host::launch_chain(launches_); }
  void launch(void*) { host::launch_chain(launches_); }
  void synchronize() {}
  void* stream() const { return nullptr; }

 private:
  std::vector<host::Grid> launches_;
};

#else

inline void check(cudaError_t error, const char* what) {
  if (error != cudaSuccess)
    throw std::runtime_error(std::string(what) + ": " + cudaGetErrorString(error));
}

inline uint32_t sm_count() {
  int device = 0, count = 0;
  check(cudaGetDevice(&device), "cudaGetDevice");
  check(cudaDeviceGetAttribute(&count, cudaDevAttrMultiProcessorCount, device), "SM count");
  return static_cast<uint32_t>(count);
}

// Zeroed device memory; refuses what does not fit, with the numbers.
template <class T>
T* device_alloc(size_t count) {
  size_t free_bytes = 0, total_bytes = 0;
  check(cudaMemGetInfo(&free_bytes, &total_bytes), "cudaMemGetInfo");
  const size_t bytes = count * sizeof(T);
  if (bytes > free_bytes)
    throw std::runtime_error("needs " + std::to_string(bytes >> 20) + " MiB of GPU memory, " +
                             std::to_string(free_bytes >> 20) + " MiB are free");
  void* p = nullptr;
  check(cudaMalloc(&p, bytes), "cudaMalloc");
  check(cudaMemset(p, 0, bytes), "cudaMemset");
  return static_cast<T*>(p);
}
inline void device_free(void* p) { cudaFree(p); }
inline void copy_bytes(void* dst, const void* src, size_t bytes) {
  check(cudaMemcpy(dst, src, bytes, cudaMemcpyDefault), "cudaMemcpy");
}

// One launch into a cudaStream_t, dependent on the one before it there: it may begin before that
// has ended, and waits for it where its kernel says.
template <class... P, class... A>
void launch_one(void* stream, void (*kernel)(P...), dim3 grid, uint32_t threads,
                size_t shared_bytes, A... args) {
  cudaLaunchAttribute dependent{};
  dependent.id = cudaLaunchAttributeProgrammaticStreamSerialization;
  dependent.val.programmaticStreamSerializationAllowed = 1;
  cudaLaunchConfig_t config{};
  config.gridDim = grid;
  config.blockDim = dim3(threads);
  config.dynamicSmemBytes = shared_bytes;
  config.stream = static_cast<cudaStream_t>(stream);
  config.attrs = &dependent;
  config.numAttrs = 1;
  check(cudaLaunchKernelEx(&config, kernel, static_cast<P>(args)...), "launch");
}

class Chain {
 public:
  Chain() { check(cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking), "create a stream"); }
  ~Chain() {
    if (exec_ != nullptr) cudaGraphExecDestroy(exec_);
    cudaStreamDestroy(stream_);
  }
  Chain(const Chain&) = delete;
  Chain& operator=(const Chain&) = delete;

  template <class... P, class... A>
  void add(void (*kernel)(P...), dim3 grid, uint32_t threads, size_t shared_bytes, A... args) {
    (check_argument(args, grid, threads), ...);
    check(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                               static_cast<int>(shared_bytes)),
          "shared memory of the kernel");
    launches_.push_back([=](cudaStream_t stream) {
      launch_one(stream, kernel, grid, threads, shared_bytes, args...);
    });
  }
  // Captures the launches so far; before the first replay.
  void finish() {
    cudaGraph_t graph = nullptr;
    check(cudaStreamBeginCapture(stream_, cudaStreamCaptureModeThreadLocal), "begin capture");
    for (const auto& launch : launches_) launch(stream_);
    check(cudaStreamEndCapture(stream_, &graph), "end capture");
    check(cudaGraphInstantiate(&exec_, graph, 0), "instantiate the graph");
    check(cudaGraphDestroy(graph), "destroy the graph");
  }
  void replay() { check(cudaGraphLaunch(exec_, stream_), "launch the graph"); }
  // The launches so far into a cudaStream_t, without a graph of their own.
  void launch(void* stream) {
    for (const auto& launch : launches_) launch(static_cast<cudaStream_t>(stream));
  }
  void synchronize() { check(cudaStreamSynchronize(stream_), "synchronize"); }
  cudaStream_t stream() const { return stream_; }

 private:
  cudaStream_t stream_ = nullptr;
  cudaGraphExec_t exec_ = nullptr;
  std::vector<std::function<void(cudaStream_t)>> launches_;
};

#endif

}  // namespace megatrace

extern "C" inline __attribute__((used, visibility("default"))) const char* megatrace_last_error() {
  return megatrace::last_error().c_str();
}
