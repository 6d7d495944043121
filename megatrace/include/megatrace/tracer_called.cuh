// The tracer of a large kernel: what a call does is in the kernel once, as functions, and a warp's
// state is in shared memory. A kernel asks for it by naming its warps:
// Tracer<L, D, Head::early, 12>. It is of the device build only.
//
// An SM keeps 128 KB of code from launch to launch (an H200: tests/bench/bench_code_cache.py), and
// a large kernel with all its records in line is larger. One instruction in line that is not kept
// costs more than twenty in a function that some warp ran just before. A record is three or four
// instructions in line, a wait that does not block one more than in a kernel without a tracer. No
// register is held from call to call.
//
// All lanes compute the same and store the same; only a line's words are a lane's own.
#pragma once

#include "megatrace/tracer_calls.cuh"

#if !defined(MEGATRACE_HOST_BUILD)

namespace megatrace {

template <Detail D, uint32_t kWarps>
class Called : public Calls<Called<D, kWarps>, Level::timeline, D> {
  static constexpr bool kAll = D == Detail::all;

 public:
  using Params = TraceParams;

  // Of a launch that is known to want a timeline, on this SM. Reads the clocks.
  MEGATRACE_DEVICE Called(const Params& params, uint2 control) {
    State& s = state();
    s.p = params;
    if (ptx::lane_id() < kZeroed)
      reinterpret_cast<uint4*>(&s.cursor)[ptx::lane_id()] = make_uint4(0, 0, 0, 0);
    ptx::syncwarp();
    uint64_t ns, t0;
    ptx::read_clocks(ns, t0);
    if (on_edge())
      for (const uint64_t before = ns; ns == before;) ptx::read_clocks(ns, t0);
    s.ns = ns;
    s.step = control.x;
    // No wait begins before the launch: none is found to hang yet.
    const uint32_t low = static_cast<uint32_t>(t0);
    put_now(s, {low, static_cast<uint32_t>(t0 >> 32), kHeaderWords, low - 1});
  }
  Called(const Called&) = delete;
  Called& operator=(const Called&) = delete;

  // Asks for the warp's cursor, which the launch before may just have written. Nobody waits for
  // the answer before a line is full.
  MEGATRACE_DEVICE void after_dependency() { ask(); }
  MEGATRACE_DEVICE void head() {}

  template <class... Args>
  MEGATRACE_DEVICE void record(uint32_t id, Args... args) {
    static_assert(sizeof...(Args) <= 2, "a called tracer takes two arguments");
    const uint32_t a[] = {args..., ptx::undefined(), ptx::undefined()};
    put(id | (1 + sizeof...(args)) << kWordsShift, a[0], a[1]);
  }

  template <class E>
  MEGATRACE_DEVICE Stalled wait_later(E event, uint64_t* bar, uint32_t parity) {
    if (ptx::mbar_test(bar, parity)) return {0, 0, false};
    const uint64_t both = blocked(ptx::shared_address(bar), parity, event.id);
    return {static_cast<uint32_t>(both), static_cast<uint32_t>(both >> 32), true};
  }

  template <class E, class Slot, class Ready, class... Args>
  MEGATRACE_DEVICE void poll(E event, const Slot& slot, Ready&& ready, Args... args) {
    constexpr bool kSlot = E::kind == Kind::wait;
    static_assert(sizeof...(Args) + kSlot == E::args, "not the arguments of the table");
    static_assert(E::args <= 2, "a called tracer takes two arguments");
    const uint32_t begin = static_cast<uint32_t>(ptx::clock64());
    uint32_t misses = 0;
    LastMissed<Slot> missed(slot);
    while (!ready()) {
      missed.miss();
      if (MEGATRACE_RARE((++misses & (kMissesPerLook - 1)) == 0))
        look_at(begin, event.id, missed.get());
    }
    if (misses == 0) {
      if constexpr (kAll || E::kFirstUse) {
        static_assert(E::args <= 1, "a called tracer takes two arguments");
        if constexpr (kSlot)
          record(event.id, 0u, 0u);
        else
          record(event.id, 0u, args...);
      }
      return;
    }
    const uint32_t told = what(event, E::args);
    const uint32_t a[] = {args..., ptx::undefined(), ptx::undefined()};
    if constexpr (!kSlot)
      put_polled(told, begin, a[0], a[1]);
    else if constexpr (std::is_same_v<Slot, uint32_t>)
      put_polled(told, begin, slot, a[0]);
    else
      put_waited(told, begin, missed.get().value, missed.get().lane, a[0]);
  }

