// The host's half: a program is a chain of launches of the layer kernel. Python calls it through
// the C functions at the end (megatrace/muse/program.py).
#pragma once

#include <algorithm>
#include <memory>
#include <vector>

namespace muse {

using megatrace::Chain;
using megatrace::TraceParams;

// What a launch is called in a trace: the fused layer, the beginning of a step, or one phase of
// the twin.
inline uint32_t kernel_id(const Params& p) {
  if (p.phases >> kEmbed & 1) return kEmbed + 1;
  if ((p.phases & (p.phases - 1)) != 0) return 0;
  uint32_t phase = 0;
  while (!(p.phases >> phase & 1)) ++phase;
  return phase + 1;
}

class Program {
 public:
  Program(const Params* launches, uint32_t count, uint32_t blocks, const TraceParams& trace) {
    if (blocks == 0) blocks = megatrace::sm_count();
#if !defined(MEGATRACE_HOST_BUILD)
    // Blocks wait for each other, so all of them must run at once.
    if (blocks > megatrace::sm_count())
      throw std::runtime_error(std::to_string(blocks) + " blocks, one an SM: this GPU has " +
                               std::to_string(megatrace::sm_count()) + " SMs");
#endif
    for (uint32_t i = 0; i < count; ++i) add(launches[i], blocks, trace);
  }

  // Captured with the first replay: who launches into a stream needs no graph.
  void replay() {
    if (!captured_) chain_.finish();
    captured_ = true;
    chain_.replay();
  }

  Chain& chain() { return chain_; }

 private:
  // Of another width it would read past the end of the pool.
  static void check(const KvCache& kv) {
    if (kv.element_bytes != 0 && kv.element_bytes != Cache::kBytes)
      throw std::runtime_error("an element of keys and values has " +
                               std::to_string(kv.element_bytes) + " bytes: this build reads " +
                               std::to_string(Cache::kBytes));
  }

  void add(Params p, uint32_t blocks, const TraceParams& trace) {
    check(p.kv);
    check(p.next_kv);
    // What `early` rests on: launches that fill the GPU.
    if (blocks < megatrace::sm_count()) p.early = 0;
    const auto kernel = p.shape.rows > 8 ? layer<Tracing, 2, ExpertWeights, Cache>
                                         : layer<Tracing, 1, ExpertWeights, Cache>;
    chain_.add(kernel, dim3(blocks), kThreads, sizeof(Shared), p, traced<Tracing>(p, trace));
  }

  template <class T>
  static typename T::Params traced(const Params& p, const TraceParams& trace) {
    if constexpr (T::level == megatrace::Level::off)
      return {};
    else
      return megatrace::for_launch(trace, kernel_id(p), p.layer);
  }

  Chain chain_;
  bool captured_ = false;
};

// Warps of a block that shares `items` out, at most kEndThreads / 32, in threads.
inline uint32_t end_threads(uint32_t items) {
  return std::min(kEndThreads, (items + 31) / 32 * 32);
}

inline void begin(const StepInputs& in, void* stream) {
  const uint32_t blocks = std::min(kBeginBlocks, (in.width + kEndThreads - 1) / kEndThreads);
  megatrace::launch_one(stream, begin_step, dim3(blocks), end_threads(in.width), 0, in);
}

inline void end(const StepOutput& out, void* stream) {
  megatrace::launch_one(stream, end_step, dim3(out.rows), end_threads(out.hidden / 4),
                        kEndThreads / 32 * sizeof(float), out);
}

}  // namespace muse

extern "C" {
uint64_t megatrace_table_hash() { return muse::ev::kTableHash; }
uint32_t muse_params_bytes() { return sizeof(muse::Params); }
uint32_t muse_shared_bytes() { return sizeof(muse::Shared); }
int muse_blocks(uint32_t* out) {
  return megatrace::guarded([&] { *out = megatrace::sm_count(); });
}
int muse_create(const muse::Params* launches, uint32_t count, uint32_t blocks,
                const megatrace::TraceParams* trace, muse::Program** out) {
  return megatrace::guarded([&] { *out = new muse::Program(launches, count, blocks, *trace); });
}
int muse_replay(muse::Program* program) {
  return megatrace::guarded([&] { program->replay(); });
}
// All launches into `stream`, which its owner may be capturing.
int muse_launch(muse::Program* program, void* stream) {
  megatrace::Chain& chain = program->chain();
  return megatrace::guarded([&] { chain.launch(static_cast<decltype(chain.stream())>(stream)); });
}
// What comes before a step's launches and after them, into `stream`.
int muse_begin(const muse::StepInputs* in, void* stream) {
  return megatrace::guarded([&] { muse::begin(*in, stream); });
}
int muse_end(const muse::StepOutput* out, void* stream) {
  return megatrace::guarded([&] { muse::end(*out, stream); });
}
int muse_synchronize(muse::Program* program) {
  return megatrace::guarded([&] { program->chain().synchronize(); });
}
void* muse_stream(muse::Program* program) { return program->chain().stream(); }
void muse_destroy(muse::Program* program) { delete program; }
}
