// The mbarrier, in its own eight bytes of shared memory.
#pragma once

#include <cstdint>
#include <cstring>
#include <string>

#include "sanitizers.hpp"

namespace megatrace::host {

// A phase ends when no arrivals and no transaction bytes are pending; bytes may complete
// before they are expected, so their count may be negative meanwhile.
class Mbarrier {
 public:
  static constexpr uint32_t kMaxCount = (1u << 20) - 1;
  static constexpr int64_t kMaxBytes = (1 << 20) - 1;

  // What the last change led to; `error` is null where it was lawful.
  struct Change {
    bool phase_ended;
    const char* error;
  };

  static Mbarrier load(const void* p) {
    Mbarrier bar;
    std::memcpy(&bar.bits_, p, sizeof bar.bits_);
    return bar;
  }
  void store(void* p) const { std::memcpy(p, &bits_, sizeof bits_); }

  static Mbarrier make(uint32_t count) {
    Mbarrier bar;
    bar.bits_ = {};
    bar.bits_.made = 1;
    bar.bits_.expected = count;
    bar.bits_.pending = count;
    return bar;
  }

  bool made() const { return bits_.made != 0; }
  bool ended(uint32_t parity) const { return bits_.phase != (parity & 1); }

  Change arrive() {
    if (bits_.pending == 0) return {false, "more arrivals in a phase than mbar_init allows"};
    bits_.pending--;
    return {end_phase(), nullptr};
  }

  Change expect(uint32_t bytes) {
    if (bits_.bytes + int64_t{bytes} > kMaxBytes)
      return {false, "more bytes expected in a phase than an mbarrier counts (1 MiB - 1)"};
    bits_.bytes += int64_t{bytes};
    return {false, nullptr};
  }

  Change complete(uint32_t bytes) {
    if (bits_.bytes - int64_t{bytes} < -kMaxBytes)
      return {false, "more bytes arrived than an mbarrier counts (1 MiB - 1)"};
    bits_.bytes -= int64_t{bytes};
    return {end_phase(), nullptr};
  }

  std::string describe() const {
    if (!made()) return "not made by mbar_init";
    return "parity " + std::to_string(bits_.phase) +
           " in progress: " + std::to_string(bits_.pending) + " of " +
           std::to_string(bits_.expected) + " arrivals and " +
           std::to_string(int64_t{bits_.bytes}) + " bytes to come";
  }

 private:
  bool end_phase() {
    if (bits_.pending != 0 || bits_.bytes != 0) return false;
    bits_.pending = bits_.expected;
    bits_.phase ^= 1;
    return true;
  }

  struct Bits {
    uint64_t made : 1;  // 0 in fresh shared memory, see kFreshShared
    uint64_t phase : 1;
    uint64_t expected : 20;
    uint64_t pending : 20;
    int64_t bytes : 22;
  } bits_;
  static_assert(sizeof(Bits) == 8);
};

// Shared memory starts with this byte everywhere: no zeros to rely on, no valid mbarrier.
constexpr uint8_t kFreshShared = 0xDE;

}  // namespace megatrace::host