  template <class E, class... Args>
  MEGATRACE_DEVICE void commit(E event, const Stalled& s, Args... args) {
    static_assert(E::kind == Kind::stall || E::kind == Kind::wait, "not a wait");
    static_assert(sizeof...(Args) == E::args,
                  "not the arguments of the table; a wait's first is its slot");
    static_assert(sizeof...(Args) <= 2, "a called tracer takes two arguments");
    if (s.cycles == 0) {
      if constexpr (kAll || E::kFirstUse) record(event.id, 0u, args...);
    } else {
      const uint32_t a[] = {args..., ptx::undefined(), ptx::undefined()};
      put_stall(what(event, sizeof...(args)), s.begin, s.cycles, a[0], a[1]);
    }
  }

  MEGATRACE_DEVICE void flush() { flush_now(); }
  MEGATRACE_DEVICE void end() { finish(); }

 private:
  // What one call adds may stand after the end of a full line.
  static constexpr uint32_t kMostWords = 5;
  // What every call reads, in one load.
  struct alignas(16) Now {
    uint32_t t0, t0_high;
    uint32_t used;  // record words in the line in progress
    uint32_t told;  // the wait that was last found to hang, by its begin
  };
  struct alignas(16) State {
    uint32_t line[kRecordsPerLine + kMostWords + 1];  // more than `used` of them mean nothing
    Params p;
    uint4 cursor;  // lines, words and launches of this warp before this launch
    Now now;
    uint64_t ns;
    uint32_t step;
    uint32_t words;    // record words in finished lines
    uint32_t flushed;  // lines finished by this launch
    uint32_t told_high;
    uint16_t more;  // words that stand after the line's end, as it is full
    uint8_t asked;  // for the cursor; 2: it is here, and the header is made
  };
  static constexpr uint32_t kZeroed = (sizeof(State) - sizeof(State::line) - sizeof(Params)) / 16;
  static_assert(kZeroed <= 32 && sizeof(State) == 256, "four words a lane");
  static constexpr uint32_t kWordsShift = 24;
  static constexpr uint32_t kMissesPerLook = 64, kSlowBits = kTimeBits - 2;

  // What a function is told in one register: event and number of words.
  template <class E>
  static MEGATRACE_DEVICE uint32_t what(E event, uint32_t args) {
    return event.id | (2 + args) << kWordsShift;
  }

  static MEGATRACE_DEVICE State& state() {
    __shared__ State states[kWarps];
    return states[threadIdx.x >> 5];
  }
  static MEGATRACE_DEVICE bool on_edge() { return threadIdx.x + 32 >= blockDim.x; }
  static MEGATRACE_DEVICE uint32_t arg(uint64_t v) {
    return kArgBit | (static_cast<uint32_t>(v) & kArgMask);
  }
  static MEGATRACE_DEVICE uint32_t at_most(uint64_t v, uint32_t cap) {
    return v < cap ? static_cast<uint32_t>(v) : cap;
  }
  static MEGATRACE_DEVICE uint32_t word(uint32_t what, uint64_t time) {
    return what << kTimeBits | (static_cast<uint32_t>(time) & kTimeMask);
  }

  static MEGATRACE_DEVICE Now now_of(const State& s) {
    const uint4 v = *reinterpret_cast<const uint4*>(&s.now);
    return {v.x, v.y, v.z, v.w};
  }
  static MEGATRACE_DEVICE void put_now(State& s, Now n) {
    *reinterpret_cast<uint4*>(&s.now) = make_uint4(n.t0, n.t0_high, n.used, n.told);
  }
  static MEGATRACE_DEVICE uint64_t t0_of(const State& s) {
    return uint64_t{s.now.t0_high} << 32 | s.now.t0;
  }

  static MEGATRACE_DEVICE uint64_t told_begin(const State& s) {
    return uint64_t{s.told_high} << 32 | s.now.told;
  }

  MEGATRACE_FUNCTION void ask() {
    State& s = begin_call();
    if (s.asked != 0) return;
    ptx::syncwarp();
    s.asked = 1;
    if (ptx::lane_id() == 0) ptx::fetch_state_async(&s.cursor, s.p.cursors + warp_of_grid());
  }

  // -- the line in progress ------------------------------------------------------------

