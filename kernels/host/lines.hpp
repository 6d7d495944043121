// Lines as another process reads them while they are written.
//
// On the GPU a line's 64 or 128 bytes travel as one write. Here the lanes' words are
// collected, and what a reader trusts (the numbers at the ends) is taken away first and put
// back last, so that whoever checks it before and after a copy never gets a mix.
#pragma once

#include <cstdint>
#include <deque>

#include "sanitizers.hpp"

namespace megatrace::host {

inline void publish_line(uint32_t* line, const uint32_t* words, uint32_t lanes) {
  const auto put = [&](uint32_t i) { __atomic_store_n(line + i, words[i], __ATOMIC_RELAXED); };
  for (uint32_t i = 0; i < lanes; i += 16) __atomic_store_n(line + i, 0u, __ATOMIC_RELAXED);
  __atomic_thread_fence(__ATOMIC_RELEASE);
  for (uint32_t i = 0; i < lanes; i++)
    if (i % 16 != 0) put(i);
  __atomic_thread_fence(__ATOMIC_RELEASE);
  // The first half's number alone announces a half line: it comes last.
  if (lanes > 16) put(16);
  __atomic_thread_fence(__ATOMIC_RELEASE);
  put(0);
}

// The stores a warp has begun and not all of its lanes have joined yet.
class LineStage {
 public:
  bool empty() const { return stores_.empty(); }

  // Lane `lane` makes its `nth` store of this launch. Says what is wrong, or null.
  const char* add(uint32_t* to, uint32_t word, uint32_t lanes, uint32_t lane, uint32_t nth,
                  uint32_t all) {
    const uint32_t at = nth - first_;
    if (at == stores_.size()) stores_.push_back({to, lanes, 0, {}});
    Store& store = stores_[at];
    if (store.to != to || store.lanes != lanes)
      return "lanes of a warp disagree about a line: tracer calls are made by whole, converged "
             "warps (put a ptx::syncwarp() after code of single lanes)";
    store.words[lane] = word;
    store.joined |= 1u << lane;
    while (!stores_.empty() && stores_.front().joined == all) {
      const Store& whole = stores_.front();
      publish_line(whole.to, whole.words, whole.lanes);
      stores_.pop_front();
      first_++;
    }
    return nullptr;
  }

 private:
  struct Store {
    uint32_t* to;
    uint32_t lanes;
    uint32_t joined;
    uint32_t words[32];
  };

  std::deque<Store> stores_;
  uint32_t first_ = 0;
};

}  // namespace megatrace::host
