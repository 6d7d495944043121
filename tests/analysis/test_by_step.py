"""A step at a time: the same tables as of the whole capture, and little memory."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from numpy.typing import NDArray

from megatrace.analysis import decode, views
from megatrace.capture.reader import open_capture
from megatrace.capture.writer import CaptureWriter
from tests.analysis.small import MUSE, ROOT, STREAM
from tests.bench.bench_tables import make
from tests.build import MS, Build, Launch, demo, point, write

NAMES = ["launch_times", "stall_classes", "prefetch_timing", "sync_waits", "phase_times",
         "imbalance", "expert_traffic"]  # fmt: skip


def plain(frame: pd.DataFrame) -> pd.DataFrame:
    """Without what only the whole capture tells, in one order."""
    texts = dict.fromkeys(frame.select_dtypes("category"), "object")
    frame = frame.drop(columns=["gap_ns", "clock_error_ns"], errors="ignore").astype(texts)
    return frame.sort_values(list(frame.columns)).reset_index(drop=True)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("lean", [False, True], ids=["whole", "lean"])
@pytest.mark.parametrize("lines", [1 << 20, 0], ids=["indexed", "streamed"])
@pytest.mark.parametrize("file", [MUSE, STREAM], ids=["megakernel", "example"])
def test_the_tables_of_the_steps_are_those_of_the_capture(
    file: Path, lines: int, lean: bool, name: str
) -> None:
    table = getattr(views, name)
    with open_capture(file) as capture:
        whole = table(decode(capture))
        parts = [table(trace) for trace in views.by_step(capture, lean=lean, indexed_lines=lines)]
    texts = dict.fromkeys(whole.select_dtypes("category"), "object")
    joined = pd.concat([part.astype(texts) for part in parts])
    pd.testing.assert_frame_equal(plain(joined), plain(whole), check_dtype=False)


def test_steps_come_in_their_order_and_only_those_asked_for() -> None:
    with open_capture(MUSE) as capture:
        steps = [trace.launches["step"].unique().tolist() for trace in views.by_step(capture)]
        some = [
            trace.launches["step"].iloc[0] for trace in views.by_step(capture, steps=[4, 2, 77])
        ]
    assert steps == [[1], [2], [3], [4]]
    assert some == [2, 4]


def test_ranks_are_side_by_side_in_a_step(tmp_path: Path) -> None:
    path = write(tmp_path / "two.mtr", *demo(ranks=2))
    with open_capture(path) as capture:
        traces = list(views.by_step(capture))
        one = list(views.by_step(capture, ranks=[1]))
    assert [set(t.launches["rank"]) for t in traces] == [{0, 1}] * 3
    assert [set(t.records["rank"]) for t in one] == [{1}] * 3
    assert [set(t.host["step"]) for t in traces] == [{1}, {2}, {3}]


def test_a_record_is_in_the_launch_that_its_row_says(tmp_path: Path) -> None:
    path = write(tmp_path / "two.mtr", *demo(ranks=2))
    with open_capture(path) as capture:
        for trace in views.by_step(capture):
            launches = trace.launches.iloc[trace.records["launch_row"]]
            for name in ("rank", "block", "warp", "step", "layer"):
                assert np.array_equal(launches[name].to_numpy(), trace.records[name].to_numpy())
            assert (
                launches["role"].astype(str).tolist() == trace.records["role"].astype(str).tolist()
            )


def test_a_capture_without_launches_has_no_steps(tmp_path: Path) -> None:
    with open_capture(write(tmp_path / "a.mtr", Build())) as capture:
        assert list(views.by_step(capture)) == []


def test_launches_without_a_step_id_are_one_step(tmp_path: Path) -> None:
    made = Build()
    for number in range(3):
        at = MS + 100_000 * number
        made.add(0, Launch(number, at, at + 50_000, step=0))
    with open_capture(write(tmp_path / "a.mtr", made)) as capture:
        (trace,) = views.by_step(capture)
    assert len(trace.launches) == 3


class _OnlyMeta:
    """A writer without lines."""

    def __init__(self, writer: CaptureWriter) -> None:
        self.write_meta, self.write_host = writer.write_meta, writer.write_host
        self.write_counters = writer.write_counters

    def write_lines(self, *_: object) -> None:
        """Nothing."""


def in_batches(path: Path, made: Build, *batches: NDArray[np.intp]) -> Path:
    """A capture of one rank whose lines lie in the batches given, by their rows."""
    writer = CaptureWriter(path)
    made.write_to(_OnlyMeta(writer))  # type: ignore[arg-type]
    ring, lines = made.arrays()
    for rows in batches:
        writer.write_lines(made.rank, ring[rows], lines[rows], MS)
        writer.flush()
    writer.finish()
    return path


def drained(made: Build, seed: int) -> list[NDArray[np.intp]]:
    """Rows in the order of a recorder whom chance leads to the rings: a few of one at a time."""
    rng = np.random.default_rng(seed)
    ring, _ = made.arrays()
    left = [np.flatnonzero(ring == number) for number in range(made.rings)]
    order: list[NDArray[np.intp]] = []
    while any(len(rows) for rows in left):
        number = int(rng.choice([i for i, rows in enumerate(left) if len(rows)]))
        many = int(rng.integers(1, 12))
        order.append(left[number][:many])
        left[number] = left[number][many:]
    rows = np.concatenate(order)
    parts = np.split(rows, range(7, len(rows), 7))
    return [part[::-1] if rng.random() < 0.3 else part for part in parts]


@pytest.mark.parametrize("seed", range(6))
def test_steps_are_whole_however_their_lines_lie_in_the_file(tmp_path: Path, seed: int) -> None:
    (made,) = demo(steps=5, blocks=3)
    if seed >= 3:
        made.lose(0, 3)
        made.lose(4, 7, 8)
    path = in_batches(tmp_path / "a.mtr", made, *drained(made, seed))
    with open_capture(path) as capture:
        assert capture.line_batches > 10
        traces = list(views.by_step(capture, indexed_lines=0))
        for trace, same in zip(traces, views.by_step(capture), strict=True):
            for name in ("launches", "records", "host"):
                mine, other = (getattr(t, name) for t in (trace, same))
                mine = mine.drop(columns="clock_error_ns", errors="ignore")
                pd.testing.assert_frame_equal(
                    mine, other[mine.columns], check_categorical=False, check_dtype=False
                )
            assert trace.problems == same.problems


def test_a_line_that_came_after_the_next_launch_is_of_its_own_step(tmp_path: Path) -> None:
    made = Build()
    many = [point("mark", 100 * i, i, i) for i in range(1, 60)]
    for number in range(3):
        at = MS + 100_000 * number
        made.add(0, Launch(number, at, at + 50_000, step=number + 1, records=many))
    rows = np.arange(len(made.arrays()[0]))
    each = len(rows) // 3
    assert each > 3
    late = each - 2  # of the first launch, read behind the second's header
    first, last = np.append(np.delete(rows[: each + 1], late), []), rows[each + 1 :]
    path = in_batches(tmp_path / "a.mtr", made, first.astype(np.intp), np.append(late, last))
    with open_capture(path) as capture:
        traces = list(views.by_step(capture, indexed_lines=0))
    assert [len(trace.records) for trace in traces] == [59] * 3
    assert all(trace.launches["complete"].all() for trace in traces)


MEASURE = """
import sys
from megatrace.analysis import views
from megatrace.capture.reader import open_capture


def held():
    with open("/proc/self/status") as status:
        return int(next(line for line in status if line.startswith("RssAnon")).split()[1]) * 1024


with open_capture(sys.argv[1]) as capture:
    before, most = held(), 0
    for trace in views.by_step(capture, lean=True, indexed_lines=0):
        views.stall_classes(trace)
        most = max(most, held())
        del trace
print(most - before)
"""


def test_memory_is_that_of_a_step_however_many_there_are(tmp_path: Path) -> None:
    """What is mapped of the file is not held, and does not count. Five times the steps; what the
    allocator keeps varies by half.
    """
    held = []
    for steps in (2, 10):
        path = tmp_path / f"{steps}.mtr"
        make(path, steps=steps, layers=1)
        done = subprocess.run(
            [sys.executable, "-c", MEASURE, str(path)],
            capture_output=True, text=True, check=True, cwd=ROOT,
        )  # fmt: skip
        held.append(int(done.stdout))
    assert held[1] < 2 * held[0]