  MEGATRACE_FUNCTION void put(uint32_t what, uint32_t a, uint32_t b) {
    State& s = begin_call();
    const uint32_t clock = static_cast<uint32_t>(ptx::clock64());
    const Now n = now_of(s);
    uint32_t* at = s.line + n.used;
    at[0] = word(what, clock - n.t0);
    at[1] = arg(a);
    at[2] = arg(b);
    add_words(s, n.used, what >> kWordsShift);
  }
  MEGATRACE_FUNCTION void put_stall(uint32_t what, uint32_t begin, uint32_t cycles, uint32_t a,
                                    uint32_t b) {
    State& s = begin_call();
    const Now n = now_of(s);
    stall(s, n, what, begin, cycles, (cycles >> kSlowBits) != 0, a, b);
  }
  MEGATRACE_FUNCTION void put_polled(uint32_t what, uint32_t begin, uint32_t a, uint32_t b) {
    State& s = begin_call();
    const uint32_t cycles = static_cast<uint32_t>(ptx::clock64()) - begin;
    const Now n = now_of(s);
    const bool slow = (cycles >> kSlowBits) != 0 || n.told == begin;
    stall(s, n, what, begin - n.t0, cycles, slow, a, b);
  }
  MEGATRACE_FUNCTION void put_waited(uint32_t what, uint32_t begin, uint32_t value, uint32_t lane,
                                     uint32_t b) {
    State& s = begin_call();
    const uint32_t cycles = static_cast<uint32_t>(ptx::clock64()) - begin;
    const uint32_t slot = ptx::shuffle(value, lane);
    const Now n = now_of(s);
    const bool slow = (cycles >> kSlowBits) != 0 || n.told == begin;
    stall(s, n, what, begin - n.t0, cycles, slow, slot, b);
  }
  static MEGATRACE_DEVICE void stall(State& s, const Now& n, uint32_t what, uint32_t begin,
                                     uint32_t cycles, bool slow, uint32_t a, uint32_t b) {
    uint32_t words = what >> kWordsShift;
    uint32_t* at = s.line + n.used;
    at[0] = word(what, begin);
    at[2] = arg(a);
    at[3] = arg(b);
    if (MEGATRACE_RARE(slow)) {
      cycles = slow_cycles(begin, cycles, n.used + words);
      ++words;
    }
    at[1] = arg(cycles);
    add_words(s, n.used, words);
  }
  // Of a wait so long that the low half of a clock may not do, or the reader lose count of the
  // time field: an epoch follows it.
  MEGATRACE_FUNCTION uint32_t slow_cycles(uint32_t begin, uint32_t cycles, uint32_t at) {
    State& s = state();
    const uint64_t clock = ptx::clock64();
    s.line[at] = epoch(clock - t0_of(s));
    if (s.now.told - s.now.t0 != begin) return cycles;
    return at_most(clock - told_begin(s), kArgMask);
  }

  // Takes words that stand at the end of the line into it, or into the next where it is full.
  static MEGATRACE_DEVICE void add_words(State& s, uint32_t used, uint32_t words) {
    if (MEGATRACE_RARE(used + words > kRecordsPerLine)) {
      s.more = static_cast<uint16_t>(words);
      flush_line(kLineWords);
    } else {
      s.now.used = used + words;
    }
  }

  // Lanes that parted are together again, and see what the others stored.
  static MEGATRACE_DEVICE State& begin_call() {
    ptx::syncwarp();
    return state();
  }

  static MEGATRACE_DEVICE uint32_t epoch(uint64_t since) {
    return word(core::epoch::id, since >> kTimeBits);
  }

  MEGATRACE_FUNCTION void flush_line(uint32_t lanes) {
    State& s = begin_call();
    if (s.asked != 2) make_header();
    const uint32_t lane = ptx::lane_id(), place = lane - 1 - (lane >> 4), used = s.now.used;
    const uint32_t number = s.cursor.x + ++s.flushed,
                   next = s.line[used + min(lane & 7, kMostWords)];
    uint32_t mine = place < used ? s.line[place] : 0;
    if ((lane & 15) == 0) mine = number;
    const uint64_t line =
        uint64_t{warp_of_grid()} * (s.p.line_mask + 1) + ((number - 1) & s.p.line_mask);
    ptx::store_line(s.p.lines + line * kLineWords, mine, lanes);
    ptx::syncwarp();
    s.line[lane & 7] = next;
    s.words += used;
    s.now.used = s.more;
    s.more = 0;
  }
  MEGATRACE_FUNCTION void flush_now() {
    if (begin_call().now.used != 0) flush_line(kLineWords);
  }

