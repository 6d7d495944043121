"""Meta rows, and the facts that readers want of them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from megatrace.errors import FormatError
from megatrace.schema.events import EventTable


@dataclass(frozen=True, slots=True)
class MetaRow:
    """One row of facts: ``kind`` (see META_KINDS), the rank it is about, the rest."""

    kind: str
    rank: int
    fields: dict[str, Any]

    @classmethod
    def of(cls, body: dict[str, Any]) -> MetaRow:
        """The row a JSON object holds."""
        fields = {name: value for name, value in body.items() if name not in ("kind", "rank")}
        rank = body.get("rank", 0)
        return cls(str(body["kind"]), rank if isinstance(rank, int) else 0, fields)


@dataclass(frozen=True, slots=True)
class RingFacts:
    """What a ``ring`` row says of one rank's ring file.

    Attributes:
        rank: its number in the capture: see :mod:`megatrace.schema.processes`.
        name: the file's name without suffix.
        process: what its maker calls itself; its name where it does not.
        blocks: blocks of the grid, ``warps`` each, ``lines`` lines a warp ring.
        layers: rows of counters.
        roles: name of each warp of a block.
        kernels: as the kernel's builder wrote it.
        device: 0 host build on the CPU, 1 CUDA.
        table: JSON of the table of events; "" where none was given.
        created_ns: CLOCK_REALTIME when the ring was made, ``created_mono_ns``
            CLOCK_MONOTONIC at the same moment.
        fields: the whole row.
    """

    rank: int
    name: str = ""
    blocks: int = 0
    warps: int = 0
    lines: int = 0
    layers: int = 0
    host_capacity: int = 0
    device: int = 0
    pid: int = 0
    table_hash: str = ""
    created_ns: int = 0
    created_mono_ns: int = 0
    roles: tuple[str, ...] = ()
    kernels: Any = None
    table: str = ""
    process: str = ""
    fields: dict[str, Any] = field(default_factory=dict)

    @property
    def rings(self) -> int:
        """Warp rings of the file."""
        return self.blocks * self.warps

    @property
    def traced(self) -> bool:
        """Whether kernels wrote it, not only their process."""
        return bool(self.lines or self.layers)


_INTS = (
    "blocks",
    "warps",
    "lines",
    "layers",
    "host_capacity",
    "device",
    "pid",
    "created_ns",
    "created_mono_ns",
)


def ring_of(row: MetaRow) -> RingFacts:
    """The facts of one ``ring`` row; what is missing or of a wrong type is 0 or empty."""
    fields = row.fields
    ints: dict[str, Any] = {name: v for name in _INTS if isinstance(v := fields.get(name), int)}
    texts: dict[str, Any] = {
        n: v for n in ("name", "table_hash", "table") if isinstance(v := fields.get(n), str)
    }
    process = fields.get("process")
    roles = fields.get("roles")
    return RingFacts(
        rank=row.rank,
        roles=tuple(str(role) for role in roles) if isinstance(roles, list) else (),
        kernels=fields.get("kernels"),
        process=process if isinstance(process, str) and process else texts.get("name", ""),
        fields=fields,
        **ints,
        **texts,
    )


def rings_of(meta: Sequence[MetaRow]) -> dict[int, RingFacts]:
    """By rank: its ring of lines, else the last ring of its process."""
    rings: dict[int, RingFacts] = {}
    for row in meta:
        if row.kind == "ring":
            facts = ring_of(row)
            if facts.traced or not (row.rank in rings and rings[row.rank].traced):
                rings[row.rank] = facts
    return rings


def tables_of(rings: dict[int, RingFacts]) -> dict[int, EventTable]:
    """The tables of events by rank. Raises SchemaMismatch, FormatError."""
    tables = {}
    for rank, facts in rings.items():
        if facts.table:
            try:
                tables[rank] = EventTable.from_json(facts.table)
            except (ValueError, KeyError, TypeError, RecursionError):
                raise FormatError(f"the table of events of rank {rank} is no table") from None
    return tables


def loss_of(meta: Sequence[MetaRow]) -> dict[tuple[int, int], int]:
    """Lines lost by (rank, ring), from the last ``loss`` row of each ring file."""
    latest = {(row.rank, str(row.fields.get("name"))): row for row in meta if row.kind == "loss"}
    lost: dict[tuple[int, int], int] = {}
    for (rank, _), row in latest.items():
        rings = row.fields.get("rings")
        for ring, lines in rings.items() if isinstance(rings, dict) else ():
            if str(ring).isdecimal() and isinstance(lines, int):
                key = (rank, int(ring))
                lost[key] = lost.get(key, 0) + lines
    return lost
