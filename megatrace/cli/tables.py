"""``megatrace tables``."""

from __future__ import annotations

import sys
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import click

from megatrace.cli.asked import layers_asked, rank_asked
from megatrace.cli.bandwidth import bandwidth_option, given
from megatrace.cli.table_notes import refuse_absent, say_floor, say_sms, say_unknown, say_whose
from megatrace.collect.talk import Talk
from megatrace.errors import ExitCode, UsageError

if TYPE_CHECKING:
    import pandas as pd

    from megatrace.analysis import Trace
    from megatrace.analysis.traffic import Traffic
    from megatrace.capture.reader import Capture

_SMALL_LINES = 1 << 18
"""Of fewer lines all is decoded at once, so that tables may look across steps."""
_MOMENTS = ("begin_ns", "end_ns", "issue_ns", "use_ns", "publish_ns")
"""Columns that are times of globaltimer: 19 digits that nobody reads."""
_PATHS = ("critical_path", "critical_path_sums")
"""Tables of one step or launch, which need not have a column of the launch."""
_ACROSS_RANKS = (*_PATHS, "sync_waits")
"""Tables that take the wrong publish for a peer's where the other ranks are left out."""
_FORMATS = ("text", "csv", "json", "parquet")


@dataclass(frozen=True, slots=True)
class _Asked:
    name: str
    steps: range | None
    launch: int | None
    layer: frozenset[int] | None
    rank: int | None
    format: str
    top: int
    bandwidth: float | None = None


@click.command("tables")
@click.argument("file", type=click.Path(path_type=Path))
@click.argument("name", required=False)
@click.option("--step", type=click.IntRange(0), metavar="N", help="This step alone.")
@click.option("--steps", metavar="A:B", help="Steps A to B-1; A:+K is K steps.")
@click.option("--launch", type=click.IntRange(0), metavar="N", help="This launch_no alone.")
@click.option("--layer", "layers", metavar="LIST", help="These layers alone: 0-3,7.")
@click.option("--rank", metavar="R", help="This rank alone; 0#2 is its second process.")
@bandwidth_option("For the table floor.")
@click.option(
    "--format", "format_", type=click.Choice(_FORMATS), default="text", show_default=True,
    help="How the rows are written to stdout.",
)  # fmt: skip
@click.option("--json", "as_json", is_flag=True, help="The same as --format json.")
@click.option(
    "--top",
    type=click.IntRange(1),
    default=40,
    show_default=True,
    metavar="N",
    help="Rows of the text; the other formats have all.",
)
@click.option("--strict", is_flag=True, help="Exit with 3 where the capture is incomplete.")
def command(
    file: Path,
    name: str | None,
    step: int | None,
    steps: str | None,
    launch: int | None,
    layers: str | None,
    rank: str | None,
    bandwidth: float | None,
    format_: str,
    as_json: bool,
    top: int,
    strict: bool,
) -> int:
    """Print the table NAME of FILE: stalls, prefetches, sync waits, phases, the critical path.

    Without NAME: which tables there are, with their columns and units. A critical path is
    of one step or launch; without --step or --launch it is of a typical step. Times are ns,
    -1 is "not known".
    """
    from megatrace.capture.reader import open_capture
    from megatrace.cli.console import warn_incomplete

    if (step is not None) + (steps is not None) > 1:
        raise UsageError("--step and --steps exclude each other", hint="give one of them")
    format_ = "json" if as_json else format_
    with open_capture(file) as capture:
        if name is None:
            _list(format_)
        else:
            number = rank_asked(rank, capture)
            chosen = _Asked(
                name, _range(step, steps), launch, layers_asked(layers), number, format_, top,
                bandwidth,
            )  # fmt: skip
            _check(chosen)
            _print(chosen, capture)
        warn_incomplete(capture)
        complete = capture.complete
    return int(ExitCode.INCOMPLETE if strict and not complete else ExitCode.OK)


