"""Hands a memfd from the process that made it to the recorder, over the session's socket.

A socket and not ``/proc``: a recorder on the host and a program in a container, or two containers
that share the session's directory, do not see each other's pids.
"""

from __future__ import annotations

import contextlib
import os
import re
import socket
import struct
from collections.abc import Iterator
from pathlib import Path

SOCKET_NAME = "session.socket"
_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,200}\.ring")
_MAX_BYTES = 512
_ANSWER = b"held"
_PATIENCE_S = 2.0
_SENDER_S = 0.1
"""What a sender may take between its connection and its words: they are one call."""


def hand_over(ring: Path, fd: int) -> bool:
    """Give ``fd``, the memfd of the pointer ``ring``, to its session's recorder.

    Whether it holds it now; False where nobody answers.
    """
    with contextlib.suppress(OSError), socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as to:
        to.settimeout(_PATIENCE_S)
        with _reachable(ring.parent) as address:
            to.connect(address)
        socket.send_fds(to, [ring.name.encode()], [fd])
        return to.recv(len(_ANSWER)) == _ANSWER
    return False


class Receiver:
    """Recorder only: takes what :func:`hand_over` sends.

    Attributes:
        held: name of a ring file -> fd of its memfd, for whoever takes it out.
    """

    def __init__(self, session: Path) -> None:
        """Listen in ``session``; where that cannot be, ``/proc`` has to serve."""
        self.held: dict[str, int] = {}
        self._socket: socket.socket | None = None
        listening = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            with _reachable(session) as address:
                listening.bind(address)
            listening.listen(128)
            listening.setblocking(False)
        except OSError:
            listening.close()
            return
        self._socket = listening

    def take(self) -> None:
        """Hold what has been sent; never waits for anybody."""
        while self._socket is not None:
            try:
                sender, _ = self._socket.accept()
            except OSError:
                return
            with sender, contextlib.suppress(OSError):
                sender.settimeout(_SENDER_S)
                self._take_from(sender)

    def drop(self, name: str, *, keep: int = -1) -> None:
        """Hold the memfd of ``name`` here no longer; it is closed unless it is ``keep``."""
        fd = self.held.pop(name, keep)
        if fd != keep:
            os.close(fd)

    def close(self) -> None:
        """Take nothing more, and let go of what nobody took out."""
        if self._socket is not None:
            self._socket.close()
            self._socket = None
        while self.held:
            os.close(self.held.popitem()[1])

    def _take_from(self, sender: socket.socket) -> None:
        words, fds, _, _ = socket.recv_fds(sender, _MAX_BYTES, 1)
        name = words.decode("utf-8", "replace")
        size = struct.calcsize("3i")
        peer = sender.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, size)
        _, user, _ = struct.unpack("3i", peer)
        if len(fds) != 1 or user != os.geteuid() or not _NAME.fullmatch(name) or name in self.held:
            for fd in fds:
                os.close(fd)
            return
        os.set_inheritable(fds[0], False)
        self.held[name] = fds[0]
        sender.sendall(_ANSWER)


@contextlib.contextmanager
def _reachable(session: Path) -> Iterator[str]:
    """An address of the socket that is never too long for one: by way of an open directory."""
    fd = os.open(session, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        yield f"/proc/self/fd/{fd}/{SOCKET_NAME}"
    finally:
        os.close(fd)
