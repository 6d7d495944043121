"""What viewers ask of a session's recorder: small files, one a wish, that it takes.

Only the recorder writes control pages, so whoever wants another level, window or burst
leaves a wish in the session's directory and finds the answer in the note of the aggregate
page. A wish is a JSON object with some of the keys of :data:`KEYS`; values are what
``megatrace record`` takes for the option of that name.
"""

from __future__ import annotations

import contextlib
import json
import os
import secrets
import stat
import time
from dataclasses import dataclass
from pathlib import Path

from megatrace.errors import SessionError

KEYS = ("level", "every", "counters", "steps", "sms", "burst", "output")
_SUFFIX = ".wish"
_MAX_BYTES = 8192


@dataclass(frozen=True, slots=True)
class Wish:
    """One wish: its ``id``, by which the answer is found, and what it asks for."""

    id: str
    asks: dict[str, str]


def send_wish(session: Path, asks: dict[str, str]) -> str:
    """Leave a wish in ``session``; returns its id. Raises SessionError where that fails."""
    name = f"{time.monotonic_ns():020d}-{secrets.token_hex(4)}"
    making = session / f".{name}"
    try:
        fd = os.open(making, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        with open(fd, "wb") as file:
            file.write(json.dumps(asks).encode())
        making.rename(session / (name + _SUFFIX))
    except OSError as error:
        raise SessionError(
            f"the recorder of {session.name} cannot be asked: {error.strerror}",
            hint="it has ended; megatrace sessions lists those that run",
        ) from None
    return name


def take_wishes(session: Path) -> list[Wish]:
    """Recorder only: the wishes there are, oldest first; each is taken away."""
    wishes = []
    for path in sorted(session.glob("*" + _SUFFIX)):
        asks = _read(path)
        with contextlib.suppress(OSError):
            path.unlink()
        wishes.append(Wish(path.name.removesuffix(_SUFFIX), asks))
    return wishes


def _read(path: Path) -> dict[str, str]:
    """What a wish asks for; nothing where the file is not one."""
    try:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
        with open(fd, "rb") as file:
            facts = os.fstat(fd)
            if not stat.S_ISREG(facts.st_mode) or facts.st_uid != os.geteuid():
                return {}
            body = json.loads(file.read(_MAX_BYTES))
    except (OSError, ValueError, RecursionError):
        return {}
    if not isinstance(body, dict):
        return {}
    return {key: str(value) for key, value in body.items() if key in KEYS}
