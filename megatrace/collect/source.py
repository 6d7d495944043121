"""One ring file while it is drained."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from megatrace.collect.credit import Credit
from megatrace.collect.numbers import Origin
from megatrace.collect.observe import Budget, Observer
from megatrace.collect.served import Served
from megatrace.collect.tally import RoleSums, role_sums
from megatrace.ring.control import Ack, read_ack
from megatrace.ring.drain import Drained, LineReader, LineStats
from megatrace.ring.file import STATE_CLOSED, UNPINNED_FACT, RingFile
from megatrace.ring.host import Fact, FactAssembler
from megatrace.ring.records import CounterReader, HostReader
from megatrace.schema import CORE, HOST
from megatrace.schema.layout import HALF_WORDS, record_word
from megatrace.schema.processes import process_of, rank_of, rank_text

_HEADER_FACTS = ("pid", "blocks", "warps", "lines", "layers", "host_capacity", "device")
_NO_SPANS = [event.id for event in HOST if event.name in ("fact", "clock_sample")]
_FIRST_RECORD = record_word(next(event.id for event in CORE if event.name == "hang"), 0)
_META_KEYS = ("table", "roles", "kernels", "process")


@dataclass(frozen=True, slots=True)
class Host:
    """Host records of one drain and the facts that they completed."""

    records: NDArray[Any]
    facts: tuple[Fact, ...]


class Source:
    """A ring file of the session, read by this recorder alone or among others.

    Attributes:
        name: file name without ``.ring``.
        rank: its number in the capture, rank and process of it: see
            :mod:`megatrace.schema.processes`.
        records: records handed on so far, as a report counts them.
        host_spans: host records handed on so far, facts and clock samples aside.
        facts: facts of the process by name, the latest of each.
        credit: how many timeline steps its agent may begin.
        observer: what its lines say in passing; None where no lines come.
        served: what its host's steps gave out.
        ended: its owner has gone and everything was taken.
        released: its memory has been given back.
    """

    def __init__(self, ring: RingFile, budget: Budget | None = None) -> None:
        """Read ``ring`` from its first line on; it is closed with this source.

        ``budget`` is what all observers of a recorder share.
        """
        self.ring = ring
        self.why_memfd = ring.why_memfd
        self.name = ring.path.name.removesuffix(".ring")
        self.rank = ring.rank
        self.records = 0
        self.host_spans = 0
        self.facts: dict[str, dict[str, Any]] = {}
        self.ended = False
        self.released = False
        self.credit = Credit(int(ring.header["lines"]))
        self.observer = Observer.of(ring, self.roles, budget)
        self.served = Served()
        self._lines = LineReader(ring)
        self._counters = CounterReader(ring)
        self._host = HostReader(ring)
        self._assembler = FactAssembler()
        self._last: tuple[Ack, RoleSums, LineStats] | None = None

    @classmethod
    def open(
        cls,
        path: Path,
        *,
        control: bool = True,
        budget: Budget | None = None,
        memfd: int | None = None,
    ) -> Source:
        """Attach to ``path``, its control page writable on request.

        ``memfd`` as :meth:`RingFile.attach`. Raises RingError and SchemaMismatch.
        """
        return cls(RingFile.attach(path, writable_control=control, memfd=memfd), budget)

    @property
    def origin(self) -> Origin:
        """What it says of its maker."""
        pid = int(self.ring.header["pid"])
        return Origin(self.ring.rank, pid, self.process, self.traced)

    @property
    def rank_text(self) -> str:
        """:attr:`rank` as people read it."""
        return rank_text(self.rank)

    @property
    def traced(self) -> bool:
        """Whether kernels write it; host-only rings carry records of their process."""
        return bool(self.ring.header["lines"]) or bool(self.ring.header["layers"])

    @property
    def roles(self) -> tuple[str, ...]:
        """The role of each warp of a block; ``warp3`` where the ring does not say."""
        warps = int(self.ring.header["warps"])
        given = self.ring.meta.get("roles")
        names = [str(name) for name in given[:warps]] if isinstance(given, list) else []
        return tuple(names + [f"warp{warp}" for warp in range(len(names), warps)])

    @property
    def process(self) -> str:
        """What wrote it: ``scheduler``, ``main``, or the file's name."""
        return str(self.ring.meta.get("process") or self.name)

    @property
    def stats(self) -> LineStats:
        """Lines read, lost, torn and late so far, exact."""
        return self._lines.stats if self._last is None else self._last[2]

    @property
    def lost_per_ring(self) -> NDArray[np.int64]:
        """Lines lost of each warp's ring."""
        return self._lines.lost_per_ring

    @property
    def host_read(self) -> int:
        """Host records handed on."""
        return self._host.read

    @property
    def host_lost(self) -> int:
        """Host records overwritten before they could be handed on."""
        return self._host.lost

    def describe(self) -> dict[str, object]:
        """The facts of a capture's ``ring`` row."""
        header = self.ring.header
        return {
            "name": self.name,
            "of_rank": rank_of(self.rank),
            "process_of_rank": process_of(self.rank),
            **({"memfd": self.why_memfd} if self.why_memfd else {}),
            **{name: int(header[name]) for name in _HEADER_FACTS},
            "table_hash": f"{int(header['table_hash']):016x}",
            "created_ns": int(header["created_ns"]),
            "created_mono_ns": int(header["created_mono_ns"]),
            **{key: self.ring.meta[key] for key in _META_KEYS if key in self.ring.meta},
            "meta": {k: v for k, v in self.ring.meta.items() if k not in _META_KEYS},
        }

    def drain_lines(self, max_lines: int, *, final: bool = False) -> Drained:
        """New lines; ``final``: the writer has stopped, what is missing is lost."""
        drained = self._lines.drain(max_lines, final=final)
        self.records += count_records(drained.lines)
        self.credit.feed(drained.ring, drained.lines)
        if self.observer is not None and len(drained):
            self.observer.feed(drained.ring, drained.lines)
        return drained

    def drain_host(self) -> Host:
        """New host records, and the facts they complete."""
        records = self._host.drain()
        self.served.feed(records)
        self.host_spans += int(np.count_nonzero(~np.isin(records["event"], _NO_SPANS)))
        facts = self._assembler.feed(records) if records.size else []
        for fact in facts:
            self.facts[fact.name] = fact.value
        return Host(records, tuple(facts))

    def changed_counters(self) -> tuple[NDArray[np.uint32], NDArray[Any]]:
        """Slots ``layer * rings + ring`` that moved since the last call, and their sums."""
        return self._counters.changed()

    def resume_counters(self, slots: NDArray[np.uint32], counters: NDArray[Any]) -> None:
        """Count on from the last that another reader had of this ring."""
        self._counters.resume(slots, counters)

    def role_sums(self) -> RoleSums:
        """Its counters as they are now, by role."""
        if self._last is not None:
            return self._last[1]
        counters, block_cycles = self._counters.snapshot(), self._counters.block_cycles()
        return role_sums(counters, block_cycles, self.ring.header, self.roles)

    def ack(self) -> Ack:
        """What its agent last said."""
        return read_ack(self.ring) if self._last is None else self._last[0]

    def loss(self) -> dict[str, object]:
        """The facts of a capture's ``loss`` row: exact, in lines, by ring of the file."""
        stats = self._lines.stats
        lost = np.nonzero(self.lost_per_ring)[0]
        return {
            "name": self.name,
            "read": stats.read,
            "lost": stats.lost,
            "torn": stats.torn,
            "late": stats.late,
            "rings": {str(ring): int(self.lost_per_ring[ring]) for ring in lost.tolist()},
            "host_read": self._host.read,
            "host_lost": self._host.lost,
            "facts_broken": self._assembler.broken,
            **({"uncopied": True} if self._uncopied else {}),
        }

    @property
    def _uncopied(self) -> bool:
        """Whether the device may hold lines that nobody will copy out of it."""
        return UNPINNED_FACT in self.facts and self.ring.state != STATE_CLOSED

    def release(self) -> None:
        """Give the memory of an ended ring back; what it came to stays."""
        if self.released:
            return
        self._last = self.ack(), self.role_sums(), self.stats
        self.released = True
        for reader in (self._lines, self._host, self._counters):
            reader.release()
        self.ring.close()

    def close(self) -> None:
        """Unmap the file."""
        self.ring.close()


def count_records(lines: NDArray[np.uint32]) -> int:
    """Records in ``lines`` u4 ``(n, 32)``: what the kernel's own events and hangs wrote.

    Headers, closings and epochs are bookkeeping; begin and end of a span are two records.
    """
    signed = lines.view(np.int32)  # an argument's top bit makes it negative
    record = signed >= _FIRST_RECORD
    return int(np.count_nonzero(record) - np.count_nonzero(record[:, ::HALF_WORDS]))
