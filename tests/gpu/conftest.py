"""Rings of a GPU must be shared memory: sessions of these tests live in /dev/shm."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest


@pytest.fixture(autouse=True)
def shared_runtime_dir(monkeypatch: pytest.MonkeyPatch, plain_environment: None) -> Iterator[Path]:
    """A runtime directory of its own for each test."""
    root = Path(f"/dev/shm/megatrace-test-{os.getpid()}")
    root.mkdir(mode=0o700)
    monkeypatch.setenv("MEGATRACE_RUNTIME_DIR", str(root))
    yield root
    shutil.rmtree(root)
