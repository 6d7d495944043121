"""The exceptions megatrace raises on purpose, and the exit codes of its verbs.

    MegatraceError
    ├── UsageError              the call itself is wrong
    ├── CaptureError            something is wrong with a .mtr file
    │   ├── FormatError         not a capture, or a corrupt one
    │   ├── TruncatedError      the file ends in the middle
    │   └── SchemaMismatch      two tables of events disagree
    ├── SessionError            something is wrong with the rings of this host
    │   ├── SessionNotFound
    │   └── RingError           a ring that cannot be made, read or trusted
    ├── RecordError             the recorder could not start or go on
    ├── ClockError              a time that cannot be stated with an error
    ├── ServerError             a server that is away, or answers what it should not
    └── BuildError              a compiler refused, or there is none

Every one carries a ``hint``: the next thing to try, which a traceback shows below the
message. Only ``megatrace.cli`` prints them and turns them into an exit code.
"""

from __future__ import annotations

from enum import IntEnum


class ExitCode(IntEnum):
    """What the reading verbs exit with; ``record`` exits with its child's code."""

    OK = 0
    ERROR = 1
    USAGE = 2
    INCOMPLETE = 3
    """The data is incomplete and ``--strict`` was given."""
    REGRESSED = 4
    """``diff --fail-on`` found launches that got slower."""
    TOOL_FAILED = 125
    """``record`` itself failed, before or after its child."""
    NOT_EXECUTABLE = 126
    NOT_FOUND = 127


class MegatraceError(Exception):
    """Base of all; ``hint`` names the next step, or is empty."""

    exit_code = ExitCode.ERROR

    def __init__(self, message: str, *, hint: str = "") -> None:
        super().__init__(message)
        self.hint = hint
        if hint:
            self.add_note(f"hint: {hint}")


class UsageError(MegatraceError):
    """The call itself is wrong."""

    exit_code = ExitCode.USAGE


class CaptureError(MegatraceError):
    """Something is wrong with a ``.mtr`` file."""


class FormatError(CaptureError):
    """Not a capture, or a corrupt one."""


class TruncatedError(CaptureError):
    """The file ends in the middle of a batch."""


class SchemaMismatch(CaptureError):
    """Two tables of events, or two layouts of words, disagree."""


class SessionError(MegatraceError):
    """Something is wrong with the sessions or rings of this host."""


class SessionNotFound(SessionError):
    """No session of that name."""


class RingError(SessionError):
    """A ring that cannot be made, read or trusted."""


class RecordError(MegatraceError):
    """The recorder could not start, or could not go on."""


class ClockError(MegatraceError):
    """A time that cannot be stated with an error."""


class ServerError(MegatraceError):
    """A server that is away, falls silent, or answers what it should not."""


class BuildError(MegatraceError):
    """A compiler refused the source, or there is no compiler."""
