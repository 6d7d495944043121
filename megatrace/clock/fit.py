"""From samples to a ClockModel: per SM, in windows of launches, tried on held-out ones."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from megatrace.clock.host import HostClock
from megatrace.clock.lines import Line, Window, fit_lines, median
from megatrace.clock.model import ClockModel, SmClock
from megatrace.clock.pieces import fit_pieces
from megatrace.clock.points import Points, points_of
from megatrace.clock.samples import EXACT_NS, F8, ClockSamples, quantum_of
from megatrace.errors import ClockError
from megatrace.schema.processes import rank_text

WINDOW = 512
"""Launches of one SM that are fitted together."""
PAUSE = 16
"""Medians between two launches after which a clock may be another."""
MIN_POINTS = 3
MAX_DOUBT = 1e-3
"""An SM whose own rate may be off by more takes that of its rank."""
_USELESS_DOUBT = 0.05
_STATED = 0.999
"""Share of the samples that is within the stated error."""
_HOLD_OUT = 5
"""One launch in so many is held out."""
_MIN_LAUNCHES = 2 * _HOLD_OUT


@dataclass(frozen=True, slots=True)
class _Sm:
    """What one SM gives: its samples, one point a launch, how far its own rate may be off."""

    samples: ClockSamples
    points: Points
    doubt: float

    @property
    def number(self) -> int:
        """Its number."""
        return int(self.samples.sm[0])


def fit_rank(
    rank: int,
    samples: ClockSamples,
    *,
    default_quantum_ns: int = 32,
    reach_cycles: int = 0,
    host: HostClock | None = None,
) -> ClockModel:
    """The clocks of one rank.

    Args:
        rank: goes into the model and into messages.
        samples: pairs of all SMs; headers of at least two launches of some SM.
        default_quantum_ns: step of globaltimer where the samples are too few to show it.
        reach_cycles: how far past a sample times will be asked for: the longest launch.
        host: the tie to the host's clock, if there is one.

    An SM that ran too shortly to show its rate takes that of its rank and only its offset
    from its own samples. Raises ClockError where no SM shows a rate.
    """
    if not len(samples):
        raise ClockError(
            f"rank {rank_text(rank)}: no clock samples at all",
            hint="no launch header survives; see the loss table of this capture",
        )
    quantum = quantum_of(samples.globaltimer, default_quantum_ns)
    parts = _by_sm(samples, quantum)
    good = [part for part in parts if len(part.points) >= MIN_POINTS and part.doubt <= MAX_DOUBT]
    lines = _lines([part.points for part in good], quantum)
    models = _fit_sms(good, lines, quantum, reach_cycles)
    sms = {part.number: model for part, model in zip(good, models, strict=True)}
    lead = max(range(len(good)), key=lambda i: len(good[i].points), default=None)
    restless = _restless(lines[lead]) if lead is not None else 0.0
    if lead is not None and restless:
        for part in parts:
            if len(part.points) < len(good[lead].points):
                inside_ns = restless * reach_cycles / 4
                sms[part.number] = _following(models[lead], part, quantum, inside_ns)
    poor = [part for part in parts if part.number not in sms]
    if poor:
        rate, doubt = _rate_of_rank(sms, poor, rank)
        for part in poor:
            sms[part.number] = _offset_only(part, rate, doubt, quantum, reach_cycles)
    return ClockModel(rank, quantum, dict(sorted(sms.items())), host)


def _by_sm(samples: ClockSamples, quantum: int) -> list[_Sm]:
    samples = samples.take(np.lexsort((samples.clock, samples.sm)))
    points = points_of(samples, quantum)
    _, first = np.unique(samples.sm, return_index=True)
    _, first_point = np.unique(points.sm, return_index=True)
    bounds = zip(
        itertools.pairwise([*first.tolist(), len(samples)]),
        itertools.pairwise([*first_point.tolist(), len(points)]),
        strict=True,
    )
    parts = []
    for (a, b), (c, d) in bounds:
        own = points.part(c, d)
        span = float(own.y[-1] - own.y[0])
        doubt = quantum / span if span > 0 and own.x[-1] > own.x[0] else np.inf
        parts.append(_Sm(samples.take(np.arange(a, b)), own, doubt))
    return parts


def _fit_sms(
    parts: Sequence[_Sm], lines: Sequence[list[Line]], quantum: int, reach_cycles: int
) -> list[SmClock]:
    """The clock of each of ``parts``, whose points ``lines`` go through.

    Its error is that of launches held out, of lines through the others; all in one go.
    """
    tried = [
        None if _restless(one) else _known(part) for part, one in zip(parts, lines, strict=True)
    ]
    again = iter(_lines([known for known in tried if known is not None], quantum))
    models = []
    for part, one, known in zip(parts, lines, tried, strict=True):
        whole = _model(part, part.points, one, quantum)
        if known is not None:
            unseen = part.samples.take(np.flatnonzero(~np.isin(part.samples.launch, known.launch)))
            stated = _outside(_model(part, known, next(again), quantum), unseen, quantum)
            whole = replace(whole, held_out=True)
        else:
            # A launch may run at its neighbours' rates for half of it and make up for it after.
            stated = _outside(whole, part.samples, quantum) + _restless(one) * reach_cycles / 4
        reach = part.doubt * float(whole.rate.max()) * reach_cycles
        models.append(replace(whole, error_ns=stated + quantum + reach))
    return models


def _known(part: _Sm) -> Points | None:
    """The points of ``part`` without the launches held out; None where they are too few."""
    launches = np.unique(part.points.launch)
    if len(launches) < _MIN_LAUNCHES:
        return None
    hold = launches[_HOLD_OUT - 1 :: _HOLD_OUT]
    return part.points.where(~np.isin(part.points.launch, hold))


def _restless(lines: list[Line]) -> float:
    """By how much (ns a cycle) the rate changes from launch to launch; 0: lines hold."""
    return max((line.restless for line in lines), default=0.0)


def _following(model: SmClock, part: _Sm, quantum: int, inside_ns: float) -> SmClock:
    """The clock of an SM that ran fewer launches than that of ``model``, whose rates it takes.

    All SMs of a GPU change their clock together, and this one was not there to see each change.
    What they do not share is where they count from: that is its own at each of its launches.
    """
    rate = np.append(model.rate, model.rate[-1:])
    points = part.points
    ns = points.y + (points.base_ns - model.base_ns)
    at = np.clip(np.searchsorted(model.offset_ns, ns, side="right") - 1, 0, len(model.rate) - 1)
    led = model.knots[at] - model.knots[0] + (ns - model.offset_ns[at]) / rate[at]
    ahead = points.x + (points.base_clock - int(model.knots[0])) - led
    places = np.union1d((model.knots - model.knots[0]).astype(np.float64), led)
    own = np.rint(places + np.interp(places, led, ahead)).astype(np.int64)
    keep = np.append(True, np.diff(own) > 0)
    times = model.to_ns(model.knots[0] + np.rint(places).astype(np.int64)) - model.base_ns
    knots, offset = own[keep] + model.knots[0], times[keep].astype(np.float64)
    followed = SmClock(
        sm=part.number,
        knots=knots,
        base_ns=model.base_ns,
        offset_ns=offset,
        rate=np.diff(offset) / np.diff(knots) if len(knots) > 1 else model.rate[:1],
        error_ns=0.0,
        samples=len(part.samples),
        held_out=False,
    )
    stated = _outside(followed, part.samples, quantum) + inside_ns
    return replace(followed, error_ns=stated + quantum)


def _bursts(points: Points) -> list[tuple[int, int]]:
    """First and last (one past it) of the points between long pauses.

    An SM that idles changes its clock, and no sample shows when: what is before says little of
    what comes after. Bursts too short to show a rate stay with the one before.
    """
    pause = np.diff(points.x)
    cuts = [0]
    if len(pause):
        for cut in (np.flatnonzero(pause > PAUSE * float(median(pause))) + 1).tolist():
            if cut - cuts[-1] >= MIN_POINTS:
                cuts.append(cut)
    if len(cuts) > 1 and len(points) - cuts[-1] < MIN_POINTS:
        cuts.pop()
    return list(itertools.pairwise([*cuts, len(points)]))


def _lines(many: Sequence[Points], quantum: int) -> list[list[Line]]:
    """The pieces of every burst and window of each SM's points, from left to right."""
    bursts = [_bursts(points) for points in many]
    cut = [
        [_windows(points, first, last) for first, last in each]
        for points, each in zip(many, bursts, strict=True)
    ]
    whole = iter(fit_lines([one for each in cut for windows in each for one in windows], quantum))
    out = []
    for points, each, windows in zip(many, bursts, cut, strict=True):
        lines: list[Line] = []
        for (_, last), parts in zip(each, windows, strict=True):
            for window in parts:
                lines += fit_pieces(window, float(quantum), line=next(whole))
            if last < len(points):
                # The burst's last launch runs on after its header, all that is known of it.
                middle = (points.x[last - 1] + points.x[last]) / 2
                lines[-1] = replace(lines[-1], last=float(middle))
        out.append(lines)
    return out


