"""What the host's own steps say, whether or not a traced kernel ran in them."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from megatrace.analysis.rank import UNPLACED
from megatrace.analysis.report import HostStepRow
from megatrace.capture.reader import Capture
from megatrace.schema import HOST
from megatrace.schema.processes import MAX_PROCESSES, PROCESSES_APART, process_of, rank_of

STEP_ARGS = ("batch_size", "tokens", "graph", "accepted")
"""Names of the values of a step or forward, in their order."""
STAGES = {e.id: e.name for e in HOST if tuple(a.name for a in e.args) == STEP_ARGS}
"""Step, extend, decode, draft, verify and forward, by id."""
_STEP = next(event.id for event in HOST if event.name == "step")
_REQUEST = next(event.id for event in HOST if event.name == "request")
_MS = 1e-6


def host_ranks(capture: Capture) -> list[int]:
    """Ranks with host events on a time line, sorted; facts and clock samples are none."""
    host = capture.host()
    ranks: list[int] = np.unique(host.rank[~np.isin(host.records["event"], UNPLACED)]).tolist()
    return ranks


def host_step_rows(capture: Capture) -> tuple[HostStepRow, ...]:
    """One row a rank and stage, in the order of the schema."""
    host = capture.host()
    rows = []
    for rank in host_ranks(capture):
        mine = host.records[host.rank == rank]
        event = mine["event"]
        requests = mine[event == _REQUEST]
        ids = _texts(requests)
        for number, name in STAGES.items():
            stage = mine[event == number]
            if len(stage):
                seen = np.isin(requests["step"], stage["step"])
                rows.append(_row(rank, name, stage, len(np.unique(ids[seen]))))
    return tuple(rows)


def _row(rank: int, name: str, stage: NDArray[Any], requests: int) -> HostStepRow:
    dur_ms = np.maximum(stage["end_ns"] - stage["begin_ns"], 0) * _MS
    batch, tokens, graph, accepted = stage["values"].T
    median, p95 = np.quantile(dur_ms, (0.5, 0.95)).tolist()
    said = (stage["values"] != 0).any(axis=1)  # all zero: a span without values
    with_batch, with_tokens, known = (said & (v >= 0) for v in (batch, tokens, graph))
    told = with_batch & (accepted >= 0)
    verified = int(batch[told].sum())
    return HostStepRow(
        rank=rank_of(rank),
        process=process_of(rank),
        event=name,
        count=len(stage),
        total_ms=float(dur_ms.sum()),
        median_ms=median,
        p95_ms=p95,
        mean_batch_size=float(batch[with_batch].mean()) if with_batch.any() else None,
        tokens=int(tokens[with_tokens].sum()) if with_tokens.any() else None,
        graph_share=float((graph[known] == 1).mean()) if known.any() else None,
        accept_length=int(accepted[told].sum()) / verified if verified > 0 else None,
        requests=requests,
    )


def steps_run(capture: Capture) -> int:
    """How many steps ran, as the host of the rank says that tells of most; 0: none tells.

    Where ranks have had several processes, those of each of them.
    """
    host = capture.host()
    rows = np.flatnonzero((host.records["event"] == _STEP) & (host.records["step"] > 0))
    ran = np.unique(np.stack([host.rank[rows], host.records["step"][rows]]), axis=1)
    number, steps = np.unique(ran[0], return_counts=True)
    most = np.zeros(MAX_PROCESSES, np.int64)
    np.maximum.at(most, number.astype(np.int64) // PROCESSES_APART, steps)
    return int(most.sum())


def last_said(capture: Capture) -> set[tuple[int, int]]:
    """Each process of the ranks with the last step id that a record of its host has, if any.

    A kernel's agent samples the clock when it closes, and says in which step: later than the
    last launch with a timeline.
    """
    host = capture.host()
    process = host.rank.astype(np.int64) // PROCESSES_APART + 1
    last = np.zeros(MAX_PROCESSES + 1, np.int64)
    np.maximum.at(last, process, host.records["step"].astype(np.int64))
    return {(of, int(last[of])) for of in np.flatnonzero(last).tolist()}


def host_records_lost(capture: Capture) -> int:
    """Host records overwritten before the recorder read them, as it counted them."""
    latest = {(row.rank, str(row.fields.get("name"))): row for row in capture.facts("loss")}
    counts = (row.fields.get("host_lost") for row in latest.values())
    return sum(count for count in counts if isinstance(count, int))


def _texts(records: NDArray[Any]) -> NDArray[np.bytes_]:
    """Text of each record; NUL ends it."""
    size = records.dtype["text"].itemsize
    text = records["text"].copy().view(np.uint8).reshape(len(records), size)
    text[np.arange(size) >= records["text_bytes"][:, None]] = 0
    return text.view(f"S{size}").reshape(len(records))
