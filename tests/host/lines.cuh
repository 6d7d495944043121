// Lines of a ring, written by one process while another reads them.
#pragma once

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <stdexcept>

#include "common.cuh"

constexpr uint32_t kSlots = 2;

inline uint32_t* map_lines(const std::string& path) {
  const int fd = open(path.c_str(), O_RDWR);
  void* p = mmap(nullptr, kSlots * 128, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
  close(fd);
  if (p == MAP_FAILED) throw std::runtime_error("cannot map " + path);
  return static_cast<uint32_t*>(p);
}

// What word i of line `number` must be.
inline uint32_t line_word(uint32_t number, uint32_t i) {
  return i % 16 == 0 ? number : number * 2654435761u + i;
}

// write_lines FILE COUNT
inline void write_lines_case(const Numbers& args) {
  uint32_t* lines = map_lines(args.words[0]);
  const auto count = static_cast<uint32_t>(args[1]);
  host::launch(1, 32, 0, [&] {
    for (uint32_t number = 1; number <= count; number++) {
      ptx::store_line(lines + number % kSlots * 32, line_word(number, ptx::lane_id()), 32);
      ptx::syncwarp();
    }
  });
}

// read_lines FILE COUNT: until the last line is there; prints whole, torn and mixed reads.
inline void read_lines_case(const Numbers& args) {
  const volatile uint32_t* lines = map_lines(args.words[0]);
  const auto last = static_cast<uint32_t>(args[1]);
  uint64_t whole = 0, torn = 0, mixed = 0;
  for (uint32_t newest = 0; newest != last;) {
    for (uint32_t slot = 0; slot < kSlots; slot++) {
      const volatile uint32_t* line = lines + slot * 32;
      uint32_t copy[32];
      const uint32_t before = line[0], before_half = line[16];
      __atomic_thread_fence(__ATOMIC_ACQUIRE);
      for (uint32_t i = 0; i < 32; i++) copy[i] = line[i];
      __atomic_thread_fence(__ATOMIC_ACQUIRE);
      const uint32_t after = line[0], after_half = line[16];
      if (before != before_half || after != before || after_half != before) {
        torn++;
        continue;
      }
      if (before == 0) continue;
      bool right = true;
      for (uint32_t i = 0; i < 32; i++) right &= copy[i] == line_word(before, i);
      (right ? whole : mixed)++;
      if (before > newest) newest = before;
    }
  }
  print(std::vector<uint64_t>{whole, torn, mixed});
}

// A whole line, then a half line over it.
inline void half_line_case(const Numbers&) {
  alignas(128) uint32_t line[32] = {};
  host::launch(1, 32, 0, [&] {
    ptx::store_line(line, line_word(1, ptx::lane_id()), 32);
    ptx::store_line(line, 900 + ptx::lane_id(), 16);
  });
  print(std::vector<uint32_t>(line, line + 32));
}

// Lanes that store different lines as their first.
inline void parted_line_case(const Numbers&) {
  alignas(128) uint32_t lines[64] = {};
  host::launch(1, 32, 0, [&] { ptx::store_line(lines + (ptx::lane_id() == 4 ? 32 : 0), 1, 32); });
}
