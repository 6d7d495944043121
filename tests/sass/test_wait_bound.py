"""How long a wait may last: the default bound, and one of the kernel's own."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.tools import sass

WAITS = """
#include "megatrace/sync.cuh"
__global__ void waits(uint32_t parity) {
  uint64_t* bar = reinterpret_cast<uint64_t*>(megatrace::ptx::dynamic_shared());
  megatrace::mbar_wait("bar", bar, parity);
}
"""
# Name of each bound -> log2 of its cycles, by that of MEGATRACE_TRAP_CYCLES.
BOUNDS = {
    34: {"kTrapCycles": 34, "kGiveUpCycles": 33, "kHangCycles": 28},
    24: {"kTrapCycles": 24, "kGiveUpCycles": 23, "kHangCycles": 18},
    40: {"kTrapCycles": 40, "kGiveUpCycles": 39, "kHangCycles": 30},
}


def compiled(folder: Path, *options: str, also: str = "") -> sass.Cubin:
    source = folder / "waits.cu"
    source.write_text(WAITS + also)
    return sass.compile_cubin(source, "sm_90a", *options)


def bound(log2: int) -> str:
    return f"-DMEGATRACE_TRAP_CYCLES=(1ull<<{log2})"


@pytest.mark.parametrize("log2", BOUNDS)
def test_the_other_bounds_follow_the_one_that_is_given(tmp_path: Path, log2: int) -> None:
    also = "".join(
        f"static_assert(megatrace::ptx::{name} == 1ull << {cycles});\n"
        for name, cycles in BOUNDS[log2].items()
    )
    assert compiled(tmp_path, *([] if log2 == 34 else [bound(log2)]), also=also).usage


def test_a_wait_has_the_bound_that_the_build_gives_and_no_more_code(tmp_path: Path) -> None:
    default, same, longer = (
        compiled(tmp_path, *options).instructions("_Z5waitsj")
        for options in ([], [bound(34)], [bound(36)])
    )
    assert same == default
    assert [i.opcode for i in longer] == [i.opcode for i in default]
    changed = [(a.operands, b.operands) for a, b in zip(default, longer, strict=True) if a != b]
    assert len(changed) == 1  # the high word of the clock: 1 << 34 - 32, then 1 << 36 - 32
    assert [words.split(", ")[3] for words in changed[0]] == ["0x4", "0x10"]


def test_a_bound_that_any_wait_outlasts_is_refused(tmp_path: Path) -> None:
    with pytest.raises(AssertionError, match="MEGATRACE_TRAP_CYCLES: half a millisecond or more"):
        compiled(tmp_path, bound(10))
