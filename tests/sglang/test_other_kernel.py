"""A megakernel that another package registered, in a recorded server: its steps, its records."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from megatrace.analysis.trace import Trace, decode
from megatrace.capture.reader import open_capture
from tests.sglang.conftest import declare
from tests.sglang.records import Run, read_capture
from tests.sglang.server import Environment, serving

TOKENS, LAUNCHES = 9, 3


@dataclass(slots=True)
class Seen:
    """What the server did."""

    log: str = ""
    run: Run = field(default_factory=Run)
    trace: Trace | None = None

    @property
    def launches(self) -> pd.DataFrame:
        """Those of the other package's kernel."""
        assert self.trace is not None
        return self.trace.launches


@pytest.fixture(scope="module")
def seen(environment: Environment, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Seen]:
    """A server with both packages installed, the other one found before megatrace."""
    folder, seen = tmp_path_factory.mktemp("other"), Seen()
    installed = folder / "installed"
    installed.mkdir()
    declare(installed, "other_megakernel", {"nvidia_megakernel": "other_megakernel:register"})
    both = replace(environment, path=(installed, *environment.path))
    capture, log = folder / "run.mtr", folder / "server.log"
    record = [sys.executable, "-m", "megatrace", "record", "--every", "1", "-o", str(capture)]
    variables = {
        "MEGATRACE_SHIM_GPU": "sm_90",
        "MEGATRACE_RUNTIME_DIR": str(folder / "runtime"),
        "MEGATRACE_PYTHON": str(environment.python),
    }
    with serving(
        both,
        log,
        command=[*record, "--"],
        arguments=["--enable-nvidia-megakernel"],
        variables=variables,
    ) as server:
        server.generate("hello there", TOKENS, "alone")
        server.generate(["one", "and two"], TOKENS, ["pair-0", "pair-1"])
    seen.log = log.read_text()
    with open_capture(capture) as opened:
        seen.run, seen.trace = read_capture(opened), decode(opened)
    yield seen
    assert Path(capture).exists()


def fact(seen: Seen) -> dict[str, Any]:
    return seen.run.facts["scheduler"]["megakernel"]


def test_the_other_packages_spec_is_kept_and_megatraces_own_left_out(seen: Seen) -> None:
    assert "NVIDIA megakernel: active (somebody's kernel: a chain of three" in seen.log
    assert "is already registered: other_megakernel:SPEC" in seen.log


def test_the_recording_says_which_megakernel_ran(seen: Seen) -> None:
    known = {key: value for key, value in fact(seen).items() if key != "build_s"}
    assert known == {
        "name": "somebody's kernel",
        "model": "MuseSparkForConditionalGeneration",
        "widths": [1],
        "summary": "a chain of three",
        "numerics": "bitwise",
    }
    assert fact(seen)["build_s"] > 0


def test_its_steps_are_host_spans(seen: Seen) -> None:
    rows = seen.run.scheduler
    decodes = [f for step in rows.steps_of("alone") for f in rows.forwards(step)][1:]
    assert len(decodes) >= TOKENS - 1
    assert {(f.event, f.batch, f.tokens) for f in decodes} == {("decode", 1, 1)}


def test_its_own_launches_lie_inside_the_decode_of_their_step(seen: Seen) -> None:
    launches, rows = seen.launches, seen.run.scheduler
    assert set(launches["kernel"].astype(str)) == {"stream"}
    decodes = {f.step: f for f in rows.of("decode") if f.batch == 1}
    assert set(launches["step"]) <= set(decodes)
    assert launches["step"].nunique() >= TOKENS - 1
    for launch in launches.itertuples():
        step = decodes[int(launch.step)]
        assert step.begin_ns <= launch.begin_ns
        assert launch.end_ns <= step.end_ns


def test_a_step_it_leaves_to_the_server_has_none_of_its_launches(seen: Seen) -> None:
    rows = seen.run.scheduler
    both = {f.step for f in rows.of("decode") if f.batch == 2}
    assert both
    assert not both & set(seen.launches["step"])
