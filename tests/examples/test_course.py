"""The course works as its pages say: every command is run, every figure is what it prints."""

from __future__ import annotations

import re
import shutil
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import click
import pytest
import yaml

from megatrace.cli.main import cli
from megatrace.errors import ExitCode
from megatrace.tui.live import LiveSource
from tests.collect.helpers import recording
from tests.examples.course import COURSE, PAGES, ROOT, Command, Page, Shell, missing
from tests.tui.helpers import App, drive, shows


@dataclass(frozen=True)
class Read:
    """A page, read by somebody who types along."""

    page: Page
    outputs: list[tuple[Command, str]]


@pytest.fixture(scope="module", params=PAGES)
def read(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Read]:
    page = Page.of(request.param)
    folder = tmp_path_factory.mktemp(request.param)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("MEGATRACE_RUNTIME_DIR", str(folder / "runtime"))
        patch.setenv("NO_COLOR", "1")
        patch.delenv("MEGATRACE_SESSION", raising=False)
        shell = Shell(folder)
        try:
            # Some pages come back to a command; it prints the same again.
            run = cache(lambda text, python: shell.run(Command(text, (), python)))
            yield Read(page, [(one, run(one.text, one.python)) for one in page.commands])
        finally:
            shell.close()


def test_each_command_prints_what_the_page_shows(read: Read) -> None:
    assert read.outputs, f"{read.page.path} has nothing to run"
    for command, output in read.outputs:
        line = missing(command, output)
        assert line is None, f"{command.text}\nno longer prints\n{line}\nbut\n{output}"


def test_each_figure_in_the_text_is_printed_by_a_command_of_the_page(read: Read) -> None:
    printed = {
        number
        for command, output in read.outputs
        for number in re.findall(r"\d[\d,]*(?:\.\d+)?", f"{command.text}\n{output}")
    }
    assert [figure for figure in read.page.figures if figure not in printed] == []


def test_calls_that_need_a_gpu_or_a_server_have_options_that_exist(read: Read) -> None:
    for words in read.page.elsewhere:
        verb = cli.get_command(click.Context(cli), words[0])
        assert verb is not None, words
        verb.make_context(words[0], words[1:]).close()


def test_keys_of_the_live_page_open_what_the_page_says(tmp_path: Path) -> None:
    opens = {
        "l": "counters: sums of stalls only",
        "e": "Timeline on one step in N",
        "p": "Timeline only on these steps",
        "x": "Timeline only on these SMs",
        "b": "to a file of its own",
        "n": "Recordings of this host",
    }
    page = Page.of("06_watch_live")
    assert re.findall(r"^\| `(\w)` \|", page.text, re.MULTILINE) == list(opens)

    async def steps(pilot: App) -> None:
        await shows(pilot, "● live", "consumer")
        for key, words in opens.items():
            await pilot.press(key)
            await shows(pilot, words)
            await pilot.press("escape")

    example = str(COURSE / "01_trace_a_kernel" / "run.py")
    options = ("--target", "host", "--steps", "100000")
    with recording(tmp_path / "live.mtr", sys.executable, example, *options):
        drive(LiveSource(), steps, (120, 30))


def test_a_recording_that_a_script_has_put_beside_it_is_ended_by_kill(tmp_path: Path) -> None:
    page = Page.of("06_watch_live")
    assert "`kill PID` from anywhere, ends\nthe program and finishes the file" in page.text
    (begin,) = (one.text for one in page.commands if one.beside)
    script = f"""
        {begin.removesuffix(" &")} > said 2>&1 &
        for i in {{1..300}}; do
          megatrace sessions --json | grep -q '"rank' && break; sleep 0.2
        done
        kill $!; wait $! || true
        cat said; megatrace info build/live.mtr
    """
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("MEGATRACE_RUNTIME_DIR", str(tmp_path / "runtime"))
        patch.delenv("MEGATRACE_SESSION", raising=False)
        said = Shell(tmp_path).run(Command(script, ()))
    assert "drain abandoned" not in said
    assert "build/live.mtr: complete" in said


def test_the_job_to_copy_is_the_one_on_the_page_and_fails_on_a_slower_build(
    tmp_path: Path,
) -> None:
    folder = COURSE / "05_compare_in_ci"
    job = (folder / "kernel.yml").read_text()
    assert [text for language, text in Page.of(folder.name).blocks if language == "yaml"] == [job]
    steps = yaml.safe_load(job)["jobs"]["not-slower"]["steps"]
    (gate,) = [step["run"] for step in steps if "diff" in step.get("run", "")]
    shell = Shell(tmp_path)
    for name, variant in (("old", "after"), ("new", "before")):
        shutil.copy(COURSE / "04_late_prefetch" / f"{variant}.mtr", tmp_path / f"{name}.mtr")
    said = shell.run(Command(f'{gate} || echo "exit code $?"', ()))
    assert f"exit code {ExitCode.REGRESSED}" in said
    shutil.copy(folder / "again.mtr", tmp_path / "new.mtr")
    shutil.copy(COURSE / "04_late_prefetch" / "after.mtr", tmp_path / "old.mtr")
    assert "passed" in shell.run(Command(gate, ()))


@pytest.mark.parametrize("name", [*PAGES, ""])
def test_links_and_pictures_of_a_page_exist(name: str) -> None:
    page = COURSE / name / "README.md"
    targets = re.findall(r"\]\(([^)#]+)\)", page.read_text())
    local = [target for target in targets if "://" not in target]
    assert [target for target in local if not (page.parent / target).exists()] == []


def test_the_index_names_every_folder_of_the_examples() -> None:
    index = (COURSE / "README.md").read_text()
    folders = {path.parent.name for path in COURSE.glob("*/*") if path.suffix in (".md", ".py")}
    assert {name for name in folders if f"({name}" not in index} == set()


def test_what_the_course_ships_stays_small() -> None:
    sizes = {path: path.stat().st_size for path in COURSE.rglob("*") if path.is_file()}
    large = {str(p.relative_to(ROOT)): size for p, size in sizes.items() if size > 800_000}
    assert large == {}


def test_a_page_that_no_longer_tells_the_truth_is_found() -> None:
    command = Command("x", ("a  1", "...", "b … 2"))
    assert missing(command, "head\na 1\nmore\nb 7 and 2\n") is None
    assert missing(command, "b 7 and 2\na 1\n") == "b … 2"
    assert missing(command, "a 1\nb 7 and 3\n") == "b … 2"
    varies = Command("x", ("0  35 %  ##=...  51 %  cpu",), varies=True)
    assert missing(varies, "0  7 %  #==...  1 %  cpu\n") is None
    assert missing(varies, "0  7 %  #==...  1 %  late\n") is not None
    page = Page(Path(), "It takes 12.5 us, 3 % more.\n```text\n99 us\n```\n")
    assert page.figures == ["12.5", "3"]
