"""What a test runs on: the host build, and the GPU of this machine."""

from __future__ import annotations

import pytest

from megatrace.jit import HOST, default_target

TARGETS = [HOST, pytest.param("gpu", marks=pytest.mark.gpu)]


def chip(target: str) -> str:
    """What the compiler calls it."""
    return default_target() if target == "gpu" else target
