// The tracer: what a kernel carries to be legible, and nothing of it when it is off.
//
//   template <class T> __global__ void kernel(..., typename T::Params trace) {
//     T t(trace);                                // before the dependency wait
//     ptx::dependency_wait();
//     t.after_dependency();                      // after it
//     if (loader) {
//       t.wait(ev::empty{}, &empty[s], parity);  // a stall, if it blocks
//       t.end();
//     } else {
//       { auto span = t.span(ev::tile{}); ... }
//       t.publish(ev::partial{}, block);
//       t.end();                                 // once a warp, in its role's own branch
//     }
//   }
//
// Of the kernel: a one-dimensional grid of whole warps, as many as the agent was told, and
// one stream per ring. Of the calls: made by whole, converged warps; arguments are the same
// in all lanes; spans end before end().
//
// A time is unrolled by the reader from the record before it, so more than 2**22 cycles (2 ms)
// without a record or a traced wait that blocks cannot be told from less: the launch's
// closing shows it, and the report calls its times uncertain.
//
// A warp keeps its next line in registers: lane i holds word i, a full line leaves in one
// posted 128-byte write to a ring in host memory (megatrace/schema/layout.py draws it). A line
// takes no shared memory, no atomics, no fence. (A large kernel wants its records as calls, with
// the line in shared memory: tracer_called.cuh.)
//
// What costs is not the records, which fall into time the warp idles, but every instruction
// before a launch's first load and after its last: run once, none of them is in the
// instruction cache. So little is done there, and values asked for early are used late.
#pragma once

#include "megatrace/tracer_called.cuh"
#include "megatrace/tracer_calls.cuh"

namespace megatrace {

template <Level L, Detail D, Head H>
class Inlined : public Calls<Inlined<L, D, H>, L, D> {
  static constexpr bool kTimeline = L == Level::timeline;
  static constexpr bool kAll = kTimeline && D == Detail::all;

 public:
  using Params = TraceParams;

  // Asks for the control word, which no kernel writes, so this may stand before the
  // dependency wait, and reads the clocks. The answer is first looked at when a line is
  // full: nobody waits for it. (Asked for any later, it would queue behind the weights.)
  MEGATRACE_DEVICE explicit Inlined(const Params& params) : p_(params) {
    if (p_.control != nullptr) control_ = ptx::load_pair(p_.control);
    if constexpr (kTimeline) open();
  }
  Inlined(const Inlined&) = delete;
  Inlined& operator=(const Inlined&) = delete;

  // Asks for the warp's cursor, which the launch before may just have written. Without this
  // call the first line asks, and waits.
  MEGATRACE_DEVICE void after_dependency() {
    if constexpr (kTimeline) {
      asked_ = true;
      if (p_.control != nullptr && ring() < p_.warps)
        cursor_ = ptx::load_state(p_.cursors + ring());
    }
  }

  // Head::early: every warp calls it once, after after_dependency(), where it has time, and
  // before it has more records than a line holds beside the header.
  MEGATRACE_DEVICE void head() {
    static_assert(H == Head::early, "this tracer makes its header itself");
    if constexpr (kTimeline) {
      live_ = wanted();
      line_word_ = header_word();
      headed_ = true;
    }
  }

  // A record of this event, now.
  template <class... Args>
  MEGATRACE_DEVICE void record(uint32_t id, Args... args) {
    if constexpr (kTimeline) {
      const uint64_t since = ptx::clock64() - t0_;
      room(1 + sizeof...(args) + ptx::kSlow);
      stage((id << kTimeBits) | (static_cast<uint32_t>(since) & kTimeMask), args...);
      if (ptx::kSlow) epoch(since);
    }
  }

  // -- waits ---------------------------------------------------------------------------

  // wait(), written down by a later commit(), off the critical path.
  template <class E>
  MEGATRACE_DEVICE Stalled wait_later(E event, uint64_t* bar, uint32_t parity) {
    return stalled(
        event, 0, [&] { return ptx::mbar_test(bar, parity); },
        [&] { return ptx::mbar_try(bar, parity); });
  }

