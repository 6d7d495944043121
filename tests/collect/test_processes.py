"""Several processes of one rank in one session: after one another, and at once."""

from __future__ import annotations

import json
import os
import signal
import sys
from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from megatrace.capture.reader import Capture, open_capture
from megatrace.collect.numbers import Numbers, Origin
from megatrace.collect.publish import MAX_ENDED, left_out, shown
from megatrace.collect.pump import Pump
from megatrace.collect.salvage import salvage
from megatrace.collect.sink import Sink
from megatrace.collect.source import Source
from megatrace.errors import RingError
from megatrace.ring.aggregate import AggregatePage
from megatrace.ring.control import read_ack
from megatrace.ring.file import RingFile
from megatrace.ring.session import Session
from megatrace.schema.processes import number_of, parse_rank, rank_of, rank_text
from tests.collect.fake_rank import FakeRank, make_ring
from tests.collect.helpers import (
    FAKE_RANK,
    megatrace,
    record,
    recording,
    said,
    wait_until,
)


def in_turn(*commands: tuple[str, ...]) -> tuple[str, ...]:
    """A program that runs ``commands`` one after another."""
    code = f"import subprocess\nfor words in {list(commands)!r}: subprocess.run(words, check=True)"
    return (sys.executable, "-c", code)


def at_once(*commands: tuple[str, ...]) -> tuple[str, ...]:
    """A program that runs ``commands`` side by side."""
    code = (
        "import subprocess\n"
        f"running = [subprocess.Popen(words) for words in {list(commands)!r}]\n"
        "try: raise SystemExit(max(process.wait() for process in running))\n"
        "finally: [process.kill() for process in running]"
    )
    return (sys.executable, "-c", code)


def fake(name: str, steps: int, *more: str) -> tuple[str, ...]:
    return (*FAKE_RANK, "--name", name, "--steps", str(steps), "--wait-control", *more)


def lines_by_rank(capture: Capture) -> dict[str, int]:
    index = capture.line_index()
    return {rank_text(n): int((index.rank == n).sum()) for n in sorted(set(index.rank.tolist()))}


def test_a_rank_that_restarts_is_recorded_again(tmp_path: Path) -> None:
    output = tmp_path / "run.mtr"
    done = record(output, *in_turn(fake("a", 10), fake("b", 25)), options=("--json",))
    body = json.loads(done.stdout)
    assert (body["ranks"], body["traced_processes"], body["refused"]) == (1, 2, {})
    assert "wrote" in done.stderr
    assert "1 rank in 2 processes, " in done.stderr
    with open_capture(output) as capture:
        assert capture.complete
        assert sorted(map(rank_text, capture.rings)) == ["0", "0#2"]
        found = lines_by_rank(capture)
        assert found["0"] * 25 == found["0#2"] * 10
        assert capture.rings[number_of(0, 2)].fields["process_of_rank"] == 2
        assert capture.rings[number_of(0, 2)].fields["of_rank"] == 0


def test_processes_of_one_rank_at_once_are_kept_apart_with_their_loss(tmp_path: Path) -> None:
    output = tmp_path / "run.mtr"
    small = fake("small", 400, "--lines", "2", "--step-us", "0")
    done = record(output, *at_once(fake("whole", 30, "--lines", "4096"), small))
    assert done.returncode == 0
    with open_capture(output) as capture:
        named = {facts.name: number for number, facts in capture.rings.items()}
        lost = {
            name: sum(n for (rank, _), n in capture.loss.items() if rank == number)
            for name, number in named.items()
        }
        read = {n: lines_by_rank(capture)[rank_text(number)] for n, number in named.items()}
        a_step = read["whole"] // 30
        assert lost["whole"] == 0
        assert lost["small"] > 0
        assert read["small"] + lost["small"] == 400 * a_step


