from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from megatrace.ring.file import RingFile, RingSpec

MakeRing = Callable[..., RingFile]


@pytest.fixture
def make_ring(tmp_path: Path) -> Iterator[MakeRing]:
    """Makes ring files: ``make_ring(lines=8)``; closed at the end."""
    with ExitStack() as stack:

        def make(name: str = "rank0", **changes: object) -> RingFile:
            facts: dict[str, object] = {
                "rank": 0,
                "blocks": 2,
                "warps": 3,
                "lines": 8,
                "layers": 2,
                "host_capacity": 16,
                "device": 0,
                "table_hash": 77,
                "meta": {"roles": ["load", "math", "store"]},
            }
            spec = RingSpec(**{**facts, **changes})  # type: ignore[arg-type]
            return stack.enter_context(RingFile.create(tmp_path / f"{name}.ring", spec))

        yield make