def _range(step: int | None, steps: str | None) -> range | None:
    from megatrace.collect.options import parse_steps

    if step is not None:
        return range(step, step + 1)
    return range(*parse_steps(steps)) if steps is not None else None


def _check(asked: _Asked) -> None:
    """Refuse what cannot be printed before any work is done."""
    from megatrace.analysis.columns import FLOOR, TABLES

    if asked.name not in TABLES:
        raise UsageError(f"no table {asked.name!r}", hint=f"one of {', '.join(TABLES)}")
    if asked.bandwidth is not None and asked.name != FLOOR.name:
        raise UsageError("--bandwidth is for the table floor", hint="leave it out")
    columns = {column.name for column in TABLES[asked.name].columns}
    for option in ("launch", "layer"):
        column = "launch_no" if option == "launch" else option
        may = column in columns or (option == "launch" and asked.name in _PATHS)
        if getattr(asked, option) is not None and not may:
            raise UsageError(f"{asked.name} has no column {column}", hint=f"leave out --{option}")
    if asked.format == "parquet" and sys.stdout.isatty():
        raise UsageError("Parquet is no text", hint="send it to a file: > table.parquet")


def _list(format_: str) -> None:
    """Print what tables there are."""
    from dataclasses import asdict

    from megatrace.analysis.columns import TABLES
    from megatrace.cli.console import print_json, print_table, wrapped

    if format_ not in ("text", "json"):
        raise UsageError(f"the list of tables is no {format_}", hint="give the NAME of a table")
    if format_ == "json":
        print_json("tables", {"tables": [asdict(table) for table in TABLES.values()]})
        return
    for table in TABLES.values():
        sys.stdout.write(f"{table.name}\n{wrapped(table.doc, '  ')}\n")
        rows = [(c.name, c.dtype, c.unit, c.doc) for c in table.columns]
        print_table(("column", "dtype", "unit", "what"), rows, indent="  ")
        sys.stdout.write("\n")


def _print(asked: _Asked, capture: Capture) -> None:
    """Make the table and write it to stdout; what should be known of it goes to stderr."""
    parts: list[pd.DataFrame] = []
    devices: set[str] = set()
    lost: set[str] = set()
    make = _maker(asked, capture)
    one_path = asked.launch is not None and asked.name in _PATHS
    for trace in _traces(asked, capture):
        devices.update(trace.devices.values())
        if trace.loss.any:
            lost.add(trace.loss.sentence())
        part = make(trace)
        if not one_path:
            parts.append(_only(asked, part))
            continue
        # Other ranks have a launch of that number too, in what may be another step.
        parts = sorted((path for path in [*parts, part] if len(path)), key=_number)[:1]
        if parts and _number(parts[0]) == _lowest(asked, capture):
            break
    frame = _joined(parts) if parts else _empty(asked.name)
    frame = _only(asked, frame) if one_path else frame
    host = asked.name == "step_times"
    refuse_absent(capture, frame, asked.rank, asked.steps, asked.launch, asked.layer, host=host)
    talk = Talk()
    if "cpu" in devices:
        talk.say("device=cpu: times of the host build, which get no verdict")
    for sentence in sorted(lost):
        talk.warn(f"{capture.path}: {sentence}")
    if not len(frame):
        talk.say(f"{asked.name} has no rows: {_why_empty(asked, capture, bool(devices))}")
    elif asked.name == "floor":
        say_floor(talk, _traffic(asked, capture), frame)
    elif asked.name in _PATHS:
        what = "" if asked.launch is None else f"launch_no {asked.launch}"
        say_whose(talk, capture, frame, what, of_all=asked.rank is None)
        say_unknown(talk, capture, frame)
    else:
        say_sms(talk, capture)
    _WRITERS[asked.format](frame, asked)


