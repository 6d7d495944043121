"""Sessions of this host: one directory each, under :func:`megatrace.paths.runtime_root`."""

from __future__ import annotations

import contextlib
import json
import os
import re
import secrets
import shutil
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from megatrace.errors import RingError, SessionError, SessionNotFound
from megatrace.paths import SESSION_ENV, check_private, runtime_root
from megatrace.ring.file import RingFile, RingSpec
from megatrace.ring.locks import HeldLock, is_held
from megatrace.ring.memfd import pointer_of

RING_SUFFIX = ".ring"
LOCK_NAME = "session.lock"
FACTS_NAME = "session.json"
_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,63}")
_UNFINISHED_S = 60.0
_MAX_RINGS = 100
"""Ring files of one process at one time, and processes of one pid in several containers."""


@dataclass(frozen=True, slots=True)
class SessionInfo:
    """One session of this host.

    Attributes:
        live: its recorder or one of its traced processes still runs.
        recorded: its recorder still runs.
        rings: names of its ring files without the suffix.
        memfds: of these, the ones whose memory is a memfd.
        started: seconds since the epoch; 0 unknown.
        command: what was started.
    """

    name: str
    path: Path
    live: bool
    recorded: bool
    rings: tuple[str, ...]
    started: float
    command: tuple[str, ...]
    memfds: tuple[str, ...] = ()


class Session:
    """A session directory; with its lock where this process is the recorder.

    Attributes:
        name: last part of ``path``.
        path: absolute directory.
    """

    def __init__(self, path: Path, lock: HeldLock | None = None) -> None:
        """Use :meth:`create` or :meth:`open`."""
        self.name = path.name
        self.path = path
        self._lock = lock

    @classmethod
    def create(cls, name: str | None = None, *, command: Sequence[str] = ()) -> Session:
        """Make a session and hold its lock; a dead one of the same name is replaced.

        Raises SessionError where a live one has that name, or the directory cannot be made.
        """
        name = name or time.strftime("%H%M%S-", time.gmtime()) + secrets.token_hex(3)
        if not _NAME.fullmatch(name):
            raise SessionError(
                f"{name!r} is no session name", hint="use letters, digits, '_', '-' and '.'"
            )
        root = runtime_root(create=True)
        path = root / name
        making = root / f".new-{secrets.token_hex(8)}"
        try:
            lock = _make(making, command)
            with contextlib.suppress(SessionNotFound):
                _remove_if_dead(path)
            making.rename(path)
        except OSError as error:
            shutil.rmtree(making, ignore_errors=True)
            taken = path.exists()
            raise SessionError(
                f"session {name} is live" if taken else f"cannot make {path}: {error.strerror}",
                hint="choose another --session name" if taken else "check the runtime directory",
            ) from None
        return cls(path, lock)

    @classmethod
    def open(cls, name_or_path: str | Path) -> Session:
        """The session of that name, or in that directory. Raises SessionNotFound."""
        path = Path(name_or_path)
        if not path.is_absolute():
            path = runtime_root() / path
        if not path.is_dir() or path.is_symlink():
            raise SessionNotFound(
                f"no session {name_or_path}", hint="megatrace sessions lists those there are"
            )
        check_private(path)
        return cls(path)

    @property
    def environment(self) -> dict[str, str]:
        """What the traced process gets."""
        return {SESSION_ENV: str(self.path)}

    def ring_paths(self) -> list[Path]:
        """The ring files there are now, sorted by name."""
        return sorted(self.path.glob("*" + RING_SUFFIX))

    def create_ring(self, what: str, spec: RingSpec) -> RingFile:
        """Make ``<what>.ring`` in this session; see :meth:`RingFile.create`."""
        return RingFile.create(self.path / (what + RING_SUFFIX), spec)

    def create_ring_of_process(self, what: str, spec: RingSpec, *, kind: str = "") -> RingFile:
        """Make ``<what>-<pid><kind>.ring``, or ``<what>-<pid>-2<kind>.ring`` and so on.

        A process may make several rings, one after another or at once, and two containers
        of one session may both have a process 7. Raises RingError as :meth:`create_ring`.
        """
        stem = f"{what}-{os.getpid()}"
        for attempt in range(1, _MAX_RINGS + 1):
            name = f"{stem}{kind}" if attempt == 1 else f"{stem}-{attempt}{kind}"
            try:
                return self.create_ring(name, spec)
            except RingError:
                if not (self.path / (name + RING_SUFFIX)).exists():
                    raise
        raise RingError(f"{self.path} has {_MAX_RINGS} rings {stem}", hint="start a new session")

    def info(self) -> SessionInfo:
        """How it stands now."""
        return _info(self.path)

    def close(self, *, remove: bool = False) -> None:
        """Give up the lock; with ``remove`` the rings and the directory go too."""
        if remove:
            shutil.rmtree(self.path, ignore_errors=True)
        if self._lock is not None:
            self._lock.release()
            self._lock = None


