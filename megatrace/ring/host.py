"""Host records: what the traced process itself has to say, and facts in pieces of JSON."""

from __future__ import annotations

import json
import struct
import threading
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from megatrace.errors import RingError
from megatrace.ring.file import RingFile
from megatrace.schema.layout import HOST_RECORD, HOST_TEXT_BYTES

FACT_EVENT = 1
MAX_PIECES = 1 << 16

HostRecord = tuple[int, int, int, int, Sequence[int], bytes]
"""Event id, begin and end in ns of CLOCK_MONOTONIC, step, up to 4 values, text."""

_BODY = struct.Struct("<IHHqqqqqqq56sII")
_NUMBER = struct.Struct("<I")
_RECORD_BYTES = _BODY.size
assert HOST_RECORD.itemsize == _RECORD_BYTES


class HostWriter:
    """Appends host records to a ring file this process owns; any thread may call it.

    After :meth:`close` it takes nothing more: a program may outlast its recording.
    """

    def __init__(self, ring: RingFile, *, first: int = 1) -> None:
        """Begin at record number ``first``. Raises RingError where there is no room at all."""
        self._capacity = ring.host.size
        if not self._capacity:
            raise RingError(
                f"{ring.path} has no room for host records",
                hint="make the ring with host_capacity of at least 1024",
            )
        self._memory: memoryview | None = ring.host.view(np.uint8).data
        self._next = first
        self._lock = threading.Lock()

    def close(self) -> None:
        """Take no more, and let go of the ring."""
        with self._lock:
            self._memory = None

    @property
    def written(self) -> int:
        """Records appended so far, as the next number less one."""
        return self._next - 1

    def append(
        self,
        event_id: int,
        begin_ns: int,
        end_ns: int,
        step: int,
        values: Sequence[int] = (),
        text: bytes = b"",
    ) -> None:
        """Add one record: times in ns of CLOCK_MONOTONIC, up to 4 values, text cut at 56 bytes."""
        self.append_all(((event_id, begin_ns, end_ns, step, values, text),))

    def append_all(self, records: Iterable[HostRecord]) -> None:
        """Add records side by side; each is what :meth:`append` takes, in its order.

        In a busy server the first of a row costs several times as much as the next, for what it
        runs has left the caches: so there is one function, and callers bring many at once.
        """
        with self._lock:
            memory = self._memory
            if memory is None:
                return
            for event, begin, end, step, values, text in records:
                number = self._next & 0xFFFFFFFF
                at = (self._next - 1) % self._capacity * _RECORD_BYTES
                text = text[:HOST_TEXT_BYTES]
                a, b, c, d = values if len(values) == 4 else (*values, 0, 0, 0, 0)[:4]
                # Its first number is 0 while the record changes: a reader takes neither lap's.
                # (Packing clears the record before it fills it, so the 0 stands from the first
                # byte on.)
                _BODY.pack_into(
                    memory, at, 0, event, len(text), begin, end, step, a, b, c, d, text, 0, number
                )
                _NUMBER.pack_into(memory, at, number)
                self._next += 1

    def append_fact(self, name: str, value: dict[str, object]) -> None:
        """Add ``{"name": ..., "value": ...}`` as JSON in pieces of 56 bytes.

        Raises RingError where it would overwrite itself, or half of the ring.
        """
        text = json.dumps({"name": name, "value": value}, separators=(",", ":")).encode()
        cuts = range(0, len(text), HOST_TEXT_BYTES)
        if len(cuts) > max(1, self._capacity // 2):
            raise RingError(
                f"fact {name} takes {len(cuts)} of {self._capacity} host records",
                hint="make the ring with a larger host_capacity, or shorten the fact",
            )
        self.append_all(
            (FACT_EVENT, 0, 0, 0, (piece, len(cuts)), text[at : at + HOST_TEXT_BYTES])
            for piece, at in enumerate(cuts)
        )


@dataclass(frozen=True, slots=True)
class Fact:
    """One fact of a traced process, put together again."""

    name: str
    value: dict[str, Any]


class FactAssembler:
    """Puts facts together from host records, drain after drain.

    Attributes:
        broken: facts that lost a piece or are no JSON.
    """

    def __init__(self) -> None:
        """Start with no pieces."""
        self._pieces: list[bytes] = []
        self._number = 0
        self._in_broken = False
        self.broken = 0

    def feed(self, records: NDArray[Any]) -> list[Fact]:
        """The facts that ``records`` (HOST_RECORD, in order) complete."""
        facts = []
        for record in records[records["event"] == FACT_EVENT]:
            fact = self._add(record)
            if fact is not None:
                facts.append(fact)
        return facts

    def _add(self, record: Any) -> Fact | None:
        piece, pieces = int(record["values"][0]), int(record["values"][1])
        number = int(record["number"])
        follows = number == (self._number + 1) & 0xFFFFFFFF or not self._pieces
        if not follows or piece != len(self._pieces) or not piece < pieces <= MAX_PIECES:
            # The pieces that follow a lost one are of the same fact: it counts once.
            self.broken += bool(self._pieces) or (piece > 0 and not self._in_broken)
            self._pieces = []
            self._in_broken = piece > 0
            if piece:
                return None
        self._number, self._in_broken = number, False
        self._pieces.append(bytes(record["text"].tobytes()[: int(record["text_bytes"])]))
        if len(self._pieces) < pieces:
            return None
        text, self._pieces = b"".join(self._pieces), []
        return self._parse(text)

    def _parse(self, text: bytes) -> Fact | None:
        try:
            body = json.loads(text)
            return Fact(str(body["name"]), dict(body["value"]))
        except (ValueError, KeyError, TypeError, RecursionError):
            self.broken += 1
            return None
