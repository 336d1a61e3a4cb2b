"""Send JSON messages between a driver and its agents, over sockets and with signatures. Nothing is unpickled."""

# An agent is a process that launches ranks for a driver elsewhere: another node of the session (`cluster.agent`), or a
# variant of `parabench ab` (`ab.agent`). The methods of an agent that are marked `@request` declare the requests and
# their results. The agent answers one request after the other. `Abort`, `Stop` and `LaunchEvent` are events: the other
# end handles them at once.
#
# A message is JSON in a frame: its length (4 bytes), a tag, and the compressed JSON. Without JSON, a frame is a
# keep-alive. Nodes prove that they have the session's secret, by signing a nonce of the other end. Between nodes, the
# tag is an HMAC-SHA256 (RFC 2104) of the number of the frame and its content. The key depends on the secret, both
# nonces, and the direction.

from __future__ import annotations

import hmac
import json
import math
import secrets
import socket
import threading
import time
import zlib
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from queue import Empty, SimpleQueue
from typing import Any, Concatenate, ParamSpec, TypeVar

from msgspec import Struct, convert, to_builtins

from parabench.errors import DEAD_AFTER_S, NodeGone, UsageError, runs

# Increases if a message or a request changes: the variants of `ab` may have several versions of parabench.
PROTOCOL = 9

# The time between two keep-alives, in seconds.
KEEP_ALIVE_S = 0.25
# The longest handshake, and the longest wait until the last messages are sent, in seconds.
HELLO_S, FLUSH_S = 10.0, 1.0
# The longest message, compressed and not: in the handshake, and afterwards.
MOST_HELLO_BYTES, MOST_BYTES = 1 << 16, 1 << 30
_HEAD_BYTES, TAG_BYTES, _PIECE_BYTES = 4, 32, 1 << 20
SAME_SECRET = "give all nodes the same --secret-file, or none"
# The time between two lines about a wait, in seconds.
AGAIN_S = 15.0

M = TypeVar("M", "Hello", "Proof")
P = ParamSpec("P")
R = TypeVar("R")


class _Message(Struct, tag=True, forbid_unknown_fields=True): ...


class Hello(_Message):
    """The first message on a connection of nodes, from node 0. `signed` is whether node 0 has a secret."""

    protocol: int
    session: str
    nonce: str
    signed: bool


class Proof(_Message):
    """The proof that a node has the secret, and its nonce. The proof is empty if the other node's proof is wrong."""

    proof: str
    nonce: str = ""


class Request(_Message):
    """A call of the agent's method `name` with `values` as keyword arguments."""

    name: str
    values: dict[str, Any]


class Reply(_Message):
    """The result of a request."""

    values: dict[str, Any]


class Refused(_Message):
    """The reason why a request failed."""

    why: str


class Abort(_Message):
    """The order to end the ranks of a launch, with a reason of `launch.rendezvous.REASONS`."""

    launch: int
    reason: str


class Stop(_Message):
    """The report of an agent that it received a stop signal."""

    signal: int


class LaunchEvent(_Message):
    """The start of a launch of the agent, or its end if there is an `outcome`."""

    label: str
    repetition: int
    outcome: str | None = None
    ok: bool = True


Message = Hello | Proof | Request | Reply | Refused | Abort | Stop | LaunchEvent


def request(method: Callable[P, R]) -> Callable[P, R]:
    """Mark a method of an agent as a request. Its keyword arguments and its result must be values of JSON."""
    method.is_request = True  # type: ignore[attr-defined]
    return method


def answer(agent: object, message: Message) -> Reply:
    """Call the method that a request names, and return its result. Raises ValueError if there is no such method."""
    if isinstance(message, Request):
        method: Any = getattr(agent, message.name, None)
        if hasattr(method, "is_request"):
            return Reply(method(**message.values) or {})
    raise ValueError("a message that no driver sends")


