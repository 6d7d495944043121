"""A report as plain text: aligned tables, at most 100 columns, no colour."""

from __future__ import annotations

import math
import textwrap
from typing import Protocol

from megatrace.analysis.floor_text import floor_text
from megatrace.analysis.plain import WIDTH, many, more, number, table, titled
from megatrace.analysis.report import (
    EventRow,
    HostStepRow,
    KernelRow,
    PrefetchRow,
    Report,
    StallRow,
)
from megatrace.schema.processes import count_text, label, number_of

TOP_EVENTS = 40
"""Rows of the table of events; the JSON has all."""


class _OfRank(Protocol):
    """A row that is of one process of one rank."""

    @property
    def rank(self) -> int: ...

    @property
    def process(self) -> int: ...


def _who(row: _OfRank) -> str:
    return label(row.rank, row.process)


def to_text(report: Report, *, top: int = TOP_EVENTS) -> str:
    """The whole report. ``top`` limits the tables of events and layers, and says so."""
    sections = [
        _title(report),
        _host_steps(report, top),
        _kernels(report, top),
        floor_text(report.floor, top),
        _stalls(report),
        _events(report, top),
        _prefetches(report),
        _hangs(report),
        _loss(report),
        _overhead(report),
        _clocks(report),
    ]
    return "\n\n".join(section for section in sections if section) + "\n"


def _title(report: Report) -> str:
    state = "complete" if report.complete else "INCOMPLETE"
    lines = [
        report.path,
        textwrap.fill(f"{_device(report)}, {state}", WIDTH, subsequent_indent="  "),
        textwrap.fill(f"loss: {report.loss_sentence()}", WIDTH, subsequent_indent="  "),
        f"clock: {_clock_sentence(report)}",
    ]
    if report.layers.text:
        lines.insert(1, textwrap.fill(_layers(report), WIDTH, subsequent_indent="  "))
    if report.device == "cpu":
        lines.append(
            "Times are of the host build on a CPU: order and logic are real, speed is not."
        )
    lines += [f"problem: {problem}" for problem in report.problems]
    return "\n".join(lines)


def _layers(report: Report) -> str:
    whole = ["loss", "clocks"]
    if report.host_steps:
        whole.insert(0, "host steps")
    return (
        f"{report.layers.text}: tables and shares are of their launches; the head, "
        f"{' and '.join(filter(None, [', '.join(whole[:-1]), whole[-1]]))} are of the whole capture"
    )


def _device(report: Report) -> str:
    if not report.ranks:
        if not report.host_steps:
            return "no traced kernel, no host steps"
        seen = f", {many(report.steps.seen, 'step')} seen" if report.steps.seen is not None else ""
        ranks = count_text(number_of(row.rank, row.process) for row in report.host_steps)
        return f"no traced kernel; host spans only, {ranks}{seen}"
    steps = f"{many(report.steps.recorded, 'step')} recorded"
    if report.steps.seen is not None:
        steps += f" of {report.steps.seen:,} seen ({report.steps.source})"
    else:
        steps += f" ({report.steps.source})"
    ranks = count_text(number_of(row.rank, row.process) for row in report.clocks)
    facts = (f"device={report.device}", ranks, report.sms.text, steps)
    return ", ".join(filter(None, facts))


def _ranks(count: int) -> str:
    return "1 rank" if count == 1 else f"{count} ranks"


def _clock_sentence(report: Report) -> str:
    if not report.ranks:
        return "the host's own"
    errors = [row.error_ns for row in report.clocks if row.error_ns is not None]
    hosts = [row.host_error_ns for row in report.clocks if row.host_error_ns is not None]
    if not errors:
        return "no launch could be placed in time"
    where = " on each GPU" if report.device == "cuda" else ""
    text = f"times within ±{max(errors):,.0f} ns{where}"
    if not hosts:
        return f"{text}, host unknown"
    text += f", against the host ±{number(max(hosts) / 1e3)} us"
    if missing := len(errors) - len(hosts):
        text += f", host unknown for {_ranks(missing)}"
    return text


_HOST_COLUMNS = ("batch", "tokens", "graph", "accept", "requests")
_HOST_LEGEND = {
    "batch": "batch: mean requests",
    "graph": "graph: share run as a CUDA graph",
    "accept": "accept: mean accept length of a request",
}