def rings_left(seen: Path) -> tuple[str, ...]:
    """A program that waits until no ring is left, and writes how many are to ``seen``."""
    return (
        sys.executable,
        "-c",
        "import os, pathlib, sys, time\n"
        "session = pathlib.Path(os.environ['MEGATRACE_SESSION'])\n"
        "give_up = time.monotonic() + 10\n"
        "while list(session.glob('*.ring')) and time.monotonic() < give_up: time.sleep(0.01)\n"
        f"pathlib.Path({str(seen)!r}).write_text(str(len(list(session.glob('*.ring')))))",
    )


def test_a_ring_gives_its_memory_back_before_the_next_process_needs_it(tmp_path: Path) -> None:
    seen = tmp_path / "seen"
    output = tmp_path / "run.mtr"
    record(output, *in_turn(fake("a", 10), rings_left(seen), fake("a", 10)))
    assert seen.read_text() == "0"
    with open_capture(output) as capture:
        assert lines_by_rank(capture).keys() == {"0", "0#2"}  # the same file name twice


@pytest.fixture
def two_processes(tmp_path: Path) -> Path:
    """A capture of rank 0, of its first process 10 steps, of its second 25."""
    output = tmp_path / "run.mtr"
    assert record(output, *in_turn(fake("a", 10), fake("b", 25))).returncode == 0
    return output


def test_every_view_of_a_capture_calls_a_second_process_by_one_name(two_processes: Path) -> None:
    report = megatrace("report", two_processes).stdout
    assert "1 rank in 2 processes, 35 steps recorded of 35 seen" in report
    assert "step    0#2     25" in report
    assert "\n   0#2  " in megatrace("info", two_processes).stdout
    alone = megatrace("tables", two_processes, "launch_times", "--rank", "0#2").stdout
    assert alone.splitlines()[1].split()[:3] == ["0#2", "0", "1"]
    assert "1 rank in 2 processes" in megatrace("view", two_processes).stdout
    compared = megatrace("diff", two_processes, two_processes).stdout
    assert "1 rank in 2 processes, 35 steps" in " ".join(compared.split())


def test_tables_for_programs_say_rank_and_process_apart(
    two_processes: Path,
) -> None:
    done = megatrace("tables", two_processes, "launch_times", "--format", "json")
    rows = json.loads(done.stdout)["rows"]
    assert Counter((row["rank"], row["process"]) for row in rows) == {(0, 1): 10, (0, 2): 25}


def test_a_trace_of_one_step_is_of_one_process_and_says_so(
    two_processes: Path, tmp_path: Path
) -> None:
    done = megatrace("export", two_processes, "-o", tmp_path / "one.pftrace")
    assert "left out: rank 0, 24 of 25 steps" in done.stderr
    whole = megatrace("export", two_processes, "-o", tmp_path / "all.pftrace", "--all")
    assert whole.returncode == 0
    names = [(tmp_path / f"{name}.pftrace").read_bytes() for name in ("one", "all")]
    assert [b"rank 0 GPU" in text for text in names] == [False, True]
    assert [b"rank 0#2 GPU" in text for text in names] == [True, True]


@pytest.mark.parametrize("side_by_side", [False, True])
def test_live_has_a_row_for_each_process(tmp_path: Path, side_by_side: bool) -> None:
    linger = ("--linger-s", "60")
    commands = fake("a", 5, *(linger if side_by_side else ())), fake("b", 5, *linger)
    program = at_once(*commands) if side_by_side else in_turn(*commands)
    with recording(tmp_path / "run.mtr", *program) as process:
        root = Path(os.environ["MEGATRACE_RUNTIME_DIR"])
        wait_until(lambda: list(root.glob("*/aggregate.page")), "there is a page")
        (session,) = root.iterdir()

        def rows() -> list[tuple[str, bool]]:
            page = AggregatePage.attach(session)
            try:
                ranks = page.read().ranks
            finally:
                page.close()
            return [(rank_text(int(row["rank"])), bool(row["alive"])) for row in ranks]

        wait_until(lambda: rows() == [("0", side_by_side), ("0#2", True)], "both have a row")
        once = megatrace("live", "--once")
        assert "1 rank in 2 processes" in once.stdout
        process.send_signal(signal.SIGINT)
        assert "1 rank in 2 processes" in said(process)


