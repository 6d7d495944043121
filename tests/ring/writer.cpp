// Writes lines into every ring of a file as fast as one core can, as the host build does.
//
//   writer FILE LINES_OFFSET RINGS LINES COUNT
//
// All words of line n of a ring are n, the top bit set; every seventh line is a first half.
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstdint>
#include <cstdio>
#include <cstdlib>

#include "lines.hpp"

int main(int, char** argv) {
  const int fd = open(argv[1], O_RDWR);
  struct stat facts;
  if (fd < 0 || fstat(fd, &facts) != 0) return 1;
  void* file = mmap(nullptr, facts.st_size, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
  if (file == MAP_FAILED) return 1;
  auto* lines = reinterpret_cast<uint32_t*>(static_cast<char*>(file) + std::atoll(argv[2]));
  const uint32_t rings = std::atoi(argv[3]), capacity = std::atoi(argv[4]),
                 count = std::atoi(argv[5]);
  std::puts("ready");
  std::fflush(stdout);
  std::getchar();
  for (uint32_t number = 1; number <= count; number++)
    for (uint32_t ring = 0; ring < rings; ring++) {
      uint32_t words[32];
      const bool half = number % 7 == 0;
      for (uint32_t i = 0; i < 32; i++) words[i] = i % 16 == 0 ? number : number | 1u << 31;
      if (half) words[15] = 0;
      uint32_t* line = lines + (uint64_t{ring} * capacity + (number - 1) % capacity) * 32;
      megatrace::host::publish_line(line, words, half ? 16 : 32);
    }
}
