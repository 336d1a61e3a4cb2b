"""An HTTP server that is bounded: so many connections at once, each for so long, a request of so many bytes.

Python's own http.server reads and writes; here is what it leaves open. Each connection has one request and a thread.
Where all places are taken, others wait in the kernel's queue, and those who have a place and ask nothing lose it: a
client that asks is answered, however many others are silent.
"""

from __future__ import annotations

import contextlib
import errno
import http.client
import socket
import socketserver
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from email.message import Message
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler
from io import BufferedReader
from typing import Any, cast

# One reader's browser takes six.
MOST_AT_ONCE = 32

# What a client gets to ask in, from its connection to the end of its request; what it gets to take each PIECE of an
# answer in; and after the answer to close in, or else what it still sends would take the answer away from it (RFC 9112,
# 9.6).
ASK_S, TAKE_S, CLOSE_S = 10.0, 20.0, 1.0
PIECE = 64 * 1024
# Where others wait for a place: how long one that asks nothing keeps it, and one that takes an answer. A page of 10 MB
# takes a hundredth of a second on this machine, some through a tunnel.
SILENT_S, UNDISTURBED_S = 0.2, 5.0

# Of a request's line and headers together, and of what is read after it to be thrown away.
MOST_OF_A_HEAD, MOST_THROWN_AWAY = 64 * 1024, 1024 * 1024

# How often it is looked whose time is up.
EVERY_S = 0.5

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


@dataclass(frozen=True, slots=True)
class Answer:
    """What is answered, with the headers that every answer has."""

    status: int
    body: bytes
    kind: str = "text/plain"
    policy: str = NOTHING
    more: Mapping[str, str] = field(default_factory=dict)

    @property
    def headers(self) -> dict[str, str]:
        return {
            "Content-Type": f"{self.kind}; charset=utf-8",
            "Content-Length": str(len(self.body)),
            **HEADERS,
            "Content-Security-Policy": self.policy,
            **self.more,
            "Connection": "close",
        }

    def whole(self) -> bytes:
        """As it is sent where nothing is known of the request."""
        lines = [f"HTTP/1.1 {self.status} {HTTPStatus(self.status).phrase}", "Server: parabench"]
        lines += [f"{name}: {value}" for name, value in self.headers.items()]
        return "\r\n".join((*lines, "", "")).encode("latin-1") + self.body


def said(status: int, line: str, **more: str) -> Answer:
    """One line."""
    return Answer(status, f"{line}\n".encode(), more=more)


BUSY = said(503, "Too many connections are open; try again.", **{"Retry-After": "1"})
LATE = said(408, f"No whole request came within {ASK_S:g} s.")

# (method, target as it was sent, headers) -> what is answered.
Reply = Callable[[str, str, Message], Answer]


@dataclass(slots=True)
class _Place:
    """A connection that has a place: since when it asks, or is answered. `over` ends its thread without a word more."""

    socket: socket.socket
    since: float
    asks: bool = True
    over: bool = False


class BoundedServer(socketserver.ThreadingTCPServer):
    """Answers on `address` what `reply` says. Raises OSError where the address cannot be had."""

    allow_reuse_address = True
    daemon_threads = True
    # Connections that the kernel holds until they are accepted; it has a limit of its own (net.core.somaxconn).
    request_queue_size = 1024

    def __init__(self, address: tuple[str, int], reply: Reply, clock: Callable[[], float] = time.monotonic) -> None:
        self.reply, self._clock = reply, clock
        self._lock = threading.Condition()
        self._places: dict[int, _Place] = {}
        super().__init__(address, _Handler)

    @property
    def port(self) -> int:
        return int(self.server_address[1])

    @property
    def open(self) -> int:
        """How many connections have a place."""
        return len(self._places)

    def serve_forever(self, poll_interval: float = EVERY_S) -> None:
        try:
            super().serve_forever(poll_interval)
        finally:
            self.server_close()

    def get_request(self) -> tuple[socket.socket, Any]:
        try:
            return super().get_request()
        except OSError as error:
            if error.errno in (errno.EMFILE, errno.ENFILE):  # it stays in the queue, and would be tried again at once
                with self._lock:
                    self._make_room()
                time.sleep(EVERY_S / 10)
            raise

    def process_request(self, request: Any, client_address: Any) -> None:
        """Give the connection a place and a thread, or refuse it."""
        with self._lock:
            if room := self._lock.wait_for(self._has_room, SILENT_S) or self._make_room():
                self._places[id(request)] = _Place(request, self._clock())
        if not room:
            _send_at_once(request, BUSY)
            self._close(request)
            return
        try:
            super().process_request(request, client_address)
        except RuntimeError:  # no thread can be started
            self.forget(request)
            _send_at_once(request, BUSY)
            self._close(request)

    def _has_room(self) -> bool:
        return len(self._places) < MOST_AT_ONCE

    def _make_room(self) -> bool:
        """Whether a place was taken away from those who ask nothing, or have been answered for long. The lock is
        held."""
        until = self._clock() - UNDISTURBED_S
        ended = [place for place in self._places.values() if place.asks or place.since < until]
        for place in ended:
            self._end(place, BUSY)
        return bool(ended)

    def service_actions(self) -> None:
        """End whose time to ask is up. Who takes an answer has a time for each piece of it."""
        until = self._clock() - ASK_S
        with self._lock:
            for place in list(self._places.values()):
                if place.asks and place.since < until:
                    self._end(place, LATE)

    def _end(self, place: _Place, answer: Answer) -> None:
        """Take away the place of a connection; its thread then finds it closed. The lock is held."""
        place.over = True
        del self._places[id(place.socket)]
        if place.asks:
            _send_at_once(place.socket, answer)
        with contextlib.suppress(OSError):
            place.socket.shutdown(socket.SHUT_RDWR)

    def asked(self, request: socket.socket) -> bool:
        """A whole request has come: whether the connection still has its place."""
        with self._lock:
            place = self._places.get(id(request))
            if place is None:
                return False
            place.asks, place.since = False, self._clock()
            return True

    def forget(self, request: socket.socket) -> None:
        """The connection gives its place back, if it has it still."""
        with self._lock:
            place = self._places.get(id(request))
            if place is not None and place.socket is request:
                del self._places[id(request)]
                self._lock.notify_all()

    def shutdown_request(self, request: Any) -> None:
        """Close in order: tell the client that all is said, throw away what it still sends, for a moment."""
        until = self._clock() + CLOSE_S
        with contextlib.suppress(OSError):
            request.shutdown(socket.SHUT_WR)
            left = MOST_THROWN_AWAY
            while left > 0 and (rest := until - self._clock()) > 0:
                request.settimeout(rest)
                came = len(request.recv(PIECE))
                if not came:
                    break
                left -= came
        self.forget(request)
        self.close_request(request)

    def _close(self, request: socket.socket) -> None:
        """Close at once, in the thread that accepts."""
        with contextlib.suppress(OSError):
            request.recv(PIECE, socket.MSG_DONTWAIT)
            request.shutdown(socket.SHUT_RDWR)
        request.close()

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Nothing: what is wrong with a connection is its other end's."""