def test_a_killed_recorder_leaves_every_process_to_recover(tmp_path: Path) -> None:
    output = tmp_path / "run.mtr"
    commands = fake("a", 20), fake("b", 30, "--linger-s", "60")
    with recording(output, *in_turn(*commands)) as process:
        root = Path(os.environ["MEGATRACE_RUNTIME_DIR"])
        wait_until(lambda: list(root.glob("*/b.ring")), "the second process has a ring")
        (path,) = root.glob("*/b.ring")

        def all_there() -> bool:
            with suppress(RingError), RingFile.attach(path) as ring:
                return read_ack(ring).step == 30
            return False

        wait_until(all_there, "it has made its steps")
        os.kill(process.pid, signal.SIGKILL)
        process.wait()
        found = salvage(Path(f"{output}.part"))
    assert found.lines_lost == 0
    with open_capture(output) as capture:
        lines = lines_by_rank(capture)
        assert lines["0"] * 30 == lines["0#2"] * 20


SERVER = """
from megatrace.agent.host import HostAgent
agents = [HostAgent.from_env(name) for name in ("main", "scheduler")]
for agent in agents:
    agent.span(3, 1000, 2000, 1, (1, 1, 0, -1))
    agent.close()
"""


def test_a_kernel_program_after_a_plain_server_is_a_process_of_its_own(tmp_path: Path) -> None:
    output = tmp_path / "run.mtr"
    server, pause = (sys.executable, "-c", SERVER), ("sleep", "1")  # less than ranks may miss by
    assert record(output, *in_turn(server, pause, fake("a", 5))).returncode == 0
    with open_capture(output) as capture:
        assert lines_by_rank(capture).keys() == {"0#2"}
        assert set(capture.host().rank.tolist()) == {0, number_of(0, 2)}
        assert {rank_text(n): facts.traced for n, facts in capture.rings.items()} == {
            "0": False,
            "0#2": True,
        }


def test_what_processes_that_ended_had_lost_is_lost_after_a_recovery_too(tmp_path: Path) -> None:
    output = tmp_path / "run.mtr"
    small = fake("a", 400, "--lines", "2", "--step-us", "0")
    with recording(output, *in_turn(small, fake("b", 5, "--linger-s", "60"))) as process:
        root = Path(os.environ["MEGATRACE_RUNTIME_DIR"])
        wait_until(lambda: list(root.glob("*/b.ring")), "the second process has a ring")
        wait_until(lambda: not list(root.glob("*/a.ring")), "the first has been let go")
        os.kill(process.pid, signal.SIGKILL)
        process.wait()
        found = salvage(Path(f"{output}.part"))
    with open_capture(output) as capture:
        assert found.lines_lost == sum(capture.loss.values())
        assert found.lines_lost + lines_by_rank(capture)["0"] == 400 * 4 * 16


def made_steps(root: Path, name: str) -> int:
    """Steps that the process with the ring ``name`` has made; -1 while it has none."""
    for path in root.glob(f"*/{name}.ring"):
        with suppress(RingError), RingFile.attach(path) as ring:
            return read_ack(ring).step
    return -1


@pytest.fixture
def killed_after_a(tmp_path: Path) -> Iterator[Path]:
    """The part of a recorder that was killed when rank 0's first process had ended."""
    output = tmp_path / "run.mtr"
    commands = fake("a", 200), fake("b", 5, "--linger-s", "60")
    with recording(output, *in_turn(*commands)) as process:
        root = Path(os.environ["MEGATRACE_RUNTIME_DIR"])
        wait_until(lambda: made_steps(root, "b") == 5, "the second process has made its steps")
        wait_until(lambda: not list(root.glob("*/a.ring")), "the first has been let go")
        os.kill(process.pid, signal.SIGKILL)
        process.wait()
        yield Path(f"{output}.part")


def lost_of(part: Path) -> tuple[int | None, int | None]:
    """Lines lost as ``recover`` says it, and ``info`` of what it wrote; None: unknown."""
    done = megatrace("recover", part, "--json")
    assert done.returncode == 0, done.stderr
    body = json.loads(done.stdout)
    return body["lines_lost"], json.loads(megatrace("info", body["path"], "--json").stdout)[
        "lines_lost"
    ]


