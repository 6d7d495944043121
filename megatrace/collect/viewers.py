"""What viewers ask for while a session is recorded, done and answered."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from megatrace.capture.layout import SUFFIX
from megatrace.collect.burst import Burst, burst_path, describe
from megatrace.collect.options import (
    LEVELS,
    RecordOptions,
    parse_counters,
    parse_every,
    parse_sms,
    parse_steps,
)
from megatrace.collect.pump import Pump
from megatrace.collect.steering import Steering
from megatrace.errors import MegatraceError, UsageError
from megatrace.ring.wishes import Wish, take_wishes
from megatrace.schema.layout import LEVEL_OFF

MAX_BURST = 1000
_ANSWERS = 8


class Viewers:
    """Takes the wishes of a session, one burst at a time."""

    def __init__(self, session: Path, capture: Path, pump: Pump, steering: Steering) -> None:
        """Serve the viewers of ``session``, which is recorded into ``capture``."""
        self._session = session
        self._capture = capture
        self._pump = pump
        self._steering = steering
        self._answers: deque[dict[str, object]] = deque(maxlen=_ANSWERS)
        self._bursts: list[Burst] = []
        self.opening: Mapping[str, Any] = {}
        """Facts of the capture, for those of a burst."""

    def turn(self) -> list[str]:
        """Take what has come; what was changed, a sentence each."""
        said = [self._grant(wish) for wish in take_wishes(self._session)]
        self._follow()
        return [text for text in said if text]

    def note(self) -> dict[str, object]:
        """For the aggregate page: what is asked for, the last answers, the last burst."""
        return {
            "capture": str(self._capture.absolute()),
            "asked": asked(self._steering.options),
            "answers": list(self._answers),
            "burst": describe(self._bursts[-1:]),
        }

    def finish(self) -> None:
        """Complete the burst that runs."""
        if self._pump.burst is not None:
            self._pump.burst.finish()
            self._pump.burst = None

    def _grant(self, wish: Wish) -> str:
        try:
            text = self._do(wish)
        except MegatraceError as error:
            self._answer(wish, False, f"{error}" + (f" ({error.hint})" if error.hint else ""))
            return ""
        self._answer(wish, True, text)
        return text

    def _answer(self, wish: Wish, ok: bool, text: str) -> None:
        self._answers.append({"id": wish.id, "ok": ok, "text": text[:400]})

    def _do(self, wish: Wish) -> str:
        asks = wish.asks
        if not asks:
            raise UsageError("nothing is asked for")
        said = []
        if asks.keys() & {"level", "every", "counters", "steps", "sms"}:
            options = changed(self._steering.options, asks)
            self._steering.change(options)
            said.append(", ".join(f"{k} {v}" for k, v in asked(options).items() if k in asks))
        if "burst" in asks:
            said.append(self._begin_burst(asks["burst"], asks.get("output", ""), wish.id))
        return "; ".join(said)

    def _begin_burst(self, text: str, output: str, wish: str) -> str:
        steps = int(text) if text.isdecimal() else 0
        if not 0 < steps <= MAX_BURST:
            raise UsageError(f"a burst of {text!r} steps", hint=f"1 to {MAX_BURST}")
        if output and not (output.endswith(SUFFIX) and Path(output).is_absolute()):
            raise UsageError(f"{output} is no absolute path to a *{SUFFIX} file")
        if self._pump.burst is not None:
            raise UsageError("another burst still runs", hint="ask again when it is done")
        living = [source for source in self._pump.sources if source.traced and not source.ended]
        if not living:
            raise UsageError("no rank runs that could record a burst")
        path = burst_path(self._capture, output, len(self._bursts) + 1)
        options = {**dict(self.opening.get("options", {})), "burst": steps}
        burst = Burst(path, steps, {**self.opening, "options": options}, wish)
        now = time.monotonic()
        for source in living:
            ack = self._steering.burst(source, steps, now)
            burst.join(source, ack, self._pump.clocks.latest(source.rank))
        self._bursts.append(burst)
        self._pump.burst = burst
        return f"a burst of {steps} steps to {path}"

    def _follow(self) -> None:
        burst = self._pump.burst
        if burst is None:
            return
        living = [s for s in self._pump.sources if s.traced and not s.ended]
        burst.turn({source.name: source.ack() for source in living})
        if burst.stepped:
            self._steering.end_burst()
        if burst.state != "running":
            self._pump.burst = None


def changed(options: RecordOptions, asks: Mapping[str, str]) -> RecordOptions:
    """``options`` with what ``asks`` wants otherwise. Raises UsageError."""
    if "level" in asks:
        levels = {"off": LEVEL_OFF, **LEVELS}
        if asks["level"] not in levels:
            raise UsageError(f"no level {asks['level']!r}", hint=", ".join(levels))
        options = replace(options, level=levels[asks["level"]])
    if "every" in asks:
        options = replace(options, every_n=parse_every(asks["every"]))
    if "counters" in asks:
        options = replace(options, counters_every=parse_counters(asks["counters"]))
    if "steps" in asks:
        window = (0, 0) if asks["steps"] == "all" else parse_steps(asks["steps"])
        options = replace(options, window=window)
    if "sms" in asks:
        options = replace(options, sms=None if asks["sms"] == "all" else parse_sms(asks["sms"]))
    return options


def asked(options: RecordOptions) -> dict[str, str]:
    """``options`` in the words of a wish."""
    levels = {LEVEL_OFF: "off", **{number: name for name, number in LEVELS.items()}}
    begin, end = options.window
    return {
        "level": levels[options.level],
        "every": str(options.every_n or "auto"),
        "counters": str(options.counters_every),
        "steps": f"{begin}:{end}" if end else "all",
        "sms": "all" if options.sms is None else _ranges(sorted(options.sms)),
    }


def _ranges(numbers: list[int]) -> str:
    """``0-3,7``."""
    parts: list[list[int]] = []
    for number in numbers:
        if parts and number == parts[-1][1] + 1:
            parts[-1][1] = number
        else:
            parts.append([number, number])
    return ",".join(str(a) if a == b else f"{a}-{b}" for a, b in parts)
