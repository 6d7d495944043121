"""What a viewer asks for reaches the traced process, and what it gets back."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest

from megatrace.analysis import summarise
from megatrace.capture.reader import open_capture
from megatrace.collect.options import RecordOptions
from megatrace.collect.viewers import asked, changed
from megatrace.errors import RingError, UsageError
from megatrace.ring.aggregate import Aggregate, AggregatePage
from megatrace.ring.control import read_control
from megatrace.ring.file import RingFile
from megatrace.ring.wishes import send_wish
from megatrace.schema.layout import LEVEL_COUNTERS, LEVEL_TIMELINE
from tests.collect.helpers import FAKE_RANK, recording, wait_until


class Session:
    """A session in progress, seen as a viewer sees it."""

    def __init__(self) -> None:
        root = Path(os.environ["MEGATRACE_RUNTIME_DIR"])
        wait_until(lambda: list(root.glob("*/aggregate.page")), "there is a page")
        (page,) = root.glob("*/aggregate.page")
        self.path = page.parent

    def read(self) -> Aggregate:
        page = AggregatePage.attach(self.path)
        try:
            return page.read(timeout_s=1)
        finally:
            page.close()

    def ask(self, **asks: str) -> dict[str, Any]:
        """The recorder's answer."""
        wish = send_wish(self.path, asks)
        found: list[dict[str, Any]] = []

        def answered() -> bool:
            with suppress(RingError):
                found[:] = [a for a in self.read().note.get("answers", ()) if a["id"] == wish]
            return bool(found)

        wait_until(answered, f"the recorder answers {asks}")
        return found[0]


@contextmanager
def session(output: Path, *options: str, steps: int = 100_000) -> Iterator[Session]:
    rank = (*FAKE_RANK, "--steps", str(steps), "--step-us", "2000", "--obey", "--wait-control")
    with recording(output, *rank, options=options):
        yield Session()


def test_a_viewer_changes_what_the_agent_is_asked_for(tmp_path: Path) -> None:
    with session(tmp_path / "run.mtr") as live:
        assert live.ask(level="counters", sms="0-3,7", steps="10:+5", every="6", counters="5")["ok"]
        (path,) = live.path.glob("*.ring")
        with RingFile.attach(path) as ring:
            wait_until(lambda: read_control(ring).level == LEVEL_COUNTERS, "the level is lower")
            control = read_control(ring)
            assert (control.every_n, control.counters_every) == (6, 5)
            assert control.sm_mask == 0b10001111
            assert (control.window_begin, control.window_end) == (10, 15)
            assert live.ask(level="timeline", sms="all", steps="all", every="auto")["ok"]
            wait_until(lambda: read_control(ring).level == LEVEL_TIMELINE, "the level is back")
        asked_now = live.read().note["asked"]
        same = {"steps": "all", "sms": "all"}
        assert asked_now == {"level": "timeline", "every": "auto", "counters": "5"} | same


@pytest.mark.parametrize(
    ("wish", "why"),
    [
        ({"level": "loud"}, "no level 'loud'"),
        ({"every": "0"}, "not a number of steps"),
        ({"sms": "9-3"}, "is no SM below"),
        ({"steps": "9"}, "not a range of steps"),
        ({"burst": "many"}, "a burst of 'many' steps"),
        ({"burst": "3", "output": "here.mtr"}, "no absolute path"),
        ({"burst": "3", "output": "/tmp/no.txt"}, "no absolute path to a *.mtr"),
    ],
)
def test_a_wish_that_makes_no_sense_is_refused_with_the_reason(
    wish: dict[str, str], why: str, tmp_path: Path
) -> None:
    from megatrace.collect.pump import Pump
    from megatrace.collect.sink import Sink
    from megatrace.collect.steering import Steering
    from megatrace.collect.viewers import Viewers

    sink, steering = Sink(tmp_path / "run.mtr"), Steering(RecordOptions(("x",)))
    viewers = Viewers(tmp_path, tmp_path / "run.mtr", Pump(tmp_path, sink, steering), steering)
    send_wish(tmp_path, wish)
    assert viewers.turn() == []
    (answer,) = viewers.note()["answers"]  # type: ignore[misc]
    assert not answer["ok"]  # type: ignore[index]
    assert why in answer["text"]  # type: ignore[index]
    sink.abandon()


@pytest.mark.parametrize("level", ["timeline", "counters"])
def test_a_burst_is_a_whole_capture_of_its_own(tmp_path: Path, level: str) -> None:
    options = ("--every", "50", "--level", level)
    with session(tmp_path / "run.mtr", *options) as live:
        assert live.ask(burst="5")["ok"]

        def done() -> bool:
            with suppress(RingError):
                return bool(live.read().note.get("burst", {}).get("state") == "done")
            return False

        wait_until(done, "the burst is done")
        burst = live.read().note["burst"]
        assert burst["path"] == str(tmp_path / "run-burst1.mtr")
        if level == "counters":
            (path,) = live.path.glob("*.ring")
            with RingFile.attach(path) as ring:
                wait_until(lambda: read_control(ring).level == LEVEL_COUNTERS, "it is over")
    with open_capture(tmp_path / "run-burst1.mtr") as capture:
        report = summarise(capture)
        assert capture.complete
    assert report.loss_sentence() == "nothing lost"
    # A step of the cadence may have come between the wish and the burst.
    assert report.steps.recorded in (5, 6, 7)
    assert report.launches_cut == 0
    assert report.clocks[0].host_error_ns is not None


def test_a_burst_into_a_file_that_exists_is_refused(tmp_path: Path) -> None:
    there = tmp_path / "there.mtr"
    there.write_text("mine")
    with session(tmp_path / "run.mtr") as live:
        answer = live.ask(burst="2", output=str(there))
    assert not answer["ok"]
    assert "exists" in answer["text"]
    assert there.read_text() == "mine"


def test_a_burst_that_the_programs_end_cuts_short_is_finished(tmp_path: Path) -> None:
    rank = (*FAKE_RANK, "--steps", "700", "--step-us", "2000", "--obey", "--wait-control")
    with recording(tmp_path / "run.mtr", *rank) as process:
        assert Session().ask(burst="1000")["ok"]
        assert process.wait(60) == 0
    with open_capture(tmp_path / "run-burst1.mtr") as capture:
        assert capture.complete
        assert summarise(capture).steps.recorded > 10


def test_options_and_wishes_say_the_same() -> None:
    sms = frozenset({0, 1, 2, 9})
    options = RecordOptions(("x",), every_n=7, counters_every=5, window=(3, 9), sms=sms)
    words = asked(options)
    cadence = {"level": "timeline", "every": "7", "counters": "5"}
    assert words == cadence | {"steps": "3:9", "sms": "0-2,9"}
    assert changed(RecordOptions(("x",)), words) == options
    with pytest.raises(UsageError):
        changed(options, {"level": ""})
