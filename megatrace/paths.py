"""Where the sessions of this host live, and the folders that are not Python.

``$MEGATRACE_RUNTIME_DIR``, else ``/dev/shm/megatrace-<uid>``: one directory of mode
0700 that belongs to this user. Rings are shared memory, because only that can be pinned for
a GPU; where there is no such directory to write to, it is in ``/tmp`` and they are memfds.
"""

from __future__ import annotations

import os
import stat
from pathlib import Path

from megatrace.errors import SessionError

RUNTIME_DIR_ENV = "MEGATRACE_RUNTIME_DIR"
SESSION_ENV = "MEGATRACE_SESSION"
"""Absolute session directory, set for the traced process; unset: the agent does nothing."""

SHARED_MEMORY = Path("/dev/shm")


def runtime_root(*, create: bool = False) -> Path:
    """The directory that holds the sessions of this user.

    With ``create`` it is made if missing; without, it may not exist. Raises
    SessionError where it is not a directory of this user's alone.
    """
    given = os.environ.get(RUNTIME_DIR_ENV)
    root = Path(given) if given else _default_parent() / f"megatrace-{os.geteuid()}"
    if not root.is_absolute():
        raise SessionError(
            f"{RUNTIME_DIR_ENV}={given} is not absolute", hint="give an absolute path"
        )
    if create:
        try:
            root.mkdir(mode=0o700)
        except FileExistsError:
            pass
        except OSError as error:
            raise SessionError(
                f"cannot make {root}: {error.strerror}",
                hint=f"set {RUNTIME_DIR_ENV} to a directory that can be made",
            ) from None
    if root.is_symlink() or root.exists():
        check_private(root)
    return root


def _default_parent() -> Path:
    usable = os.access(SHARED_MEMORY, os.W_OK | os.X_OK)
    return SHARED_MEMORY if usable else Path("/tmp")


def check_private(directory: Path) -> None:
    """Raise SessionError unless ``directory`` is a real one that only this user can enter."""
    try:
        facts = directory.lstat()
    except OSError as error:
        raise SessionError(f"cannot look at {directory}: {error.strerror}") from None
    if not stat.S_ISDIR(facts.st_mode):
        raise SessionError(f"{directory} is not a directory", hint="remove or rename it")
    if facts.st_uid != os.geteuid():
        raise SessionError(
            f"{directory} belongs to user {facts.st_uid}, this is user {os.geteuid()}",
            hint=f"set {RUNTIME_DIR_ENV} to a directory of your own",
        )
    if facts.st_mode & 0o077:
        raise SessionError(
            f"{directory} is open to others (mode {stat.S_IMODE(facts.st_mode):o})",
            hint=f"chmod 700 {directory}",
        )


def asset_dir() -> Path:
    """The folder of ``kernels/`` and ``viewers/``: inside a wheel, else the checkout."""
    package = Path(__file__).resolve().parent
    installed = package / "_assets"
    return installed if installed.is_dir() else package.parent


def include_dir() -> Path:
    """The folder of the CUDA headers, for a compiler's ``-I``."""
    return Path(__file__).resolve().parent / "include"
