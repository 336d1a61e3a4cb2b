"""Serve the report of a session and its progress on loopback while the run goes on."""

from __future__ import annotations

import contextlib
import hmac
import json
import os
import re
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from parabench.analysis.text import format
from parabench.errors import UsageError
from parabench.files import launch_folder, temporary_folder
from parabench.report.page import fill
from parabench.serve.progress import Progress, read_progress
from parabench.store.store import split

LOOPBACK = "127.0.0.1"
# The names of this machine that a browser may send. Other names may be DNS rebinding. A tunnel may change the port.
HOSTS = re.compile(r"(?:127\.0\.0\.1|localhost)(?::[0-9]{1,5})?", re.IGNORECASE | re.ASCII)

# Seconds until the page asks again: while the first page is being made, while a run goes on, and afterwards.
SOON_S, OFTEN_S, SELDOM_S = 0.3, 2.0, 10.0
# Making pages takes at most one part in SHARE of the time, because it slows down the run that is measured.
SHARE = 10
HEADERS = {
    "Cache-Control": "no-store",
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Content-Security-Policy": "frame-ancestors 'none'",
}

# (results database, session id) -> the page. Raises UsageError.
Make = Callable[[Path, str], str]


class ReportProcess:
    """Make pages with `parabench report` in a child process with the lowest priority."""

    def __init__(self, template: Path | None = None) -> None:
        self._more = [] if template is None else ["--template", str(template)]
        self._process: subprocess.Popen[str] | None = None

    def __call__(self, path: Path, session: str) -> str:
        """Return the page. Raises UsageError with the message of `parabench report`."""
        with launch_folder(temporary_folder()) as folder:
            page = folder / "report.html"
            command = [sys.executable, "-m", "parabench", "report", f"{path}@{session}", "-o", str(page), *self._more]
            # A separate session, so that Ctrl-C reaches the server only.
            self._process = subprocess.Popen(
                command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, start_new_session=True
            )
            with contextlib.suppress(OSError):
                os.setpriority(os.PRIO_PROCESS, self._process.pid, 19)
            _, message = self._process.communicate()
            if self._process.returncode:
                lines = message.strip().splitlines() or [f"exit code {self._process.returncode}"]
                raise UsageError(lines[-1].removeprefix("parabench: "))
            return page.read_text(encoding="utf-8")

    def end(self) -> None:
        """Stop the child process, if one is running."""
        if self._process is not None:
            self._process.kill()


class Live:
    """The newest page of a session and its progress. A new page is made when launches were added and somebody looks."""

    def __init__(
        self, store: str, make: Make, template: Path | None = None, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._store, self._make, self._template, self._clock = store, make, template, clock
        self._lock = threading.Lock()
        self._making: threading.Thread | None = None
        self._tried, self._not_before = "", 0.0
        # The page, its stamp and the launches in it.
        self._newest: tuple[str, str, int] | None = None
        self._error = ""

    def progress(self) -> dict[str, Any]:
        """Return what the page's script needs: the progress, which page there is, and when to ask again."""
        now, error = self._look()
        making = self._making is not None and self._making.is_alive()
        _, stamp, launches = self._newest or ("", "", 0)
        return {
            "said": now.text,
            "last": now.last,
            "error": format.one_line(error or self._error),
            "done": now.done,
            "planned": now.planned,
            "page": stamp,
            "launches": launches,
            "again_s": SOON_S if making and not stamp else OFTEN_S if making or now.going else SELDOM_S,
        }

    def page(self) -> str:
        """Return the newest page, or one that waits for the first. Its mark tells its script that it is served."""
        self._look()
        text, stamp, launches = self._newest or (fill("waiting.html", []), "", 0)
        mark = f'<meta name="parabench-live" content="{stamp}" data-launches="{launches}">'
        return text.replace("<head>", f"<head>\n{mark}", 1)

    def _look(self) -> tuple[Progress, str]:
        """Return the progress and what is wrong. Start making a page if it is time."""
        try:
            path, session = split(self._store)
            now = read_progress(path, session)
        except UsageError as problem:
            return Progress("The store cannot be shown."), str(problem)
        stamp = now.stamp and f"{now.stamp}{_changed(self._template)}"
        with self._lock:
            idle = self._making is None or not self._making.is_alive()
            if stamp and idle and stamp != self._tried and (not now.going or self._clock() >= self._not_before):
                self._tried = stamp
                self._making = threading.Thread(target=self._renew, args=(path, now, stamp), daemon=True)
                self._making.start()
        return now, ""

    def _renew(self, path: Path, now: Progress, stamp: str) -> None:
        start = self._clock()
        try:
            self._newest, self._error = (self._make(path, now.session), stamp, now.launches), ""
        except (UsageError, OSError) as error:
            self._error = str(error)
        self._not_before = self._clock() + SHARE * (self._clock() - start)

    def wait(self) -> None:
        """Wait for the page that is being made."""
        if self._making is not None:
            self._making.join()


def _changed(folder: Path | None) -> str:
    """Return a stamp of the user's own templates."""
    if folder is None:
        return ""
    return f"-{max((file.stat().st_mtime_ns for file in folder.rglob('*') if file.is_file()), default=0):x}"


class Server(ThreadingHTTPServer):
    """Serve `live` on loopback. With a `token`, only addresses that start with it are answered."""

    daemon_threads = True

    def __init__(self, port: int, live: Live, token: str = "") -> None:
        self.live, self.prefix = live, f"/{token}/" if token else "/"
        super().__init__((LOOPBACK, port), _Handler)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Print errors, except those of a connection that the client closed."""
        if not isinstance(sys.exc_info()[1], OSError):
            super().handle_error(request, client_address)


class _Handler(BaseHTTPRequestHandler):
    """Answer GET of the page and of its progress."""

    server: Server
    timeout = 10.0
    server_version, sys_version = "parabench", ""

    def do_GET(self) -> None:
        path, prefix = self.path.partition("?")[0], self.server.prefix
        hosts = self.headers.get_all("Host", [])
        if len(hosts) != 1 or not HOSTS.fullmatch(hosts[0]):
            self._answer(403, "This server answers to 127.0.0.1 and localhost only.\n")
        elif not hmac.compare_digest(path[: len(prefix)].encode(), prefix.encode()):
            self._answer(403, "This address lacks the token; open the one that parabench serve has printed.\n")
        elif path == prefix:
            self._answer(200, self.server.live.page(), "text/html")
        elif path == f"{prefix}progress":
            self._answer(200, json.dumps(self.server.live.progress(), allow_nan=False), "application/json")
        else:
            self._answer(404, "There is nothing here; the report is at /.\n")

    def _answer(self, status: int, text: str, kind: str = "text/plain") -> None:
        body = text.encode()
        self.send_response(status)
        headers = {"Content-Type": f"{kind}; charset=utf-8", "Content-Length": str(len(body)), **HEADERS}
        for name, value in headers.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: Any) -> None:
        """Log nothing: the terminal is the user's."""


def listen(live: Live, port: int, token: str = "") -> Server:
    """Return a server on this port of loopback, or on any free port if it is 0. Raises UsageError if it is taken."""
    try:
        return Server(port, live, token)
    except OSError as error:
        why = os.strerror(error.errno) if error.errno else error
        raise UsageError(
            f"port {port} cannot be listened on: {why}; give another --port, or 0 for any that is free"
        ) from error