def _traces(asked: _Asked, capture: Capture) -> Iterator[Trace]:
    """All that was asked for at once where that is little, else a step at a time."""
    from megatrace.analysis import decode
    from megatrace.analysis.views import by_step

    alone = None if asked.rank is None else [asked.rank]
    ranks = None if asked.name in _ACROSS_RANKS else alone
    steps: Collection[int] | None = asked.steps
    small = capture.line_count <= _SMALL_LINES
    any_step = steps is None and asked.launch is None
    if not small and any_step and asked.name in _PATHS:
        steps = _typical_of(capture, alone)
    if small and steps is None:
        yield decode(capture, ranks=ranks)
    elif small and asked.steps is not None and asked.steps[0] == asked.steps[-1]:
        yield decode(capture, ranks=ranks, steps=steps)
    else:
        yield from by_step(capture, ranks=ranks, steps=steps, lean=True)


def _typical_of(capture: Capture, ranks: list[int] | None) -> list[int]:
    """The step of median duration, by the launches of a few warps."""
    from megatrace.analysis import decode
    from megatrace.analysis.rank import probed_rings

    probe = decode(capture, ranks=ranks, rings=probed_rings(capture, ranks))
    return [_typical(probe.launches)[1]] if len(probe.launches) else []


def _traffic(asked: _Asked, capture: Capture) -> Traffic:
    from megatrace.analysis.traffic import Traffic

    return Traffic.of(capture, given(asked.bandwidth))


def _maker(asked: _Asked, capture: Capture) -> Callable[[Trace], pd.DataFrame]:
    """Who makes the table of a trace."""
    from megatrace.analysis import views

    if asked.name in _PATHS:
        return lambda trace: _path(asked, trace)
    if asked.name == views.floor.__name__:
        traffic = _traffic(asked, capture)
        return lambda trace: views.floor(trace, traffic)
    make: Callable[[Trace], pd.DataFrame] = getattr(views, asked.name)
    return make


def _path(asked: _Asked, trace: Trace) -> pd.DataFrame:
    from megatrace.analysis import views

    make: Callable[..., pd.DataFrame] = getattr(views, asked.name)
    launches = _of_rank(asked, trace.launches)
    if not len(launches):
        return _empty(asked.name)
    if asked.launch is not None:
        if not (launches["launch"] == asked.launch).any():
            return _empty(asked.name)
        return make(trace, launch_no=asked.launch, rank=asked.rank)
    if asked.steps is not None:
        return make(trace, step=int(launches["step"].iloc[0]), rank=asked.rank)
    rank, step = _typical(launches)
    return make(trace, step=step, rank=rank)


def _number(path: pd.DataFrame) -> int:
    from megatrace.analysis.numbers import numbers_of

    return int(numbers_of(path)[0])


def _lowest(asked: _Asked, capture: Capture) -> int:
    """The rank whose path it is, if it has the launch."""
    from megatrace.analysis.summary import ranks_of

    return min(ranks_of(capture)) if asked.rank is None else asked.rank


