// The tracer whose records are code in line: no call, no shared memory, no atomics. A warp keeps
// its next line in registers: lane i holds word i, a full line leaves in one posted 128-byte
// write to a ring in host memory (megatrace/schema/layout.py draws it).
//
// What costs is not the records, which fall into time the warp idles, but every instruction
// before a launch's first load and after its last: run once, none of them is in the
// instruction cache. So little is done there, and values asked for early are used late.
#pragma once

#include "megatrace/tracer_calls.cuh"
#include "megatrace/tracer_sums.cuh"

namespace megatrace {

// The end of a wait of a warp that keeps no lines: it says whom it waits for, in a launch of its
// own in the ring that begins now and never ends, gives the others time to say so too, and
// traps. It does not come back, so that no register has to outlive a call that nobody makes.
template <class Speaker>
struct LastWordsOf {
  [[noreturn]] MEGATRACE_FUNCTION void say(TraceParams p, uint32_t event, const char* name,
                                           uint32_t slot, uint64_t begin) {
    Speaker t(p);
    t.after_dependency();
    t.hang(event, slot, begin);
    while (ptx::clock64() - begin < ptx::kTrapCycles) ptx::spin_pause(name, slot);
    ptx::trap();
    __builtin_unreachable();
  }
};
template <Level L, Detail D, Head H, uint32_t kWarps = 0>
class Inlined;
using LastWords = LastWordsOf<Inlined<Level::timeline, Detail::stalls, Head::late>>;

// kWarps: of a block whose stalls are summed in shared memory, or 0.
template <Level L, Detail D, Head H, uint32_t kWarps>
class Inlined : public Calls<Inlined<L, D, H, kWarps>, L, D> {
  static constexpr bool kTimeline = L == Level::timeline;
  static constexpr bool kAll = kTimeline && D == Detail::all;
  using Sums = StallSums<kWarps>;

 public:
  using Params = TraceParams;

  // Asks for the control word, which no kernel writes, so this may stand before the
  // dependency wait, and reads the clocks. The answer is first looked at when a line is
  // full: nobody waits for it. (Asked for any later, it would queue behind the weights.)
  MEGATRACE_DEVICE explicit Inlined(const Params& params)
      : p_(params), control_(ask_control(params)) {
    begin();
  }
  // Of a launch that is known to want this level, on this SM.
  MEGATRACE_DEVICE Inlined(const Params& params, uint2 control)
      : p_(params), control_(control), live_(true) {
    begin();
  }
  Inlined(const Inlined&) = delete;
  Inlined& operator=(const Inlined&) = delete;

  // Asks for the warp's cursor, which the launch before may just have written. Without this
  // call the first line asks, and waits.
  MEGATRACE_DEVICE void after_dependency() {
    if constexpr (kTimeline) {
      asked_ = true;
      if (p_.control != nullptr && warp_of_grid() < p_.warps) cursor_ = ptx::load_state(cursor_at_);
    }
  }

  // Head::early: every warp calls it once, after after_dependency(), where it has time, and
  // before it has more records than a line holds beside the header.
  MEGATRACE_DEVICE void head() {
    static_assert(H == Head::early, "this tracer makes its header itself");
    if constexpr (kTimeline) {
      if (headed_) return;  // a wait hung before
      begin_lines(wanted());
      headed_ = true;
    }
  }

  // A record of this event, now.
  template <class... Args>
  MEGATRACE_DEVICE void record(uint32_t id, Args... args) {
    if constexpr (kTimeline) {
      const uint64_t now = ptx::clock64();
      room(1 + sizeof...(args) + ptx::kSlow);
      stage((id << kTimeBits) | (static_cast<uint32_t>(now - t0_) & kTimeMask), args...);
      if (ptx::kSlow) epoch(now - t0_);
    }
  }

  // -- waits ---------------------------------------------------------------------------

  // wait(), of which a timeline is told by a later commit(), off the critical path.
  template <class E>
  MEGATRACE_DEVICE Stalled wait_later(E event, uint64_t* bar, uint32_t parity) {
    return stalled(
        event, 0, [&] { return ptx::mbar_test(bar, parity); },
        [&] { return ptx::mbar_try(bar, parity); });
  }

  // Polls until `ready` says true: data is the flag. `slot` says who was missed last: a
  // variable that `ready` writes, or a function (sync.cuh).
  template <class E, class Slot, class Ready, class... Args>
  MEGATRACE_DEVICE void poll(E event, const Slot& slot, Ready&& ready, Args... args) {
    LastMissed<Slot> missed(slot);
    const Stalled s = polled(event, slot, missed, ready);
    if constexpr (E::kind == Kind::wait)
      commit(event, s, slot_of(missed.get()), args...);
    else
      commit(event, s, args...);
  }

