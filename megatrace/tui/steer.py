"""Asking the recorder: dialogs for what it can be asked, and what it answers."""

from __future__ import annotations

from typing import Any, Literal

from textual.screen import Screen

from megatrace.errors import MegatraceError
from megatrace.tui.dialogs import Ask, Choose
from megatrace.tui.live import WINDOWS_S, LiveSource

LEVELS = (
    ("timeline", "timeline: every event of the steps chosen, counters on some others"),
    ("counters", "counters: sums of stalls only"),
    ("off", "off: nothing is recorded"),
)


class Steering:
    """What a screen on a live session can ask; ``screen`` shows the dialogs and answers."""

    def __init__(self, screen: Screen[Any], source: LiveSource) -> None:
        """Ask the recorder of ``source``."""
        self._screen = screen
        self._source = source
        self._burst = self._burst_done()

    def level(self) -> None:
        """Choose the level."""
        self._choose("level", "Level: the most any step records", LEVELS)

    def every(self) -> None:
        """Choose N."""
        self._line("every", "Timeline on one step in N", "a number, or auto: what the host drains")

    def steps(self) -> None:
        """Choose the window of steps."""
        self._line(
            "steps", "Timeline only on these steps", "A:B, A:+COUNT, or all; B is not included"
        )

    def sms(self) -> None:
        """Choose the SMs."""
        self._line("sms", "Timeline only on these SMs", "0-3,7 or all")

    def burst(self) -> None:
        """Record a burst."""
        title = "Burst: a timeline on every one of the next steps, to a file of its own"
        hint = "how many steps, and perhaps an absolute path: 8 /tmp/burst.mtr"
        self._screen.app.push_screen(Ask(title, hint, "4"), self._take_burst)

    def session(self) -> None:
        """Choose the session."""
        found = self._source.sessions()
        if not found:
            self._screen.notify("no recording runs on this host")
            return
        options = [(s.name, f"{s.name}  {' '.join(s.command)[:60]}") for s in found]
        by_name = {s.name: s for s in found}
        dialog = Choose("Recordings of this host", options, self._source.name)

        def take(name: str | None) -> None:
            if name is not None:
                self._source.choose(by_name[name])

        self._screen.app.push_screen(dialog, take)

    def window(self) -> None:
        """The next length of time that the tables are of."""
        at = WINDOWS_S.index(self._source.window_s)
        self._source.window_s = WINDOWS_S[(at + 1) % len(WINDOWS_S)]

    def answers(self) -> None:
        """Show what the recorder has answered since the last look."""
        for answer in self._source.answers():
            self._say(answer.text, ok=answer.ok)
        done = self._burst_done()
        if done and done != self._burst:
            path, state, text = done
            written = state == "done"
            self._say(f"{path}: {text}{', o opens it' if written else ''}", ok=written)
        self._burst = done

    @property
    def burst_path(self) -> str:
        """The file of the last burst that is done; ""."""
        done = self._burst_done()
        return done[0] if done and done[1] == "done" else ""

    def _burst_done(self) -> tuple[str, str, str] | None:
        burst = self._source.note.get("burst")
        if not isinstance(burst, dict) or burst.get("state") not in ("done", "failed"):
            return None
        return str(burst.get("path")), str(burst.get("state")), str(burst.get("text"))

    def _now(self, key: str) -> str:
        asked = self._source.note.get("asked")
        return str(asked.get(key, "")) if isinstance(asked, dict) else ""

    def _choose(self, key: str, title: str, options: tuple[tuple[str, str], ...]) -> None:
        self._screen.app.push_screen(
            Choose(title, options, self._now(key)), lambda value: self._ask(key, value)
        )

    def _line(self, key: str, title: str, hint: str) -> None:
        self._screen.app.push_screen(
            Ask(title, hint, self._now(key)), lambda value: self._ask(key, value)
        )

    def _ask(self, key: str, value: str | None) -> None:
        if value and value != self._now(key):
            self._send(**{key: value})

    def _take_burst(self, text: str | None) -> None:
        if text:
            steps, _, output = text.partition(" ")
            self._send(burst=steps, output=output.strip())

    def _send(self, **asks: str) -> None:
        try:
            self._source.ask(**asks)
        except MegatraceError as error:
            self._say(f"{error}; {error.hint}", ok=False)

    def _say(self, text: str, *, ok: bool) -> None:
        severity: Literal["information", "error"] = "information" if ok else "error"
        self._screen.notify(text, severity=severity, markup=False, timeout=8)
