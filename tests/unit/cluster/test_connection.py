"""Connections between two nodes: what is signed, what is refused, and how a lost end is noticed."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from queue import SimpleQueue
from typing import Any

import pytest

from guard import GUARD_S
from parabench.cluster import connection
from parabench.cluster.connection import Connection, PeerLost, accept_peer, greet
from parabench.cluster.secret import Secret
from parabench.errors import UsageError

OURS, OTHER = Secret(b"0123456789abcdef"), Secret(b"0123456789abcdeF")
Ends = tuple[socket.socket, socket.socket]


@pytest.fixture
def ends() -> Iterator[Ends]:
    both = socket.socketpair()
    yield both
    for each in both:
        each.close()


def node_0(end: socket.socket, secret: Secret | None = OURS, session: str = "job42") -> SimpleQueue[Any]:
    """Return what `accept_peer` returns or raises, from another thread."""
    found: SimpleQueue[Any] = SimpleQueue()

    def run() -> None:
        try:
            found.put(accept_peer(end, secret, session))
        except Exception as error:
            end.close()
            found.put(error)

    threading.Thread(target=run, daemon=True).start()
    return found


def met(ends: Ends, secret: Secret | None = OURS) -> tuple[Connection, Connection]:
    found = node_0(ends[0], secret)
    return greet(ends[1], secret, "job42", "host0:29400"), found.get(timeout=GUARD_S)


@pytest.mark.parametrize("secret", [None, OURS])
def test_messages_arrive_whole_in_both_directions(ends: Ends, secret: Secret | None) -> None:
    pair = met(ends, secret)
    for sender, receiver in (pair, pair[::-1]):
        for message in ({"text": "\u00e4"}, {"numbers": list(range(1000))}):
            sender.send(message)
            sender.send(None)
            assert receiver.receive() == message
            assert receiver.receive() is None


@pytest.mark.parametrize(
    ("own", "theirs", "error"),
    [
        (None, OURS, "has a secret, and this node has none; give all nodes the same --secret-file, or none"),
        (OURS, None, "has no secret, and this node has one"),
        (OTHER, OURS, "has another secret than this node"),
    ],
)
def test_other_secret_is_refused_on_both_sides(ends: Ends, own: Any, theirs: Any, error: str) -> None:
    found = node_0(ends[0], theirs)
    with pytest.raises(UsageError, match=error):
        greet(ends[1], own, "job42", "host0:29400")
    ends[1].close()
    assert not isinstance(found.get(timeout=GUARD_S), Connection)


def test_other_session_is_refused(ends: Ends) -> None:
    node_0(ends[0], None, "job43")
    with pytest.raises(UsageError, match="has --rdzv-id 'job43', and this node job42"):
        greet(ends[1], None, "job42", "host0:29400")


@pytest.mark.parametrize("text", [b"HTTP/1.1 400 Bad Request\r\n\r\n", b"", b"\0\0\0\1x"])
def test_what_is_not_parabench_does_not_answer_as_a_session(ends: Ends, text: bytes) -> None:
    ends[0].sendall(text)
    ends[0].shutdown(socket.SHUT_WR)
    with pytest.raises(PeerLost, match="does not answer as a session of parabench does"):
        greet(ends[1], None, "job42", "host0:29400")


def changed(frame: bytes) -> bytes:
    return frame[:-1] + bytes([frame[-1] ^ 1])


@pytest.mark.parametrize("forge", [changed, lambda frame: frame + frame, lambda frame: frame[:36] + b"{}"])
def test_forged_or_repeated_message_is_refused(ends: Ends, forge: Callable[[bytes], bytes]) -> None:
    node, zero = met(ends)
    kept: list[bytes] = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(node, "_socket", Recorder(kept))
        node.send({"abort": "failed"})
    ends[1].sendall(forge(b"".join(kept)) + b"\0" * 40)
    with pytest.raises(ValueError, match="not signed with this session's secret"):
        all(iter(zero.receive, ""))


class Recorder:
    def __init__(self, kept: list[bytes]) -> None:
        self._kept = kept

    def send(self, data: memoryview) -> int:
        self._kept.append(bytes(data))
        return len(data)


def test_end_that_closes_or_is_silent_is_lost(ends: Ends, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connection, "DEAD_AFTER_S", 0.2)
    node, zero = met(ends)
    lost = threading.Event()
    zero.start(lambda message: None, lost.set)
    assert lost.wait(GUARD_S)
    assert str(zero.lost) == "no sign of life for 0.2 s"
    with pytest.raises(PeerLost):
        zero.send({})
    gone = threading.Event()
    with suppress(PeerLost):  # it may notice at once
        node.start(lambda message: None, gone.set)
    assert gone.wait(GUARD_S)
    assert node.lost is not None


def test_signs_of_life_keep_a_connection(ends: Ends, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connection, "KEEP_ALIVE_S", 0.01)
    pair = met(ends)
    heard: SimpleQueue[Any] = SimpleQueue()
    for each in pair:
        each.start(heard.put, lambda: None)
    pair[0].send({"one": 1})
    assert heard.get(timeout=GUARD_S) == {"one": 1}
    assert all(each.lost is None for each in pair)
    for each in pair:
        each.close()
