"""What every JSON document of the verbs begins with: which one it is, and of which version."""

from __future__ import annotations

from collections.abc import Mapping

JSON_VERSION = 2
"""Of all documents together, and of the lines of ``live --jsonl``.

It is raised when in any of them a field goes, gets another name or comes to mean something
else. A new field, or a new word where a field says one of several, makes no new version: a
reader takes the fields that it knows.

2: ``rank`` is the rank alone, and ``process`` beside it (``process_of_rank`` in info and record)
says which of its processes. In 1 it was both in one number, 256 more for each process.
"""


def document(schema: str, body: Mapping[str, object]) -> dict[str, object]:
    """``body`` after its ``schema`` and ``version``."""
    return {"schema": f"megatrace.{schema}", "version": JSON_VERSION, **body}