def _send_at_once(request: socket.socket, answer: Answer) -> None:
    """Send as much as goes without waiting: an answer of a line goes."""
    with contextlib.suppress(OSError):
        request.send(answer.whole(), socket.MSG_DONTWAIT | socket.MSG_NOSIGNAL)


class _Head:
    """A request's line and headers, of which no more than a bounded number of bytes is read."""

    def __init__(self, file: BufferedReader) -> None:
        self._file, self._left = file, MOST_OF_A_HEAD

    def readline(self, limit: int = -1) -> bytes:
        if self._left <= 0:
            raise http.client.LineTooLong("header")
        line = self._file.readline(limit)
        self._left -= len(line)
        return line

    def close(self) -> None:
        self._file.close()


class _Handler(BaseHTTPRequestHandler):
    """One request, of which nothing comes back and nothing is said to anybody else."""

    server: BoundedServer
    protocol_version = "HTTP/1.1"
    # A request without a version, of HTTP/0.9, is answered with status and headers all the same.
    default_request_version = "HTTP/1.0"
    timeout = TAKE_S

    def setup(self) -> None:
        super().setup()
        self.rfile = cast(Any, _Head(cast(BufferedReader, self.rfile)))

    def handle(self) -> None:
        """Read one request and answer it."""
        self.requestline, self.command, self.request_version = "", "", self.default_request_version
        # Whoever is gone, or was ended, is not told.
        with contextlib.suppress(OSError):
            self.raw_requestline = self.rfile.readline(MOST_OF_A_HEAD + 1)
            if len(self.raw_requestline) > MOST_OF_A_HEAD:
                self.send_error(414)
            elif self.raw_requestline and not self.raw_requestline.strip():
                self.send_error(400)
            elif self.raw_requestline and self.parse_request() and self.server.asked(self.connection):
                self._give(self._replied())

    def _replied(self) -> Answer:
        try:
            return self.server.reply(self.command, self.path, self.headers)
        except Exception as error:  # whatever it is, the next request is answered
            print(f"parabench: a request could not be answered: {error!r}", file=sys.stderr)
            return said(500, "The answer failed; what is wrong is said where parabench serve runs.")

    def send_error(self, code: int, message: str | None = None, explain: str | None = None) -> None:
        """By its code alone; the message would hold what was asked."""
        if self.server.asked(self.connection):
            self._give(said(code, f"The request cannot be read: {HTTPStatus(code).phrase.lower()}."))

    def handle_expect_100(self) -> bool:
        """Nobody is asked for what is not read."""
        return True

    def _give(self, answer: Answer) -> None:
        self.send_response(answer.status)
        for name, value in answer.headers.items():
            self.send_header(name, value)
        self.end_headers()
        if self.command == "HEAD":
            return
        whole = memoryview(answer.body)
        for at in range(0, len(whole), PIECE):
            self.connection.sendall(whole[at : at + PIECE])  # the timeout is for each

    def version_string(self) -> str:
        """Only whose server it is."""
        return "parabench"

    def log_message(self, format: str, *args: Any) -> None:
        """Nothing."""


def only(headers: Message, name: str) -> str | None:
    """The header's one value; None where there is none, or several."""
    values: Sequence[str] = headers.get_all(name, [])
    return str(values[0]).strip() if len(values) == 1 else None
