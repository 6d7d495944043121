// Hand-offs between blocks of one launch: the data is the flag. A word is kEmpty until its one
// writer stores it; whoever needs it polls, past the L1 cache, until it is there. The launch
// before empties the words, and nobody looks at one before that launch is complete, so nobody
// can see a word of an earlier launch. No atomics, no fences.
#pragma once

#include "megatrace/sync.cuh"
#include "params.cuh"
#include "shared.cuh"

namespace muse {

constexpr uint32_t kEmpty = 0xffffffffu;

// What is stored instead of a value that happens to be kEmpty; both are NaNs.
constexpr uint32_t kNanFloat = 0x7fffffffu, kNanPair = 0x7fff7fffu;

MEGATRACE_DEVICE uint32_t float_word(float v) {
  const uint32_t word = __float_as_uint(v);
  return word == kEmpty ? kNanFloat : word;
}
MEGATRACE_DEVICE uint32_t pair_word(uint32_t pair) { return pair == kEmpty ? kNanPair : pair; }

MEGATRACE_DEVICE void put(uint32_t* p, uint32_t word) { ptx::store_relaxed(p, word); }
MEGATRACE_DEVICE void put(uint4* p, uint4 words) { ptx::store_relaxed(p, words); }

MEGATRACE_DEVICE bool filled(uint32_t word) { return word != kEmpty; }
MEGATRACE_DEVICE bool filled(const uint4& v) {
  return filled(v.x) & filled(v.y) & filled(v.z) & filled(v.w);
}

// Polls a warp's words until they are there: every lane loads with `load`, which says whether it
// got all it asked for. Where some lane did not, the first such lane's `producer` is who was
// missed.
template <class T, class Wait, class Load, class Producer>
MEGATRACE_DEVICE void poll_words(T& t, Wait wait, Load&& load, Producer&& producer) {
  uint32_t missing = 0;
  const auto missed = [&]() -> megatrace::LaneSlot {
    return {producer(), static_cast<uint32_t>(__ffs(static_cast<int>(missing))) - 1};
  };
  t.poll(wait, missed, [&] {
    missing = ptx::ballot(!load());
    return missing == 0;
  });
}

// The same of words that were asked for before: looks at those first, and asks again while some
// are missing.
template <class T, class Wait, class Here, class Ask, class Producer>
MEGATRACE_DEVICE void poll_asked(T& t, Wait wait, Here&& here, Ask&& ask, Producer&& producer) {
  bool again = false;
  poll_words(
      t, wait,
      [&] {
        if (again) ask();
        again = true;
        return here();
      },
      producer);
}

// Empties this block's share of the next launch's hand-off words; `thread` of `threads`.
MEGATRACE_DEVICE void empty_next(const Params& p, uint32_t thread, uint32_t threads) {
  const uint32_t begin = share_begin(p.next_handoff_vectors, blockIdx.x);
  const uint32_t end = share_begin(p.next_handoff_vectors, blockIdx.x + 1);
  const uint4 empty = make_uint4(kEmpty, kEmpty, kEmpty, kEmpty);
  for (uint32_t i = begin + thread; i < end; i += threads) p.next_handoff[i] = empty;
}

}  // namespace muse
