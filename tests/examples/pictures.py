"""Takes the course's pictures anew, from the captures it ships.

    python -m tests.examples.pictures [NAME ...]

The terminal's are of the real app, Perfetto's of its real UI; both need the headless Chromium
that tests.export.ui_shot looks for. Look at them before you commit them.
"""

from __future__ import annotations

import base64
import contextlib
import json
import os
import re
import shlex
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd
from websockets.sync.client import ClientConnection

from megatrace.analysis import Trace, decode
from megatrace.capture.reader import open_capture
from megatrace.export import PerfettoOptions, export_perfetto
from megatrace.tui.live import LiveSource
from tests.collect.helpers import recording
from tests.export.ui_shot import browser, page, screenshot
from tests.tui.helpers import ROOT, App, drive, drive_capture, shows

MUSE = ROOT / "examples/03_read_a_trace/layer.mtr"
STREAM = "python examples/01_trace_a_kernel/run.py --target host --steps 100000"
TRACE = ROOT / "examples/01_trace_a_kernel"
READ = ROOT / "examples/03_read_a_trace"
LATE = ROOT / "examples/04_late_prefetch"
LIVE = ROOT / "examples/06_watch_live"
FONT = "DejaVu Sans Mono, monospace"


@dataclass(frozen=True)
class Terminal:
    """A screen of ``megatrace view``: the keys that lead to it, a word that it then shows."""

    capture: Path
    word: str
    keys: Sequence[str] = ()
    size: tuple[int, int] = (110, 24)

    def take(self, png: Path) -> None:
        drawn: list[str] = []

        async def steps(pilot: App) -> None:
            for key in self.keys:
                await pilot.press(key)
                await pilot.pause(0.3)
            await shows(pilot, self.word)
            drawn.append(pilot.app.export_screenshot(title=f"megatrace view {self.capture.name}"))

        with contextlib.chdir(ROOT):  # the screen says the path as a reader types it
            drive_capture(self.capture.relative_to(ROOT), steps, self.size)
        draw_svg(drawn[0], png)


@dataclass(frozen=True)
class Live:
    """``megatrace live`` on a recording of the example kernel in the host build."""

    command: str
    word: str
    size: tuple[int, int] = (110, 26)

    def take(self, png: Path) -> None:
        drawn: list[str] = []

        async def steps(pilot: App) -> None:
            await shows(pilot, self.word)
            await pilot.pause(6)  # a trend has more than one point
            drawn.append(pilot.app.export_screenshot(title="megatrace live"))

        with tempfile.TemporaryDirectory() as folder, contextlib.chdir(ROOT):
            os.environ["MEGATRACE_RUNTIME_DIR"] = folder
            with recording(Path(folder) / "live.mtr", *shlex.split(self.command)):
                drive(LiveSource(), steps, self.size)
        draw_svg(drawn[0], png)


@dataclass(frozen=True)
class Perfetto:
    """One step in Perfetto: whole, or a part of a launch with the warps of one block's SM.

    ``block`` -1 is the lowest that is drawn. ``part_us`` counts from the begin of that
    block's launch. ``select`` is an event and a slot: the first such record of the block is
    clicked, so that its arrows are drawn; of an event without a name nothing is.
    """

    capture: Path
    block: int | None = None
    part_us: tuple[float, float] = (0, 0)
    select: tuple[str, int] = ("", 0)
    size: tuple[int, int] = (1400, 800)

    def take(self, png: Path) -> None:
        trace = decode(open_capture(self.capture))
        commands, query = [_expand("^rank 0+ GPU")], {}
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "step.pftrace.gz"
            step = export_perfetto(trace, path, PerfettoOptions()).steps[0]
            if self.block is not None:
                launches = trace.launches[trace.launches.step == step]
                block = launches.block.min() if self.block < 0 else self.block
                launch = launches[launches.block == block].sort_values("begin_ns").iloc[0]
                commands.append(_expand(f"^SM {launch.sm}( |$)"))
                query = self._query(trace, launch)
            screenshot(path, png, query=query, commands=commands, size=self.size)

    def _query(self, trace: Trace, launch: pd.Series[Any]) -> dict[str, str]:
        """Parameters of the UI's address: what is shown, what is clicked."""
        begin_ns = int(launch.begin_ns)
        names = ("visStart", "visEnd")
        query = {
            n: str(begin_ns + int(us * 1e3)) for n, us in zip(names, self.part_us, strict=True)
        }
        event, slot = self.select
        if not event:
            return query
        of = trace.records
        of = of[(of.layer == launch.layer) & (of.step == launch.step) & (of.block == launch.block)]
        of = of[(of.event == event) & (of.slot == slot)].sort_values("begin_ns")
        return query | {"ts": str(of.begin_ns.iloc[0]), "dur": str(of.dur_ns.iloc[0])}


