"""``megatrace info``."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from tests.collect.helpers import FAKE_RANK, megatrace, record


def info(path: Path) -> dict[str, Any]:
    body: dict[str, Any] = json.loads(megatrace("info", path, "--json").stdout)
    return body


def test_it_says_ranks_loss_command_and_exit(recorded: Path) -> None:
    body = info(recorded)
    assert body["lines"] == 40 * 16 * 4
    assert body["lines_lost"] == 0
    assert body["child_status"] == 0
    assert body["command"][:2] == list(FAKE_RANK)
    (rank,) = body["ranks"]
    assert rank["table"] == "fake"
    assert (rank["rank"], rank["device"], rank["lines"]) == (0, "cpu", 40 * 16 * 4)


def test_lost_lines_are_told_by_rank(tmp_path: Path) -> None:
    output = tmp_path / "run.mtr"
    record(output, *FAKE_RANK, "--steps", "2000", "--step-us", "0", "--lines", "8", "--rank", "2")
    body = info(output)
    (rank,) = body["ranks"]
    assert rank["lines_lost"] == body["lines_lost"]
    assert rank["lines"] + rank["lines_lost"] == 2000 * 16 * 4


def test_the_loss_of_a_truncated_capture_is_unknown(cut: Path) -> None:
    assert info(cut)["lines_lost"] is None
    assert "lines lost         unknown" in megatrace("info", cut).stdout


def test_what_attached_and_what_did_not_is_in_the_text(recorded: Path) -> None:
    text = megatrace("info", recorded).stdout
    assert "scheduler of rank 0: attached to Scheduler.run_batch" in text
    assert "not attached to ModelRunner.forward: AttributeError: gone" in text
