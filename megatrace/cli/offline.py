"""``megatrace view --perfetto``: a capture in Perfetto's viewer, without a network."""

from __future__ import annotations

import os
import signal
import socket
import sys
import tempfile
import webbrowser
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from megatrace.cli.console import flush_stdout, print_json, warn_incomplete
from megatrace.cli.progress import Progress
from megatrace.cli.shown import Shown, decode_asked, write_trace
from megatrace.collect.talk import Talk

if TYPE_CHECKING:
    from megatrace.analysis import Trace
    from megatrace.capture.reader import Capture
    from megatrace.export import ExportResult
    from megatrace.export.offline import OfflineViewer
    from megatrace.export.viewer import First

_SUFFIX = ".pftrace.gz"


@dataclass(frozen=True, slots=True)
class Offline:
    """How it was asked for: ``port`` 0 is any free one."""

    shown: Shown
    port: int
    browser: bool
    as_json: bool


def view_offline(file: Path, how: Offline) -> bool:
    """Serve ``file`` in the viewer until it is interrupted; whether the capture is complete.

    Raises MegatraceError where the viewer is not installed, and what reading, exporting
    and listening raise.
    """
    from megatrace.capture.reader import open_capture
    from megatrace.export.offline import OfflineViewer, ui_folder

    ui_folder()
    # Mode 0700, and the trace in it 0600: nobody but this user sees what was recorded.
    with _interrupted_alike(), tempfile.TemporaryDirectory(prefix="megatrace-") as folder:
        trace = Path(folder) / (file.name.removesuffix(".mtr") + _SUFFIX)
        with open_capture(file) as capture:
            result, first = _export(how.shown, capture, trace)
            warn_incomplete(capture)
            complete = capture.complete
        with OfflineViewer(trace, how.port, first) as viewer:
            try:
                _announce(how, result, viewer)
                viewer.run()
            except KeyboardInterrupt:
                Talk().say("closed")
    return complete


@contextmanager
def _interrupted_alike() -> Iterator[None]:
    """Let whatever ends the program do so as ctrl-C does, so that nothing is left behind."""
    # Ctrl-C too: a shell starts what it puts in the background with it ignored.
    numbers = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
    before = [signal.signal(number, signal.default_int_handler) for number in numbers]
    try:
        yield
    finally:
        for number, handler in zip(numbers, before, strict=True):
            signal.signal(number, handler)


def _export(shown: Shown, capture: Capture, trace: Path) -> tuple[ExportResult, First]:
    """What was written, and what of it is opened."""
    progress = Progress(Talk())
    progress.begin("decoding")
    try:
        decoded, left_out = decode_asked(shown, capture)
        progress.begin("writing")
        return write_trace(shown, decoded, left_out, capture, trace, progress), _first(decoded)
    finally:
        progress.end()


def _first(decoded: Trace) -> First:
    from megatrace.export.viewer import First

    rows = decoded.launches if len(decoded.launches) else decoded.host
    if not len(rows):
        return First()
    rank = int(rows["rank"].min())
    sms = decoded.launches["sm"][decoded.launches["rank"] == rank]
    return First(rank, int(sms.min()) if len(sms) else 0)


def _announce(how: Offline, result: ExportResult, viewer: OfflineViewer) -> None:
    """The link on stdout, the talk about it on stderr."""
    talk, port = Talk(), viewer.port
    talk.say(f"shows {result.sentence()}")
    talk.say(f"from another machine, first: ssh -L {port}:127.0.0.1:{port} {socket.gethostname()}")
    talk.say("the link opens once; ctrl-C ends it")
    if how.as_json:
        print_json(
            "view-perfetto",
            {
                "link": viewer.link,
                "port": port,
                "steps": list(result.steps),
                "slices": result.slices,
                "flows": result.flows,
                "left_out": list(result.left_out),
                "loss": result.loss,
            },
        )
    else:
        sys.stdout.write(viewer.link + "\n")
    flush_stdout()
    if how.browser and _has_screen():
        webbrowser.open(viewer.link)


def _has_screen() -> bool:
    """Whether a browser would be seen: a browser of the terminal cannot run the viewer."""
    if "SSH_CONNECTION" in os.environ:
        return False
    return sys.platform == "darwin" or any(
        os.environ.get(n) for n in ("DISPLAY", "WAYLAND_DISPLAY")
    )
