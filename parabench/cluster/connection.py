"""Messages between node 0 and another node: JSON in frames over TCP, signed if the nodes share a secret.

A frame is its length (4 bytes), a tag, and compressed JSON; an empty frame is a sign of life. Each end proves that it
knows the secret by signing the other's nonce. Tags are HMAC-SHA256 (RFC 2104) with a key of this connection, of the
sender, the number of the message, and its content. Nothing is unpickled.
"""

from __future__ import annotations

import hmac
import json
import secrets
import socket
import threading
import time
import zlib
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any

from parabench.cluster.secret import Secret
from parabench.cluster.topology import RUN_ID_LETTERS
from parabench.errors import NodeGone, UsageError
from parabench.launch.rendezvous import DEAD_AFTER_S

# Increases if the messages change.
PROTOCOL = 1
# The time between two signs of life, in seconds.
KEEP_ALIVE_S = 0.25
# The longest step of the handshake, in seconds.
HELLO_S = 10.0
# The longest message, compressed and not: before a node is admitted, and afterwards.
MOST_FIRST_BYTES, MOST_BYTES = 1 << 20, 1 << 30
_HEAD_BYTES, TAG_BYTES, _PIECE_BYTES = 4, 32, 1 << 20
NODE_0, NODE = b"node 0", b"node"

Message = Mapping[str, Any]


class PeerLost(NodeGone):
    """The other end is gone: its process, its host, or the network in between."""


class Connection:
    """A connection to another node.

    `send` may be called from any thread. After `start`, received messages are handed to a function in a separate
    thread. The other end is lost if it closes the connection, or shows no sign of life for DEAD_AFTER_S; then `lost`
    has the reason.
    """

    def __init__(self, connection: socket.socket, own: bytes = b"", other: bytes = b"", key: bytes = b"") -> None:
        self._socket, self._ends, self._key = connection, (own, other), key
        self._sending, self._over = threading.Lock(), threading.Event()
        self._numbers = [0, 0]
        self._heard_s = time.monotonic()
        self.most_bytes = MOST_FIRST_BYTES
        self.lost: PeerLost | None = None

    @property
    def address(self) -> str:
        """Return this end's address."""
        return str(self._socket.getsockname()[0])

    @property
    def silent_s(self) -> float:
        """Return the time since the last sign of life, in seconds."""
        return time.monotonic() - self._heard_s

    def send(self, message: Message | None) -> None:
        """Send a message, or a sign of life. Raises PeerLost."""
        content = b"" if message is None else zlib.compress(json.dumps(message).encode(), 1)
        with self._sending:
            frame = self._tag(0, content) + content
            left = memoryview(len(frame).to_bytes(_HEAD_BYTES, "big") + frame)
            try:
                while left:
                    left = left[self._socket.send(left[:_PIECE_BYTES]) :]
            except OSError as error:
                raise self._lose(error) from error

    def receive(self) -> dict[str, Any] | None:
        """Receive a message; None for a sign of life. Raises EOFError, OSError, or ValueError for invalid content."""
        size = int.from_bytes(self._exactly(_HEAD_BYTES), "big")
        if size > self.most_bytes:
            raise ValueError(f"a message of {size:,} bytes")
        frame = self._exactly(size)
        tag = TAG_BYTES if self._key else 0
        content = frame[tag:]
        if not hmac.compare_digest(frame[:tag], self._tag(1, content)):
            raise ValueError("a message that is not signed with this session's secret")
        if not content:
            return None
        message = json.loads(_unpacked(content, self.most_bytes))
        if not isinstance(message, dict):
            raise ValueError("a message that no node sends")
        return message

    def start(self, handle: Callable[[dict[str, Any]], None], when_lost: Callable[[], None]) -> None:
        """Send signs of life, and hand received messages to `handle`. Call `when_lost` once the other end is lost."""
        self._socket.settimeout(DEAD_AFTER_S)
        for run in (lambda: self._receive_all(handle, when_lost), self._beat):
            threading.Thread(target=run, name="parabench connection", daemon=True).start()

    def close(self) -> None:
        """Close the connection."""
        self._over.set()
        with suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)
        self._socket.close()

    def _tag(self, end: int, content: bytes) -> bytes:
        """Return the tag of the next message of this end (0) or the other one (1)."""
        if not self._key:
            return b""
        number = self._numbers[end].to_bytes(8, "big")
        self._numbers[end] += 1
        return hmac.digest(self._key, self._ends[end] + number + content, "sha256")

    def _exactly(self, size: int) -> bytes:
        found = bytearray()
        while len(found) < size:
            piece = self._socket.recv(min(size - len(found), _PIECE_BYTES))
            if not piece:
                raise EOFError("its process has ended, or closed the connection")
            self._heard_s = time.monotonic()
            found += piece
        return bytes(found)

    def _receive_all(self, handle: Callable[[dict[str, Any]], None], when_lost: Callable[[], None]) -> None:
        try:
            while True:
                if (message := self.receive()) is not None:
                    handle(message)
        except Exception as error:
            self._lose(error)
            when_lost()

    def _beat(self) -> None:
        with suppress(PeerLost):
            while not self._over.wait(KEEP_ALIVE_S):
                self.send(None)

    def _lose(self, error: Exception) -> PeerLost:
        if self.lost is None:
            why = str(error) or type(error).__name__
            self.lost = PeerLost(f"no sign of life for {DEAD_AFTER_S:g} s" if isinstance(error, TimeoutError) else why)
            self.close()
        return self.lost


