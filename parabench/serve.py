"""Serve the report of a session and its progress on loopback during the run."""

from __future__ import annotations

import hmac
import json
import os
import re
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from datetime import UTC, datetime
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from parabench.analysis import format
from parabench.analysis.answer import Answer
from parabench.analysis.session import select_session, select_sessions, split
from parabench.errors import UsageError
from parabench.files import launch_folder, temporary_folder
from parabench.plan.protocol import DEADLINE_FACTOR, LEAST_DEADLINE_S
from parabench.report.views.answer import AnswerView
from parabench.store.record import EXPLAIN_REPETITION, FIRST_REPETITION, Status
from parabench.store.results import load

LOOPBACK = "127.0.0.1"
# The accepted host names. Others may be DNS rebinding. The port may differ, because a tunnel can change it.
HOSTS = re.compile(r"(?:127\.0\.0\.1|localhost)(?::[0-9]{1,5})?", re.IGNORECASE | re.ASCII)
# Seconds between the requests of a page during the run, and afterwards.
OFTEN_S, SELDOM_S = 2.0, 10.0
# Making pages takes at most one part in SHARE of the time, because it slows down the run that is measured.
SHARE = 10
HEADERS = {
    "Cache-Control": "no-store",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Content-Security-Policy": "frame-ancestors 'none'",
}


def make_page(path: Path, session: str) -> str:
    """Return the HTML that `parabench report` makes in a child process, which has the lowest priority.

    Raises UsageError with the message of `parabench report`.
    """
    code = "import os; from parabench import cli, signals; "
    code += f"signals.die_with_parent({os.getpid()}); os.nice(19); cli.main()"
    with launch_folder(temporary_folder()) as folder:
        page = folder / "report.html"
        command = [sys.executable, "-c", code, "report", f"{path}@{session}", "-o", str(page)]
        # A separate session, so that Ctrl-C reaches the server only.
        ran = subprocess.run(command, capture_output=True, text=True, start_new_session=True, check=False)
        if ran.returncode:
            raise UsageError(ran.stderr.strip().rpartition("\n")[2].removeprefix("parabench: ") or "no page was made")
        return page.read_text(encoding="utf-8")


def nothing(text: str, error: str = "") -> dict[str, Any]:
    """Return the progress for a database without sessions."""
    return {"text": text, "error": error, "done": 0, "planned": 0, "going": True, "session": "", "stamp": ""}


def read_progress(path: Path, name: str | None = None, now: datetime | None = None) -> dict[str, Any]:
    """Return the progress of the session with this id or label, or of both variants of an `ab`.

    `stamp` changes when the page would change. Raises UsageError if the file is not a results database, or does not
    have the session.
    """
    soon = "The results are shown as soon as a run starts."
    if not path.exists() or (path.is_file() and not path.stat().st_size):
        return nothing(f"The results database {path} does not exist yet. {soon}")
    results = load(path)
    if results.listed.empty:
        return nothing(f"{path} has no session yet. {soon}")
    session = select_session(results, name)
    run = session.interleaved.get("run")
    sessions = select_sessions(results, results.listed["id"].tolist()) if run else [session]
    variants = [each for each in sessions if each.interleaved.get("run") == run]
    launches = results.of([each.id for each in variants]).launch
    wall_s = launches["wall_s"].astype(float).fillna(0.0)
    ended = (launches["repetition"] >= FIRST_REPETITION) & (launches["status"] != Status.INTERRUPTED)
    well = launches["status"].isin([Status.OK, Status.INTERRUPTED]) | (launches["repetition"] == EXPLAIN_REPETITION)
    done, planned = int(ended.sum()), sum(each.launches_planned for each in variants)
    finishes = sum(bool(each.finished_utc) for each in variants)
    finished = finishes == len(variants) and done >= planned
    text, stalled = f"{done:,} of {format.count(planned, 'launch')}", False
    if finished:
        text = f"Finished: {text}"
    elif len(launches):
        started = datetime.fromisoformat(launches["started_utc"].iloc[-1])
        quiet_s = ((now or datetime.now(UTC)) - started).total_seconds() - wall_s.iloc[-1]
        deadlines = [(each.plan.get("protocol") or {}).get("deadline_s") or 0 for each in variants]
        # By then the driver would have ended and recorded a launch that hangs.
        stalled = quiet_s > max(LEAST_DEADLINE_S, DEADLINE_FACTOR * wall_s.max(), *deadlines)
        if stalled:
            text += f"; no launch has ended for {format.duration(quiet_s)}, so the run seems to have stopped"
        elif 0 < done < planned:
            text += f", about {format.duration((planned - done) * wall_s[ended].mean(), 1)} left"
    failed = f" {format.count(int((~well).sum()), 'launch')} failed." if not well.all() else ""
    stamp = "-".join(map(str, (session.id, len(launches), planned, finishes)))
    progress = {"text": f"{text}.{failed}", "done": done, "planned": planned, "going": not (finished or stalled)}
    return progress | {"error": "", "session": str(session.id), "stamp": stamp}