def _expand(rows: str) -> dict[str, object]:
    return {"id": "dev.perfetto.ExpandTracksByRegex", "args": [rows]}


def draw_svg(svg: str, png: Path) -> None:
    """Draw the app's picture of itself, which names a font that lies elsewhere."""
    svg = re.sub(r"@font-face \{.*?\}", "", svg, flags=re.DOTALL)
    svg = svg.replace("Fira Code, monospace", FONT)
    width, height = (float(n) for n in re.findall(r'viewBox="0 0 ([\d.]+) ([\d.]+)"', svg)[0])
    chrome = browser()
    assert chrome is not None, "no chromium-headless-shell; name one in $CHROME"
    size = (int(width), int(height))
    with page(chrome, *size) as connection, tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "screen.html"
        file.write_text(f'<meta charset="utf-8"><body style="margin:0;overflow:hidden">{svg}')
        call(connection, 1, "Page.navigate", url=file.as_uri())
        call(connection, 2, "Runtime.evaluate", expression=_LOADED, awaitPromise=True)
        clip = {"x": 0, "y": 0, "width": size[0], "height": size[1], "scale": 0.75}
        shot = call(connection, 3, "Page.captureScreenshot", format="png", clip=clip)
        png.write_bytes(base64.b64decode(shot["data"]))


_LOADED = "new Promise(r => setTimeout(r, 500))"


def call(connection: ClientConnection, number: int, method: str, **params: object) -> Any:
    """Ask the browser for one thing."""
    connection.send(json.dumps({"id": number, "method": method, "params": params}))
    while True:
        answer = json.loads(connection.recv(timeout=60))
        if answer.get("id") == number:
            return answer["result"]


PICTURES: dict[Path, Terminal | Live | Perfetto] = {
    TRACE / "perfetto.png": Perfetto(
        TRACE / "h200.mtr", block=-1, part_us=(-3, 97), size=(1600, 1000)
    ),
    READ / "layers.png": Terminal(MUSE, "roles of layer 1", ("down", "down")),
    READ / "layer.png": Terminal(MUSE, "experts_up", ("down", "down", "enter")),
    READ / "warps.png": Terminal(
        MUSE, "tensor at", ("down", "down", "enter", "tab", "tab", "enter", "n"), (110, 30)
    ),
    READ / "step.png": Perfetto(MUSE, size=(1400, 560)),
    READ / "block.png": Perfetto(
        MUSE, block=131, part_us=(18, 50), select=("first_weights", 7), size=(1400, 1050)
    ),
    **{
        LATE / f"{variant}.png": Perfetto(
            LATE / f"{variant}.mtr",
            block=-1,
            part_us=(0, 20),
            select=("down_weights", 0),
            size=(1400, 760),
        )
        for variant in ("before", "after")
    },
    LIVE / "live.png": Live(STREAM, "consumer"),
}


def main() -> None:
    wanted = sys.argv[1:]
    for png, picture in PICTURES.items():
        if not wanted or png.name in wanted or png.stem in wanted:
            picture.take(png)
            sys.stdout.write(f"{png.relative_to(ROOT)}: {png.stat().st_size / 1000:.0f} kB\n")


if __name__ == "__main__":
    main()