class Connection:
    """One end of a connection between two processes.

    With the two `keys` of this end and the other end, messages are signed. After `start`, separate threads send and
    receive, and `lost` is the error if the other end is gone.
    """

    def __init__(
        self,
        connection: socket.socket,
        keys: tuple[bytes, bytes] = (b"", b""),
        most_bytes: int = MOST_BYTES,
        seconds: float = math.inf,
    ) -> None:
        self._socket, self._keys, self._most_bytes = connection, keys, most_bytes
        self._until_s = time.monotonic() + seconds
        # The number of frames that were sent, and received.
        self._numbers = [0, 0]
        self._to_send: SimpleQueue[Message | None] = SimpleQueue()
        self._sender: threading.Thread | None = None
        self._received_s = time.monotonic()
        self.lost: NodeGone | None = None

    def fileno(self) -> int:
        """Return the descriptor of the socket."""
        return self._socket.fileno()

    @property
    def silent_s(self) -> float:
        """Return the seconds since the last bytes from the other end."""
        return time.monotonic() - self._received_s

    def send_request(self, method: Callable[Concatenate[Any, P], Any], *nothing: P.args, **values: P.kwargs) -> None:
        """Send the request to call a method of the agent. Its arguments must be keywords."""
        self.send(Request(method.__name__, values))

    def send(self, message: Message) -> None:
        """Send a message. If the other end is gone, raise OSError before `start`, and drop the message afterwards."""
        if self._sender is None:
            self._write(message)
        else:
            self._to_send.put(message)

    def receive(self) -> Message | None:
        """Wait for a frame, and return its message; `None` for a keep-alive.

        Raises EOFError or OSError if the other end is gone, another error for wrong content.
        """
        size = int.from_bytes(self._exactly(_HEAD_BYTES), "big")
        if size > self._most_bytes:
            raise ValueError(f"a message of {size:,} bytes")
        frame = self._exactly(size)
        tag = TAG_BYTES if self._keys[1] else 0
        content = frame[tag:]
        if not hmac.compare_digest(frame[:tag], self._tag(1, content)):
            raise ValueError("a message that is not signed with this session's secret")
        if not content:
            return None
        whole = zlib.decompressobj()
        text = whole.decompress(content, self._most_bytes)
        if not whole.eof:
            raise ValueError("a message that is too long, or cut")
        message: Message = convert(json.loads(text), Message)
        return message

    def start(self, handle: Callable[[Message], None], when_lost: Callable[[], None]) -> None:
        """Start a thread that sends, and one that receives. Then a signal cannot interrupt either within a frame.

        The second thread calls `handle` with each message. It calls `when_lost` at the end of the connection, or after
        DEAD_AFTER_S without a keep-alive.
        """
        self._socket.settimeout(DEAD_AFTER_S)
        self._sender = threading.Thread(target=self._send_all, name="parabench sender", daemon=True)
        self._sender.start()
        self._receiver = threading.Thread(
            target=self._receive_all, args=(handle, when_lost), name="parabench receiver", daemon=True
        )
        self._receiver.start()

    def close(self) -> None:
        """Send the queued messages, and close the connection."""
        if self._sender is not None:
            self._to_send.put(None)
            self._sender.join(FLUSH_S)
            # The other end may lose messages that it has not read if this one closes with unread messages.
            with suppress(OSError):
                self._socket.shutdown(socket.SHUT_WR)
            self._receiver.join(FLUSH_S)
        self._shut()

    def _write(self, message: Message | None) -> None:
        """Send a message, or a keep-alive."""
        content = b"" if message is None else zlib.compress(json.dumps(to_builtins(message)).encode(), 1)
        frame = self._tag(0, content) + content
        left = memoryview(len(frame).to_bytes(_HEAD_BYTES, "big") + frame)
        while left:
            left = left[self._socket.send(left[:_PIECE_BYTES]) :]

    def _tag(self, end: int, content: bytes) -> bytes:
        """Return the tag of the next frame from this end (0) or from the other end (1); empty without a key."""
        if not self._keys[end]:
            return b""
        number = self._numbers[end].to_bytes(8, "big")
        self._numbers[end] += 1
        return hmac.digest(self._keys[end], number + content, "sha256")

    def _exactly(self, size: int) -> bytes:
        """Receive this number of bytes."""
        found = bytearray()
        while len(found) < size:
            piece = self._socket.recv(min(size - len(found), _PIECE_BYTES))
            if not piece:
                raise EOFError("its process has ended, or closed the connection")
            self._received_s = time.monotonic()
            if self._received_s > self._until_s:  # a stranger may send one byte at a time
                raise TimeoutError("it did not send the whole message in time")
            found += piece
        return bytes(found)

    def _send_all(self) -> None:
        try:
            while True:
                try:
                    message = self._to_send.get(timeout=KEEP_ALIVE_S)
                except Empty:
                    self._write(None)
                    continue
                if message is None:
                    return
                self._write(message)
        except Exception as error:  # also of a message that is not JSON
            self._lose(error)

    def _receive_all(self, handle: Callable[[Message], None], when_lost: Callable[[], None]) -> None:
        try:
            while True:
                if (message := self.receive()) is not None:
                    handle(message)
        except Exception as error:  # also of wrong content
            self._lose(error)
            when_lost()

    def _lose(self, error: Exception) -> None:
        if self.lost is None:
            why = str(error) or type(error).__name__
            self.lost = NodeGone(f"no sign of life for {DEAD_AFTER_S:g} s" if isinstance(error, TimeoutError) else why)
            self._shut()

    def _shut(self) -> None:
        with suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)
        self._socket.close()