  // Takes what was asked for, and makes the header, which stands first in the line.
  MEGATRACE_FUNCTION void make_header() {
    State& s = state();
    ask();
    ptx::fetch_async_wait_all();
    ptx::syncwarp();
    s.asked = 2;
    s.line[0] = core::header::id << kTimeBits | ptx::sm_id() | (on_edge() ? kHeaderEdge : 0u);
    s.line[1] = arg(s.cursor.z);
    s.line[2] = arg(s.step);
    s.line[3] = arg(s.p.kernel_layer);
    s.line[4] = arg(s.ns);
    s.line[5] = arg(s.ns >> kArgBits);
    s.line[6] = arg(t0_of(s));
    s.line[7] = arg(t0_of(s) >> kArgBits);
    s.line[8] = arg(s.cursor.y);
  }

  // -- the inside of a wait ------------------------------------------------------------

  // Begin, since launch start, and cycles of a wait that blocks.
  MEGATRACE_FUNCTION uint64_t blocked(uint32_t bar, uint32_t parity, uint32_t id) {
    const uint64_t begin = ptx::clock64();
    while (!ptx::mbar_try_at(bar, parity)) look(static_cast<uint32_t>(begin), id, 0);
    const uint32_t cycles = at_most(ptx::clock64() - begin, kArgMask);
    const uint32_t since = static_cast<uint32_t>(begin) - state().now.t0;
    return uint64_t{cycles} << 32 | since;
  }

  // The slow path of a spin that may never end. It comes here often enough for the low half of
  // the clock to tell, until it is found to hang.
  MEGATRACE_FUNCTION void look(uint32_t begin, uint32_t id, uint32_t slot) {
    const uint64_t now = ptx::clock64();
    State& s = state();
    uint64_t waited = static_cast<uint32_t>(now) - begin;
    if (s.now.told == begin) waited = now - told_begin(s);
    if (waited <= ptx::kHangCycles) return;
    begin_call();
    if (s.now.told != begin) {
      s.now.told = begin;
      s.told_high = static_cast<uint32_t>((now - waited) >> 32);
      hang(s, id, slot, at_most(waited, kArgMask));
    }
    if (waited > ptx::kTrapCycles) ptx::trap();
  }

  static MEGATRACE_DEVICE void look_at(uint32_t begin, uint32_t id, uint32_t slot) {
    look(begin, id, slot);
  }
  static MEGATRACE_DEVICE void look_at(uint32_t begin, uint32_t id, const LaneSlot& slot) {
    look_at_lane(begin, id, slot.value, slot.lane);
  }
  MEGATRACE_FUNCTION void look_at_lane(uint32_t begin, uint32_t id, uint32_t value, uint32_t lane) {
    look(begin, id, ptx::shuffle(value, lane));
  }

  // Everything this warp knows leaves now, then what it waits for.
  static MEGATRACE_DEVICE void hang(State& s, uint32_t id, uint32_t slot, uint32_t waited) {
    const uint64_t since = ptx::clock64() - t0_of(s);
    if (s.asked != 2) make_header();
    uint32_t* at = s.line + s.now.used;
    at[0] = word(core::hang::id, since);
    at[1] = arg(id);
    at[2] = arg(slot);
    at[3] = arg(waited);
    at[4] = epoch(since);
    s.more = 5;
#pragma unroll 1
    for (uint32_t line = 0; line < 2; ++line) flush_line(kLineWords);
  }

  // -- the end of a launch -------------------------------------------------------------

  MEGATRACE_FUNCTION void finish() {
    State& s = begin_call();
    if (s.asked != 2) make_header();
    const uint64_t cycles = ptx::clock64();
    const uint32_t used = s.now.used, words = s.cursor.y + s.words + used + kClosingWords;
    uint32_t* at = s.line + used;
    at[0] = word(core::closing::id, cycles - t0_of(s));
    at[1] = arg(cycles);
    at[2] = arg(words);
    add_words(s, used, kClosingWords);
    flush_line(s.now.used <= kRecordsPerHalf ? kHalfWords : kLineWords);
    if (ptx::lane_id() == 0)
      ptx::store_state(s.p.cursors + warp_of_grid(),
                       make_uint4(s.cursor.x + s.flushed, s.cursor.y + s.words, s.cursor.z + 1, 0));
  }
};

}  // namespace megatrace

#endif
