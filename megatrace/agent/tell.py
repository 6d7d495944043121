"""The session of this process, and a word to its user where that has gone."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping

from megatrace.errors import SessionNotFound
from megatrace.paths import SESSION_ENV
from megatrace.ring.session import Session


def session_or_none(environ: Mapping[str, str] = os.environ) -> Session | None:
    """The session that ``MEGATRACE_SESSION`` names; None where it is not set.

    A session that has gone, because its recorder ended or the variable is an old one, is
    said on stderr and is None too: a profiler does not end the program. Raises SessionError
    where it is not this user's alone.
    """
    name = environ.get(SESSION_ENV)
    if not name:
        return None
    try:
        return Session.open(name)
    except SessionNotFound:
        sys.stderr.write(f"megatrace: not recorded: the session {name} has ended\n")
        return None
