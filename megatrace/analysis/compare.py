"""Two captures, row by row: what changed, how surely, and what cannot be compared."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import pandas as pd

from megatrace.analysis.columns import BEFORE_START, TAIL
from megatrace.analysis.lines import F8
from megatrace.analysis.measured import ALL_LAYERS, LAUNCH, Side
from megatrace.analysis.resample import Bootstrap
from megatrace.errors import MegatraceError

Verdict = Literal["slower", "faster", "more", "less", "same", "too few launches", "cpu"]

JUDGED: tuple[Verdict, ...] = ("slower", "faster", "same")
"""Verdicts on a launch that the numbers gave. A class of a warp's time has ``more`` or ``less``
of it, which is not worse or better: a loader that waits more for a free stage is further ahead,
a longer tail is of a warp that ended earlier."""
IDLE = (TAIL, BEFORE_START)
"""Classes outside of a warp's own work: they explain no launch."""
SMALLEST_CAUSE = 0.005
"""Of the launch's time: a cause below it in both captures makes no row."""
Key = tuple[str, int, str, str]
_ROW = ["kernel", "layer", "role", "what"]
_TOLERANCE = 0.02
"""Mean experts and rows of a step that differ by more make other work of it."""


@dataclass(frozen=True, slots=True)
class Change:
    """One quantity of both captures: a launch's duration, or a class of a role's warps.

    ``layer`` is -1 for all layers, ``role`` empty for a launch. Times are medians over
    blocks (steps) of the mean of a block. ``share`` is ``change_us`` of the launch's time
    in a; of a launch it is ``b / a - 1``. Intervals are NaN where there is no verdict on
    the numbers (too few launches, cpu).
    """

    kernel: str
    layer: int
    role: str
    what: str
    blocks_a: int
    blocks_b: int
    a_us: float
    b_us: float
    change_us: float
    low_us: float
    high_us: float
    share: float
    low: float
    high: float
    verdict: Verdict


@dataclass(frozen=True, slots=True)
class Comparison:
    """Three tables, each with intervals that hold for all its rows together."""

    a: Side
    b: Side
    overall: tuple[Change, ...]
    """All layers together: launches, then causes by role."""
    layers: tuple[Change, ...]
    """Launches of each layer."""
    causes: tuple[Change, ...]
    """Causes of each layer and role that take time."""
    small_causes: int
    """Causes of a layer left out: below ``SMALLEST_CAUSE`` in both."""
    warnings: tuple[str, ...]
    """What makes the two hard to compare."""
    unlike: tuple[str, ...]
    """Those of the warnings that say that the launches did other work: a change of theirs is not
    the build's."""
    one_sided: tuple[str, ...]
    """Those of the warnings that name layers of one side only."""
    seed: int
    draws: int
    confidence: float

    @property
    def judged(self) -> bool:
        """Whether any launch got a verdict on its numbers."""
        return any(row.verdict in JUDGED for row in self._launches())

    @property
    def unjudged(self) -> tuple[Change, ...]:
        """Launches, of a layer or of all, too few for a verdict."""
        return tuple(row for row in self._launches() if row.verdict not in JUDGED)

    def regressions(self, threshold: float) -> tuple[Change, ...]:
        """Launches slower by more than ``threshold`` (0.02 is 2 %), however the draw falls."""
        return tuple(row for row in self._launches() if row.low > threshold)

    def grown(self, launch: Change) -> tuple[Change, ...]:
        """Classes of which ``launch``'s warps have more in b, the most first; no idle ones."""
        rows = self.overall if launch.layer == ALL_LAYERS else self.causes
        of = [r for r in rows if (r.kernel, r.layer) == (launch.kernel, launch.layer)]
        more = [r for r in of if r.verdict == "more" and r.what not in IDLE]
        return tuple(sorted(more, key=lambda row: -row.change_us))

    def _launches(self) -> Iterator[Change]:
        yield from (row for row in (*self.overall, *self.layers) if row.what == LAUNCH)