  template <class E, class... Args>
  MEGATRACE_DEVICE void commit(E event, const Stalled& s, Args... args) {
    static_assert(E::kind == Kind::stall || E::kind == Kind::wait, "not a wait");
    static_assert(sizeof...(Args) == E::args,
                  "not the arguments of the table; a wait's first is its slot");
    if (!s.blocked) {
      // A prefetch that came in time is worth a word: nothing else tells it from one unused.
      if constexpr (kAll || E::kFirstUse) record(event.id, 0u, args...);
      return;
    }
    if constexpr (!Sums::kTakesClocks) stalls_.add(cause_of(event), s.cycles);
    if constexpr (kTimeline) {
      room(3 + sizeof...(args));
      stage((event.id << kTimeBits) | (s.begin & kTimeMask), at_most(s.cycles, kArgMask), args...);
      // Long enough for the reader to lose count of the time field: say the high part.
      if (ptx::kSlow || s.cycles >> (kTimeBits - 2)) epoch(ptx::clock64() - t0_);
    }
  }

  // Writes the line in progress now: a place where the kernel has time.
  MEGATRACE_DEVICE void flush() {
    if constexpr (kTimeline)
      if (used_ != 0) flush_line(kLineWords);
  }

  // Closes the launch. Every warp calls it once, last, at the end of its role's own branch:
  // there the compiler knows which causes the role can stall for.
  MEGATRACE_DEVICE void end() {
    if (ptx::kSlow && ended_) ptx::misuse("end() of a tracer that has ended");
    finish();
    ended_ = true;
  }

 private:
  // Where this warp's words go is worked out while the warp has to wait anyway.
  MEGATRACE_DEVICE void begin() {
    if constexpr (kWarps == 0) sums_ = ptx::opaque(stalls_.place(p_));
    if constexpr (kTimeline) {
      cursor_at_ = ptx::opaque(p_.cursors + warp_of_grid());
      lines_ = ptx::opaque(p_.lines + uint64_t{warp_of_grid()} * (p_.line_mask + 1) * kLineWords);
      open();
    }
  }

  template <class E>
  static constexpr MEGATRACE_DEVICE uint32_t cause_of(E) {
    return static_cast<uint32_t>(E::cause);
  }
  static MEGATRACE_DEVICE uint32_t at_most(uint64_t v, uint32_t cap) {
    return v < cap ? static_cast<uint32_t>(v) : cap;
  }
  static MEGATRACE_DEVICE uint32_t arg(uint64_t v) {
    return kArgBit | (static_cast<uint32_t>(v) & kArgMask);
  }

  // -- the line in progress ------------------------------------------------------------

  // Takes the header's clocks and keeps its place; its words are made when a line leaves.
  MEGATRACE_DEVICE void open() {
    ptx::read_clocks(ns_, t0_);
    if (on_edge())
      for (const uint64_t before = ns_; ns_ == before;) ptx::read_clocks(ns_, t0_);
    const uint32_t lane = ptx::lane_id();
    place_ = (lane & 15) == 0 ? ~0u : lane - 1 - (lane >> 4);
    used_ = kHeaderWords;
  }

  // The block's last warp waits for a tick (32 ns) and reads its clock on the edge.
  MEGATRACE_DEVICE bool on_edge() const { return threadIdx.x + 32 >= blockDim.x; }

  // This lane's word of the header, or what it holds already.
  MEGATRACE_DEVICE uint32_t header_word() const {
    const uint32_t place = ptx::sm_id() | (on_edge() ? kHeaderEdge : 0u);
    const uint32_t lane = ptx::lane_id();
    uint32_t word = line_word_;
    if (lane == 1) word = (core::header::id << kTimeBits) | place;
    if (lane == 2) word = arg(ptx::opaque(cursor_.z));
    if (lane == 3) word = arg(ptx::opaque(control_.x));
    if (lane == 4) word = arg(p_.kernel_layer);
    if (lane == 5) word = arg(ns_);
    if (lane == 6) word = arg(ns_ >> kArgBits);
    if (lane == 7) word = arg(t0_);
    if (lane == 8) word = arg(t0_ >> kArgBits);
    if (lane == 9) word = arg(ptx::opaque(cursor_.y));
    return word;
  }