def _windows(points: Points, first: int, last: int) -> list[Window]:
    """The points of a burst as windows of about :data:`WINDOW`, all as long as can be."""
    many = max(1, round((last - first) / WINDOW))
    size, longer = divmod(last - first, many)
    ends = itertools.accumulate([size + (i < longer) for i in range(many)], initial=first)
    parts = itertools.starmap(slice, itertools.pairwise(ends))
    return [Window(points.x[rows], points.y[rows], points.weight[rows]) for rows in parts]


def _model(part: _Sm, points: Points, lines: list[Line], quantum: int) -> SmClock:
    """Knots through the pieces."""
    knots, offset, rate = _knots(lines, float(quantum))
    return SmClock(
        sm=part.number,
        knots=points.base_clock + knots.astype(np.int64),
        base_ns=points.base_ns,
        offset_ns=offset,
        rate=rate,
        error_ns=0.0,
        samples=len(part.samples),
        held_out=False,
    )


def _knots(lines: list[Line], quantum: float) -> tuple[F8, F8, F8]:
    """Corners of the model: the ends of each line, or where two of them meet between."""
    places: list[tuple[float, float]] = [(lines[0].first, lines[0].at)]
    for left, right in itertools.pairwise(lines):
        places += _between(left, right, quantum)
    places.append((lines[-1].last, lines[-1](lines[-1].last)))
    kept = [(float(int(places[0][0])), places[0][1])]
    for x, y in places[1:]:
        # Whole cycles, time never backwards.
        if int(x) > int(kept[-1][0]) and y > kept[-1][1]:
            kept.append((float(int(x)), y))
    xs, ys = np.array([p[0] for p in kept]), np.array([p[1] for p in kept])
    if len(kept) == 1:
        return xs, ys, np.array([lines[0].rate])
    return xs, ys, np.diff(ys) / np.diff(xs)