def test_what_a_cut_tail_had_is_known_from_the_rings(killed_after_a: Path) -> None:
    os.truncate(killed_after_a, killed_after_a.stat().st_size - 100)
    assert lost_of(killed_after_a) == (0, 0)


def test_how_many_lines_damage_took_of_a_ring_that_is_gone_is_unknown(killed_after_a: Path) -> None:
    data = bytearray(killed_after_a.read_bytes())
    middle = len(data) // 3
    data[middle : middle + 64] = bytes(byte ^ 0xFF for byte in data[middle : middle + 64])
    killed_after_a.write_bytes(data)
    assert lost_of(killed_after_a) == (None, None)


def test_a_ring_that_cannot_be_read_counts_as_gone(killed_after_a: Path) -> None:
    (ring,) = Path(os.environ["MEGATRACE_RUNTIME_DIR"]).glob("*/b.ring")
    ring.unlink()  # its program has it mapped
    ring.write_bytes(b"no ring" * 1000)
    assert lost_of(killed_after_a) == (None, None)


def test_a_server_is_one_process_of_its_rank_and_its_restart_the_next() -> None:
    numbers = Numbers()

    def take(process: str, pid: int, *, traced: bool = False) -> str:
        return rank_text(numbers.take(Origin(0, pid, process, traced)) or 0)

    first = [take("main", 1), take("scheduler", 2), take("rank0-2", 2, traced=True)]
    first.append(take("detokenizer", 3))
    assert first == ["0"] * 4
    second = [take("scheduler", 12), take("detokenizer", 13), take("main", 11)]
    second.append(take("rank0-12", 12, traced=True))
    assert second == ["0#2"] * 4


def test_a_kernel_alone_is_no_part_of_the_server_that_follows() -> None:
    numbers = Numbers()
    assert numbers.take(Origin(0, 1, "rank0-1", True)) == 0
    assert numbers.take(Origin(0, 2, "main", False)) == number_of(0, 2)
    assert numbers.take(Origin(0, 3, "scheduler", False)) == number_of(0, 2)
    assert numbers.take(Origin(0, 3, "rank0-3", True)) == number_of(0, 2)


def take(numbers: Numbers, rank: int, pid: int, *living: tuple[str, int]) -> str:
    """Of a kernel's ring, beside the kernels' rings of that number and pid that live."""
    there = [
        (number, Origin(rank_of(number), other, f"k{other}", True))
        for number, other in ((parse_rank(text), other) for text, other in living)
    ]
    return rank_text(numbers.take(Origin(rank, pid, f"k{pid}", True), there) or 0)


def test_two_host_rings_of_one_name_do_not_set_the_ranks_of_a_server_apart() -> None:
    numbers = Numbers()
    living: list[tuple[int, Origin]] = []

    def come(rank: int, pid: int, process: str, *, traced: bool = False) -> str:
        ring = Origin(rank, pid, process, traced)
        number = numbers.take(ring, living)
        assert number is not None
        living.append((number, ring))
        return rank_text(number)

    assert [come(0, 1, "main"), come(0, 2, "scheduler"), come(0, 4, "detokenizer")] == ["0"] * 3
    assert come(0, 5, "detokenizer") == "0#2"
    assert come(1, 3, "scheduler") == "1"
    assert [come(0, 2, "k", traced=True), come(1, 3, "k", traced=True)] == ["0", "1"]


def test_nothing_joins_a_run_that_is_over() -> None:
    numbers = Numbers()
    for pid, process in enumerate(("main", "scheduler"), 1):
        assert numbers.take(Origin(0, pid, process, False)) == 0
    kernels = Origin(0, 9, "rank0000-9", True)
    assert numbers.take(kernels, anew=True) == number_of(0, 2)
    beside = [(number_of(0, 2), kernels)]
    assert numbers.take(Origin(0, 9, "detokenizer", False), beside) == number_of(0, 2)
    assert numbers.take(Origin(1, 10, "rank0001-10", True), beside) == number_of(1, 2)
    assert numbers.take(Origin(0, 11, "detokenizer", False), beside) == number_of(0, 3)