def compare(a: Side, b: Side, bootstrap: Bootstrap | None = None) -> Comparison:
    """Compare layers that both captures have.

    Raises MegatraceError where nothing can be compared: no launch, no kernel or layer of
    the same name and number in both, or one is of a CPU and the other of a GPU.
    """
    bootstrap = bootstrap or Bootstrap()
    _refuse(a, b)
    values = _common(a.values, b.values)
    unlike, one_sided = tuple(_of_work(a, b)), tuple(_of_layers(a.values, b.values))
    cpu = a.cpu or b.cpu
    judge = _Judge(bootstrap, max(a.clock_error_ns, b.clock_error_ns, 0), cpu)
    pairs = [_Pair(key, *of) for key, of in _pairs(*values)]
    walls = {p.key[:2]: p.a_ns for p in pairs if p.what == LAUNCH}
    layers = [p for p in pairs if p.what == LAUNCH]
    causes = [p for p in pairs if p.what != LAUNCH and p.matters(walls[p.key[:2]])]
    whole = [_Pair(key, *of) for key, of in _pairs(*(_all_layers(v) for v in values))]
    whole_walls = {p.key[:2]: p.a_ns for p in whole if p.what == LAUNCH}
    whole = [p for p in whole if p.what == LAUNCH or p.matters(whole_walls[p.key[:2]])]
    return Comparison(
        a=a,
        b=b,
        overall=judge.table(whole, whole_walls),
        layers=judge.table(layers, walls),
        causes=judge.table(causes, walls),
        small_causes=len(pairs) - len(layers) - len(causes),
        warnings=(*unlike, *_of_events(a, b), *one_sided, *_of_loss(a, b)),
        unlike=unlike,
        one_sided=one_sided,
        seed=bootstrap.seed,
        draws=bootstrap.draws,
        confidence=bootstrap.confidence,
    )


@dataclass(frozen=True, slots=True)
class _Pair:
    key: Key
    a: F8
    b: F8

    @property
    def what(self) -> str:
        return self.key[3]

    @property
    def a_ns(self) -> float:
        return float(np.median(self.a))

    @property
    def b_ns(self) -> float:
        return float(np.median(self.b))

    def matters(self, wall_ns: float) -> bool:
        """Whether it is a cause of some size in one of the two."""
        return max(self.a_ns, self.b_ns) >= SMALLEST_CAUSE * wall_ns


@dataclass(frozen=True, slots=True)
class _Judge:
    bootstrap: Bootstrap
    clock_error_ns: int
    cpu: bool

    def table(self, pairs: list[_Pair], walls: dict[tuple[str, int], float]) -> tuple[Change, ...]:
        """A row for each pair, in order."""
        return tuple(self._row(pair, walls[pair.key[:2]], len(pairs)) for pair in pairs)

    def _row(self, pair: _Pair, wall_ns: float, rows: int) -> Change:
        change = pair.b_ns - pair.a_ns
        low = high = low_share = high_share = math.nan
        verdict: Verdict = "cpu" if self.cpu else "too few launches"
        if not self.cpu and self.bootstrap.enough(len(pair.a), len(pair.b), rows):
            found = self.bootstrap.interval(pair.a, pair.b, rows)
            low, high = found.low, found.high
            low_share, high_share = low / wall_ns, high / wall_ns
            if pair.what == LAUNCH:
                low_share, high_share = found.low_ratio, found.high_ratio
            verdict = self._verdict(pair, low, high)
        kernel, layer, role, what = pair.key
        return Change(
            kernel, layer, role, what, len(pair.a), len(pair.b), pair.a_ns / 1e3, pair.b_ns / 1e3,
            change / 1e3, low / 1e3, high / 1e3, change / wall_ns, low_share, high_share, verdict,
        )  # fmt: skip

    def _verdict(self, pair: _Pair, low: float, high: float) -> Verdict:
        # Ends of a launch lie on different SMs: what their clocks may be apart is no change.
        doubt = self.clock_error_ns if pair.what == LAUNCH else 0
        if low > 0 and pair.b_ns - pair.a_ns > doubt:
            return "slower" if pair.what == LAUNCH else "more"
        if high < 0 and pair.a_ns - pair.b_ns > doubt:
            return "faster" if pair.what == LAUNCH else "less"
        return "same"


def _common(a: pd.DataFrame, b: pd.DataFrame) -> tuple[pd.DataFrame, pd.DataFrame]:
    """The rows of kernels and layers that both have."""
    keys = ["kernel", "layer"]
    both = a[keys].drop_duplicates().merge(b[keys].drop_duplicates())
    return a.merge(both, on=keys), b.merge(both, on=keys)


def _pairs(a: pd.DataFrame, b: pd.DataFrame) -> Iterator[tuple[Key, tuple[F8, F8]]]:
    """Values by block of each row that both have, by kernel, layer, role and what."""
    sides = [_by_row(side) for side in (a, b)]
    for key in sorted(sides[0].keys() & sides[1].keys()):
        yield key, (sides[0][key], sides[1][key])