  // Polls until `ready` says true: data is the flag. `slot` is read again when it does, so
  // `ready` may name the producer it missed last.
  template <class E, class Slot, class Ready, class... Args>
  MEGATRACE_DEVICE void poll(E event, const Slot& slot, Ready&& ready, Args... args) {
    const Stalled s = polled(event, slot, ready);
    if constexpr (E::kind == Kind::wait)
      commit(event, s, slot_of(slot), args...);
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
    constexpr uint32_t cause = static_cast<uint32_t>(E::cause);
    cycles_[cause] += s.cycles;
    counts_[cause] += 1;
    if constexpr (kTimeline) {
      room(3 + sizeof...(args));
      stage((event.id << kTimeBits) | (s.begin & kTimeMask), s.cycles, args...);
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
  MEGATRACE_DEVICE uint32_t ring() const {
    return blockIdx.x * (blockDim.x >> 5) + (threadIdx.x >> 5);
  }
  MEGATRACE_DEVICE bool fits() const {
    return ring() < p_.warps && gridDim.y * gridDim.z == 1 && (blockDim.x & 31) == 0;
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

  // Does the host want this launch's timeline, on this SM? Never of a grid that the ring was
  // not made for.
  MEGATRACE_DEVICE bool wanted() const {
    const uint32_t level = ptx::opaque(control_.y);
    if (!fits()) return false;
    if (MEGATRACE_RARE(level & kSomeSms)) {
      const uint32_t sm = ptx::sm_id();
      if (!(ptx::load_relaxed(p_.control + 4 + (sm >> 5)) >> (sm & 31) & 1)) return false;
    }
    return (level & ~kSomeSms) >= static_cast<uint32_t>(Level::timeline);
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
        live_ = live_ || wanted();
        if (!asked_) after_dependency();
        line_word_ = header_word();
      }
    } else if (ptx::kSlow && !headed_) {
      ptx::misuse("a line is full before head()");
    }
    const uint32_t number = ptx::opaque(cursor_.x) + ++flushed_;
    if ((ptx::lane_id() & 15) == 0) line_word_ = number;
    const uint64_t line = uint64_t{ring()} * (p_.line_mask + 1) + ((number - 1) & p_.line_mask);
    if (live_) ptx::store_line(p_.lines + line * kLineWords, line_word_, lanes);
    words_ += used_;
    line_word_ = 0;
    used_ = 0;
  }

  // -- the end of a launch -------------------------------------------------------------

  MEGATRACE_DEVICE void finish() {
    if constexpr (kTimeline) {
      if (ptx::opaque(control_.y) == 0) return;
      if (H == Head::late && flushed_ == 0) live_ = live_ || wanted();
      if (live_) return close();
    }
    add_sums();
  }

  MEGATRACE_DEVICE void close() {
    room(kClosingWords);
    const uint64_t cycles = ptx::clock64();
    const uint32_t words = ptx::opaque(cursor_.y) + words_ + used_ + kClosingWords;
    stage((core::closing::id << kTimeBits) | (static_cast<uint32_t>(cycles - t0_) & kTimeMask),
          cycles, words);
    flush_line(used_ <= kRecordsPerHalf ? kHalfWords : kLineWords);
    if (live_ && ptx::lane_id() == 0)
      ptx::store_state(p_.cursors + ring(),
                       make_uint4(cursor_.x + flushed_, words, cursor_.z + 1, 0));
  }

  // Adds this launch's stalls to the running sums; a launch with a timeline says them there.
  // Nothing is read and nobody waits.
  MEGATRACE_DEVICE void add_sums() {
    if (ptx::opaque(control_.y) == 0 || ptx::lane_id() != 0 || ring() >= p_.warps) return;
#pragma unroll
    for (uint32_t c = 0; c < kCauses; ++c)
      if (counts_[c] != 0)
        ptx::add_state(p_.sums + c * p_.warps + ring(),
                       uint64_t{cycles_[c]} << kCountBits | counts_[c]);
  }

  // -- the inside of a wait ------------------------------------------------------------

  template <class E, class Try, class Block>
  MEGATRACE_DEVICE Stalled stalled(E event, uint32_t slot, Try&& try_once, Block&& block) {
    if (try_once()) return {0, 0, false};
    const uint64_t begin = ptx::clock64();
    return blocked(event, slot, begin, block);
  }

  // The same where a try is long: its code is here once, and the first try counts as waiting.
  template <class E, class Slot, class Ready>
  MEGATRACE_DEVICE Stalled polled(E event, const Slot& slot, Ready&& ready) {
    bool missed = false;
    const uint64_t begin = ptx::clock64();
    const Stalled s = blocked(event, slot, begin, [&] {
      if (ready()) return true;
      missed = true;
      return false;
    });
    return missed ? s : Stalled{0, 0, false};
  }

  template <class E, class Slot, class Block>
  MEGATRACE_DEVICE Stalled blocked(E event, const Slot& slot, uint64_t begin, Block&& block) {
    const bool hung =
        spin_bounded(event.name, slot, block, [&] { hang(event.id, slot_of(slot), begin); }, begin);
    const uint64_t cycles = ptx::clock64() - begin;
    return {static_cast<decltype(Stalled::begin)>(begin - t0_),
            hung ? at_most(cycles, kArgMask) : static_cast<uint32_t>(cycles), true};
  }

  // The slow path of a spin that may never end: everything this warp knows leaves now, then
  // what it waits for. One loop, so that the code of a flush is here once.
  MEGATRACE_DEVICE void hang(uint32_t event, uint32_t slot, uint64_t begin) {
    if constexpr (kTimeline) {
      const uint64_t now = ptx::clock64();
      // A step without a timeline has one from here on. Lines that it finished went nowhere, so
      // it opens anew; the first line, while it is in progress, is whole.
      if (!live_ && ptx::opaque(control_.y) != 0 && fits()) {
        live_ = true;
        if (flushed_ != 0) {
          flushed_ = words_ = line_word_ = 0;
          used_ = kHeaderWords;
          if (H == Head::early) line_word_ = header_word();
        }
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
  }

  const Params p_;
  uint2 control_ = {};      // step id, level
  uint4 cursor_ = {};       // lines, words and launches of this warp before this launch
  bool ended_ = false;      // looked at where there is time to
  bool asked_ = false;      // the cursor is on its way
  bool headed_ = false;     // head() was called; looked at where there is time to
  bool live_ = false;       // lines are wanted; known from the first on
  uint64_t ns_ = 0;         // globaltimer at launch start
  uint64_t t0_ = 0;         // clock, read with it
  uint32_t line_word_ = 0;  // this lane's word of the line in progress
  uint32_t place_ = ~0u;    // which record word of a line that is; none for the two numbers
  uint32_t used_ = 0;       // record words in the line in progress
  uint32_t flushed_ = 0;    // lines finished by this launch
  uint32_t words_ = 0;      // record words in them
  uint32_t cycles_[kCauses] = {};
  uint32_t counts_[kCauses] = {};
};

#if defined(MEGATRACE_HOST_BUILD)
template <Level L, Detail D, Head H, uint32_t kWarps>
using TracerBase = Inlined<L, D, H>;
#else
template <Level L, Detail D, Head H, uint32_t kWarps>
using TracerBase = std::conditional_t<kWarps == 0, Inlined<L, D, H>, Called<L, D, kWarps>>;
#endif

template <Level L, Detail D, Head H, uint32_t kWarps>
class Tracer : public TracerBase<L, D, H, kWarps> {
 public:
  using Base = TracerBase<L, D, H, kWarps>;
  MEGATRACE_DEVICE explicit Tracer(const TraceParams& params) : Base(params) {}
};

}  // namespace megatrace
