"""THE table of events: what a word can say, declared once.

The CUDA header (:mod:`megatrace.schema.emit`), the decoder and every view read this
table. A kernel adds its own events in a table of its own::

    STREAM = EventTable("stream", (
        Event(16, "tile", Kind.SPAN, "One tile of weights, from shared memory."),
        Event(18, "full", Kind.STALL, "The tile has not arrived.", cause=Cause.DATA),
    ))

The hash of a table covers the layout of the words, the core events and the table. It
is compiled into the kernel and stands in the ring and in the capture.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from enum import StrEnum
from typing import Any

from megatrace.errors import SchemaMismatch, UsageError
from megatrace.schema.layout import LAYOUT_VERSION, MAX_EVENT, TRACER_VERSION

FIRST_USER_EVENT = 16


class Kind(StrEnum):
    """What an event's words mean. A SPAN takes two ids: begin is id, end is id + 1."""

    META = "meta"
    SPAN = "span"
    STALL = "stall"
    INSTANT = "instant"
    COUNTER = "counter"
    PUBLISH = "publish"
    WAIT = "wait"
    PREFETCH = "prefetch"


class Cause(StrEnum):
    """Why a warp stalls; its place in this list is its slot in the counters."""

    DATA = "data"
    """Bytes asked for have not arrived."""
    SPACE = "space"
    """The ring of buffers is full: the consumer is behind."""
    INPUT = "input"
    """Another block of this GPU has not handed its result over."""
    PEER = "peer"
    """Another GPU has not."""


CAUSES: tuple[Cause, ...] = tuple(Cause)

_IMPLIED_ARGS: dict[Kind, tuple[tuple[str, str], ...]] = {
    Kind.STALL: (("dur_cycles", "cycles"),),
    Kind.WAIT: (("dur_cycles", "cycles"), ("slot", "")),
    Kind.COUNTER: (("value", ""),),
    Kind.PUBLISH: (("slot", ""),),
    Kind.PREFETCH: (("slot", ""),),
}


@dataclass(frozen=True, slots=True)
class Arg:
    """One argument word: 31 bits, unsigned."""

    name: str
    unit: str = ""
    doc: str = ""


@dataclass(frozen=True, slots=True)
class Event:
    """One row of the table.

    ``edge`` names the dependency a PUBLISH or PREFETCH ends and a WAIT waits for; the
    two meet where edge and ``slot`` agree.
    """

    id: int
    name: str
    kind: Kind
    doc: str
    category: str = ""
    cause: Cause | None = None
    edge: str = ""
    args: tuple[Arg, ...] = ()

    @property
    def all_args(self) -> tuple[Arg, ...]:
        """The words that follow: those the kind implies, then the event's own."""
        return tuple(Arg(n, u) for n, u in _IMPLIED_ARGS.get(self.kind, ())) + self.args


CORE: tuple[Event, ...] = (
    Event(0, "empty", Kind.META, "A place of a line that holds no word."),
    Event(
        1,
        "header",
        Kind.META,
        "Opens a launch in this warp's ring; its time field holds the SM.",
        args=(
            Arg("launch", "", "Launches this warp had recorded before."),
            Arg("step", "", "Step id the host wrote before the replay; 0 without a hook."),
            Arg("kernel_layer", "", "Kernel id * 65536 + layer."),
            Arg("globaltimer_lo", "ns", "Low 31 bits of globaltimer."),
            Arg("globaltimer_hi", "ns", "The next 31 bits."),
            Arg("clock_lo", "cycles", "Low 31 bits of the SM's clock, read with it."),
            Arg("clock_hi", "cycles", "The next 31 bits."),
            Arg("words", "", "Words this warp had written before this header."),
        ),
    ),
    Event(
        2,
        "closing",
        Kind.META,
        "Ends a launch in this warp's ring.",
        args=(
            Arg("clock_lo", "cycles", "Low 31 bits of the SM's clock at the end."),
            Arg("words", "", "Words this warp has written, this closing included."),
        ),
    ),
    Event(3, "epoch", Kind.META, "The time field is the time since launch >> 23."),
    Event(
        4,
        "hang",
        Kind.META,
        "A wait has outlasted its bound; flushed at once, the kernel may trap next.",
        args=(
            Arg("event", "", "Id of the wait."),
            Arg("slot", "", "What it waits for."),
            Arg("dur_cycles", "cycles", "How long so far, at most 2**31 - 1."),
        ),
    ),
)


