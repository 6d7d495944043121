"""The committed capture of the example kernel on an H200, as its readers see it."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

FILE = Path(__file__).parents[2] / "examples" / "01_trace_a_kernel" / "h200.mtr"


def megatrace(*args: str) -> str:
    """stdout of a command that must succeed and have nothing to say on stderr."""
    done = subprocess.run(
        [sys.executable, "-m", "megatrace", *args, str(FILE)],
        capture_output=True,
        text=True,
        check=False,
        cwd=FILE.parents[2],
    )
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout


def test_the_report_of_the_h200_is_whole_even_to_strict_readers() -> None:
    text = megatrace("report", "--strict")
    assert "device=cuda, 1 rank, 4 of 132 SMs recorded, 2 steps recorded of 3 seen" in text
    assert "\nloss: nothing lost\n" in text
    for layer in range(3):
        assert re.search(rf"^stream +{layer} +2 +2 ", text, re.MULTILINE)


def test_the_clock_of_the_h200_is_known_to_less_than_a_microsecond() -> None:
    found = re.search(r"^clock: times within ±([\d,]+) ns on each GPU", megatrace("report"), re.M)
    assert found is not None
    assert 0 < int(found[1].replace(",", "")) < 1000


def test_the_json_of_the_h200_says_what_the_text_says() -> None:
    body = json.loads(megatrace("report", "--json"))
    assert body["complete"] is True
    assert body["problems"] == []
    assert [(r["kernel"], r["layer"], r["launches"]) for r in body["kernels"]] == [
        ("stream", 0, 2),
        ("stream", 1, 2),
        ("stream", 2, 2),
    ]
    assert body["steps"]["recorded"] == 2
    assert (body["lines_lost"], body["launches_cut"], body["tail_words_at_most"]) == (0, 0, 0)
    assert body["host_records_lost"] == 0
    assert body["sms"] == {"chosen": [0, 1, 2, 3], "recorded": 4, "of": 132}
    (clock,) = body["clocks"]
    assert 0 < clock["error_ns"] < 1000


def test_info_of_the_h200_names_the_machine_and_loses_nothing() -> None:
    body = json.loads(megatrace("info", "--strict", "--json"))
    assert body["complete"] is True
    assert (body["lines"], body["lines_lost"], body["host_records_lost"]) == (1734, 0, 0)
    (rank,) = body["ranks"]
    assert (rank["device"], rank["blocks"], rank["layers"]) == ("cuda", 132, 3)
    assert "NVIDIA H200" in megatrace("info")
