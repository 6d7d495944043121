"""How many lines of captures are read."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from unittest import mock

import numpy as np
from numpy.typing import NDArray

from megatrace.capture.reader import Capture


@contextmanager
def counted_lines() -> Iterator[list[int]]:
    """Lines of each look into a capture, while this is open."""
    gather, read = Capture.gather, list[int]()

    def counted(self: Capture, rows: NDArray[np.int64]) -> NDArray[np.uint32]:
        read.append(len(rows))
        return gather(self, rows)

    with mock.patch.object(Capture, "gather", counted):
        yield read