  MEGATRACE_DEVICE bool wanted() const {
    return fits(p_) && wants_timeline(p_, ptx::opaque(control_.y));
  }

  // Makes the header, and knows from here on whether lines leave, and where the next goes.
  MEGATRACE_DEVICE void begin_lines(bool live) {
    live_ = live;
    line_word_ = header_word();
    line_at_ = line_of(ptx::opaque(cursor_.x));
  }
  // Where the line stands before which this warp has written so many.
  MEGATRACE_DEVICE uint32_t* line_of(uint32_t before) const {
    return lines_ + (before & p_.line_mask) * kLineWords;
  }

  // Room for so many words in the line in progress: a record never straddles two lines.
  MEGATRACE_DEVICE void room(uint32_t words) {
    if (MEGATRACE_RARE(used_ + words > kRecordsPerLine)) flush_line(kLineWords);
  }

  // Puts a record and its arguments into the line; there must be room.
  template <class... Args>
  MEGATRACE_DEVICE void stage(uint32_t word, Args... args) {
    if (ptx::kSlow && ended_) ptx::misuse("a record after end(): does a span outlive it?");
    if (place_ == used_++) line_word_ = word;
    ((line_word_ = place_ == used_++ ? arg(args) : line_word_), ...);
  }

  // The high part of a time just now: of the end of the record before this one.
  MEGATRACE_DEVICE void epoch(uint64_t since) {
    stage((core::epoch::id << kTimeBits) | (static_cast<uint32_t>(since >> kTimeBits) & kTimeMask));
  }

  MEGATRACE_DEVICE void flush_line(uint32_t lanes) {
    if constexpr (H == Head::late) {
      if (flushed_ == 0) {
        if (!asked_) after_dependency();
        begin_lines(live_ || wanted());
      }
    } else if (ptx::kSlow && !headed_) {
      ptx::misuse("a line is full before head()");
    }
    const uint32_t number = ptx::opaque(cursor_.x) + ++flushed_;
    if ((ptx::lane_id() & 15) == 0) line_word_ = number;
    if (live_) ptx::store_line(line_at_, line_word_, lanes);
    line_at_ = line_of(number);
    words_ += used_;
    line_word_ = 0;
    used_ = 0;
  }

  // -- the end of a launch -------------------------------------------------------------

  MEGATRACE_DEVICE void finish() {
    if constexpr (kTimeline) {
      if (!live_ && ptx::opaque(control_.y) == 0) return;
      if (H == Head::late && flushed_ == 0) live_ = live_ || wanted();
      if (live_) return close();
    }
    add_sums();
  }

  MEGATRACE_DEVICE void close() {
    room(kClosingWords);
    const uint32_t cycles = ptx::low_half(ptx::clock64());
    const uint32_t words = ptx::opaque(cursor_.y) + words_ + used_ + kClosingWords;
    stage((core::closing::id << kTimeBits) | ((cycles - static_cast<uint32_t>(t0_)) & kTimeMask),
          cycles, words);
    flush_line(used_ <= kRecordsPerHalf ? kHalfWords : kLineWords);
    // The spare word goes back as it came: its register, given to something else, would have that
    // wait at the launch's start for all that was asked for.
    if (live_ && ptx::lane_id() == 0)
      ptx::store_state(cursor_at_, make_uint4(cursor_.x + flushed_, words, cursor_.z + 1,
                                              ptx::opaque(cursor_.w)));
  }

  // Adds this launch's stalls to the running sums; a launch with a timeline says them there.
  // Nothing is read and nobody waits.
  MEGATRACE_DEVICE void add_sums() {
    if (!live_ && (!keeps(ptx::opaque(control_.y)) || warp_of_grid() >= p_.warps)) return;
    // A kernel that names its warps has no registers to spare.
    uint64_t* const sums = kWarps == 0 ? sums_ : stalls_.place(p_);
    stalls_.each(
        [&](uint32_t cause, uint64_t sum) { ptx::add_state(sums + cause * p_.warps, sum); });
  }

  // -- the inside of a wait ------------------------------------------------------------

  template <class E, class Try, class Block>
  MEGATRACE_DEVICE Stalled stalled(E event, uint32_t slot, Try&& try_once, Block&& block) {
    if (try_once()) return {0, 0, false};
    const uint64_t begin = ptx::clock64();
    if constexpr (Sums::kTakesClocks) stalls_.began(cause_of(event), begin);
    uint64_t end;
    const Stalled s = blocked(event, slot, begin, end, block);
    if constexpr (Sums::kTakesClocks) stalls_.ended(cause_of(event), end);
    return s;
  }