def _host_steps(report: Report, top: int) -> str:
    rows = report.host_steps
    if not rows:
        return ""
    told = [_host_cells(row) for row in rows]
    kept = [i for i in range(len(_HOST_COLUMNS)) if any(cells[i] for cells in told)]
    names = [_HOST_COLUMNS[i] for i in kept]
    head = ("event", "rank", "count", "total ms", "median ms", "p95 ms", *names)
    shown = rows[:top]
    body = [
        (
            row.event, _who(row), f"{row.count:,}", number(row.total_ms),
            number(row.median_ms), number(row.p95_ms), *(cells[i] for i in kept),
        )
        for row, cells in zip(shown, told, strict=False)
    ]  # fmt: skip
    times = "Times are of the host"
    if any(row.event != "step" for row in rows):
        times += ": on a GPU a forward returns when its work is queued"
    notes = [f"{times}.", "; ".join(_HOST_LEGEND[n] for n in names if n in _HOST_LEGEND)]
    text = titled("Host steps", table(head, body), rows, shown)
    return "\n".join([text, *filter(None, notes)])


def _host_cells(row: HostStepRow) -> tuple[str, ...]:
    """Cells of the optional columns; empty where nothing says."""
    return (
        "" if row.mean_batch_size is None else f"{row.mean_batch_size:,.1f}",
        "" if row.tokens is None else f"{row.tokens:,}",
        "" if row.graph_share is None else f"{100 * row.graph_share:.0f} %",
        "" if row.accept_length is None else f"{row.accept_length:.2f}",
        f"{row.requests:,}" if row.requests else "",
    )


def _kernels(report: Report, top: int) -> str:
    if not report.kernels:
        return ""
    rows = report.kernels
    layers = sorted(rows, key=lambda r: -r.total_us)[:top]
    shown = [r for r in rows if r in layers]
    head = ("kernel", "layer", "launches", "timed", "total us", "median us", "p95 us")
    body = [_kernel_cells(row) for row in shown]
    return titled("Launches, first warp in to last warp out", table(head, body), rows, shown)


def _kernel_cells(row: KernelRow) -> tuple[str, ...]:
    return (
        row.kernel, str(row.layer), f"{row.launches:,}", f"{row.timed:,}", number(row.total_us),
        number(row.median_us), number(row.p95_us),
    )  # fmt: skip


def _stalls(report: Report) -> str:
    if not report.stalls:
        return ""
    head = ("role", "cause", "from", "rank", "count", "total us", "share")
    body = [_stall_cells(row) for row in report.stalls]
    where = " in these layers" if report.layers.text else ""
    every = report.steps.counters_every
    some = f", of steps without one 1 in {every}" if every > 1 else ""
    note = (
        f"records: launches with a timeline, share of the warps' time{where}\n"
        f"counters: SMs and launches without a timeline{some}, share of stalls{where}"
    )
    return f"Stalls by cause\n{table(head, body, left=3)}\n{note}"


def _stall_cells(row: StallRow) -> tuple[str, ...]:
    total = number(row.total_us) if row.total_us is not None else f"{row.total_cycles:,} cycles"
    return (
        row.role, row.cause, row.source, _who(row), f"{row.count:,}", total,
        _percent(row.share),
    )  # fmt: skip


def _percent(share: float) -> str:
    return "unknown" if math.isnan(share) else f"{100 * share:.1f} %"


def _events(report: Report, top: int) -> str:
    if not report.events:
        return ""
    rows = sorted(report.events, key=lambda r: -round(r.total_us, 3))
    shown = rows[:top]
    head = (
        "kernel", "role", "event", "layer", "kind", "count", "total us", "median us", "p95 us",
        "share",
    )  # fmt: skip
    text = table(head, [_event_cells(row) for row in shown], left=3)
    exact = (
        "Medians and p95 are exact."
        if report.quantiles_exact
        else f"Medians and p95 are within {100 * report.quantile_error:.1f} %."
    )
    share = "share: of the role's warp time; stalls lie inside spans, so shares overlap."
    return titled("Events by total time", text, rows, shown) + f"\n{exact}\n{share}"


def _event_cells(row: EventRow) -> tuple[str, ...]:
    timed = row.kind in ("span", "stall", "wait")
    return (
        row.kernel, row.role, row.event, str(row.layer), row.cause or row.kind, f"{row.count:,}",
        number(row.total_us) if timed else "", number(row.median_us) if timed else "",
        number(row.p95_us) if timed else "", _percent(row.share) if timed else "",
    )  # fmt: skip


def _prefetches(report: Report) -> str:
    rows = report.prefetches
    if not rows:
        return ""
    told = all(row.unblocked_visible for row in rows if row.arrival_visible)
    unseen = "no use seen" if told else "did not block or not seen"
    head = (
        "kernel", "edge", "count", "late", "median us", "p95 us", "early", "median <= us", unseen,
    )  # fmt: skip
    host_build = "cpu" in report.device
    body = [
        (
            row.kernel, row.edge, f"{row.count:,}",
            *(_NO_VERDICT if host_build else _verdict_cells(row)),
            f"{row.unseen:,}" if row.arrival_visible else "no arrival",
        )
        for row in rows
    ]  # fmt: skip
    legend = [
        "late: the first use was blocked, for exactly so long",
        "early: the first use was not blocked; by how much lies in [0, first use - issue]",
    ]
    if host_build:
        legend = ["cpu: times of the host build get no verdict"]
    if not told:
        legend.append(f"{unseen}: waits that do not block left no word here")
    if report.layers.text:
        legend.append("of prefetches issued in these layers; the first use may be in another")
    return "\n".join(["Prefetches, by their first use", table(head, body, left=2), *legend])


