"""The real viewer, offline, and what it is told to do first."""

from __future__ import annotations

import json
import urllib.parse
from pathlib import Path

import pytest

from megatrace.export import (
    PerfettoOptions,
    export_perfetto,
    startup_commands,
    viewer_address,
)
from tests.export.traces import small_trace
from tests.export.ui_shot import browser, screenshot

PNG_MAGIC = b"\x89PNG"


def test_startup_commands_name_no_file() -> None:
    commands = startup_commands()
    assert all(str(command["id"]).startswith("dev.perfetto.") for command in commands)
    assert "@" not in json.dumps(commands)
    assert any("create or replace perfetto view" in json.dumps(command) for command in commands)


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
    for row in ("about this trace", "rank 0 CPU", "rank 0 GPU", "block 0 (SM 0)"):
        assert row in text
    assert "warp_us" in text
    assert png.read_bytes().startswith(PNG_MAGIC)
