// What the cases share: their arguments, and printing a row of numbers.
#pragma once

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <vector>

#include "megatrace/ptx.cuh"
#include "megatrace/sync.cuh"

namespace ptx = megatrace::ptx;
namespace host = megatrace::host;
using megatrace::mbar_wait;
using megatrace::poll;

struct Numbers {
  std::vector<std::string> words;
  Numbers(char** begin, char** end) : words(begin, end) {}
  uint64_t operator[](size_t i) const {
    return i < words.size() ? std::strtoull(words[i].c_str(), nullptr, 0) : 0;
  }
};

template <class T>
void print(const std::vector<T>& row) {
  for (const T& v : row) std::printf("%llu ", static_cast<unsigned long long>(v));
  std::printf("\n");
}

// Runs `body` under so many seeds; each run must leave `check` true.
template <class Run>
void under_seeds(uint64_t seeds, Run&& run) {
  uint64_t wrong = 0;
  for (uint64_t seed = 0; seed < seeds; seed++) {
    host::set_seed(seed);
    host::options().chaos = seed % 2 != 0;
    if (!run()) wrong++;
  }
  std::printf("%llu\n", static_cast<unsigned long long>(wrong));
}
