"""A capture as one page of plots, for a browser without a network."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import asdict, dataclass
from pathlib import Path

import pandas as pd

from megatrace import __version__
from megatrace.analysis import Report
from megatrace.analysis.floor_text import COPY_NOTE, bounds_text
from megatrace.analysis.floors import why_not
from megatrace.analysis.numbers import BOTH, with_labels
from megatrace.analysis.once import ReadOnce
from megatrace.analysis.traffic import Bandwidth, Traffic
from megatrace.analysis.windows import Progress
from megatrace.capture.reader import Capture
from megatrace.export import html_figures as figures
from megatrace.export.about import clock_texts, loss_text
from megatrace.export.html_page import Fold, Note, Page, Section, to_html
from megatrace.export.html_tables import PageTables, gather
from megatrace.export.output import check_output, output_file
from megatrace.schema.processes import label
from megatrace.sizes import size_text

CPU_NOTE = (
    "cpu: times are of the host build on a CPU. Order and logic are real, speed is not: nothing "
    "here is late, slow or fast."
)
_US = 1e3


@dataclass(frozen=True, slots=True)
class HtmlResult:
    """What was written."""

    plots: int
    launches: int
    size_bytes: int
    loss: str

    def sentence(self) -> str:
        """``7 plots of 12 launches, 4.9 MB; nothing lost``."""
        size = size_text(self.size_bytes)
        plots = f"{self.plots} plot" + "s" * (self.plots != 1)
        return f"{plots} of {self.launches:,} launches, {size}; {self.loss}"


def export_html(
    capture: Capture,
    path: Path,
    *,
    force: bool = False,
    command: str = "",
    progress: Progress | None = None,
    bandwidth: Bandwidth | None = None,
    layers: Collection[int] | None = None,
) -> HtmlResult:
    """Write the page of a capture, step by step: its records need not fit in memory.

    ``bandwidth`` is for the fraction of the floor; None: what the capture says. ``layers``:
    of the launches of these alone.

    Raises OutputError where ``path`` exists, unless ``force``, or cannot be written,
    MegatraceError without plotly, and what decoding raises.
    """
    check_output(path, force=force)
    traffic = Traffic.of(capture, bandwidth)
    read = ReadOnce(capture, layers=layers)
    tables = gather(
        read.windows(progress), read.hosts(), traffic, why_not(capture, traffic), layers=layers
    )
    report = read.report()
    page = page_of(capture, report, tables, command)
    body = to_html(page).encode()
    with output_file(path, force=force) as file:
        file.write(body)
    return HtmlResult(
        plots=sum(bool(section.figures) for section in page.sections),
        launches=int(tables.launches["launches"].sum()),
        size_bytes=len(body),
        loss=loss_text(report.loss_table),
    )


def page_of(capture: Capture, report: Report, tables: PageTables, command: str = "") -> Page:
    """The page, before it is HTML."""
    return Page(
        title=capture.path.name,
        facts=_facts(capture, report, tables, command),
        notes=_notes(report, tables),
        sections=[
            _stalls(tables), _roles(tables), _launches(tables), _floor(tables),
            _prefetches(report, tables), _waits(tables), _heat(tables), _steps(tables),
            _loss(report),
        ],
        foot=f"megatrace {__version__}. All rows: megatrace tables {capture.path.name}; the "
        f"summary as text: megatrace report {capture.path.name}.",
    )  # fmt: skip


def _facts(capture: Capture, report: Report, tables: PageTables, command: str) -> dict[str, str]:
    """What the head of the page says, by name; what is not known is left out."""
    errors = [row.error_ns for row in report.clocks if row.error_ns is not None]
    hosts = [row.host_error_ns for row in report.clocks if row.host_error_ns is not None]
    steps = report.steps
    seen = "" if steps.seen is None else f" of {steps.seen:,} seen"
    sms = report.sms
    of = "" if sms.of is None else f" of {sms.of:,}"
    many = report.processes > report.ranks
    in_processes = f" in {report.processes:,} processes" if many else ""
    clocks = clock_texts(max(errors, default=None), max(hosts, default=None))
    facts = {
        "device": report.device,
        "GPUs": _gpus(capture),
        "ranks": f"{report.ranks:,}{in_processes}" if report.ranks else "",
        "steps with a timeline": f"{steps.recorded:,}{seen}",
        "tables of": report.layers.text,
        "launches": f"{int(tables.launches['launches'].sum()):,}",
        "SMs recorded": f"{sms.recorded:,}{of}" if report.ranks else "",
        "loss": report.loss_sentence(),
        "clock error": ", ".join(clocks) if report.ranks else "",
        "command": command,
    }
    return {name: value for name, value in facts.items() if value}


def _gpus(capture: Capture) -> str:
    names: dict[str, int] = {}
    for row in capture.facts("fact"):
        value = row.fields.get("value")
        if row.fields.get("name") != "gpus" or not isinstance(value, dict):
            continue
        for gpu in value.get("gpus", ()):
            name = str(gpu.get("name"))
            names[name] = names.get(name, 0) + 1
    return ", ".join(f"{count} x {name}" for name, count in names.items())


def _notes(report: Report, tables: PageTables) -> list[Note]:
    notes = []
    if not report.complete:
        notes.append(Note("The capture is incomplete: what it lacks is unknown.", bad=True))
    notes += [Note(f"Problem: {problem}", bad=True) for problem in report.problems]
    if "cpu" in report.device:
        notes.append(Note(CPU_NOTE, bad=True))
    if report.layers.text:
        notes.append(
            Note(
                f"{report.layers.text.capitalize()}: figures and shares are of their launches; "
                "steps, loss and clocks are of the whole capture."
            )
        )
    if report.loss_sentence() not in ("nothing lost",) and report.ranks:
        notes.append(
            Note(
                f"Loss: {report.loss_sentence()}. Time in which records are missing is the class "
                "unknown; launches that lost any are in no distribution."
            )
        )
    launches = int(tables.launches["launches"].sum())
    if not report.ranks:
        notes.append(Note("No traced kernel: there are host steps at most."))
    elif not launches:
        notes.append(Note("No launch is whole: nothing is known of launch times.", bad=True))
    elif launches < 10:
        notes.append(Note(f"{launches} launches: what is seen here may be chance."))
    if report.hangs:
        hang = report.hangs[0]
        slot = "nobody knows whose" if hang.slot is None else f"slot {hang.slot}"
        of = f" of rank {label(hang.rank, hang.process)}" if report.processes > 1 else ""
        notes.append(
            Note(
                f"{len(report.hangs):,} waits outlasted their bound; the first: {hang.role} of "
                f"block {hang.block} on SM {hang.sm}{of} waits for {hang.event}, {slot}.",
                bad=True,
            )
        )
    return notes


_NO_LAUNCH = "No launch with a timeline here."


def _stalls(tables: PageTables) -> Section:
    says = (
        "Where the time of each layer's warps goes: for what they wait, or that they do not. All "
        "of a launch counts, from its first warp in to its last warp out, so each bar is whole. "
        "Not waiting has waits in it that leave no record: block barriers, cp.async, wgmma."
    )
    shown = figures.stalls_by_layer(tables) if len(tables.stalls) else ()
    rows = _shares(tables.stalls, ["kernel", "layer", "role"])
    return Section("stalls", "Stalls by layer", says, shown, _NO_LAUNCH,
                   [Fold("Time by layer, role and class", rows)])  # fmt: skip


def _roles(tables: PageTables) -> Section:
    shown = figures.stalls_by_role(tables) if len(tables.stalls) else ()
    return Section("roles", "Stalls by role", "The same of all these layers.", shown, _NO_LAUNCH)


def _launches(tables: PageTables) -> Section:
    says = (
        "First warp in to last warp out, of launches of which nothing is lost: median, quartiles, "
        "whiskers from 5 to 95 %."
    )
    shown = figures.launch_times(tables) if len(tables.launches) else ()
    return Section("launches", "Launch times by layer", says, shown, _NO_LAUNCH,
                   [Fold("Launch times, us", tables.launches)])  # fmt: skip


def _floor(tables: PageTables) -> Section:
    floors = tables.floors
    says = (
        "The time of the bytes that a launch must read, experts hit included, against the time it "
        "took; medians."
    )
    if floors.bandwidth_bytes_per_s:
        says += f" At {floors.bandwidth_bytes_per_s / 1e12:.2f} TB/s, {floors.bandwidth_from}."
        says += f" {COPY_NOTE}"
    if floors.rows:
        says += f" All together: {100 * floors.fraction:.0f} %."
    for bound in bounds_text(floors.part_recorded, floors.left_out):
        says += f" {bound[0].upper()}{bound[1:]}."
    shown = figures.floors_by_layer(floors) if floors.rows else ()
    rows = pd.DataFrame([asdict(row) for row in floors.rows])
    return Section("floor", "Fraction of the floor", says, shown, f"{floors.why_not}.",
                   [Fold("Floor by layer", rows)])  # fmt: skip


def _prefetches(report: Report, tables: PageTables) -> Section:
    says = (
        "By their first use. Late: it was blocked for exactly so long. Early: it was not; by how "
        "much lies between 0 and the time from issue to first use, which is drawn."
    )
    if tables.windows > 1 and len(tables.timing):
        says += " Read step by step: a prefetch used in another step counts as not used."
    timing = tables.timing.drop(columns="late_ns")
    if "cpu" not in report.device:
        timing = timing.assign(late_us_in_all=tables.timing["late_ns"] / _US)
    folds = [Fold("Prefetches by layer and verdict", timing)]
    seen = {key: counts for key, counts in tables.prefetch.items() if counts.any()}
    if "cpu" in report.device:
        why = "cpu: no prefetch of a host build is called late or early."
        return Section("prefetch", "Prefetches", says, (), why, folds)
    why = "No prefetch here." if not len(timing) else "No use of a prefetch was seen."
    shown = figures.prefetches(tables) if seen else ()
    return Section("prefetch", "Prefetches: late or early", says, shown, why, folds)


def _waits(tables: PageTables) -> Section:
    says = (
        "Time that warps waited for another warp's publish. Block by block it counts for the "
        "block that came last: the one whose publish ended the wait."
    )
    waits = tables.waits
    shown = figures.sync_waits(tables) if len(waits) else ()
    unknown = int(waits["count"][waits["from_block"] < 0].sum())
    if len(tables.heat[BOTH].drop_duplicates()) > 1:
        says += " Blocks of one number count together, whatever their rank."
    if unknown:
        count = int(waits["count"].sum())
        says += f" Of {count:,} waits {unknown:,} were ended by a block that was not recorded."
    rows = waits.groupby(["event", "edge", "role", "layer"], as_index=False)[
        ["count", "dur_ns"]
    ].sum()
    rows = rows.assign(total_us=rows["dur_ns"] / _US).drop(columns="dur_ns")
    rows = rows.sort_values("total_us", ascending=False)
    return Section("waits", "Who waited for whom", says, shown, "No wait for another warp blocked.",
                   [Fold("Waits by hand-off and layer", rows)])  # fmt: skip


def _heat(tables: PageTables) -> Section:
    says = "Share of the time of each role's warps on each SM: waiting, or one class of it."
    shown = figures.sm_heat(tables) if len(tables.heat) else ()
    rows = with_labels(_shares(tables.heat, [*BOTH, "sm", "role"]))
    return Section("sms", "SMs by role", says, shown, _NO_LAUNCH,
                   [Fold("Time by SM, role and class", rows)])  # fmt: skip


def _steps(tables: PageTables) -> Section:
    says = (
        "What the host took for each step, and the launches of it, first in to last out. On a GPU "
        "a forward of the host returns when its work is queued."
    )
    shown = figures.step_times(tables) if len(tables.steps) else ()
    wide = tables.steps.pivot_table(
        index=[*BOTH, "step"], columns="series", values="dur_ns", aggfunc="sum"
    )
    rows = with_labels((wide / _US).add_suffix(" us").reset_index())
    return Section("steps", "Steps", says, shown, "No step in this capture.",
                   [Fold("Steps", rows)])  # fmt: skip


def _loss(report: Report) -> Section:
    says = "What is missing, and how well the times are known. Times in us unless they say."
    loss = with_labels(pd.DataFrame([asdict(row) for row in report.loss])).drop(
        columns=["malformed_by", "never_closed"], errors="ignore"
    )
    clocks = with_labels(pd.DataFrame([asdict(row) for row in report.clocks]))
    events = pd.DataFrame([asdict(row) for row in report.events])
    if len(events):
        events = events.sort_values("total_us", ascending=False)
    folds = [Fold("Loss by rank", loss), Fold("Clocks by rank", clocks),
             Fold("Events by total time", events)]  # fmt: skip
    return Section("loss", "Loss, clocks, events", says, (), "", folds)


def _shares(sums: pd.DataFrame, keys: list[str]) -> pd.DataFrame:
    """Percent of each class of the time of ``keys``, the classes as columns."""
    if not len(sums):
        return pd.DataFrame()
    wide = sums.pivot_table(
        index=keys, columns="class", values="dur_ns", aggfunc="sum", fill_value=0
    )
    share = 100 * wide.div(wide.sum(axis=1), axis=0)
    share.columns = [f"{figures.CLASS_NAMES[str(name)]} %" for name in share.columns]
    return share.reset_index()
