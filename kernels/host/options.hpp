// What a run of the host build can be told, from the environment or through options().
#pragma once

#include <cstdint>
#include <cstdlib>
#include <string>
#include <vector>

#include "sanitizers.hpp"

namespace megatrace::host {

struct Options {
  uint64_t seed = 1;        // MEGATRACE_HOST_SEED: which schedule
  bool chaos = false;       // MEGATRACE_HOST_CHAOS: switch at stores too, spoil landing zones
  bool overlap = false;     // MEGATRACE_HOST_OVERLAP: a launch may begin before the last one's end
  uint32_t sms = 4;         // MEGATRACE_HOST_SMS: blocks go round them
  uint32_t stuck_ms = 100;  // MEGATRACE_HOST_STUCK_MS: no progress for so long is a deadlock
  std::vector<std::string> roles;  // names of a block's warps, for messages

  static uint64_t number(const char* variable, uint64_t otherwise) {
    const char* text = std::getenv(variable);
    return text == nullptr || *text == 0 ? otherwise : std::strtoull(text, nullptr, 0);
  }
  static Options from_environment() {
    Options o;
    o.seed = number("MEGATRACE_HOST_SEED", o.seed);
    o.chaos = number("MEGATRACE_HOST_CHAOS", 0) != 0;
    o.overlap = number("MEGATRACE_HOST_OVERLAP", 0) != 0;
    o.sms = static_cast<uint32_t>(number("MEGATRACE_HOST_SMS", o.sms));
    if (o.sms == 0) o.sms = 1;
    o.stuck_ms = static_cast<uint32_t>(number("MEGATRACE_HOST_STUCK_MS", o.stuck_ms));
    return o;
  }
};

// SplitMix64: small, seeded, the same everywhere.
class Random {
 public:
  explicit Random(uint64_t seed = 0) : state_(seed) {}
  uint64_t next() {
    uint64_t z = state_ += 0x9E3779B97F4A7C15ull;
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9ull;
    z = (z ^ (z >> 27)) * 0x94D049BB133111EBull;
    return z ^ (z >> 31);
  }
  uint32_t below(size_t n) { return static_cast<uint32_t>((next() >> 32) * n >> 32); }
  bool one_in(uint32_t n) { return below(n) == 0; }

 private:
  uint64_t state_;
};

}  // namespace megatrace::host