def test_ranks_that_run_together_are_of_one_run_whatever_ran_before() -> None:
    numbers = Numbers()
    assert take(numbers, 0, 1) == "0"
    assert take(numbers, 0, 2) == "0#2"
    assert take(numbers, 1, 3, ("0#2", 2)) == "1#2"
    assert take(numbers, 1, 4, ("0#2", 2)) == "1#3"
    assert take(numbers, 0, 5, ("1#3", 4)) == "0#3"


def test_two_rings_of_each_process_are_paired_in_their_order() -> None:
    numbers = Numbers()
    assert [take(numbers, 0, 1), take(numbers, 0, 1, ("0", 1))] == ["0", "0#2"]
    assert take(numbers, 1, 2, ("0", 1), ("0#2", 1)) == "1"
    assert take(numbers, 1, 2, ("0", 1), ("0#2", 1), ("1", 2)) == "1#2"


@pytest.mark.parametrize("order", [(0, 1), (1, 0)])
@pytest.mark.parametrize("found_at_once", [False, True])
def test_a_warm_up_of_one_rank_does_not_set_the_ranks_of_a_server_apart(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    order: tuple[int, int],
    found_at_once: bool,
) -> None:
    monkeypatch.setattr("megatrace.collect.pump._SAME_RUN_S", 0.0)  # no time between programs
    session = Session.create("warm")
    pump = Pump(session.path, Sink(tmp_path / "run.mtr"))

    def start(name: str, rank: int) -> RingFile:
        return make_ring(session.path, rank, blocks=1, lines=8, layers=1, name=name)

    warm_up = start("warm-up", 0)
    pump.scan()
    warm_up.mark_closed()
    warm_up.close()
    pump.retire()
    server = []
    for rank in order:
        server.append(start(f"server{rank}", rank))
        if not found_at_once:
            pump.scan()
    pump.scan()
    assert sorted(rank_text(source.rank) for source in pump.sources) == ["0", "0#2", "1#2"]
    for ring in server:
        ring.close()
    pump.close()
    session.close(remove=True)


def test_ranks_recorded_after_a_warm_up_of_one_of_them_have_one_number(tmp_path: Path) -> None:
    output = tmp_path / "run.mtr"
    after = "until [ -e $MEGATRACE_SESSION/b.ring ]; do sleep 0.02; done; sleep 0.3; " + " ".join(
        fake("c", 5, "--rank", "1")
    )
    server = at_once(fake("b", 5, "--linger-s", "3"), ("sh", "-c", after))
    assert record(output, *in_turn(fake("a", 5), server)).returncode == 0
    with open_capture(output) as capture:
        assert lines_by_rank(capture).keys() == {"0", "0#2", "1#2"}


def test_more_processes_than_a_capture_has_numbers_for_are_refused() -> None:
    numbers = Numbers()
    given = [numbers.take(Origin(7, pid, "k", True)) for pid in range(300)]
    assert given[:256] == [number_of(7, at + 1) for at in range(256)]
    assert set(given[256:]) == {None}
    assert numbers.take(Origin(256, 1, "k", True)) is None


def test_a_long_session_shows_what_lives_and_the_last_that_ended(tmp_path: Path) -> None:
    session = Session.create("many")
    sources = []
    for at in range(MAX_ENDED + 5):
        ring = make_ring(session.path, 0, blocks=1, lines=8, layers=1, name=f"r{at}")
        FakeRank(ring, 4).step(1, timeline=True)
        source = Source.open(ring.path)
        source.rank = number_of(0, at + 1)
        source.drain_lines(100)
        source.ended = at > 0
        sources.append(source)
        ring.close()
    kept = [source.rank for source in shown(sources)]
    assert kept == [number_of(0, 1), *(number_of(0, at + 1) for at in range(5, MAX_ENDED + 5))]
    gone = left_out(sources)
    assert gone["processes"] == 4
    assert gone["lines_read"] == 4 * sources[0].stats.read > 0