def list_sessions() -> list[SessionInfo]:
    """All sessions of this user, live ones first, then by start."""
    found = [_info(path) for path in _directories()]
    return sorted(found, key=lambda s: (not s.live, s.started, s.name))


def prune() -> list[str]:
    """Remove every session that nobody holds; returns their names. Never a live one."""
    removed = []
    for path in _directories():
        with contextlib.suppress(SessionNotFound, OSError):
            if _remove_if_dead(path):
                removed.append(path.name)
    _remove_unfinished()
    return removed


def _make(path: Path, command: Sequence[str]) -> HeldLock:
    """A directory under a hidden name, locked before anybody can see it as a session."""
    path.mkdir(mode=0o700)
    for name in (LOCK_NAME, FACTS_NAME):
        os.close(os.open(path / name, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600))
    lock = HeldLock(path / LOCK_NAME)
    facts = {"started": time.time(), "command": list(command), "pid": os.getpid()}
    (path / FACTS_NAME).write_text(json.dumps(facts))
    return lock


def _directories() -> Iterator[Path]:
    root = runtime_root()
    if not root.exists():
        return
    for path in sorted(root.iterdir()):
        if path.is_dir() and not path.is_symlink() and _NAME.fullmatch(path.name):
            yield path


def _info(path: Path) -> SessionInfo:
    try:
        facts: Any = json.loads((path / FACTS_NAME).read_bytes())
        started = float(facts["started"])
        command = tuple(str(word) for word in facts["command"])
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        started, command = 0.0, ()
    rings = sorted(path.glob("*" + RING_SUFFIX))
    recorded = is_held(path / LOCK_NAME)
    live = recorded or any(is_held(ring) for ring in rings)
    names = tuple(ring.stem for ring in rings)
    memfds = tuple(ring.stem for ring in rings if pointer_of(ring) is not None)
    return SessionInfo(path.name, path, live, recorded, names, started, command, memfds)


def _remove_if_dead(path: Path) -> bool:
    if not path.is_dir() or path.is_symlink():
        raise SessionNotFound(f"no session {path.name}")
    if _info(path).live:
        return False
    grave = path.with_name(f".dead-{secrets.token_hex(8)}")
    path.rename(grave)  # one of two that prune at once loses here
    if _info(grave).live:  # it came alive in between
        grave.rename(path)
        return False
    shutil.rmtree(grave, ignore_errors=True)
    return True


def _remove_unfinished() -> None:
    root = runtime_root()
    for path in [*root.glob(".new-*"), *root.glob(".dead-*")]:
        with contextlib.suppress(OSError):
            old = time.time() - path.lstat().st_mtime > _UNFINISHED_S
            if old and path.is_dir() and not path.is_symlink() and not _info(path).live:
                shutil.rmtree(path, ignore_errors=True)
