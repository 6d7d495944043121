// The host's half of the example: builds the chain of launches and checks its answers.
// Python calls it through the C functions at the end.
#pragma once

#include <cmath>
#include <memory>

namespace example {

using namespace megatrace;

struct Config {
  uint32_t blocks;    // 0: one an SM
  uint32_t tiles;     // of a block, even
  uint32_t launches;  // of a replay
  uint32_t buffers;   // sets of weights, used in turn so that none stays in the cache
  uint32_t level;     // 0 off, 1 counters, 2 timeline
  uint32_t all;       // 1: Detail::all
};

inline float weight(size_t i) { return static_cast<float>(i % 4); }

class Stream {
 public:
  Stream(const Config& config, const TraceParams& trace) : config_(config) {
    if (config_.blocks == 0) config_.blocks = sm_count();
    const size_t per_block = size_t{config_.tiles} * kTileFloats;
    std::vector<float> weights(per_block * config_.blocks);
    for (size_t i = 0; i < weights.size(); ++i) weights[i] = weight(i);
    for (uint32_t b = 0; b < config_.buffers; ++b) {
      weights_.push_back(device_alloc<float>(weights.size()));
      copy_bytes(weights_.back(), weights.data(), weights.size() * sizeof(float));
    }
    const std::vector<uint32_t> empty(size_t{config_.launches} * config_.blocks, kEmpty);
    partials_ = device_alloc<uint32_t>(empty.size());
    copy_bytes(partials_, empty.data(), empty.size() * sizeof(uint32_t));
    out_ = device_alloc<float>(config_.blocks);
    chain_ = std::make_unique<Chain>();
    for (uint32_t i = 0; i < config_.launches; ++i) add(i, trace);
    chain_->finish();
  }

  ~Stream() {
    for (float* w : weights_) device_free(w);
    device_free(partials_);
    device_free(out_);
  }

  Chain& chain() { return *chain_; }

  // The largest relative error of any block's answer.
  double worst_error() {
    std::vector<float> out(config_.blocks);
    copy_bytes(out.data(), out_, out.size() * sizeof(float));
    // Every run of four weights sums to 6, in every half of every block.
    const double half = 1.5 * kTileFloats * (config_.tiles / 2);
    double worst = 0;
    for (float answer : out) worst = std::fmax(worst, std::fabs(answer / (half * half) - 1));
    return worst;
  }

 private:
  void add(uint32_t launch, const TraceParams& trace) {
    const size_t here = launch, next = (launch + 1) % config_.launches;
    const Work work{weights_[launch % weights_.size()], config_.tiles,
                    partials_ + here * config_.blocks, partials_ + next * config_.blocks, out_};
    const TraceParams mine = for_launch(trace, 0, launch);
    using Off = Tracer<Level::off>;
    if (config_.level == 0) return add<Off>(work, Off::Params{});
    if (config_.level == 1) return add<Tracer<Level::counters>>(work, mine);
    if (config_.all != 0) return add<Tracer<Level::timeline, Detail::all>>(work, mine);
    add<Tracer<Level::timeline>>(work, mine);
  }

  template <class T>
  void add(const Work& work, const typename T::Params& trace) {
    chain_->add(stream<T>, dim3(config_.blocks), kThreads, sizeof(Shared), work, trace);
  }

  Config config_;
  std::vector<float*> weights_;
  uint32_t* partials_ = nullptr;
  float* out_ = nullptr;
  std::unique_ptr<Chain> chain_;
};

}  // namespace example

extern "C" {
uint64_t megatrace_table_hash() { return ev::kTableHash; }
int stream_blocks(uint32_t* out) {
  return guarded([&] { *out = sm_count(); });
}
int stream_create(const example::Config* config, const TraceParams* trace, example::Stream** out) {
  return guarded([&] { *out = new example::Stream(*config, *trace); });
}
int stream_replay(example::Stream* s) {
  return guarded([&] { s->chain().replay(); });
}
int stream_synchronize(example::Stream* s) {
  return guarded([&] { s->chain().synchronize(); });
}
void* stream_stream(example::Stream* s) { return s->chain().stream(); }
int stream_worst_error(example::Stream* s, double* out) {
  return guarded([&] { *out = s->worst_error(); });
}
void stream_destroy(example::Stream* s) { delete s; }
}
