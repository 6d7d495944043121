"""The verbs as one program: help, errors, streams, exit codes."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path

import pytest

from megatrace.capture.layout import FORMAT_KEY
from megatrace.cli.main import VERBS
from megatrace.collect.options import COUNTERS_EVERY
from megatrace.documents import JSON_VERSION
from tests.collect.helpers import MEGATRACE, environment, megatrace

READERS = ("report", "info", "export")


def read(verb: str, path: Path, *options: str) -> subprocess.CompletedProcess[str]:
    """Run a reading verb on ``path``."""
    output = ("-o", str(path.parent / "out.pftrace")) if verb == "export" else ()
    return megatrace(verb, path, *output, *options)


def assert_one_error(done: subprocess.CompletedProcess[str], code: int) -> None:
    """One error line with its hint, nothing on stdout, no traceback."""
    assert done.returncode == code, done.stderr
    first, second = done.stderr.splitlines()
    assert first.startswith("megatrace: error: ")
    assert second.startswith("megatrace: hint: ")
    assert done.stdout == ""


def test_help_says_how_often_counters_are_kept_as_it_is() -> None:
    done = megatrace("record", "--help")
    assert f"[default: {COUNTERS_EVERY}]" in done.stdout


def test_help_lists_every_verb_in_one_line_each() -> None:
    done = megatrace("--help")
    assert done.returncode == 0
    for verb, line in VERBS.items():
        assert f"  {verb.ljust(11)}  {line}" in done.stdout


@pytest.mark.parametrize("verb", VERBS)
def test_every_verb_has_help(verb: str) -> None:
    done = megatrace(verb, "--help")
    assert done.returncode == 0
    assert done.stdout.startswith(f"Usage: megatrace {verb}")


@pytest.mark.parametrize("verb", [*VERBS, "bench gsm8k"])
def test_every_verb_says_it_as_json_too(verb: str) -> None:
    """``bench`` is a group, and the one word of ``include-dir`` is data as it is."""
    offers = "--json " in megatrace(*verb.split(), "--help").stdout
    assert offers == (verb not in ("bench", "include-dir"))


def test_no_verb_at_all_is_2_and_prints_the_help_plainly() -> None:
    done = megatrace()
    assert done.returncode == 2
    assert done.stderr == ""
    assert done.stdout == megatrace("--help").stdout


def test_a_group_alone_is_2_and_prints_its_help_plainly() -> None:
    done = megatrace("bench")
    assert done.returncode == 2
    assert done.stderr == ""
    assert done.stdout == megatrace("bench", "--help").stdout


@pytest.mark.parametrize(
    ("word", "says"),
    [
        ("reprot", "no verb 'reprot': did you mean report?"),
        ("include_dir", "no verb 'include_dir': did you mean include-dir?"),
        ("xyzzy", "no verb 'xyzzy'"),
    ],
)
def test_a_verb_that_is_misspelt_is_told_which_one_it_is_like(word: str, says: str) -> None:
    done = megatrace(word)
    assert_one_error(done, 2)
    assert done.stderr.splitlines()[0] == f"megatrace: error: {says}"


@pytest.mark.parametrize("words", [["recrod"], ["--nope"], ["report"], ["report", "--nope", "x"]])
def test_a_wrong_call_is_2_with_the_help_to_read(words: list[str]) -> None:
    done = megatrace(*words)
    assert_one_error(done, 2)
    assert "--help" in done.stderr


@pytest.mark.parametrize("verb", READERS)
def test_a_missing_file_is_one_clear_error(tmp_path: Path, verb: str) -> None:
    assert_one_error(read(verb, tmp_path / "none.mtr"), 1)


@pytest.mark.parametrize("verb", READERS)
@pytest.mark.parametrize("content", [b"", b"no", b"not a capture at all\n" * 100, bytes(5000)])
def test_a_file_that_is_no_capture_is_one_clear_error(
    tmp_path: Path, verb: str, content: bytes
) -> None:
    path = tmp_path / "some.mtr"
    path.write_bytes(content)
    done = read(verb, path)
    assert_one_error(done, 1)
    words = "not a megatrace capture" if content else "is empty"
    assert f"{path}" in done.stderr.splitlines()[0]
    assert words in done.stderr.splitlines()[0]


@pytest.mark.parametrize("verb", READERS)
def test_a_directory_is_one_clear_error(tmp_path: Path, verb: str) -> None:
    folder = tmp_path / "some.mtr"
    folder.mkdir()
    done = read(verb, folder)
    assert_one_error(done, 1)
    assert done.stderr.splitlines()[0] == f"megatrace: error: {folder} is a directory"


@pytest.mark.parametrize("verb", READERS)
def test_a_capture_of_another_format_says_so(recorded: Path, tmp_path: Path, verb: str) -> None:
    path = tmp_path / "future.mtr"
    body = recorded.read_bytes()
    key = FORMAT_KEY.encode()
    at = body.index(key)
    value = body.rindex(b"1", 0, body.index(b"\0\0\0\0", at + len(key)) + 16)
    path.write_bytes(body[:value] + b"9" + body[value + 1 :])
    done = read(verb, path)
    assert_one_error(done, 1)


@pytest.mark.parametrize("verb", ["report", "info"])
def test_a_truncated_capture_is_read_and_called_incomplete(cut: Path, verb: str) -> None:
    done = read(verb, cut)
    assert done.returncode == 0, done.stderr
    assert "incomplete" in done.stdout.lower()
    assert read(verb, cut, "--strict").returncode == 3


def test_a_truncated_capture_does_not_know_what_it_lost(cut: Path) -> None:
    assert "nothing lost" not in read("report", cut).stdout
    for verb in ("report", "info"):
        assert json.loads(read(verb, cut, "--json").stdout)["lines_lost"] is None


@pytest.mark.parametrize("verb", ["report", "info"])
def test_a_whole_capture_is_complete_even_for_the_strict(recorded: Path, verb: str) -> None:
    done = read(verb, recorded, "--strict")
    assert done.returncode == 0, done.stderr
    assert "incomplete" not in done.stdout.lower()
    assert done.stderr == ""


@pytest.mark.parametrize("verb", ["report", "info"])
def test_json_is_one_document_with_schema_and_version(recorded: Path, verb: str) -> None:
    done = read(verb, recorded, "--json")
    body = json.loads(done.stdout)
    assert (body["schema"], body["version"]) == (f"megatrace.{verb}", JSON_VERSION)
    assert body["complete"] is True


@pytest.mark.usefixtures("plain_terminal")
@pytest.mark.parametrize("verb", ["report", "info", "doctor", "sessions"])
def test_output_to_no_terminal_has_no_escape_codes(recorded: Path, verb: str) -> None:
    done = megatrace(verb, *([recorded] if verb in READERS else []))
    assert "\x1b" not in done.stdout + done.stderr


def test_a_reader_that_goes_away_ends_the_verb_in_silence(recorded: Path) -> None:
    read_end, write_end = os.pipe()
    os.close(read_end)
    done = subprocess.run(
        [*MEGATRACE, "report", str(recorded)],
        stdout=write_end,
        stderr=subprocess.PIPE,
        env=environment(),
        text=True,
        check=False,
    )
    os.close(write_end)
    assert done.returncode == 141
    assert done.stderr == ""


@pytest.mark.parametrize("unbuffered", ["", "1"])
@pytest.mark.parametrize("words", [["info"], ["report", "--json"], ["--help"]])
def test_a_stdout_that_is_full_is_one_clear_error(
    recorded: Path, words: list[str], unbuffered: str
) -> None:
    file = [] if words == ["--help"] else [str(recorded)]
    with Path("/dev/full").open("w") as full:
        done = subprocess.run(
            [*MEGATRACE, *words, *file],
            stdout=full,
            stderr=subprocess.PIPE,
            env=environment(PYTHONUNBUFFERED=unbuffered),
            text=True,
            check=False,
        )
    assert done.returncode == 1
    error, hint = done.stderr.splitlines()
    assert error == "megatrace: error: cannot write /dev/full: No space left on device"
    assert hint.startswith("megatrace: hint: ")


def test_a_closed_stdout_does_not_crash(recorded: Path) -> None:
    line = f"exec {' '.join(MEGATRACE)} info {recorded} >&-"
    done = subprocess.run(
        ["/bin/sh", "-c", line], env=environment(), capture_output=True, text=True, check=False
    )
    assert "Traceback" not in done.stderr


def test_include_dir_holds_the_headers() -> None:
    done = megatrace("include-dir")
    assert (Path(done.stdout.strip()) / "megatrace").is_dir()


def test_the_version_is_that_of_the_package() -> None:
    from megatrace import __version__

    assert megatrace("--version").stdout == f"megatrace {__version__}\n"
