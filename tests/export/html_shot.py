"""A page of plots in headless Chromium, offline: what it drew, asked for and complained of.

python -m tests.export.html_shot run.html run.png [--dark] [--width 1280]
"""

from __future__ import annotations

import argparse
import base64
import json
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from websockets.sync.client import ClientConnection

from tests.export.ui_shot import browser, page

_TIMEOUT_S = 60
_SETTLE_S = 1.0
"""What is drawn is seen some frames later."""
_NEXT_FRAME_JS = "new Promise(seen => requestAnimationFrame(() => requestAnimationFrame(seen)))"
_DRAWN_JS = "document.documentElement?.dataset.drawn"
_COUNT_JS = "document.querySelectorAll('.plot .main-svg').length && " + (
    "[...document.querySelectorAll('.plot')].filter(p => p.querySelector('.main-svg')).length"
)
_INVALID_JS = """
JSON.stringify(Object.entries(JSON.parse(document.getElementById('figures').textContent)).flatMap(
  ([place, figures]) => figures.flatMap(f => (Plotly.validate(f.data, f.layout) || []).map(
    fault => `${place}: ${fault.msg}`))))
"""
_LABELS_JS = "[...document.querySelectorAll('.plot text')].map(t => t.textContent).join('\\n')"
_TEXT_JS = "document.body.innerText"
_SIZE_JS = "JSON.stringify([document.body.scrollWidth, document.body.scrollHeight])"
_WIDE_JS = "document.documentElement.scrollWidth - document.documentElement.clientWidth"


@dataclass(frozen=True)
class Seen:
    """What a browser made of a page."""

    plots: int
    errors: list[str]
    """Of the console, of scripts and of the content security policy."""
    requests: list[str]
    """Addresses asked for, the page itself left out."""
    invalid: list[str]
    """What the plotting library says is wrong with the figures."""
    labels: str
    text: str
    answers: list[Any]
    """Of the scripts that the caller had run, in order."""
    too_wide_px: int


class _Tab:
    def __init__(self, connection: ClientConnection) -> None:
        self._connection = connection
        self._sent = 0
        self.events: list[dict[str, Any]] = []

    def call(self, method: str, **params: object) -> dict[str, Any]:
        self._sent += 1
        request = {"id": self._sent, "method": method, "params": params}
        self._connection.send(json.dumps(request))
        while True:
            answer = json.loads(self._connection.recv(timeout=_TIMEOUT_S))
            if answer.get("id") == self._sent:
                assert "error" not in answer, answer
                result: dict[str, Any] = answer["result"]
                return result
            self.events.append(answer)

    def evaluate(self, script: str) -> Any:
        answer = self.call("Runtime.evaluate", expression=script, awaitPromise=True)
        return answer["result"].get("value")

    def errors(self) -> list[str]:
        found = []
        for event in self.events:
            params = event.get("params", {})
            if event["method"] == "Runtime.exceptionThrown":
                found.append(json.dumps(params["exceptionDetails"])[:400])
            if event["method"] == "Log.entryAdded" and params["entry"]["level"] == "error":
                found.append(params["entry"]["text"])
            if event["method"] == "Runtime.consoleAPICalled" and params["type"] == "error":
                found.append(json.dumps(params["args"])[:400])
        return found

    def requests(self) -> list[str]:
        return [
            event["params"]["request"]["url"]
            for event in self.events
            if event["method"] == "Network.requestWillBeSent"
        ]


def look(
    html: Path,
    png: Path | None = None,
    *,
    dark: bool = False,
    size: tuple[int, int] = (1280, 900),
    scripts: tuple[str, ...] = (),
) -> Seen:
    """Open ``html`` without a network, run ``scripts``, and write a picture of all of it."""
    chrome = browser()
    if chrome is None:
        raise FileNotFoundError("no chromium-headless-shell; name one in $CHROME")
    with page(chrome, *size) as connection:
        tab = _Tab(connection)
        for domain in ("Page", "Runtime", "Log", "Network"):
            tab.call(f"{domain}.enable")
        tab.call(
            "Network.emulateNetworkConditions",
            offline=True, latency=0, downloadThroughput=0, uploadThroughput=0,
        )  # fmt: skip
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        tab.call("Emulation.setEmulatedMedia", features=[scheme])
        address = html.resolve().as_uri()
        tab.call("Page.navigate", url=address)
        deadline = time.monotonic() + _TIMEOUT_S
        while tab.evaluate(_DRAWN_JS) not in ("true", "false"):
            assert time.monotonic() < deadline, tab.errors()
            time.sleep(0.1)
        answers = [tab.evaluate(script) for script in scripts]
        if png is not None:
            _shoot(tab, png)
        return Seen(
            plots=int(tab.evaluate(_COUNT_JS) or 0),
            invalid=json.loads(tab.evaluate(_INVALID_JS)),
            labels=str(tab.evaluate(_LABELS_JS)),
            text=str(tab.evaluate(_TEXT_JS)),
            answers=answers,
            too_wide_px=int(tab.evaluate(_WIDE_JS)),
            errors=tab.errors(),
            requests=[u for u in tab.requests() if u != address and not u.startswith("data:")],
        )


def _shoot(tab: _Tab, png: Path) -> None:
    tab.evaluate(_NEXT_FRAME_JS)
    time.sleep(_SETTLE_S)
    width, height = json.loads(tab.evaluate(_SIZE_JS))
    clip = {"x": 0, "y": 0, "width": width, "height": height, "scale": 1}
    shot = tab.call("Page.captureScreenshot", format="png", captureBeyondViewport=True, clip=clip)
    png.write_bytes(base64.b64decode(shot["data"]))


def main() -> None:
    """The command line of this module."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("html", type=Path)
    parser.add_argument("png", type=Path)
    parser.add_argument("--dark", action="store_true")
    parser.add_argument("--width", type=int, default=1280)
    given = parser.parse_args()
    seen = look(given.html, given.png, dark=given.dark, size=(given.width, 900))
    print(seen.plots, seen.errors, seen.requests, seen.invalid, seen.too_wide_px)


if __name__ == "__main__":
    main()