class Live:
    """The newest page of a session and its progress.

    `make` returns the page's HTML for a database and a session id. It is called when a browser requests the progress
    and launches were added.
    """

    def __init__(
        self, store: str, make: Callable[[Path, str], str], clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._store, self._make, self._clock = store, make, clock
        self._lock = threading.Lock()
        self._making = threading.Thread()
        self._tried, self._not_before, self._error = "", 0.0, ""
        waiting = Answer(("This page becomes the report as soon as there is one.",))
        view = AnswerView("Waiting for results", "Waiting for results", waiting, [], kicker="parabench")
        self._page, self._stamp = view.html(), ""

    def progress(self) -> dict[str, Any]:
        """Return the progress, the stamp of the page, and the time of the next request. Start a new page if due."""
        try:
            path, session = split(self._store)
            now = read_progress(path, session)
        except UsageError as problem:
            unknown = nothing("The results database cannot be shown.", str(problem))
            return unknown | {"page": self._stamp, "again_s": OFTEN_S}
        with self._lock:
            in_time = not now["going"] or self._clock() >= self._not_before
            if now["stamp"] not in ("", self._tried) and in_time and not self._making.is_alive():
                self._tried = now["stamp"]
                self._making = threading.Thread(target=self._renew, args=(path, now), daemon=True)
                self._making.start()
        often = now["going"] or self._making.is_alive()
        return now | {"error": self._error, "page": self._stamp, "again_s": OFTEN_S if often else SELDOM_S}

    def page(self) -> str:
        """Return the newest page, or one that waits for the first. A meta element enables its requests for progress."""
        self.progress()
        return self._page.replace("<head>", f'<head>\n<meta name="parabench-live" content="{self._stamp}">', 1)

    def _renew(self, path: Path, now: dict[str, Any]) -> None:
        start = self._clock()
        try:
            self._page, self._stamp, self._error = self._make(path, now["session"]), now["stamp"], ""
        except (UsageError, OSError) as error:
            self._error = str(error)
        self._not_before = self._clock() + SHARE * (self._clock() - start)


class Server(ThreadingHTTPServer):
    """The HTTP server of `live` on a port of loopback; 0 selects a free one. Raises UsageError if the port is used.

    With a `token`, only URLs that start with it are served.
    """

    daemon_threads = True

    def __init__(self, live: Live, port: int, token: str = "") -> None:
        self.live, self.prefix = live, f"/{token}/" if token else "/"
        try:
            super().__init__((LOOPBACK, port), _Handler)
        except OSError as error:
            raise UsageError(f"port {port} cannot be used: {error.strerror}; give another --port") from error

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Print errors, unless the client closed the connection."""
        if not isinstance(sys.exc_info()[1], OSError):
            super().handle_error(request, client_address)


class _Handler(BaseHTTPRequestHandler):
    server: Server

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
        for name, value in {"Content-Type": f"{kind}; charset=utf-8", "Content-Length": len(body), **HEADERS}.items():
            self.send_header(name, str(value))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: Any) -> None:
        """Log nothing, because the terminal shows the output of `parabench serve`."""