def _by_row(values: pd.DataFrame) -> dict[Key, F8]:
    rows: Any = values.groupby(_ROW, sort=False)["ns"]
    return {
        (str(kernel), int(layer), str(role), str(what)): of.to_numpy(float)
        for (kernel, layer, role, what), of in rows
    }


def _all_layers(values: pd.DataFrame) -> pd.DataFrame:
    """The mean over layers of each block, of blocks that have every layer of their kernel."""
    many = values.groupby("kernel")["layer"].nunique()
    cells = values.groupby(["block", "kernel", "role", "what"], sort=False)["ns"]
    found = cells.agg(ns="mean", layers="size").reset_index()
    if values["block"].nunique() > 1 and not _a_launch_each(values):
        found = found[found["layers"] == found["kernel"].map(many)]
    return found.drop(columns="layers").assign(layer=ALL_LAYERS)


def _a_launch_each(values: pd.DataFrame) -> bool:
    """Whether a block is one launch: then each has one layer, and the layers are pooled."""
    return bool((values.groupby("block")["layer"].nunique() == 1).all())


def _refuse(a: Side, b: Side) -> None:
    for side in (a, b):
        if not side.launches:
            raise MegatraceError(
                f"{side.path} has no whole launch to compare",
                hint="record it with --level timeline, and see megatrace report for its loss",
            )
    if a.cpu != b.cpu:
        cpu, gpu = (a, b) if a.cpu else (b, a)
        raise MegatraceError(
            f"{cpu.path} ran on a CPU, {gpu.path} on a GPU: their times have nothing in common",
            hint="record both on the same machine",
        )
    if not len(_common(a.values, b.values)[0]):
        raise MegatraceError(
            f"no layer in common: {a.path} has {_names(a.values)}, {b.path} {_names(b.values)}",
            hint="compare captures of the same kernel",
        )


def _names(values: pd.DataFrame) -> str:
    kernels = values.groupby("kernel")["layer"].agg(["min", "max"])
    return ", ".join(f"{name} {low}-{high}" for name, low, high in kernels.itertuples())


def _of_events(a: Side, b: Side) -> Iterator[str]:
    if a.events != b.events:
        yield "the kernels declare different events: a cause may have moved to another class"


def _of_work(a: Side, b: Side) -> Iterator[str]:
    """What differs in the machine or the work."""
    if a.gpus != b.gpus:
        yield f"different GPUs: {a.gpu_names} and {b.gpu_names}"
    if a.ranks != b.ranks:
        yield f"different numbers of ranks: {a.ranks} and {b.ranks}"
    if a.grid_blocks != b.grid_blocks:
        yield (
            f"launches left records of {a.grid_blocks:,.0f} and {b.grid_blocks:,.0f} blocks: "
            "another grid, or recorded with other --sms"
        )
    if _differ(a.tokens, b.tokens):
        yield f"steps of different sizes: {a.tokens:,.0f} and {b.tokens:,.0f} rows in the median"
    if _differ(a.experts, b.experts):
        yield f"launches hit {a.experts:,.1f} and {b.experts:,.1f} experts in the mean: other work"


def _differ(a: float, b: float) -> bool:
    if math.isnan(a) or math.isnan(b):
        return False
    return abs(a - b) > _TOLERANCE * max(abs(a), abs(b))


def _of_layers(a: pd.DataFrame, b: pd.DataFrame) -> Iterator[str]:
    keys = ["kernel", "layer"]
    both = a[keys].drop_duplicates().merge(b[keys].drop_duplicates(), how="outer", indicator=True)
    for name, side in (("left_only", "a"), ("right_only", "b")):
        only = both[both["_merge"] == name]
        if len(only):
            few = ", ".join(f"{kernel} {layer}" for kernel, layer in only[keys].to_numpy()[:4])
            more = ", ..." if len(only) > 4 else ""
            layers = "1 layer is" if len(only) == 1 else f"{len(only):,} layers are"
            yield f"{layers} only in {side} and left out: {few}{more}"


def _of_loss(a: Side, b: Side) -> Iterator[str]:
    for name, side in (("a", a), ("b", b)):
        if not side.complete:
            yield f"{name} is incomplete: {'; '.join(side.problems) or 'its recorder was killed'}"
        if side.loss != "nothing lost":
            yield f"{name} lost records: {side.loss}"
        if side.left_out:
            yield (
                f"of {name} {side.left_out:,} of {side.left_out + side.launches:,} launches are "
                "left out: a warp or records of it are missing"
            )
