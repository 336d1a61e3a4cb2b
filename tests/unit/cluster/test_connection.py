"""Connections between two nodes: signatures, refusals and lost ends."""

import os
import random
import signal
import socket
import threading
from collections.abc import Callable, Iterator
from queue import SimpleQueue
from typing import Any

import pytest

from guard import GUARD_S
from parabench.cluster import connection
from parabench.cluster.connection import PROTOCOL, Abort, Connection, Hello, Reply, Stop, accept_peer, greet
from parabench.errors import NodeGone, UsageError
from parabench.signals import Interrupted, signals_restored, stop_signals

OURS, OTHER = b"0123456789abcdef", b"0123456789abcdeF"
Ends = tuple[socket.socket, socket.socket]


@pytest.fixture
def ends() -> Iterator[Ends]:
    both = socket.socketpair()
    yield both
    for each in both:
        each.close()


def node_0(end: socket.socket, secret: bytes | None = OURS, session: str = "job42") -> SimpleQueue[Any]:
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


def met(ends: Ends, secret: bytes | None = OURS) -> tuple[Connection, Connection]:
    found = node_0(ends[0], secret)
    return greet(ends[1], secret, "job42", "host0:29400"), found.get(timeout=GUARD_S)


@pytest.mark.parametrize("secret", [None, OURS])
def test_connection_transfers_messages_both_ways(ends: Ends, secret: bytes | None) -> None:
    pair = met(ends, secret)
    for sender, receiver in (pair, pair[::-1]):
        for message in (Reply({"text": "\u00e4"}), Reply({"numbers": list(range(1000))})):
            sender.send(message)
            sender._write(None)
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
def test_handshake_refuses_another_secret_on_both_ends(ends: Ends, own: Any, theirs: Any, error: str) -> None:
    found = node_0(ends[0], theirs)
    with pytest.raises(UsageError, match=error):
        greet(ends[1], own, "job42", "host0:29400")
    ends[1].close()
    assert not isinstance(found.get(timeout=GUARD_S), Connection)


def test_greet_refuses_another_session_or_version(ends: Ends) -> None:
    for hello, why in (
        (Hello(PROTOCOL, "job43", "", signed=False), "has --rdzv-id 'job43', and this node job42"),
        (Hello(PROTOCOL + 1, "job42", "", signed=False), "has another version of parabench; install the same on all"),
    ):
        Connection(ends[0]).send(hello)
        with pytest.raises(UsageError, match=why):
            greet(ends[1], None, "job42", "host0:29400")


@pytest.mark.parametrize(
    ("sent", "why"),
    [
        (b"HTTP/1.1 400 Bad Request\r\n\r\n", "a message of 1,213,486,160 bytes"),
        (b"", "its process has ended, or closed the connection"),
    ],
    ids=["another program", "node 0 dies"],
)
def test_greet_retries_when_node_0_does_not_answer(ends: Ends, sent: bytes, why: str) -> None:
    ends[0].sendall(sent)
    ends[0].shutdown(socket.SHUT_WR)
    with pytest.raises(NodeGone, match=f"does not answer as a session of this parabench does: {why}"):
        greet(ends[1], None, "job42", "host0:29400")


def test_connection_sends_whole_frames_after_a_signal(ends: Ends) -> None:
    """The frame does not fit into the buffer of the socket, so that it is sent in parts."""
    node, zero = met(ends)
    ends[1].setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 1)
    node.start(lambda message: None, lambda: None)
    long = Reply({"text": random.randbytes(1 << 18).hex()})
    node.send(long)
    with signals_restored(), pytest.raises(Interrupted), stop_signals():
        os.kill(os.getpid(), signal.SIGINT)
    node.send(Stop(2))
    received = [message for message in iter(zero.receive, Stop(2)) if message is not None]
    assert received == [long]
    node.close()


def test_handshake_has_one_deadline(ends: Ends, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connection, "HELLO_S", 1e-6)
    ends[1].sendall(b"\0\0\0\1{")
    with pytest.raises(TimeoutError, match="did not send the whole message in time"):
        accept_peer(ends[0], OURS, "job42")


def changed(frame: bytes) -> bytes:
    return frame[:-1] + bytes([frame[-1] ^ 1])


@pytest.mark.parametrize("forge", [changed, lambda frame: frame + frame])
def test_receive_refuses_forged_and_repeated_messages(ends: Ends, forge: Callable[[bytes], bytes]) -> None:
    node, zero = met(ends)
    node.send(Abort(1, "failed"))
    ends[1].sendall(forge(ends[0].recv(1 << 16)) + b"\0" * 100)
    with pytest.raises(ValueError, match="not signed with this session's secret"):
        all(iter(zero.receive, ""))


def test_connection_is_lost_when_closed_or_silent(ends: Ends, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connection, "DEAD_AFTER_S", 0.2)
    node, zero = met(ends)
    lost = threading.Event()
    zero.start(lambda message: None, lost.set)
    assert lost.wait(GUARD_S)
    assert str(zero.lost) == "no sign of life for 0.2 s"
    zero.send(Stop(2))
    gone = threading.Event()
    node.start(lambda message: None, gone.set)
    assert gone.wait(GUARD_S)
    assert node.lost is not None


def test_connection_stays_with_signs_of_life(ends: Ends, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connection, "KEEP_ALIVE_S", 0.01)
    pair = met(ends)
    heard: SimpleQueue[Any] = SimpleQueue()
    for each in pair:
        each.start(heard.put, lambda: heard.put("lost"))
    pair[0].send(Stop(2))
    assert heard.get(timeout=GUARD_S) == Stop(2)
    assert all(each.lost is None for each in pair)
    for each in pair:
        each.close()