def _typical(launches: pd.DataFrame) -> tuple[int, int]:
    """The step of median duration, and the number of the rank and process that it is of."""
    from megatrace.analysis.numbers import numbers_of

    # Of each rank alone: clocks of ranks differ, and so do the times of its processes.
    by_step = launches.groupby([numbers_of(launches), launches["step"]]).agg(
        begin=("begin_ns", "min"), end=("end_ns", "max")
    )
    by_time = (by_step["end"] - by_step["begin"]).sort_values(kind="stable")
    number, step = by_time.index[(len(by_time) - 1) // 2]
    return int(number), int(step)


def _of_rank(asked: _Asked, frame: pd.DataFrame) -> pd.DataFrame:
    from megatrace.analysis.numbers import numbers_of

    return frame if asked.rank is None else frame[numbers_of(frame) == asked.rank]


def _only(asked: _Asked, frame: pd.DataFrame) -> pd.DataFrame:
    """The rows of the rank, launch, layer and steps asked for."""
    if asked.name in _ACROSS_RANKS:
        frame = _of_rank(asked, frame)
    if asked.launch is not None and "launch_no" in frame:
        frame = frame[frame["launch_no"] == asked.launch]
    if asked.layer is not None:
        frame = frame[frame["layer"].isin([*asked.layer])]
    if asked.steps is not None and "step" in frame:
        frame = frame[frame["step"].between(asked.steps.start, asked.steps.stop - 1)]
    return frame


def _joined(parts: list[pd.DataFrame]) -> pd.DataFrame:
    import pandas as pd

    if len(parts) == 1:
        return parts[0].reset_index(drop=True)
    plain = [part.astype(dict.fromkeys(part.select_dtypes("category"), object)) for part in parts]
    return pd.concat(plain, ignore_index=True)


def _empty(name: str) -> pd.DataFrame:
    from megatrace.analysis.columns import TABLES

    return TABLES[name].empty()


def _why_empty(asked: _Asked, capture: Capture, traced: bool) -> str:
    if asked.name == "floor" and traced and not _traffic(asked, capture).said:
        return _traffic(asked, capture).why_not
    if not len(capture.line_index()):
        return "no kernel was traced" if not traced else "no launch has a timeline"
    return "nothing in this capture, or in the part asked for, is of that kind"


def _write_text(frame: pd.DataFrame, asked: _Asked) -> None:
    from megatrace.analysis.numbers import with_labels
    from megatrace.cli.console import print_table

    shown, since = _since_the_first(with_labels(frame.head(asked.top)))
    head = [str(name) for name in shown.columns]
    rows = [tuple(map(_cell, row)) for row in shown.itertuples(index=False, name=None)]
    print_table(head, rows)
    talk = Talk()
    if since:
        several = "rank" in shown and shown["rank"].nunique() > 1
        own = ", each rank's on a clock of its own" if several else ""
        verb = "count" if "," in since else "counts"
        talk.say(
            f"{since} {verb} from the first of the rows{own}; the other formats have them whole"
        )
    if len(frame) > asked.top:
        more = len(frame) - asked.top
        talk.say(f"{more:,} more rows: --top {len(frame)}, or --format csv for all")


def _since_the_first(frame: pd.DataFrame) -> tuple[pd.DataFrame, str]:
    """Moments as ns since the earliest of them, and the names of their columns."""
    names = [name for name in frame.columns if name in _MOMENTS]
    known = frame[names].to_numpy()
    if not (known >= 0).any():
        return frame, ""
    first = known[known >= 0].min()
    moved = frame[names].where(frame[names] < 0, frame[names] - first)
    return frame.assign(**{name: moved[name] for name in names}), ", ".join(names)


def _cell(value: object) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def _write_csv(frame: pd.DataFrame, asked: _Asked) -> None:
    frame.to_csv(sys.stdout, index=False, lineterminator="\n")


def _write_json(frame: pd.DataFrame, asked: _Asked) -> None:
    from megatrace.analysis.columns import TABLES
    from megatrace.cli.console import print_json

    table = TABLES[asked.name]
    columns = {column.name: column.unit for column in table.columns}
    rows = frame.astype(dict.fromkeys(frame.select_dtypes("category"), object))
    body = {"table": table.name, "units": columns, "rows": rows.to_dict("records")}
    print_json("table", body)


def _write_parquet(frame: pd.DataFrame, asked: _Asked) -> None:
    import io

    buffer = io.BytesIO()
    plain = frame.astype(dict.fromkeys(frame.select_dtypes("category"), "string"))
    plain.to_parquet(buffer, index=False)
    sys.stdout.flush()
    sys.stdout.buffer.write(buffer.getvalue())


_WRITERS: dict[str, Callable[[pd.DataFrame, _Asked], None]] = {
    "text": _write_text,
    "csv": _write_csv,
    "json": _write_json,
    "parquet": _write_parquet,
}