  // The same where a try is long: its code is here once, and the first try counts as waiting.
  template <class E, class Slot, class Ready>
  MEGATRACE_DEVICE Stalled polled(E event, const Slot& slot, LastMissed<Slot>& last,
                                  Ready&& ready) {
    bool missed = false;
    const uint64_t begin = ptx::clock64();
    uint64_t end;
    const Stalled s = blocked(event, slot, begin, end, [&] {
      if (ready()) return true;
      missed = true;
      // Of a counter nobody asks who was missed, until it hangs.
      if constexpr (kTimeline) last.miss();
      return false;
    });
    if (!missed) return {0, 0, false};
    if constexpr (Sums::kTakesClocks) {
      stalls_.began(cause_of(event), begin);
      stalls_.ended(cause_of(event), end);
    }
    return s;
  }

  // Reads its end first of all, and leaves the rest for later: the work that waited comes next.
  template <class E, class Slot, class Block>
  MEGATRACE_DEVICE Stalled blocked(E event, const Slot& slot, uint64_t begin, uint64_t& end,
                                   Block&& block) {
    bool told = false;
    uint32_t beyond = 0;  // cycles, of what a record can say
    if constexpr (kTimeline)
      spin_bounded(
          event.name, slot, block,
          [&](uint64_t waited) {
            if (!told) hang(event.id, slot_of(slot), begin);
            told = true;
            if (waited > kArgMask) beyond = static_cast<uint32_t>(waited - kArgMask);
          },
          [] { ptx::trap(); }, begin);
    else
      spin_bounded(
          event.name, slot, block, [](uint64_t) {},
          [&] { LastWords::say(p_, event.id, event.name, slot_of(slot), begin); }, begin,
          ptx::kGiveUpCycles);
    end = ptx::clock64();
    const uint32_t cycles = Sums::kTakesClocks
                                ? ptx::low_half(end) - static_cast<uint32_t>(begin) - beyond
                                : at_most(end - begin, kArgMask);
    return {static_cast<decltype(Stalled::begin)>(begin - t0_), cycles, true};
  }

  // The slow path of a spin that may never end: everything this warp knows leaves now, then
  // what it waits for. One loop, so that the code of a flush is here once.
  MEGATRACE_DEVICE void hang(uint32_t event, uint32_t slot, uint64_t begin) {
    if constexpr (!kTimeline) return;
    const uint64_t now = ptx::clock64();
    // A step without a timeline has one from here on. Lines that it finished went nowhere, so
    // it opens anew; the first line, while it is in progress, is whole.
    if (!live_ && ptx::opaque(control_.y) != 0 && fits(p_)) {
      live_ = true;
      if (flushed_ != 0) {
        flushed_ = words_ = line_word_ = 0;
        used_ = kHeaderWords;
        headed_ = false;
      }
    }
    if (H == Head::early && !headed_) {
      if (!asked_) after_dependency();
      begin_lines(live_);
      headed_ = true;
    }
#pragma unroll 1
    for (uint32_t line = 0; line < 2; ++line) {
      flush_line(kLineWords);
      if (line != 0) break;
      stage((core::hang::id << kTimeBits) | (static_cast<uint32_t>(now - t0_) & kTimeMask), event,
            slot, at_most(now - begin, kArgMask));
      epoch(now - t0_);
    }
  }

  friend struct LastWordsOf<Inlined>;

  const Params p_;
  uint2 control_;             // step id, level
  uint64_t* sums_ = nullptr;  // where this lane adds, by cause
  uint4* cursor_at_ = nullptr;
  uint32_t* lines_ = nullptr;    // of this warp
  uint32_t* line_at_ = nullptr;  // where the next of them goes
  uint4 cursor_ = {};            // lines, words and launches of this warp before this launch
  bool ended_ = false;           // looked at where there is time to
  bool asked_ = false;           // the cursor is on its way
  bool headed_ = false;          // head() was called; looked at where there is time to
  bool live_ = false;            // lines are wanted; known from the first on
  uint64_t ns_ = 0;              // globaltimer at launch start
  uint64_t t0_ = 0;              // clock, read with it
  uint32_t line_word_ = 0;       // this lane's word of the line in progress
  uint32_t place_ = ~0u;         // which record word of a line that is; none for the two numbers
  uint32_t used_ = 0;            // record words in the line in progress
  uint32_t flushed_ = 0;         // lines finished by this launch
  uint32_t words_ = 0;           // record words in them
  Sums stalls_;
};

}  // namespace megatrace
