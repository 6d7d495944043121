"""What the processes of a server wrote, as plain rows."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from megatrace.capture.reader import Capture
from megatrace.ring.drain import HostReader
from megatrace.ring.file import RingFile
from megatrace.ring.host import FactAssembler
from megatrace.ring.session import Session
from megatrace.schema import HOST

NAMES = {event.id: event.name for event in HOST}
FORWARDS = ("extend", "decode", "draft", "verify", "forward")


@dataclass(frozen=True, slots=True)
class Row:
    """One host record; ``batch`` ... ``accepted`` are those of a step or forward."""

    event: str
    step: int
    begin_ns: int
    end_ns: int
    batch: int
    tokens: int
    graph: int
    accepted: int
    text: str


@dataclass(slots=True)
class Rows:
    """The rows of one process."""

    rows: list[Row] = field(default_factory=list)

    def of(self, *events: str) -> list[Row]:
        """Those of these events, in order of begin."""
        return sorted((r for r in self.rows if r.event in events), key=lambda r: r.begin_ns)

    def steps(self) -> list[int]:
        """Numbers of the steps."""
        return [row.step for row in self.of("step")]

    def requests(self, step: int) -> list[str]:
        """Request ids of a step."""
        return [row.text for row in self.of("request") if row.step == step]

    def steps_of(self, *requests: str) -> list[int]:
        """Steps whose requests are just these."""
        return [step for step in self.steps() if self.requests(step) == list(requests)]

    def steps_with(self, *requests: str) -> list[int]:
        """Steps that any of these was part of."""
        return [step for step in self.steps() if set(requests) & set(self.requests(step))]

    def forwards(self, step: int) -> list[Row]:
        """Forwards of a step."""
        return [row for row in self.of(*FORWARDS) if row.step == step]


@dataclass(slots=True)
class Run:
    """All processes of a server, by role; ``facts`` are the last of each role and name."""

    processes: dict[str, Rows] = field(default_factory=dict)
    facts: dict[str, dict[str, dict[str, Any]]] = field(default_factory=dict)

    @property
    def scheduler(self) -> Rows:
        """The rows of the one scheduler."""
        return self.processes["scheduler"]

    def add(self, role: str, records: Any) -> None:
        """Take HOST_RECORDs of one ring, all of them and in order."""
        for fact in FactAssembler().feed(records):
            self.facts.setdefault(role, {})[fact.name] = fact.value
        self.processes.setdefault(role, Rows()).rows += rows_of(records)


def rows_of(records: Iterable[Any]) -> list[Row]:
    """The rows of HOST_RECORDs, facts left out."""
    return [
        Row(
            NAMES[int(r["event"])],
            int(r["step"]),
            int(r["begin_ns"]),
            int(r["end_ns"]),
            *(int(v) for v in r["values"]),
            text=r["text"].tobytes()[: int(r["text_bytes"])].decode(),
        )
        for r in records
        if NAMES[int(r["event"])] != "fact"
    ]


def read_session(session: Session) -> Run:
    """Everything in the rings of a session whose processes have ended."""
    run = Run()
    for path in session.ring_paths():
        with RingFile.attach(path) as ring:
            reader = HostReader(ring)
            run.add(str(ring.meta["process"]), reader.drain())
            assert reader.lost == 0
    return run


def read_capture(capture: Capture) -> Run:
    """The same from a capture: there, only the scheduler has rows."""
    run = Run()
    for row in capture.facts("fact"):
        value = row.fields["value"]
        run.facts.setdefault(row.fields["process"], {})[row.fields["name"]] = value
    run.processes["scheduler"] = Rows(rows_of(capture.host().records))
    return run
