"""What the verbs share: stdout is data, a table or one JSON document."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from megatrace.collect.talk import Talk
from megatrace.documents import document
from megatrace.errors import MegatraceError

if TYPE_CHECKING:
    from megatrace.capture.reader import Capture


def print_json(schema: str, body: Mapping[str, object]) -> None:
    """Print ``body`` as one JSON document with its ``schema`` and ``version``."""
    sys.stdout.write(json.dumps(document(schema, body), indent=2, default=str) + "\n")


def flush_stdout() -> bool:
    """Write out what was printed; False where nobody reads it any more.

    Raises MegatraceError where it cannot be written.
    """
    try:
        sys.stdout.flush()
    except BrokenPipeError:
        _silence_stdout()
        return False
    except OSError as error:
        raise stdout_failed(error) from None
    return True


def stdout_failed(error: OSError) -> MegatraceError:
    """What to say of an ``error`` of stdout, to which no more is written."""
    name = _stdout_name()
    _silence_stdout()
    return MegatraceError(
        f"cannot write {name}: {error.strerror}",
        hint="free some space, or send the output elsewhere",
    )


def _silence_stdout() -> None:
    # The interpreter's own flush at exit would complain again.
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _stdout_name() -> str:
    """The file that stdout goes to, where it is one."""
    try:
        name = os.readlink(f"/proc/self/fd/{sys.stdout.fileno()}")
    except (OSError, ValueError):
        return "standard output"
    return name if name.startswith("/") else "standard output"


def print_table(head: Sequence[str], rows: Sequence[Sequence[str]], indent: str = "") -> None:
    """Print columns as wide as their widest cell; numbers to the right."""
    columns = list(zip(head, *rows, strict=True))
    widths = [max(map(len, column)) for column in columns]
    right = [bool(rows) and all(_is_number(cell) for cell in column[1:]) for column in columns]
    for row in (head, *rows):
        cells = (
            cell.rjust(width) if to_right else cell.ljust(width)
            for cell, width, to_right in zip(row, widths, right, strict=True)
        )
        sys.stdout.write((indent + "  ".join(cells)).rstrip() + "\n")


def wrapped(text: str, indent: str) -> str:
    """``text`` in lines as wide as the terminal, each after ``indent``."""
    import shutil
    import textwrap

    width = max(40, shutil.get_terminal_size().columns)
    return textwrap.fill(text, width, initial_indent=indent, subsequent_indent=indent)


def warn_incomplete(capture: Capture) -> None:
    """Say on stderr that ``capture`` is incomplete, and why, where it is."""
    if capture.complete:
        return
    talk = Talk()
    reasons = list(capture.problems)
    if capture.recovered:
        reasons.insert(0, "it was recovered after its recorder was killed")
    if not reasons:
        reasons.append("its recorder did not end it")
    for reason in reasons:
        talk.warn(f"{capture.path} is incomplete: {reason}")


def _is_number(cell: str) -> bool:
    return cell[:1].isdigit() or cell in ("", "-")
