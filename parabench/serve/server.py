"""A web server of two addresses, the page and how far its run is, for this machine alone."""

from __future__ import annotations

import json
import os
import re
import socket
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from html import escape, unescape
from pathlib import Path
from typing import Any
from wsgiref.types import StartResponse, WSGIEnvironment

from werkzeug.sansio.utils import host_is_trusted
from werkzeug.serving import BaseWSGIServer, WSGIRequestHandler, make_server
from werkzeug.wrappers import Request, Response

from parabench.errors import UsageError
from parabench.report.page import fill
from parabench.serve.progress import Standing, standing
from parabench.serve.rebuild import Page, Renewal

LOOPBACK = "127.0.0.1"
# What a browser may call this machine. A page from elsewhere whose name was made to lead here (DNS rebinding) cannot.
# The port may be another: that of a tunnel.
NAMES = (LOOPBACK, "localhost")

# The page asks again after so many seconds: soon while it waits for a page that is being made, seldom when nothing goes
# on, and never so often that looking takes more than one part in LOOKING of the time.
SOON_S, OFTEN_S, SELDOM_S = 0.3, 2.0, 10.0
LOOKING = 50

HEADERS = {
    "Cache-Control": "no-store",
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
}
# Of what is no page.
NOTHING = "default-src 'none'; frame-ancestors 'none'"
_POLICY = re.compile(r'<meta http-equiv="Content-Security-Policy" content="([^"]*)">')


@dataclass
class Live:
    """What is served. `where` says which store and session it is now, for a folder may become one; `template` is the
    reader's own folder, which is looked at again too."""

    where: Callable[[], tuple[Path, str | None]]
    renewal: Renewal
    template: Path | None = None
    clock: Callable[[], float] = time.perf_counter

    def look(self) -> tuple[Standing, str, float]:
        """How the run stands, what is wrong, and how long it took to see; a page is renewed when it is time."""
        began, error = self.clock(), ""
        try:
            store, session = self.where()
            now = standing(store, session)
            self.renewal.look(store, now, _changed(self.template))
        except UsageError as problem:
            now, error = Standing("The store cannot be shown."), str(problem)
        return now, error or self.renewal.error, self.clock() - began

    def progress(self) -> dict[str, Any]:
        """What the page asks for: how the run stands, which page there is, and when to ask again."""
        now, error, cost_s = self.look()
        page, waiting = self.renewal.newest, self.renewal.making
        again_s = SOON_S if waiting and page is None else OFTEN_S if waiting or now.going else SELDOM_S
        return {
            "said": now.said,
            "last": now.last,
            "error": error,
            "done": now.done,
            "planned": now.planned,
            "page": page.stamp if page else "",
            "launches": page.launches if page else 0,
            "again_s": max(again_s, LOOKING * cost_s),
        }

    def page(self) -> str:
        """The newest page there is, or one that waits for the first."""
        self.look()
        return marked(self.renewal.newest or Page(self._waiting(), "", 0))

    def _waiting(self) -> str:
        """In the reader's own look if that can be: what is wrong with it is said where progress is."""
        try:
            return fill("waiting.html", [], self.template)
        except UsageError:
            return fill("waiting.html", [])


def marked(page: Page) -> str:
    """The page's text, with what it was made from, so that its script knows that it is served, and what is newer."""
    mark = f'<meta name="parabench-live" content="{escape(page.stamp)}" data-launches="{page.launches}">'
    return page.text.replace("<head>", f"<head>\n{mark}", 1)


def application(live: Live) -> Callable[[WSGIEnvironment, StartResponse], Iterable[bytes]]:
    """The WSGI application. Nothing of a request comes back in an answer."""

    @Request.application
    def answer(request: Request) -> Response:
        if not host_is_trusted(request.environ.get("HTTP_HOST"), NAMES):
            return _said(403, "This server answers to 127.0.0.1 and localhost only.")
        if request.path not in ("/", "/progress"):
            return _said(404, "There is nothing here; the report is at /.")
        if request.method not in ("GET", "HEAD"):
            response = _said(405, "Only GET and HEAD are answered.")
            response.headers["Allow"] = "GET, HEAD"
            return response
        if request.path == "/progress":
            return _answer(json.dumps(live.progress(), allow_nan=False), "application/json")
        text = live.page()
        found = _POLICY.search(text)
        policy = f"{unescape(found[1])}; frame-ancestors 'none'" if found else NOTHING
        return _answer(text, "text/html", policy)

    return answer


def _answer(text: str, kind: str, policy: str = NOTHING, status: int = 200) -> Response:
    return Response(text, status, HEADERS | {"Content-Security-Policy": policy}, content_type=f"{kind}; charset=utf-8")


def _said(status: int, line: str) -> Response:
    return _answer(f"{line}\n", "text/plain", status=status)


def _changed(folder: Path | None) -> str:
    """A stamp of a reader's own templates, so that who writes one sees it."""
    if folder is None:
        return ""
    return f"-{max((file.stat().st_mtime_ns for file in folder.rglob('*') if file.is_file()), default=0):x}"


class _Quiet(WSGIRequestHandler):
    """Says nothing of requests, to nobody."""

    timeout = 20  # of a connection on which nothing comes
    error_message_format = "The request cannot be read.\n"
    error_content_type = "text/plain"

    def log_request(self, code: int | str = "-", size: int | str = "-") -> None:
        """Nothing."""

    def log_error(self, format: str, *args: Any) -> None:
        """Nothing: what is wrong with a request is its sender's."""

    def version_string(self) -> str:
        """Only whose server it is."""
        return "parabench"

    def send_error(self, code: int, message: str | None = None, explain: str | None = None) -> None:
        """By its code alone; the message would hold what was asked."""
        super().send_error(code)


def listen(live: Live, port: int) -> BaseWSGIServer:
    """A server on loopback, on that port, or on any that is free where it is 0; `serve_forever()` makes it answer.

    Raises UsageError where the port cannot be had.
    """
    try:
        with socket.create_server((LOOPBACK, port)) as place:
            return make_server(
                LOOPBACK, port, application(live), threaded=True, request_handler=_Quiet, fd=place.fileno()
            )
    except OSError as error:
        why = os.strerror(error.errno) if error.errno else error
        raise UsageError(
            f"port {port} cannot be listened on: {why}; give another --port, or 0 for any that is free"
        ) from error