@dataclass(frozen=True, slots=True)
class EventTable:
    """A kernel's events.

    Raises UsageError where two rows cannot be told apart. What makes no CUDA header is refused
    where one is made (:mod:`megatrace.schema.emit`): a capture may hold it.
    """

    name: str
    events: tuple[Event, ...]

    def __post_init__(self) -> None:
        """Refuse ids that overlap and names that repeat."""
        if not self.name.isidentifier():
            raise UsageError(
                f"table name {self.name!r} is no C++ identifier", hint="give it another name"
            )
        taken: dict[int, str] = {}
        names: set[str] = set()
        for event in self.events:
            _check(event)
            if event.name in names:
                raise UsageError(f"event name {event.name!r} repeats", hint="give it another name")
            names.add(event.name)
            for code in (event.id, event.id + 1) if event.kind is Kind.SPAN else (event.id,):
                if code in taken:
                    raise UsageError(
                        f"event {event.name}: id {code} is taken by {taken[code]}",
                        hint="a span takes two ids: its own and the next",
                    )
                taken[code] = event.name

    def __iter__(self) -> Iterator[Event]:
        """Core events first, then the table's own."""
        yield from CORE
        yield from self.events

    @property
    def hash(self) -> int:
        """64 bits over layout version, core events and these; never 0."""
        digest = hashlib.sha256(self.to_json().encode()).digest()
        return int.from_bytes(digest[:8], "little") or 1

    @property
    def build_hash(self) -> int:
        """What a kernel compiled with this table and today's tracer says: ``kTableHash``."""
        return (self.hash + TRACER_VERSION) % 2**64

    @property
    def version(self) -> str:
        """How a message names this table: name, layout version and hash."""
        return f"{self.name} (layout {LAYOUT_VERSION}, {self.hash:016x})"

    def to_json(self) -> str:
        """One canonical JSON text; what the hash covers and what a capture keeps."""
        body = {
            "layout": LAYOUT_VERSION,
            "name": self.name,
            "core": [asdict(e) for e in CORE],
            "events": [asdict(e) for e in self.events],
        }
        return json.dumps(body, sort_keys=True, separators=(",", ":"))

    @classmethod
    def from_json(cls, text: str) -> EventTable:
        """The table a capture or ring carries.

        Raises SchemaMismatch where it was written under another layout or other core
        events than this installation's.
        """
        body = json.loads(text)
        if body["layout"] != LAYOUT_VERSION:
            raise SchemaMismatch(
                f"words of layout {body['layout']}, this megatrace reads layout {LAYOUT_VERSION}",
                hint="read it with the megatrace version that wrote it",
            )
        table = cls(body["name"], tuple(_event(e) for e in body["events"]))
        theirs = EventTable.__hash_of(text)
        if theirs != table.hash:
            raise SchemaMismatch(
                f"table {body['name']} is {theirs:016x}, "
                f"this megatrace makes {table.hash:016x} of the same rows",
                hint="read it with the megatrace version that wrote it",
            )
        return table

    @staticmethod
    def __hash_of(text: str) -> int:
        canonical = json.dumps(json.loads(text), sort_keys=True, separators=(",", ":"))
        return int.from_bytes(hashlib.sha256(canonical.encode()).digest()[:8], "little") or 1


def _check(event: Event) -> None:
    """Raise UsageError where a row by itself is wrong."""
    if not event.name.isidentifier():
        raise UsageError(
            f"event name {event.name!r} is no C++ identifier", hint="give it another name"
        )
    last = event.id + (event.kind is Kind.SPAN)
    for code in (event.id, last):
        if not FIRST_USER_EVENT <= code <= MAX_EVENT:
            raise UsageError(
                f"event {event.name}: id {code} is outside {FIRST_USER_EVENT}..{MAX_EVENT}"
            )
    if event.kind in (Kind.STALL, Kind.WAIT) and event.cause is None:
        raise UsageError(
            f"event {event.name}: a {event.kind} needs a cause",
            hint=f"one of {', '.join(CAUSES)}",
        )


def _event(row: dict[str, Any]) -> Event:
    return Event(
        id=row["id"],
        name=row["name"],
        kind=Kind(row["kind"]),
        doc=row["doc"],
        category=row["category"],
        cause=Cause(row["cause"]) if row["cause"] else None,
        edge=row["edge"],
        args=tuple(Arg(**a) for a in row["args"]),
    )
