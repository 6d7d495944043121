"""The real viewer, offline, and what it is told to do first."""

from __future__ import annotations

import json
import re
import urllib.parse
from pathlib import Path

import pytest

from megatrace.analysis import decode, views
from megatrace.capture.reader import open_capture
from megatrace.export import (
    First,
    PerfettoOptions,
    export_perfetto,
    startup_commands,
    viewer_address,
)
from tests.export.traces import small_trace
from tests.export.ui_shot import browser, screenshot
from tests.house.tree import ROOT

PNG_MAGIC = b"\x89PNG"


def test_startup_commands_name_no_file() -> None:
    commands = startup_commands()
    assert all(str(command["id"]).startswith("dev.perfetto.") for command in commands)
    assert "@" not in json.dumps(commands)
    assert any("CREATE OR REPLACE PERFETTO VIEW" in json.dumps(command) for command in commands)


@pytest.mark.parametrize("rank", [0, 3, 12])
def test_the_rows_of_the_first_rank_are_opened_whichever_process_they_are_of(rank: int) -> None:
    rows = [
        str(pattern)
        for command in startup_commands(First(rank))
        if "TracksByRegex" in str(command["id"])
        for pattern in command["args"]  # type: ignore[attr-defined]
    ]

    def found(name: str) -> int:
        return sum(bool(re.search(pattern, name)) for pattern in rows)

    others = {f"rank {other} GPU" for other in (0, 1, 3, 12, 13, 31)} - {f"rank {rank} GPU"}
    for name in (f"rank {rank}", f"rank 0{rank}", f"rank {rank}#2", f"rank 0{rank}#13"):
        assert found(f"{name} GPU (host build, device=cpu)") == found(f"{name} CPU") == 2, name
    assert not any(found(name) for name in others)


def test_the_address_carries_trace_and_commands() -> None:
    address = viewer_address("http://127.0.0.1:9001", "http://127.0.0.1:9001/a b.pftrace.gz")
    _, _, query = address.partition("#!/?")
    fields = urllib.parse.parse_qs(query)
    assert fields["url"] == ["http://127.0.0.1:9001/a b.pftrace.gz"]
    assert json.loads(fields["startupCommands"][0]) == startup_commands()


@pytest.mark.skipif(browser() is None, reason="no chromium-headless-shell on this machine")
def test_the_real_viewer_shows_the_rows_and_the_table_of_stalls(tmp_path: Path) -> None:
    trace, png = tmp_path / "t.pftrace.gz", tmp_path / "t.png"
    export_perfetto(small_trace(), trace, PerfettoOptions(steps="all"))
    text = screenshot(trace, png, commands=startup_commands())
    for row in ("about this trace", "rank 0 CPU", "rank 0 GPU", "SM 0 (block 0)"):
        assert row in text
    assert "warp_us" in text
    assert "late prefetches" in text
    assert png.read_bytes().startswith(PNG_MAGIC)


@pytest.mark.skipif(browser() is None, reason="no chromium-headless-shell on this machine")
def test_the_real_viewer_leads_from_a_wait_to_who_ended_it(tmp_path: Path) -> None:
    with open_capture(ROOT / "examples/01_trace_a_kernel/h200.mtr") as capture:
        trace = decode(capture)
    path = tmp_path / "run.pftrace.gz"
    export_perfetto(trace, path, PerfettoOptions(steps="all"))
    waits = views.sync_waits(trace)
    wait = waits[waits["from_block"] >= 0].iloc[0]
    chosen = {"ts": str(wait["begin_ns"]), "dur": str(wait["dur_ns"])}
    text = screenshot(path, tmp_path / "wait.png", query=chosen)
    _, _, panel = text.partition("Current Selection")
    assert panel.split("\n")[4:6] == ["partials", "Contextual Optionsarrow_drop_down"]
    # It begins before the publish, so that the viewer calls the arrow to it the other way.
    assert "Following Flows" in panel
    assert f"from_blockarrow_drop_down\n{wait['from_block']}" in panel
    assert f"delay_nsarrow_drop_down\n{wait['delay_ns']}" in panel
