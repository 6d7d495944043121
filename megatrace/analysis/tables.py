"""An EventTable as arrays that a word's event field indexes."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from megatrace.analysis.lines import I4, U1, Mask
from megatrace.schema import CAUSES, CORE, Cause, Event, EventTable, Kind

CODES = 512
"""Event fields of a word: 256 of records, and 256 that an argument without one would be."""
UNKNOWN = 255

KINDS: tuple[Kind, ...] = tuple(Kind)
SPAN, STALL, WAIT, META = (KINDS.index(k) for k in (Kind.SPAN, Kind.STALL, Kind.WAIT, Kind.META))
PUBLISH, PREFETCH = KINDS.index(Kind.PUBLISH), KINDS.index(Kind.PREFETCH)


@dataclass(frozen=True, slots=True)
class Lookup:
    """Per event code, arrays of length 512; codes without an event have kind 255."""

    args: U1
    """Argument words that follow; 255: no such event."""
    kind: U1
    """Place in :data:`KINDS`, of a span's begin and end alike."""
    begin: U1
    """The code itself, of a span's end its begin's."""
    is_end: Mask
    blocks: Mask
    """Stalls and waits: the first argument is a duration."""
    slot_arg: I4
    """Which argument is the slot; -1: none."""
    events: dict[int, Event]

    @property
    def max_args(self) -> int:
        """The most arguments an event of the table has besides duration and slot."""
        return max((len(own_args(e)) for e in self.events.values()), default=0)


def own_args(event: Event) -> tuple[str, ...]:
    """Names of an event's arguments that are neither its duration nor its slot."""
    if event.kind is Kind.META:
        return (event.all_args[0].name,) if event.id == 4 else ()
    implied = {Kind.STALL: 1, Kind.WAIT: 2, Kind.PUBLISH: 1, Kind.PREFETCH: 1}
    return tuple(a.name for a in event.all_args[implied.get(event.kind, 0) :])


def lookup(table: EventTable) -> Lookup:
    """The arrays of one table."""
    args = np.full(CODES, UNKNOWN, np.uint8)
    kind = np.full(CODES, UNKNOWN, np.uint8)
    begin = np.arange(CODES).astype(np.uint8)
    is_end = np.zeros(CODES, bool)
    slot_arg = np.full(CODES, -1, np.int32)
    events: dict[int, Event] = {}
    for event in table:
        if event.id == 0:
            continue
        events[event.id] = event
        args[event.id] = len(event.all_args)
        kind[event.id] = KINDS.index(event.kind)
        names = [a.name for a in event.all_args]
        if event.kind in (Kind.WAIT, Kind.PUBLISH, Kind.PREFETCH) or event.name == "hang":
            slot_arg[event.id] = names.index("slot")
        if event.kind is Kind.SPAN:
            end = event.id + 1
            args[end], kind[end], begin[end], is_end[end] = 0, SPAN, event.id, True
    blocks = (kind == STALL) | (kind == WAIT)
    return Lookup(args, kind, begin, is_end, blocks, slot_arg, events)


def cause_slot(event: Event) -> int:
    """Place of the event's cause in the counters; -1: none."""
    return -1 if event.cause is None else CAUSES.index(event.cause)


assert [e.name for e in CORE[1:]] == ["header", "closing", "epoch", "hang"]
assert len(CAUSES) == len(Cause)
