"""The two addresses of `parabench serve`, the page and how far its run is, and who is answered: this machine alone."""

from __future__ import annotations

import hmac
import json
import os
import re
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from email.message import Message
from html import escape, unescape
from pathlib import Path
from typing import Any

from parabench.analysis.text import format
from parabench.errors import UsageError
from parabench.report.page import fill
from parabench.serve.connections import NOTHING, Answer, BoundedServer, Reply, only, said
from parabench.serve.progress import Standing, standing
from parabench.serve.rebuild import Page, Renewal

LOOPBACK = "127.0.0.1"
# What a browser may call this machine. A page from elsewhere whose name was made to lead here (DNS rebinding) cannot.
# The port may be another: that of a tunnel.
NAME = re.compile(r"(?:127\.0\.0\.1|localhost)(?::[0-9]{1,5})?", re.IGNORECASE | re.ASCII)

# The page asks again after so many seconds: soon while it waits for a page that is being made, seldom when nothing goes
# on, and never so often that looking takes more than one part in LOOKING of the time.
SOON_S, OFTEN_S, SELDOM_S = 0.3, 2.0, 10.0
LOOKING = 50

_POLICY = re.compile(r'<meta http-equiv="Content-Security-Policy" content="([^"]*)">')


@dataclass
class Live:
    """What is served. `where` says which store and session it is now, for a folder may become one; `template` is the
    reader's own folder, which is looked at again too."""

    where: Callable[[], tuple[Path, str | None]]
    renewal: Renewal
    template: Path | None = None
    clock: Callable[[], float] = time.perf_counter
    # The newest page, which may be large, as all are answered it.
    _ready: tuple[Page, Answer] | None = field(default=None, init=False)

    def look(self) -> tuple[Standing, str, float]:
        """How the run stands, what is wrong, and how long it took to see; a page is renewed when it is time."""
        began, error = self.clock(), ""
        try:
            store, session = self.where()
            now = standing(store, session)
            self.renewal.look(store, now, _changed(self.template))
        except UsageError as problem:
            now, error = Standing("The store cannot be shown."), str(problem)
        return now, format.one_line(error or self.renewal.error), self.clock() - began

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

    def page(self) -> Answer:
        """The newest page there is, or one that waits for the first."""
        self.look()
        newest, ready = self.renewal.newest, self._ready
        if newest is None:
            return of_page(marked(Page(self._waiting(), "", 0)))
        if ready is None or ready[0] is not newest:
            self._ready = ready = newest, of_page(marked(newest))
        return ready[1]

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


def of_page(text: str) -> Answer:
    """A page as an answer: its own policy, and no frame."""
    found = _POLICY.search(text)
    policy = f"{unescape(found[1])}; frame-ancestors 'none'" if found else NOTHING
    return Answer(200, text.encode(), "text/html", policy)


def reply(live: Live, token: str = "") -> Reply:
    """Answers requests; with a `token` those alone whose address begins with it. Nothing of a request comes back in an
    answer."""

    def answer(method: str, target: str, headers: Message) -> Answer:
        host = only(headers, "Host")
        if host is None:
            return said(400, "A request must name one Host.")
        if not NAME.fullmatch(host):
            return said(403, "This server answers to 127.0.0.1 and localhost only.")
        path = target.partition("?")[0]
        if token:
            first, slash, rest = path.removeprefix("/").partition("/")
            if not hmac.compare_digest(first.encode(), token.encode()):
                return said(403, "This address lacks the token; open the one that parabench serve has printed.")
            path = slash + rest
        if _of_another_site(host, path, headers):
            return said(403, "Pages of other sites are not answered; open the address yourself.")
        if path not in ("/", "/progress"):
            return said(404, "There is nothing here; the report is at /.")
        if method not in ("GET", "HEAD"):
            return said(405, "Only GET and HEAD are answered.", Allow="GET, HEAD")
        if path == "/progress":
            return Answer(200, json.dumps(live.progress(), allow_nan=False).encode(), "application/json")
        return live.page()

    return answer


def _of_another_site(host: str, path: str, headers: Message) -> bool:
    """Whether a page that is not ours asks, as far as a browser says so: in every request where it comes from
    (https://www.w3.org/TR/fetch-metadata/), in some its origin. A reader may follow a link to the page."""
    origin = headers.get("Origin")
    if origin is not None and origin.lower() != f"http://{host.lower()}":
        return True
    if headers.get("Sec-Fetch-Site", "none") in ("none", "same-origin"):
        return False
    opened = (headers.get("Sec-Fetch-Mode"), headers.get("Sec-Fetch-Dest")) == ("navigate", "document")
    return not (opened and path == "/")


def _changed(folder: Path | None) -> str:
    """A stamp of a reader's own templates, so that who writes one sees it."""
    if folder is None:
        return ""
    return f"-{max((file.stat().st_mtime_ns for file in folder.rglob('*') if file.is_file()), default=0):x}"


def listen(live: Live, port: int, token: str = "") -> BoundedServer:
    """A server on loopback, on that port, or on any that is free where it is 0; `serve_forever()` makes it answer.

    Raises UsageError where the port cannot be had.
    """
    try:
        return BoundedServer((LOOPBACK, port), reply(live, token))
    except OSError as error:
        why = os.strerror(error.errno) if error.errno else error
        raise UsageError(
            f"port {port} cannot be listened on: {why}; give another --port, or 0 for any that is free"
        ) from error
