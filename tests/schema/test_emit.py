"""``python -m megatrace.schema.emit``: a header, or one line that says why there is none."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from megatrace.jit.compilers import host_compiler
from megatrace.paths import include_dir
from megatrace.schema import Event, EventTable, Kind
from megatrace.schema.emit import WORDS_HEADER, table_header, words_header
from tests.house.tree import ROOT

MODULE = """
from megatrace.schema import Cause, Event, EventTable, Kind
TOY = EventTable("toy", (
    Event(16, "tile", Kind.SPAN, "A tile."),
    Event(18, "part", Kind.WAIT, "Not there.", cause=Cause.INPUT, edge="{edge}"),
    Event(19, "sent", Kind.PUBLISH, "Out.", edge="parts"),
))
OTHER = 3
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "toy_events.py").write_text(MODULE.format(edge="parts"))
    (tmp_path / "misspelt.py").write_text(MODULE.format(edge="prats"))
    (tmp_path / "broken.py").write_text("import json\njson.loads('')\n")
    (tmp_path / "lacking.py").write_text("import no_such_package\n")
    (tmp_path / "refused.py").write_text(MODULE.format(edge=""))
    return tmp_path


def emit(folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    """Run it in ``folder``, as a reader of the page would."""
    return subprocess.run(
        [sys.executable, "-m", "megatrace.schema.emit", *words],
        cwd=folder,
        env={"PYTHONPATH": str(ROOT), "PATH": "/usr/bin:/bin"},
        capture_output=True,
        text=True,
        check=False,
    )


def test_a_table_goes_to_stdout_or_to_a_file(folder: Path) -> None:
    printed = emit(folder, "--table", "toy_events:TOY")
    assert (printed.returncode, printed.stderr) == (0, "")
    assert "namespace megatrace::events::toy" in printed.stdout
    written = emit(folder, "--table", "toy_events:TOY", "-o", "toy_events.cuh")
    assert (written.returncode, written.stdout, written.stderr) == (0, "", "")
    assert (folder / "toy_events.cuh").read_text() == printed.stdout


@pytest.mark.parametrize(
    ("words", "code", "says"),
    [
        (["--table", "no_events:TOY"], 2, "no module named 'no_events'"),
        (["--table", "toy_events:NO"], 2, "module toy_events has no NO"),
        (["--table", "toy_events:OTHER"], 2, "is of type int, not an EventTable"),
        (["--table", "toy_events"], 2, "'toy_events' is not MODULE:NAME"),
        (["--table", "./toy_events.py:TOY"], 2, "is not MODULE:NAME"),
        (["--table", "lacking:TOY"], 1, "No module named 'no_such_package'"),
        (["--table", "broken:TOY"], 1, "module broken fails: JSONDecodeError"),
        (["--table", "refused:TOY"], 2, "event part: a wait needs an edge"),
        (["--table", "toy_events:TOY", "-o", "no/toy.cuh"], 1, "no/toy.cuh: No such file"),
    ],
)
def test_what_makes_no_header_is_one_line_and_a_hint(
    folder: Path, words: list[str], code: int, says: str
) -> None:
    done = emit(folder, *words)
    assert done.returncode == code, done.stderr
    error, hint = done.stderr.splitlines()
    assert error.startswith("megatrace: error: ")
    assert says in error
    assert hint.startswith("megatrace: hint: ")
    assert done.stdout == ""


def test_a_wait_that_nothing_of_the_table_ends_is_noted_and_written(folder: Path) -> None:
    """The host may end it, or another kernel: only its author knows."""
    done = emit(folder, "--table", "misspelt:TOY")
    assert done.returncode == 0
    assert "struct part" in done.stdout
    assert "part waits for the edge 'prats'" in done.stderr


def test_without_arguments_nothing_is_written(folder: Path) -> None:
    before = WORDS_HEADER.stat().st_mtime_ns
    done = emit(folder)
    assert done.returncode == 2
    assert "--table" in done.stderr
    assert WORDS_HEADER.stat().st_mtime_ns == before


def test_the_words_go_where_they_are_sent(folder: Path) -> None:
    assert emit(folder, "--words").stdout == words_header()
    assert emit(folder, "--words", "-o", "words.cuh").returncode == 0
    assert (folder / "words.cuh").read_text() == words_header()


def test_any_name_that_is_taken_makes_a_header_that_compiles(tmp_path: Path) -> None:
    names = ("tile", "Tile", "end", "wait", "header", "data", "off", "megatrace", "_x", "a__b")
    table = EventTable(
        "toy",
        tuple(Event(16 + i, name, Kind.INSTANT, "A? // b /* c */") for i, name in enumerate(names)),
    )
    source = tmp_path / "toy.cpp"
    source.write_text(table_header(table))
    host_compiler().run(
        ["-std=c++17", "-fsyntax-only", f"-I{include_dir()}", str(source)], cwd=tmp_path
    )