def _unpacked(content: bytes, most: int) -> bytes:
    whole = zlib.decompressobj()
    text = whole.decompress(content, most)
    if not whole.eof:
        raise ValueError("a message that is too long, or cut")
    return text


def _proof(secret: Secret, end: bytes, *parts: str) -> str:
    return secret.tag(end, *(part.encode() for part in parts)).hex()


def accept_peer(connection: socket.socket, secret: Secret | None, session: str) -> Connection:
    """Return node 0's end of a new connection. Raises OSError, EOFError or ValueError if the other is no such node."""
    connection.settimeout(HELLO_S)
    plain, own = Connection(connection), secrets.token_hex(16)
    plain.send({"protocol": PROTOCOL, "session": session, "nonce": own, "signed": secret is not None})
    answer = plain.receive() or {}
    nonce = str(answer.get("nonce"))
    if secret is None:
        return Connection(connection, NODE_0, NODE)
    if not hmac.compare_digest(str(answer.get("proof")), _proof(secret, NODE, session, own, nonce)):
        raise ValueError("it does not know this session's secret; give all nodes the same --secret-file")
    plain.send({"proof": _proof(secret, NODE_0, session, own, nonce)})
    return Connection(connection, NODE_0, NODE, bytes.fromhex(_proof(secret, b"key", session, own, nonce)))


def greet(connection: socket.socket, secret: Secret | None, session: str, where: str) -> Connection:
    """Return another node's end of a connection to node 0.

    Raises PeerLost if `where` does not answer as node 0 does, UsageError if it has another session or secret.
    """
    connection.settimeout(HELLO_S)
    plain, own = Connection(connection), secrets.token_hex(16)
    try:
        hello = plain.receive() or {}
        protocol, there, nonce, signed = (hello[name] for name in ("protocol", "session", "nonce", "signed"))
    except (OSError, EOFError, ValueError, LookupError) as error:
        raise PeerLost(f"does not answer as a session of parabench does: {error}") from error
    if protocol != PROTOCOL:
        raise UsageError(f"node 0 at {where} has another version of parabench; install the same on all nodes")
    if there != session:
        named = str(there)[:RUN_ID_LETTERS]
        raise UsageError(
            f"the session at {where} has --rdzv-id {named!a}, and this node {session}; give all nodes the same"
        )
    remedy = "give all nodes the same --secret-file, or none"
    if signed != (secret is not None):
        has = "has a secret, and this node has none" if signed else "has no secret, and this node has one"
        raise UsageError(f"node 0 at {where} {has}; {remedy}")
    if secret is None:
        plain.send({"nonce": own})
        return Connection(connection, NODE, NODE_0)
    plain.send({"nonce": own, "proof": _proof(secret, NODE, session, nonce, own)})
    answer: dict[str, Any] = {}
    with suppress(OSError, EOFError, ValueError):
        answer = plain.receive() or {}
    if not hmac.compare_digest(str(answer.get("proof")), _proof(secret, NODE_0, session, nonce, own)):
        raise UsageError(f"node 0 at {where} has another secret than this node; {remedy}")
    return Connection(connection, NODE, NODE_0, bytes.fromhex(_proof(secret, b"key", session, nonce, own)))
