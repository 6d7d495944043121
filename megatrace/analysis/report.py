"""What a report says, as frozen rows; :mod:`megatrace.analysis.render` prints it."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass

from megatrace.analysis.loss import LossRow, LossTable
from megatrace.analysis.plain import ranges_text
from megatrace.documents import document


@dataclass(frozen=True, slots=True)
class KernelRow:
    """Launches of one kernel and layer, over all ranks.

    Times are of whole launches, first warp in to last warp out, of launches whose warps
    all closed: ``timed`` of ``launches``.
    """

    kernel: str
    layer: int
    launches: int
    timed: int
    total_us: float
    median_us: float
    p95_us: float


@dataclass(frozen=True, slots=True)
class EventRow:
    """One event of one kernel, layer and role, over all ranks.

    Spans, stalls and waits have times; of other kinds only ``count`` says something.
    ``unblocked`` waits were over at the first try: counted apart, in no time.
    ``unfinished`` spans have no end that survives. ``share`` is of all the time that warps
    of this role spent in this kernel and layer; NaN where no launch of theirs has an end.
    """

    kernel: str
    layer: int
    role: str
    event: str
    kind: str
    cause: str
    count: int
    unblocked: int
    unfinished: int
    total_us: float
    median_us: float
    p95_us: float
    share: float


@dataclass(frozen=True, slots=True)
class StallRow:
    """Time that warps of one role and rank were blocked for one cause.

    ``source`` is ``records`` (launches with a timeline) or ``counters`` (others, of steps that
    count).
    ``total_us`` is None where no clock says how long a cycle is, ``total_cycles`` None for
    records. ``share`` is of the time of those warps for records, of all counted stall
    cycles of the role for counters; NaN where no launch of those warps has an end.
    """

    rank: int
    process: int
    role: str
    cause: str
    source: str
    count: int
    total_us: float | None
    total_cycles: int | None
    share: float


@dataclass(frozen=True, slots=True)
class PrefetchRow:
    """Prefetches of one kernel and edge, by their first use.

    Late: it was blocked, for exactly so long. Early: it was not, so that the data came in
    [0, first use - issue]. ``unseen``: no wait for it is in the capture.
    """

    kernel: str
    edge: str
    count: int
    late: int
    late_total_us: float
    late_median_us: float
    late_p95_us: float
    early: int
    early_at_most_median_us: float
    unseen: int
    arrival_visible: bool
    """False: nothing waits for this edge (a prefetch into L2), so no arrival is known."""
    unblocked_visible: bool
    """False: waits that do not block left no word, so ``unseen`` has those in it too."""


@dataclass(frozen=True, slots=True)
class HangRow:
    """A wait that outlasted its bound, and what it waited for."""

    rank: int
    process: int
    block: int
    warp: int
    role: str
    sm: int
    launch: int
    step: int
    layer: int
    event: str
    slot: int | None
    """Whom it waits for; None where its launch kept nothing, and does not know."""
    waited_cycles: int
    waited_us: float
    """NaN where the launch has no place in time."""


@dataclass(frozen=True, slots=True)
class OverheadRow:
    """What one rank wrote: measured here. What that cost in time is not in a capture."""

    rank: int
    process: int
    records: int
    words: int
    line_bytes: int
    header_words: int
    word_share: float
    """Of the line bytes, those that are records; the rest are headers, numbers, unused."""
    counter_samples: int


@dataclass(frozen=True, slots=True)
class ClockRow:
    """How well the times of one rank are known. Errors are None where nothing is."""

    rank: int
    process: int
    device: str
    error_ns: float | None
    held_out: bool
    """The error was found on launches the fit had not seen."""
    ghz: float | None
    sms: int
    samples: int
    host_error_ns: float | None


@dataclass(frozen=True, slots=True)
class StepsSeen:
    """Steps with a timeline, of the steps that ran; ``seen`` is None where nobody says.

    Of the other steps, counters ran on one in ``counters_every``, as was asked at the start; 1
    where the capture does not say.
    """

    recorded: int
    seen: int | None
    source: str
    counters_every: int = 1


@dataclass(frozen=True, slots=True)
class SmsRecorded:
    """SMs that left launches, the most of any rank.

    ``chosen`` are those the recorder was asked for, None: all. ``of`` is how many SMs the
    grid covers, None where that is not known: where an SM ran two blocks at once.
    """

    chosen: tuple[int, ...] | None
    recorded: int
    of: int | None

    @property
    def text(self) -> str:
        """``2 of 132 SMs recorded``; "" where all were asked for."""
        if self.chosen is None:
            return ""
        many = f"only {self.recorded:,}" if self.of is None else f"{self.recorded:,} of {self.of:,}"
        return f"{many} SMs recorded"


@dataclass(frozen=True, slots=True)
class LayersShown:
    """Layers whose launches a report is of.

    ``chosen`` are those that were asked for, None: all. ``there`` are those of which the
    capture has a launch with a timeline, or counters.
    """

    chosen: tuple[int, ...] | None
    there: tuple[int, ...]

    @property
    def text(self) -> str:
        """``layers 0-1 alone, of 0-61``; "" where all were asked for."""
        if self.chosen is None:
            return ""
        several = "s" * (len(self.chosen) > 1)
        return f"layer{several} {ranges_text(self.chosen)} alone, of {ranges_text(self.there)}"


@dataclass(frozen=True, slots=True)
class HostStepRow:
    """Steps of one rank, or forwards of one kind, as its host timed them.

    ``event`` is step, extend, decode, draft, verify or forward; on a GPU a forward returns
    when its work is queued. ``mean_batch_size`` is in requests, ``tokens`` the rows of all
    forwards, ``graph_share`` of those that ran as a CUDA graph. ``accept_length`` is tokens
    accepted a request and verify, bonus included. None where nothing says.
    """

    rank: int
    process: int
    event: str
    count: int
    total_ms: float
    median_ms: float
    p95_ms: float
    mean_batch_size: float | None
    tokens: int | None
    graph_share: float | None
    accept_length: float | None
    requests: int
    """Different requests seen in these steps."""


@dataclass(frozen=True, slots=True)
class FloorRow:
    """One kernel and layer over all ranks: of the launches that have a fraction.

    ``experts`` and ``bytes`` are means, ``experts`` -1 where nobody counts them; times and
    ``fraction`` (floor / time, of each launch) are medians.
    """

    kernel: str
    layer: int
    launches: int
    experts: float
    bytes: float
    floor_us: float
    median_us: float
    fraction: float


@dataclass(frozen=True, slots=True)
class Floors:
    """The fraction of the floor by layer; no rows where ``why_not`` says why there is none.

    Attributes:
        fraction: all those launches together: the sum of their floors over that of their
            times; NaN without rows.
        bandwidth_bytes_per_s: 0 where it is not known; ``bandwidth_from`` who says so.
        left_out: what launches read beside and is not counted.
        part_recorded: ``2 of 132 blocks``, where fewer were recorded than there are: a launch
            took no less than they did, so the fraction is at most this. Where it is "" and
            something is left out, the fraction is no less.
    """

    rows: tuple[FloorRow, ...] = ()
    fraction: float = float("nan")
    bandwidth_bytes_per_s: float = 0.0
    bandwidth_from: str = ""
    left_out: str = ""
    part_recorded: str = ""
    why_not: str = ""


@dataclass(frozen=True, slots=True)
class Report:
    """All tables of one capture."""

    path: str
    device: str
    """``cpu`` (host build), ``cuda``, or both; ``none`` without a traced kernel."""
    complete: bool
    problems: tuple[str, ...]
    ranks: int
    """Those with a traced kernel."""
    processes: int
    """Of these ranks, each with a ring of its own: rows of a rank that restarts are several,
    and their ``process`` counts from 1."""
    steps: StepsSeen
    sms: SmsRecorded
    host_steps: tuple[HostStepRow, ...]
    kernels: tuple[KernelRow, ...]
    events: tuple[EventRow, ...]
    stalls: tuple[StallRow, ...]
    prefetches: tuple[PrefetchRow, ...]
    hangs: tuple[HangRow, ...]
    lines_lost: int | None
    """None where nobody counted them to the end: no less than the rows of ``loss`` say."""
    host_records_lost: int | None
    launches_cut: int
    tail_words_at_most: int
    """Words of cut launches that the kernel may not have flushed; no more than this."""
    loss: tuple[LossRow, ...]
    overhead: tuple[OverheadRow, ...]
    clocks: tuple[ClockRow, ...]
    quantiles_exact: bool
    quantile_error: float
    """Largest relative error of medians and p95; 0 where they are exact."""
    floor: Floors = Floors()
    """None asked for; :func:`megatrace.analysis.floors.reported` does."""
    layers: LayersShown = LayersShown(None, ())
    """``kernels``, ``events``, ``stalls``, ``prefetches``, ``hangs``, ``overhead`` and ``floor``
    are of the launches of these layers, and shares are of the time in them; all else is of the
    whole capture. A prefetch is of the layer that issued it."""

    def loss_sentence(self) -> str:
        """One line: what is missing, and how well that is known."""
        return self.loss_table.sentence()

    @property
    def loss_table(self) -> LossTable:
        """The rows of ``loss`` with what is known of the whole."""
        known = self.lines_lost is not None
        return LossTable(self.loss, self.complete, self.host_records_lost or 0, known)

    def to_dict(self) -> dict[str, object]:
        """Plain dicts and lists; NaN becomes None."""
        plain = _plain(document("report", asdict(self)))
        assert isinstance(plain, dict)
        return plain

    def to_json(self) -> str:
        """One JSON object, ``schema`` and ``version`` first."""
        return json.dumps(self.to_dict(), indent=1, allow_nan=False)


def _plain(value: object) -> object:
    if isinstance(value, dict):
        return {k: _plain(v) for k, v in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(v) for v in value]
    if isinstance(value, float):
        return None if value != value else round(value, 6)
    return value
