"""Captures that several tests read."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from megatrace.capture.reader import Capture, open_capture
from tests.build import Build, write

Opener = Callable[..., Capture]


@pytest.fixture
def captured(tmp_path: Path) -> Iterator[Opener]:
    """Writes builds into a capture and opens it."""
    opened: list[Capture] = []

    def make(*builds: Build, complete: bool = True, **options: Any) -> Capture:
        path = tmp_path / f"{len(opened)}.mtr"
        path = write(path, *builds, complete=complete, options=options)
        opened.append(open_capture(path))
        return opened[-1]

    yield make
    for capture in opened:
        capture.close()
