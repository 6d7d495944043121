"""Which program a command line means, and what it is kept from telling."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from megatrace.collect.launch import (
    ProgramNotExecutable,
    ProgramNotFound,
    describe_exit,
    exit_code,
    redacted,
    resolve,
)
from megatrace.errors import ExitCode


def script(path: Path, mode: int = 0o755) -> Path:
    path.write_text("#!/bin/sh\nexit 0\n")
    path.chmod(mode)
    return path


def test_a_name_is_looked_up_on_the_path(tmp_path: Path) -> None:
    script(tmp_path / "serve")
    program = resolve(["serve", "-x"], {"PATH": f"/nowhere:{tmp_path}"})
    assert program.path == str(tmp_path / "serve")
    assert program.argv == ("serve", "-x")
    assert not program.as_module


def test_a_program_on_the_path_wins_over_a_module_of_that_name(tmp_path: Path) -> None:
    script(tmp_path / "json.tool")
    assert not resolve(["json.tool"], {"PATH": str(tmp_path)}).as_module


def test_a_dotted_module_runs_under_this_python() -> None:
    program = resolve(["json.tool", "--compact"])
    assert program.argv == (sys.executable, "-m", "json.tool", "--compact")
    assert program.as_module
    assert program.name == "json.tool"


def test_megatrace_python_names_the_python_of_a_module(tmp_path: Path) -> None:
    python = tmp_path / "python"
    python.symlink_to(sys.executable)
    program = resolve(["json.tool"], {"PATH": "", "MEGATRACE_PYTHON": str(python)})
    assert program.argv[:2] == (str(python), "-m")


def test_a_module_that_is_not_installed_is_not_found() -> None:
    with pytest.raises(ProgramNotFound) as caught:
        resolve(["no_such_package.serve"])
    assert caught.value.exit_code == ExitCode.NOT_FOUND
    assert "MEGATRACE_PYTHON" in caught.value.hint


def test_a_script_in_this_folder_gets_the_hint_to_name_its_path(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    script(tmp_path / "train.py")
    with pytest.raises(ProgramNotFound) as caught:
        resolve(["train.py"])
    assert "./train.py" in caught.value.hint


@pytest.mark.parametrize("how", ["path", "PATH"])
def test_a_file_without_execute_permission_is_not_executable(tmp_path: Path, how: str) -> None:
    path = script(tmp_path / "serve", 0o644)
    command = [str(path)] if how == "path" else ["serve"]
    with pytest.raises(ProgramNotExecutable) as caught:
        resolve(command, {"PATH": str(tmp_path)})
    assert caught.value.exit_code == ExitCode.NOT_EXECUTABLE
    assert "chmod +x" in caught.value.hint


def test_a_directory_is_not_executable(tmp_path: Path) -> None:
    with pytest.raises(ProgramNotExecutable):
        resolve([str(tmp_path)])


def test_a_path_that_is_not_there_is_not_found(tmp_path: Path) -> None:
    with pytest.raises(ProgramNotFound):
        resolve([str(tmp_path / "serve")])


@pytest.mark.parametrize(
    ("command", "name"),
    [
        (["python3", "-m", "sglang.launch_server"], "sglang.launch_server"),
        (["python3.11", "train/main.py"], "main"),
        (["python3", "-c", "pass"], "python3"),
        (["/usr/bin/env", "x"], "env"),
    ],
)
def test_the_short_name_is_that_of_what_runs(command: list[str], name: str) -> None:
    assert resolve(["/bin/sh"]).name == "sh"
    from megatrace.collect.launch import _name

    assert _name(command) == name


@pytest.mark.parametrize(
    ("command", "kept"),
    [
        (["s", "--api-key", "abc", "--port", "1"], ["s", "--api-key", "***", "--port", "1"]),
        (["s", "--hf-token=abc"], ["s", "--hf-token=***"]),
        (["s", "--password", "--port"], ["s", "--password", "--port"]),
        (["s", "key", "value"], ["s", "key", "value"]),
        (["s", "--HF_TOKEN", "abc"], ["s", "--HF_TOKEN", "***"]),
        (["s", "--admin-api-key=abc"], ["s", "--admin-api-key=***"]),
        (["s", "--ssl-keyfile-password", "abc"], ["s", "--ssl-keyfile-password", "***"]),
        (["s", "--secret-v2", "abc"], ["s", "--secret-v2", "***"]),
        (["s", "--apikey", "abc"], ["s", "--apikey", "***"]),
        (["s", "--accessToken", "abc"], ["s", "--accessToken", "***"]),
        (["s", "--authtoken=abc"], ["s", "--authtoken=***"]),
    ],
)
def test_secrets_of_a_command_line_are_not_kept(command: list[str], kept: list[str]) -> None:
    assert redacted(command) == kept


@pytest.mark.parametrize(
    "flag",
    [
        "--max-total-tokens",
        "--speculative-num-draft-tokens",
        "--tokenizer-path",
        "--max_prefill_tokens",
        "--keyboard",
        "--ssl-keyfile",
    ],
)
def test_flags_whose_words_only_resemble_a_secret_are_kept(flag: str) -> None:
    assert redacted(["s", flag, "5", f"{flag}=5"]) == ["s", flag, "5", f"{flag}=5"]


@pytest.mark.parametrize(
    ("status", "code", "words"),
    [(0, 0, "exited 0"), (3, 3, "exited 3"), (-11, 139, "was ended by SIGSEGV")],
)
def test_a_status_is_told_as_a_shell_tells_it(status: int, code: int, words: str) -> None:
    assert exit_code(status) == code
    assert describe_exit(status) == words
