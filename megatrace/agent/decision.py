"""Which steps carry a timeline and which rest: the recorder's wishes, applied step by step."""

from __future__ import annotations

from dataclasses import dataclass

from megatrace.ring.control import Control
from megatrace.schema.layout import LEVEL_TIMELINE


@dataclass(slots=True)
class Decision:
    """Turns a Control and a step id into the level of that step.

    A burst begins with the first step that sees it and counts down; a window outranks the
    cadence; the recorder's limit keeps the ring from overrunning; an open capture window
    (``window_open``) records every step.
    """

    _burst_seq: int = 0
    _burst_left: int = 0
    _rested: int | None = None

    def level(
        self, control: Control, step: int, *, begun: int | None = 0, window_open: bool = False
    ) -> int:
        """The level (LEVEL_*) of ``step``, after ``begun`` timeline steps.

        ``begun`` None: the host says no steps, so that a cadence left to the recorder has
        nothing to count and gives counters.
        """
        if control.level < LEVEL_TIMELINE:
            return control.level
        if control.burst and control.seq != self._burst_seq:
            self._burst_left = control.burst
        self._burst_seq = control.seq
        if window_open or self._wanted(control, step, begun):
            return LEVEL_TIMELINE
        return LEVEL_TIMELINE - 1

    def rests(self, control: Control) -> bool:
        """Whether a step without a timeline has no counters either; asked once for each.

        Of these steps the first counts, and one in ``counters_every`` from there on, whatever
        their numbers are.
        """
        if self._rested is None or self._rested + 1 >= control.counters_every:
            self._rested = 0
            return False
        self._rested += 1
        return True

    def _wanted(self, control: Control, step: int, begun: int | None) -> bool:
        if self._burst_left:
            self._burst_left -= 1
            return True
        if control.window_end and not control.window_begin <= step < control.window_end:
            return False
        if control.timeline_limit and (begun is None or begun >= control.timeline_limit):
            return False
        return control.every_n > 0 and step % control.every_n == 0
