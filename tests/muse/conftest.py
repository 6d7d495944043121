"""Tests that need torch run in an environment that has it: see ``test_with_torch.py``."""

from __future__ import annotations

from importlib.util import find_spec

collect_ignore = ["with_torch"] if find_spec("torch") is None else ["test_with_torch.py"]
