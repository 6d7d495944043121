// Small kernels for tests/host: `cases NAME [numbers]` runs one and prints what it found.
#include <cstdio>
#include <cstdlib>
#include <map>
#include <string>

#include "megatrace/ptx.cuh"
#include "megatrace/sync.cuh"
#include "broken.cuh"
#include "chains.cuh"
#include "handoff.cuh"
#include "lines.cuh"
#include "lockstep.cuh"
#include "matrices.cuh"

using Case = void (*)(const Numbers&);

int main(int argc, char** argv) {
  const std::map<std::string, Case> cases = {
      {"warp", warp_case},
      {"widths", widths_case},
      {"reverse", reverse_case},
      {"early_exit", early_exit_case},
      {"named_barriers", named_barriers_case},
      {"answers", answers_case},
      {"rejoin", rejoin_case},
      {"clocks", clocks_case},
      {"schedule", schedule_case},
      {"ring", ring_case},
      {"partials", partials_case},
      {"message", message_case},
      {"atomics", atomics_case},
      {"landing", landing_case},
      {"stuck", stuck_case},
      {"left_behind", left_behind_case},
      {"mixed", mixed_case},
      {"bare_spin", bare_spin_case},
      {"unlawful", unlawful_case},
      {"hang", hang_case},
      {"throws", throws_case},
      {"again", again_case},
      {"outside", outside_case},
      {"unwaited", unwaited_case},
      {"write_lines", write_lines_case},
      {"read_lines", read_lines_case},
      {"half_line", half_line_case},
      {"parted_line", parted_line_case},
      {"vectors", vectors_case},
      {"torn", torn_case},
      {"matrices", matrices_case},
      {"unwritten_rows", unwritten_rows_case},
      {"half_warp", half_warp_case},
      {"mixed_matrices", mixed_matrices_case},
      {"mma_speed", mma_speed_case},
      {"chain", chain_case},
      {"hasty", hasty_case},
      {"stuck_chain", stuck_chain_case},
      {"missing_barrier", missing_barrier_case},
      {"overflow", overflow_case},
  };
  const auto found = argc > 1 ? cases.find(argv[1]) : cases.end();
  if (found == cases.end()) return 64;
  Numbers numbers(argv + 2, argv + argc);
  try {
    found->second(numbers);
  } catch (const std::exception& error) {
    std::printf("caught %s\n", error.what());
    return 1;
  }
  return 0;
}
