"""Clients that mean no good, at a real server: whatever they do, others are answered, and nothing is left of them."""

from __future__ import annotations

import contextlib
import http.client
import os
import random
import resource
import socket
import threading
import time
from collections.abc import Callable, Iterator

import pytest

from guard import GUARD_S
from parabench.serve import connections
from parabench.serve.connections import MOST_AT_ONCE, Answer, BoundedServer

LARGE = b"x" * (16 * 1024 * 1024)  # more than kernels buffer
GET = b"GET / HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n"


class Clock:
    """A clock that the test sets."""

    now = 0.0

    def __call__(self) -> float:
        return self.now


class Served:
    """A server that answers /large with LARGE and anything else with a line, and how to ask it."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self.asked: list[tuple[str, str]] = []
        self.stack = contextlib.ExitStack()
        self.server = BoundedServer(("127.0.0.1", 0), self.reply, clock)
        self.thread = threading.Thread(target=self.server.serve_forever, args=(0.01,), daemon=True)
        self.thread.start()

    def reply(self, method: str, target: str, headers: object) -> Answer:
        self.asked.append((method, target))
        if target == "/failing":
            raise ValueError(target)
        return Answer(200, LARGE if target == "/large" else b"well\n")

    def connect(self) -> socket.socket:
        """A client, which is closed at the end."""
        return self.stack.enter_context(socket.create_connection(("127.0.0.1", self.server.port), timeout=GUARD_S))

    def says(self, request: bytes, *, ends: bool = True) -> bytes:
        """All that is answered to these bytes."""
        with self.connect() as client:
            with contextlib.suppress(OSError):  # refused before all of it was sent
                client.sendall(request)
                if ends:
                    client.shutdown(socket.SHUT_WR)
            return read_all(client)

    def is_well(self) -> None:
        """Somebody who asks is answered, perhaps after having been told to try again."""
        until(lambda: self.tries() == (200, b"well\n"))

    def tries(self) -> tuple[int, bytes]:
        one = http.client.HTTPConnection("127.0.0.1", self.server.port, timeout=GUARD_S)
        with contextlib.closing(one):
            one.request("GET", "/")
            answer = one.getresponse()
            seen = answer.status, answer.read()
        assert seen[0] == 200 or (seen[0], answer.headers["Retry-After"]) == (503, "1")
        return seen

    def empties(self) -> None:
        """No connection has a place any more, and no thread is left of any."""
        until(lambda: not self.server.open and not handlers())


def handlers() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if "process_request_thread" in thread.name]


def until(holds: Callable[[], object]) -> None:
    end = time.monotonic() + GUARD_S
    while not holds():
        assert time.monotonic() < end
        threading.Event().wait(0.002)


def read_all(client: socket.socket) -> bytes:
    came = b""
    with contextlib.suppress(ConnectionResetError):
        while piece := client.recv(65536):
            came += piece
    return came


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def served(clock: Clock) -> Iterator[Served]:
    one = Served(clock)
    with one.stack:
        yield one
    one.server.shutdown()
    one.thread.join()


def status_of(answer: bytes) -> int:
    return int(answer.split(b" ", 2)[1])


def whole(answer: bytes) -> tuple[int, dict[str, str], bytes]:
    head, _, body = answer.partition(b"\r\n\r\n")
    lines = head.decode("latin-1").split("\r\n")
    assert lines[0].startswith("HTTP/1.1 ")
    return int(lines[0].split()[1]), dict(line.split(": ", 1) for line in lines[1:]), body


MALFORMED = {
    "no request": (b"\r\n\r\n", 400),
    "a line of garbage": (b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03\r\n\r\n", 400),
    "markup": (b"GET /<script> <b>x HTTP/9\r\n\r\n", 400),
    "another version": (b"GET / HTTP/3.0\r\nHost: a\r\n\r\n", 505),
    "no version, another method": (b"POST /\r\n\r\n", 400),
    "a version of many digits": (b"GET / HTTP/1." + b"9" * 5000 + b"\r\n\r\n", 400),
    "too long a line": (b"GET /" + b"a" * 70_000 + b" HTTP/1.1\r\n\r\n", 414),
    "too long a line without an end": (b"a" * 200_000, 414),
    "too long a header": (b"GET / HTTP/1.1\r\nX: " + b"a" * 70_000 + b"\r\n\r\n", 431),
    "too long headers": (b"GET / HTTP/1.1\r\n" + (b"X: " + b"a" * 30_000 + b"\r\n") * 4 + b"\r\n", 431),
    "too many headers": (b"GET / HTTP/1.1\r\n" + b"X: y\r\n" * 200 + b"\r\n", 431),
}


@pytest.mark.parametrize("name", MALFORMED)
def test_what_is_no_request_is_refused_with_every_header_and_nothing_of_it(served: Served, name: str) -> None:
    request, status = MALFORMED[name]
    got, headers, body = whole(served.says(request))
    assert got == status
    assert headers.items() >= connections.HEADERS.items()
    assert headers["Content-Security-Policy"] == connections.NOTHING
    assert headers["Connection"] == "close"
    assert int(headers["Content-Length"]) == len(body)
    assert headers["Server"] == "parabench"
    assert body.startswith(b"The request cannot be read: ")
    assert b"<" not in body
    assert b"aaa" not in body
    assert served.asked == []
    served.is_well()
    served.empties()


def test_of_requests_in_a_row_the_first_is_answered(served: Served) -> None:
    answer = served.says(GET + b"GET /second HTTP/1.1\r\nHost: a\r\n\r\n" * 100)
    assert (answer.count(b"HTTP/1.1 200"), answer.count(b"HTTP/1.1")) == (1, 1)
    assert served.asked == [("GET", "/")]


def test_what_is_sent_with_a_request_is_thrown_away_and_the_answer_comes(served: Served) -> None:
    for more in (b"", b"Expect: 100-continue\r\n", b"Transfer-Encoding: chunked\r\n"):
        head = b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 1000000\r\n" + more + b"\r\n"
        assert served.says(head + b"x" * 1_000_000).startswith(b"HTTP/1.1 200")
    served.empties()


def test_head_is_get_without_its_text(served: Served) -> None:
    status, headers, body = whole(served.says(GET.replace(b"GET", b"HEAD")))
    assert (status, headers["Content-Length"], body) == (200, "5", b"")


def test_an_answer_that_fails_is_said_on_both_sides(served: Served, capfd: pytest.CaptureFixture[str]) -> None:
    status, headers, body = whole(served.says(GET.replace(b"/ ", b"/failing ")))
    assert status == 500
    assert headers.items() >= connections.HEADERS.items()
    assert b"ValueError" not in body
    served.is_well()
    assert capfd.readouterr().err == "parabench: a request could not be answered: ValueError('/failing')\n"


def test_garbage_of_any_kind_leaves_it_well(served: Served) -> None:
    draw = random.Random(0)
    for _ in range(300):
        text = bytearray(GET * draw.randint(1, 2))
        for _ in range(draw.randint(1, 12)):
            at = draw.randrange(len(text))
            text[at : at + draw.randint(0, 3)] = draw.randbytes(draw.randint(0, 4))
        answer = served.says(bytes(text))
        assert answer == b"" or status_of(answer) in (200, 400, 431, 505)
    served.is_well()
    served.empties()


def test_who_asks_nothing_loses_its_place_to_others_and_is_told_so(served: Served) -> None:
    silent = [served.connect() for _ in range(MOST_AT_ONCE)]
    until(lambda: served.server.open == MOST_AT_ONCE)
    silent[0].sendall(b"GET / HTT")
    served.is_well()
    assert {status_of(read_all(client)) for client in silent} == {503}
    assert served.asked == [("GET", "/")]
    served.empties()


def test_who_sends_a_byte_now_and_then_is_ended_with_its_time(served: Served, clock: Clock) -> None:
    client = served.connect()
    until(lambda: served.server.open)
    for byte in GET[:20]:
        client.sendall(bytes([byte]))
        clock.now += connections.ASK_S / 40
    served.is_well()
    clock.now += connections.ASK_S
    assert status_of(read_all(client)) == 408
    served.empties()
    assert served.asked == [("GET", "/")]


def test_a_request_that_is_whole_in_time_is_answered(served: Served, clock: Clock) -> None:
    client = served.connect()
    until(lambda: served.server.open)
    client.sendall(GET[:-1])
    clock.now += connections.ASK_S * 0.9
    client.sendall(GET[-1:])
    assert status_of(read_all(client)) == 200


def test_who_never_reads_the_answer_makes_room_for_those_who_do(served: Served, clock: Clock) -> None:
    greedy = [served.connect() for _ in range(MOST_AT_ONCE)]
    for client in greedy:
        client.sendall(GET.replace(b"/ ", b"/large "))
    until(lambda: len(served.asked) == MOST_AT_ONCE)
    # So many are served at a time, each for a while undisturbed.
    refused = served.says(GET, ends=False)
    status, headers, _ = whole(refused)
    assert (status, headers["Retry-After"]) == (503, "1")
    clock.now += connections.UNDISTURBED_S + 1
    served.is_well()
    for client in greedy:
        client.close()
    served.empties()


def test_who_never_reads_loses_the_answer_with_its_time(served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connections._Handler, "timeout", 0.05)
    monkeypatch.setattr(connections, "CLOSE_S", 0.05)
    with served.connect() as client:
        client.sendall(GET.replace(b"/ ", b"/large "))
        until(lambda: served.asked)
        served.empties()


def test_a_reader_takes_a_large_answer_whole(served: Served) -> None:
    status, headers, body = whole(served.says(GET.replace(b"/ ", b"/large ")))
    assert (status, int(headers["Content-Length"]), body) == (200, len(LARGE), LARGE)


@pytest.fixture
def many_files() -> Iterator[None]:
    most = resource.getrlimit(resource.RLIMIT_NOFILE)
    if most[1] != resource.RLIM_INFINITY and most[1] < 4096:
        pytest.skip(f"this process may have {most[1]} open files, and both ends of 1,000 connections are more")
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(most[0], 4096), most[1]))
    yield
    resource.setrlimit(resource.RLIMIT_NOFILE, most)


@pytest.mark.usefixtures("many_files")
def test_a_thousand_who_ask_at_once_are_all_answered(served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connections, "SILENT_S", GUARD_S)  # however late a thread begins
    clients = [served.connect() for _ in range(1000)]
    for client in clients:
        client.sendall(GET)
    for client in clients:
        assert status_of(read_all(client)) == 200
        client.close()  # or else its place is kept for it a while
    served.empties()


@pytest.mark.usefixtures("many_files")
def test_a_thousand_who_ask_nothing_keep_nobody_waiting(served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connections, "SILENT_S", 0.01)
    before = threading.active_count()
    for _ in range(1000):
        served.connect()
    served.is_well()
    assert served.server.open <= MOST_AT_ONCE
    assert threading.active_count() - before <= 2 * MOST_AT_ONCE
    served.stack.close()
    served.is_well()
    served.empties()


def test_without_descriptors_it_makes_room_and_goes_on(served: Served) -> None:
    most = resource.getrlimit(resource.RLIMIT_NOFILE)
    silent = [served.connect() for _ in range(3)]
    waiting = socket.socket()
    until(lambda: served.server.open == 3)
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(map(int, os.listdir("/proc/self/fd"))) + 1, most[1]))
    try:
        holes = []
        with contextlib.suppress(OSError):
            while True:
                holes.append(socket.socket())
        waiting.settimeout(GUARD_S)
        waiting.connect(("127.0.0.1", served.server.port))
        waiting.sendall(GET)
        assert status_of(read_all(waiting)) == 200
    finally:
        for each in (*holes, *silent, waiting):
            each.close()
        resource.setrlimit(resource.RLIMIT_NOFILE, most)
    served.is_well()
    served.empties()
