// The host's half of the example: builds a step of layers and checks its answers.
// Python calls it through the C functions at the end.
#pragma once

#include <cmath>
#include <memory>

namespace example {

using namespace megatrace;

struct Config {
  uint32_t blocks;
  uint32_t up_tiles;  // of a block
  uint32_t layers;    // launches of a step, at least 2
  uint32_t early;     // 1: weights of down are asked for before the hand-off
};

inline float weight(size_t i) { return static_cast<float>(i % 4); }

class Step {
 public:
  Step(const Config& config, const TraceParams& trace) : config_(config) {
    const size_t per_block = size_t{config_.up_tiles + kDown} * kTileFloats;
    std::vector<float> weights(per_block * config_.blocks);
    for (size_t i = 0; i < weights.size(); ++i) weights[i] = weight(i);
    const std::vector<uint32_t> missing(size_t{config_.layers} * config_.blocks, kMissing);
    sums_ = device_alloc<uint32_t>(missing.size());
    copy_bytes(sums_, missing.data(), missing.size() * sizeof(uint32_t));
    out_ = device_alloc<float>(missing.size());
    chain_ = std::make_unique<Chain>();
    for (uint32_t i = 0; i < config_.layers; ++i) {
      weights_.push_back(device_alloc<float>(weights.size()));
      copy_bytes(weights_.back(), weights.data(), weights.size() * sizeof(float));
      add(i, trace);
    }
    chain_->finish();
  }

  ~Step() {
    for (float* w : weights_) device_free(w);
    device_free(sums_);
    device_free(out_);
  }

  Chain& chain() { return *chain_; }

  // The largest relative error of any block's answer in any layer.
  double worst_error() {
    std::vector<float> out(size_t{config_.layers} * config_.blocks);
    copy_bytes(out.data(), out_, out.size() * sizeof(float));
    // Every run of four weights sums to 6.
    const double up = 1.5 * kTileFloats * config_.up_tiles, down = 1.5 * kTileFloats * kDown;
    double worst = 0;
    for (float answer : out) worst = std::fmax(worst, std::fabs(answer / (up * down) - 1));
    return worst;
  }

 private:
  void add(uint32_t i, const TraceParams& trace) {
    using T = Tracer<Level::timeline>;
    const size_t here = i, next = (i + 1) % config_.layers;
    const Work work{weights_[i], config_.up_tiles, sums_ + here * config_.blocks,
                    sums_ + next * config_.blocks, out_ + here * config_.blocks};
    chain_->add(config_.early != 0 ? layer<T, true> : layer<T, false>, dim3(config_.blocks),
                kThreads, sizeof(Shared), work, for_launch(trace, 0, i));
  }

  Config config_;
  std::vector<float*> weights_;  // of each layer: more than the L2 cache holds
  uint32_t* sums_ = nullptr;
  float* out_ = nullptr;
  std::unique_ptr<Chain> chain_;
};

}  // namespace example

extern "C" {
uint64_t megatrace_table_hash() { return ev::kTableHash; }
int layer_blocks(uint32_t* out) {
  return guarded([&] { *out = sm_count(); });
}
int layer_create(const example::Config* config, const TraceParams* trace, example::Step** out) {
  return guarded([&] { *out = new example::Step(*config, *trace); });
}
int layer_replay(example::Step* s) {
  return guarded([&] { s->chain().replay(); });
}
int layer_synchronize(example::Step* s) {
  return guarded([&] { s->chain().synchronize(); });
}
void* layer_stream(example::Step* s) { return s->chain().stream(); }
int layer_worst_error(example::Step* s, double* out) {
  return guarded([&] { *out = s->worst_error(); });
}
void layer_destroy(example::Step* s) { delete s; }
}
