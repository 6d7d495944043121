"""Several processes of one rank in one session: one number for both, one text in every view.

A rank restarts, a warm-up process runs before it, a test suite starts it anew each time:
each such process has a ring, launches, steps and a clock of its own. In captures, and inside
of this package, one number says both, so that what is keyed by it stays right::

    number = PROCESSES_APART * (process - 1) + rank       process counts from 1

Whatever is read by others says them apart: tables, SQL and JSON as ``rank`` and ``process``
(``process_of_rank`` where ``process`` is the name of a program), texts as ``0`` for the first
process of rank 0, ``0#2`` for the second. Processes of several ranks that ran together have
the same ``process``: a rank that was not there the first time begins with ``1#2``.
"""

from __future__ import annotations

from collections.abc import Iterable

PROCESSES_APART = 256
MAX_RANK = PROCESSES_APART - 1
MAX_PROCESSES = 256
"""Of one rank: numbers are u2 in a capture."""


def number_of(rank: int, process: int) -> int:
    """The number of the ``process``-th process of ``rank``."""
    return PROCESSES_APART * (process - 1) + rank


def rank_of(number: int) -> int:
    """The rank in ``number``."""
    return number % PROCESSES_APART


def process_of(number: int) -> int:
    """Which of its rank's processes ``number`` is, from 1."""
    return number // PROCESSES_APART + 1


def rank_text(number: int) -> str:
    """``0``, or ``0#2`` for a second process of rank 0."""
    return label(rank_of(number), process_of(number))


def label(rank: int, process: int) -> str:
    """The same of the two apart."""
    return str(rank) + (f"#{process}" if process > 1 else "")


def count_text(numbers: Iterable[int]) -> str:
    """``2 ranks``, or ``1 rank in 3 processes``."""
    numbers = set(numbers)
    ranks = len({rank_of(number) for number in numbers})
    text = "1 rank" if ranks == 1 else f"{ranks:,} ranks"
    return f"{text} in {len(numbers):,} processes" if len(numbers) > ranks else text


def parse_rank(text: str) -> int:
    """The number of ``0`` or ``0#2``.

    Raises ValueError for what is neither, or more than a capture can hold.
    """
    rank, mark, process = text.partition("#")
    parts = [rank, process] if mark else [rank]
    if not all(part.isascii() and part.isdecimal() for part in parts):
        raise ValueError(f"{text!r} is no rank")
    if int(rank) > MAX_RANK or (mark and not 1 <= int(process) <= MAX_PROCESSES):
        raise ValueError(f"{text!r} is no rank")
    return number_of(int(rank), int(process) if mark else 1)