def accept_peer(connection: socket.socket, secret: bytes | None, session: str) -> Connection:
    """Authenticate another node that has connected, and return node 0's end of the connection.

    Raises an error if the other end is not a node of this session.
    """
    plain, nonce = _plain(connection), secrets.token_hex(16)
    plain.send(Hello(PROTOCOL, session, nonce, secret is not None))
    theirs = _expect(plain, Proof)
    signed = partial(_signed, secret, session, nonce, theirs.nonce)
    if not hmac.compare_digest(theirs.proof, signed("proof of a node").hex()):
        plain.send(Proof(""))
        raise ValueError("it has another secret or none; give all nodes the same --secret-file")
    plain.send(Proof(signed("proof of node 0").hex()))
    return Connection(connection, (signed("key of node 0"), signed("key of a node")))


def greet(connection: socket.socket, secret: bytes | None, session: str, where: str) -> Connection:
    """Authenticate node 0 at the endpoint `where`, and return this node's end of the connection.

    Raises NodeGone if the program there does not answer as node 0 does, UsageError if it has another session or secret.
    """
    plain, nonce = _plain(connection), secrets.token_hex(16)
    try:
        hello = _expect(plain, Hello)
        _check(hello, secret, session, where)
        signed = partial(_signed, secret, session, hello.nonce, nonce)
        plain.send(Proof(signed("proof of a node").hex(), nonce))
        proof = _expect(plain, Proof).proof
        proven = hmac.compare_digest(proof, signed("proof of node 0").hex())
    except UsageError:
        raise
    except Exception as error:  # also of wrong content
        raise NodeGone(f"does not answer as a session of this parabench does: {error}") from error
    if not proven:
        raise UsageError(f"node 0 at {where} has another secret than this node; {SAME_SECRET}")
    return Connection(connection, (signed("key of a node"), signed("key of node 0")))


def _plain(connection: socket.socket) -> Connection:
    """Return the unsigned connection for the handshake, which must be over within HELLO_S."""
    connection.settimeout(HELLO_S)
    return Connection(connection, most_bytes=MOST_HELLO_BYTES, seconds=HELLO_S)


def _expect(plain: Connection, kind: type[M]) -> M:
    message = plain.receive()
    if not isinstance(message, kind):
        raise ValueError(f"no {kind.__name__}")
    return message


def _check(hello: Hello, secret: bytes | None, session: str, where: str) -> None:
    """Raise UsageError if node 0 has another version or session, or if only one end has a secret."""
    if hello.protocol != PROTOCOL:
        raise UsageError(f"node 0 at {where} has another version of parabench; install the same on all nodes")
    if hello.session != session:
        raise UsageError(
            f"the session at {where} has --rdzv-id {hello.session[:64]!a}, and this node {session}; "
            "give all nodes the same"
        )
    if hello.signed != (secret is not None):
        has = "has a secret, and this node has none" if hello.signed else "has no secret, and this node has one"
        raise UsageError(f"node 0 at {where} {has}; {SAME_SECRET}")


def _signed(secret: bytes | None, *parts: str) -> bytes:
    """Return a proof or key of a connection: the HMAC of the parts. Without a secret, anyone can compute it."""
    whole = b"".join(len(part.encode()).to_bytes(8, "big") + part.encode() for part in parts)
    return hmac.digest(secret or b"", whole, "sha256")


class Waiting:
    """A wait of at most `seconds` from now on. `still` logs a line after `first_s`, and then every AGAIN_S."""

    def __init__(self, log: Callable[[str], None], seconds: float, first_s: float = 0.0) -> None:
        self._log = log
        now = time.monotonic()
        self._until, self._next = now + seconds, now + first_s

    @property
    def left_s(self) -> float:
        """Return the time that is left, in seconds."""
        return max(0.0, self._until - time.monotonic())

    def still(self, line: str) -> None:
        """Log the line if enough time has passed since the last one."""
        if time.monotonic() >= self._next:
            self._next = time.monotonic() + AGAIN_S
            self._log(line)


def numbered(unit: str, numbers: Sequence[int]) -> str:
    """Return numbers as `rank 3`, or `ranks 1, 4-7`."""
    return f"{unit}{'s' * (len(numbers) > 1)} {runs(numbers)}"
