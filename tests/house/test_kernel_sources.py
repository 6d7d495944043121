"""Rules of the CUDA sources that need no compiler."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from megatrace.schema.emit import WORDS_HEADER, main, words_header
from tests.house.tree import ROOT

SUFFIXES = {".cu", ".cuh", ".hpp", ".cpp", ".h"}
SOURCES = sorted(
    path
    for top in ("megatrace/include", "kernels", "examples")
    for path in (ROOT / top).rglob("*")
    if path.suffix in SUFFIXES
)
COMMENT = re.compile(r"//[^\n]*|/\*.*?\*/", re.DOTALL)
PTX = {ROOT / "megatrace/include/megatrace" / name for name in ("ptx.cuh", "ptx_math.cuh")}
# What stands in for a GPU is no device code: switching stacks takes the CPU's own asm.
DEVICE = [path for path in SOURCES if ROOT / "kernels/host" not in path.parents]


def relative(path: Path) -> str:
    return str(path.relative_to(ROOT))


@pytest.mark.parametrize("path", DEVICE, ids=relative)
def test_inline_asm_stands_in_the_two_halves_of_ptx(path: Path) -> None:
    code = COMMENT.sub("", path.read_text())
    assert bool(re.search(r"\b(asm|__asm__)\b", code)) == (path in PTX)


HEADERS = [path for path in SOURCES if path.suffix in {".cuh", ".hpp", ".h"}]


@pytest.mark.parametrize("path", HEADERS, ids=relative)
def test_a_header_is_included_once(path: Path) -> None:
    assert "#pragma once" in path.read_text()


def test_the_generated_words_are_up_to_date() -> None:
    assert WORDS_HEADER.read_text() == words_header()
    assert main(["--check"]) == 0
