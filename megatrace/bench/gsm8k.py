"""GSM8K: word problems whose answer is one number, asked with a few solved ones before.

A line of the data is ``{"question": ..., "answer": "... #### 42"}``.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from decimal import Decimal
from pathlib import Path

from megatrace.errors import UsageError

STOP = "\nQuestion:"
"""What a model writes that goes on with a problem of its own."""

_MARK = "####"
_NUMBER = re.compile(r"-?\$?\d[\d,]*(?:\.\d+)?|-?\$?\.\d+")


@dataclass(frozen=True, slots=True)
class Problem:
    """A problem; ``answer`` is the solution in words, ``number`` what it comes to."""

    question: str
    answer: str
    number: Decimal


def read_problems(path: Path) -> list[Problem]:
    """The problems of a ``.jsonl`` file, empty lines left out.

    Raises UsageError with the line's number where one is no problem, OSError where the file
    cannot be read.
    """
    problems = []
    with path.open("rb") as file:
        for number, line in enumerate(file, 1):
            if line.strip():
                problems.append(_problem(line, f"{path}, line {number}"))
    if not problems:
        raise UsageError(f"{path} has no problems", hint="give GSM8K's test.jsonl")
    return problems


def number_in(text: str) -> Decimal | None:
    """The number that ``text`` comes to: the one after ``####``, else its last; None without one.

    ``$``, ``%`` and the commas of thousands do not count.
    """
    _, mark, after = text.rpartition(_MARK)
    found = _NUMBER.findall(after)
    if not found:
        return None
    word: str = found[0] if mark else found[-1]
    return Decimal(word.replace(",", "").replace("$", ""))


def prompt(shots: Sequence[Problem], problem: Problem) -> str:
    """The text to continue: ``shots`` with their answers, then ``problem``."""
    solved = [f"Question: {shot.question}\nAnswer: {shot.answer}\n\n" for shot in shots]
    return "".join([*solved, f"Question: {problem.question}\nAnswer:"])


def _problem(line: bytes, where: str) -> Problem:
    hint = 'a line is {"question": "...", "answer": "... #### 42"}'
    try:
        body = json.loads(line)
    except ValueError as error:
        raise UsageError(f"{where} is no JSON: {error}", hint=hint) from None
    texts = [body.get(key) if isinstance(body, dict) else None for key in ("question", "answer")]
    question, answer = texts
    if not isinstance(question, str) or not isinstance(answer, str):
        raise UsageError(f"{where} lacks a question or an answer", hint=hint)
    number = number_in(answer) if _MARK in answer else None
    if number is None:
        raise UsageError(f"{where}: no number after {_MARK} in its answer", hint=hint)
    return Problem(question, answer, number)
