"""A live session, read from its aggregate page; the next one when it has ended."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from megatrace.errors import CaptureError, MegatraceError, SessionError
from megatrace.ring.aggregate import Aggregate, AggregatePage
from megatrace.ring.locks import is_held
from megatrace.ring.session import LOCK_NAME, SessionInfo, list_sessions
from megatrace.ring.wishes import send_wish
from megatrace.tui.model import Frame, Status
from megatrace.tui.reading import Series, live_frame, live_status

WINDOWS_S = (2.0, 10.0, 60.0, 0.0)
"""What the tables can be of: the last so many seconds; 0: all since the start."""

_LOOK_S = 0.5
"""Between looks for a session while there is none."""
_LOOK_AGAIN_S = 2.0
"""The same for others beside the one that is shown."""
_KEEP_EVERY_S = 0.5
_STALE_S = 3.0
_READ_S = 0.02


@dataclass(frozen=True, slots=True)
class Answer:
    """What the recorder said to a wish."""

    ok: bool
    text: str


class LiveSource:
    """One session at a time; :meth:`poll` never raises for what becomes of it.

    Attributes:
        name: of the session that is shown or was last; "" before the first.
        others: live sessions of this host besides.
        note: what its recorder says of itself.
    """

    steers = True

    def __init__(self, name: str = "", *, window_s: float = WINDOWS_S[0]) -> None:
        """Follow the session ``name``; the newest where "", and after its end any new one."""
        self.name = name
        self.others: tuple[SessionInfo, ...] = ()
        self.note: Mapping[str, Any] = {}
        self.window_s = window_s
        self._path: Path | None = None
        self._command = ""
        self._page: AggregatePage | None = None
        self._history: deque[Aggregate] = deque()
        self._series = Series()
        self._last = Status("", "waiting", "")
        self._ended_s = 0.0
        self._look_due_s = 0.0
        self._trouble = ""
        self._seen: set[str] = set()
        self._frame: Frame | None = None
        self._shown: object = None
        self._wanted = name
        self._asked: dict[str, float] = {}

    def poll(self) -> tuple[Status, Frame | None]:
        """How it stands now. The same objects again where nothing has changed."""
        now = time.monotonic()
        if self._path is not None and not is_held(self._path / LOCK_NAME):
            self._read()
            self._leave(now)
        if now >= self._look_due_s:
            self._look_due_s = now + (_LOOK_S if self._path is None else _LOOK_AGAIN_S)
            self._look()
        if self._path is not None:
            self._read()
        return self._status(now), self._tables()

    @property
    def attached(self) -> bool:
        """Whether a recorder runs whose page is read."""
        return self._path is not None

    def sessions(self) -> list[SessionInfo]:
        """The recordings that run on this host, the newest first."""
        try:
            found = [session for session in list_sessions() if session.recorded]
        except MegatraceError:
            return []
        return sorted(found, key=lambda session: -session.started)

    def choose(self, session: SessionInfo) -> None:
        """Show another session."""
        self._close_page()
        self._path, self.name = session.path, session.name
        self._command = " ".join(session.command)
        self._seen.add(session.name)
        self._trouble = ""
        self.note = {}
        self._frame = None
        self._last = Status("", "waiting", "")

    def ask(self, **asks: str) -> str:
        """Ask the recorder; the id of the wish. Raises SessionError where there is none."""
        if self._path is None:
            raise SessionError("no recording runs", hint="megatrace record -- CMD starts one")
        wish = send_wish(self._path, asks)
        self._asked[wish] = time.monotonic()
        return wish

    def answers(self) -> list[Answer]:
        """Answers to what this viewer has asked, each once."""
        entries = [e for e in self.note.get("answers", ()) if isinstance(e, dict)]
        return [
            Answer(bool(entry.get("ok")), str(entry.get("text")))
            for entry in entries
            if self._asked.pop(str(entry.get("id")), 0.0)
        ]

    def close(self) -> None:
        """Let go of the page."""
        self._close_page()

    def _look(self) -> None:
        """Find a session: the one asked for, else the newest that has not been shown."""
        found = self.sessions()
        if self._path is None:
            wanted = [s for s in found if s.name == self._wanted] if self._wanted else found
            fresh = [session for session in wanted if session.name not in self._seen]
            if fresh:
                self._wanted = ""
                self.choose(fresh[0])
        self.others = tuple(session for session in found if session.name != self.name)

    def _leave(self, now_s: float) -> None:
        """The recorder has gone: keep what was seen last, and look for the next."""
        self._close_page()
        self._path = None
        self._ended_s = now_s
        self._asked.clear()

    def _close_page(self) -> None:
        if self._page is not None:
            self._page.close()
        self._page = None
        self._history.clear()
        self._series = Series()

    def _read(self) -> None:
        """Take a reading of the page, if there is a new one."""
        assert self._path is not None
        try:
            if self._page is None or self._page.replaced:
                page = AggregatePage.attach(self._path)
                self._close_page()
                self._page = page
            reading = self._page.read(timeout_s=_READ_S)
        except CaptureError as error:
            self._trouble = str(error)
            return
        except SessionError:
            return  # not yet there, or half written: the next look tells
        self._trouble = ""
        last = self._history[-1] if self._history else None
        if last is not None and reading.updated_ns == last.updated_ns:
            return
        self.note = reading.note
        self._series.add(reading)
        self._keep(reading)

    def _keep(self, reading: Aggregate) -> None:
        """Remember ``reading``: the newest always, of the others one in _KEEP_EVERY_S."""
        history = self._history
        if len(history) >= 2 and _span_s(history[-2], history[-1]) < _KEEP_EVERY_S:
            history.pop()
        history.append(reading)
        while len(history) > 2 and _span_s(history[1], reading) > max(WINDOWS_S):
            history.popleft()

    def _before(self) -> Aggregate | None:
        """The reading that the window begins with; None: the start of the session.

        Where one step in N has a timeline there may be none of late: then further back.
        """
        now = self._history[-1]
        if not self.window_s:
            return None
        within = [r for r in self._history if r is not now]
        young = [r for r in within if _span_s(r, now) <= self.window_s]
        old = [r for r in within if _span_s(r, now) > self.window_s]
        for reading in [*young[:1], *reversed(old)]:
            if _moved(reading, now):
                return reading
        return None

    def _tables(self) -> Frame | None:
        if not self._history:
            return self._frame
        newest = (self.name, self._history[-1].updated_ns, self.window_s)
        if newest != self._shown:
            self._shown = newest
            self._frame = live_frame(self._history[-1], self._before(), self._series)
        return self._frame

    def _status(self, now_s: float) -> Status:
        if self._history:
            newest = self._history[-1]
            # Rates are of the shortest window, whatever the tables are of.
            old = next(r for r in self._history if _span_s(r, newest) <= WINDOWS_S[0])
            self._last = live_status(newest, old, self._before())
            age_s = now_s - newest.updated_ns / 1e9
            state, text = "live", ""
            if age_s > _STALE_S:
                state, text = "waiting", f"its recorder has said nothing for {age_s:.0f} s"
        else:
            ended = self._path is None and bool(self.name) and not self._wanted
            state, text = "ended" if ended else "waiting", self._waiting(now_s)
        notes = (self._trouble, *self._last.notes) if self._trouble else self._last.notes
        title = f"{self.name}  {self._command}".strip()
        return replace(self._last, title=title, state=state, text=text, notes=notes)

    def _waiting(self, now_s: float) -> str:
        if self._trouble:
            return "its page cannot be read"
        if self._path is not None:
            return "no traced process yet"
        if self._wanted:
            return f"waiting for the session {self._wanted}"
        if self.name:
            ago = now_s - self._ended_s
            return f"ended {ago:.0f} s ago; waiting for the next recording"
        return "waiting for a recording: megatrace record -- CMD"


def _span_s(old: Aggregate, new: Aggregate) -> float:
    return (new.updated_ns - old.updated_ns) / 1e9


def _moved(old: Aggregate, new: Aggregate) -> bool:
    """Whether launches with a timeline have come in between; or counters, if no more will."""
    if new.sums.seen_launches.sum() > old.sums.seen_launches.sum():
        return True
    asked = new.note.get("asked")
    off = isinstance(asked, dict) and asked.get("level") != "timeline"
    return (off or not new.sums.seen_launches.any()) and bool(
        new.sums.cycles.sum() > old.sums.cycles.sum()
    )