_NO_VERDICT = ("cpu", "", "", "cpu", "")


def _verdict_cells(row: PrefetchRow) -> tuple[str, str, str, str, str]:
    return (
        f"{row.late:,}", number(row.late_median_us), number(row.late_p95_us),
        f"{row.early:,}", number(row.early_at_most_median_us),
    )  # fmt: skip


def _hangs(report: Report) -> str:
    if not report.hangs:
        return ""
    head = ("role", "waits for", "rank", "SM", "block", "warp", "layer", "slot", "cycles", "us")
    body = [
        (
            row.role, row.event, _who(row), str(row.sm), str(row.block), str(row.warp),
            str(row.layer), "?" if row.slot is None else str(row.slot), f"{row.waited_cycles:,}",
            "" if math.isnan(row.waited_us) else number(row.waited_us),
        )
        for row in report.hangs[:TOP_EVENTS]
    ]  # fmt: skip
    text = f"Hangs: waits that outlasted their bound\n{table(head, body, left=2)}"
    return more(text, len(report.hangs), len(body))


_LOSS_LEGEND = """\
lines lost: overrun before they were read
lines torn: caught half written, left out
words lost: exact, by the counts in headers and closings
unknown words: in lines lost after the last count
orphan words: their launch's header is lost
malformed words: make no record
launches cut: warp launches without a closing
tail words: of those, what a killed kernel may not have flushed
launches lost: warp launches without a header"""


def _loss(report: Report) -> str:
    if not report.loss:
        return ""
    head = (
        "rank", "lines", "lines lost", "lines torn", "words", "words lost", "unknown words <=",
    )  # fmt: skip
    body = [
        (
            _who(row), f"{row.lines_seen:,}", f"{row.lines_lost:,}",
            f"{row.lines_torn:,}",
            f"{row.words_seen:,}", f"{row.words_lost:,}", f"{row.words_unknown_max:,}",
        )
        for row in report.loss
    ]  # fmt: skip
    head_2 = (
        "rank", "orphan words", "malformed words", "launches cut", "tail words <=",
        "launches lost",
    )  # fmt: skip
    body_2 = [
        (
            _who(row), f"{row.orphaned:,}", f"{row.malformed:,}", f"{row.launches_cut:,}",
            f"{row.tail_words_at_most:,}", f"{row.launches_lost:,}",
        )
        for row in report.loss
    ]  # fmt: skip
    return "\n".join(
        ["Loss", table(head, body), "", table(head_2, body_2), _LOSS_LEGEND, *_loss_notes(report)]
    )


def _loss_notes(report: Report) -> list[str]:
    notes = [
        f"rank {_who(row)}: {row.launches_time_uncertain:,} launches have uncertain times"
        for row in report.loss
        if row.launches_time_uncertain
    ]
    notes += [
        f"rank {_who(row)} malformed: "
        + ", ".join(f"{k} {v:,}" for k, v in row.malformed_by.items())
        for row in report.loss
        if row.malformed
    ]
    if not report.complete:
        notes.append("No less than this: the capture is incomplete, what it lacks is unknown.")
    return notes


def _overhead(report: Report) -> str:
    if not report.overhead:
        return ""
    head = ("rank", "records", "words", "of them headers", "line bytes", "record share", "counters")
    body = [
        (
            _who(row), f"{row.records:,}", f"{row.words:,}", f"{row.header_words:,}",
            f"{row.line_bytes:,}", f"{100 * row.word_share:.1f} %", f"{row.counter_samples:,}",
        )
        for row in report.overhead
    ]  # fmt: skip
    note = (
        "Measured: what was written. Not measured: the time it cost; for that, compare with a\n"
        "build of the same kernel at level off."
    )
    return f"Overhead\n{table(head, body)}\n{note}"


def _clocks(report: Report) -> str:
    if not report.clocks:
        return ""
    head = ("rank", "device", "error ns", "held out", "GHz", "SMs", "samples", "host error us")
    body = [
        (
            _who(row), row.device, "" if row.error_ns is None else f"{row.error_ns:,.0f}",
            "yes" if row.held_out else "no", "" if row.ghz is None else f"{row.ghz:.4f}",
            str(row.sms), f"{row.samples:,}",
            "unknown" if row.host_error_ns is None else number(row.host_error_ns / 1e3),
        )
        for row in report.clocks
    ]  # fmt: skip
    return (
        f"Clocks\n{table(head, body)}\nheld out: the error is of launches that the fit had not seen"
    )