def _between(left: Line, right: Line, quantum: float) -> list[tuple[float, float]]:
    """The corner of two lines, or one point where they nearly touch, or both their ends.

    Never two points close together that disagree by noise: the rate between them would
    be noise.
    """
    at = right.first
    if left.rate != right.rate:
        meet = at + (left(at) - right.at) / (right.rate - left.rate)
        if left.last <= meet <= right.first:
            return [(meet, left(meet))]
    middle = (left.last + right.first) / 2
    if abs(left(middle) - right(middle)) <= quantum:
        return [(middle, (left(middle) + right(middle)) / 2)]
    return [(left.last, left(left.last)), (right.first, right.at)]


def _outside(model: SmClock, samples: ClockSamples, quantum: int) -> float:
    """p99.9 of how far (ns) samples are outside their bounds under ``model``."""
    ns = (model.to_ns(samples.clock) - samples.globaltimer).astype(np.float64)
    width = np.where(samples.exact, min(EXACT_NS, float(quantum)), float(quantum))
    outside = np.maximum(np.maximum(-ns, ns - width), 0.0)
    return float(np.sort(outside)[math.ceil(_STATED * (len(outside) - 1))])


def _rate_of_rank(sms: dict[int, SmClock], poor: list[_Sm], rank: int) -> tuple[float, float]:
    """Rate (ns a cycle) for SMs that show none, and how far it may be off (relative)."""
    if sms:
        rates = np.concatenate([sm.rate for sm in sms.values()])
        rate = float(np.median(rates))
        return rate, float(np.max(np.abs(rates - rate))) / rate
    best = min(poor, key=lambda part: part.doubt)
    if best.doubt > _USELESS_DOUBT:
        raise ClockError(
            f"rank {rank_text(rank)}: {sum(len(p.samples) for p in poor)} clock samples "
            "within a moment show no rate of the SM clock",
            hint="record longer: two launches of one SM, some microseconds apart, are needed",
        )
    x, y = best.points.x, best.points.y
    return float((y[-1] - y[0]) / (x[-1] - x[0])), best.doubt


def _offset_only(part: _Sm, rate: float, doubt: float, quantum: int, reach_cycles: int) -> SmClock:
    points = part.points
    offset = float(np.median(points.y - rate * points.x))
    model = SmClock(
        sm=part.number,
        knots=np.array([points.base_clock]),
        base_ns=points.base_ns,
        offset_ns=np.array([offset]),
        rate=np.array([rate]),
        error_ns=0.0,
        samples=len(part.samples),
        held_out=False,
    )
    reach = doubt * rate * (float(points.x[-1]) + reach_cycles)
    return replace(model, error_ns=_outside(model, part.samples, quantum) + quantum + reach)
