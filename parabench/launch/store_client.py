"""A client of the rendezvous store that is never stuck: torch's store waits in C++, where no signal and no deadline
reaches it, and when the network is cut every call waits for as long as TCP tries."""

from __future__ import annotations

import atexit
import json
import os
import socket
import stat
import threading
import time
import zlib
from collections.abc import Callable
from contextlib import suppress
from datetime import timedelta
from functools import partial
from queue import Empty, SimpleQueue
from typing import Any, TypeVar

import msgspec
from torch._C._distributed_c10d import PrefixStore, TCPStore

from parabench.errors import NodeGone, UsageError

T = TypeVar("T")

# How soon a signal, an abort or a deadline is seen by a caller that waits for an answer.
LOOK_S = 0.05
POLL_S = 0.005

# The store's own limit to waiting for a key; callers have a shorter one, or none.
FOR_EVER = timedelta(days=7)
CONNECT = timedelta(seconds=10)

# What a call gets to return in, when no more are made, before its connection is cut, and again afterwards.
END_S = 0.5

# torch's TCPStore refuses values of more than 8 MiB.
PIECE_BYTES = 4 << 20
# What one that is there may take to come: 0.5 Mbit/s is slower than any network that this is for.
PIECE_S = 60.0

# The most that a blob may be, packed and unpacked: many times what a node sees of the longest launch.
MOST_BYTES = 1 << 30

# What a stranger's value may raise where it is read.
UNREADABLE = (
    ValueError, TypeError, LookupError, AttributeError, ArithmeticError, RecursionError, zlib.error,
    msgspec.ValidationError,
)  # fmt: skip


class StoreLost(NodeGone):
    """The store does not answer: its node is gone, or the network to it."""


class ForeignValue(StoreLost):
    """The store holds what no node of this session has written."""


class Plain:
    """Values as they are: nobody's signature is asked for."""

    signed = False

    def seal(self, key: str, content: bytes) -> bytes:
        """What to leave under the key."""
        return content

    def unseal(self, key: str, raw: bytes) -> bytes:
        """What was found under the key, as it was meant. Raises ValueError for what is not signed as it must be."""
        return raw


class StoreClient:
    """A connection to the store with a thread of its own that makes the calls; who waits is never stuck with it.

    While a call has no answer `check` is called, which may raise. Every method raises StoreLost, also where nothing
    has come for `timeout_s`; ForeignValue for what is not signed as the session's `seal` asks for, or cannot be read.
    """

    def __init__(self, address: str, port: int, prefix: str) -> None:
        self.where = f"{address}:{port}"
        self._address, self._port = address, port
        self.check: Callable[[], None] = lambda: None
        self.seal = Plain()
        self._calls: SimpleQueue[tuple[Callable[[Any], Any], SimpleQueue[tuple[bool, Any]]] | None] = SimpleQueue()
        self._connect = partial(connect, address, port, prefix, FOR_EVER)
        self._thread = threading.Thread(target=self._serve, name="parabench store client", daemon=True)
        self._thread.start()

    def call(self, do: str | Callable[[Any], Any], *args: Any, timeout_s: float | None = None) -> Any:
        """What the store's method `do` returns for `args`, or `do(store, *args)`."""
        answer: SimpleQueue[tuple[bool, Any]] = SimpleQueue()
        self._calls.put((lambda store: getattr(store, do)(*args) if isinstance(do, str) else do(store, *args), answer))
        until = None if timeout_s is None else time.monotonic() + timeout_s
        while True:
            try:
                ok, value = answer.get(timeout=LOOK_S)
            except Empty:
                self.check()
                if until is not None and time.monotonic() > until:
                    raise StoreLost(f"{self.where} has not answered for {timeout_s:g} s") from None
                continue
            if ok:
                return value
            if isinstance(value, StoreLost):
                raise value
            why = str(value).splitlines()[0] if str(value) else type(value).__name__
            raise StoreLost(f"{self.where} is gone: {why}")

    def put(self, key: str, content: Any, *, timeout_s: float | None = None) -> None:
        """Store `content` as JSON under the key."""
        self.call("set", key, self.sealed(key, content), timeout_s=timeout_s)

    def get(self, key: str, parse: Callable[[bytes], T] = json.loads) -> T:
        """What was put there, as soon as it is."""
        return self.read(key, self.call("get", key), parse)

    def sealed(self, key: str, content: Any) -> bytes:
        """What `put` leaves there."""
        return self.seal.seal(key, json.dumps(content).encode())

    def read(self, key: str, raw: bytes, parse: Callable[[bytes], T] = json.loads) -> T:
        """Verify the value `raw` of a key, and return what `parse` makes of it."""
        return self._readable(key, lambda: parse(self.seal.unseal(key, raw)))

    def _readable(self, key: str, parse: Callable[[], T]) -> T:
        """Return what `parse` returns. Raises ForeignValue for the key if it fails, except with a UsageError."""
        try:
            return parse()
        except UsageError:
            raise
        except UNREADABLE as error:
            raise ForeignValue(foreign(key, self.seal.signed)) from error

    def has(self, *keys: str) -> bool:
        """Whether all the keys are there."""
        return bool(self.call("check", list(keys)))

    def wait(self, *keys: str, timeout_s: float) -> bool:
        """Whether all the keys are there, or come in time. Nothing waits in the store for it."""
        until = time.monotonic() + timeout_s
        while not self.has(*keys):
            if time.monotonic() > until:
                return False
            self.check()
            time.sleep(POLL_S)
        return True

    def put_blob(self, key: str, content: Any) -> None:
        """Leave `content` of any size under the key: who finds the key finds all of it."""
        packed = zlib.compress(json.dumps(content).encode(), 1)
        pieces = [packed[at : at + PIECE_BYTES] for at in range(0, len(packed), PIECE_BYTES)]
        for at, piece in enumerate(pieces):
            self.call("set", f"{key}/{at}", self.seal.seal(f"{key}/{at}", piece))
        self.put(key, len(pieces))

    def pop_blob(self, key: str, build: Callable[[Any], T] = lambda content: content) -> T:
        """What `build` makes of what `put_blob` left there, which is then gone from the store."""
        try:
            count = self.read(key, self.call("get", key, timeout_s=PIECE_S), _count)
            pieces = [f"{key}/{at}" for at in range(count)]
            # Whoever found the key finds them all; what is not there would be waited for.
            if not self.has(*pieces):
                raise ForeignValue(foreign(key, self.seal.signed))
            packed = b"".join(self.read(piece, self.call("get", piece, timeout_s=PIECE_S), bytes) for piece in pieces)
            for each in pieces:
                self.call("delete_key", each)
        finally:
            with suppress(StoreLost):
                self.call("delete_key", key)
        return self._readable(key, lambda: build(json.loads(_unpacked(packed))))

    def end(self) -> None:
        """Make no more calls.

        A thread that is still in C++ when the interpreter ends would take the process along with SIGABRT
        ("terminate called without an active exception"), so one that is stuck loses its connection, and with it those
        of this process' other clients of that store.
        """
        self._calls.put(None)
        self._thread.join(END_S)
        if self._thread.is_alive():
            cut_off(self._address, self._port)
            self._thread.join(END_S)
        if self._thread.is_alive():  # it is still connecting
            atexit.register(self._thread.join, CONNECT.total_seconds())

    def _serve(self) -> None:
        store: Any = None
        while (call := self._calls.get()) is not None:
            do, answer = call
            try:
                store = store or self._connect()
                answer.put((True, do(store)))
            except Exception as error:
                answer.put((False, error))


def foreign(key: str, signed: bool) -> str:
    """What it means that a value is not a node's."""
    if signed:
        return (
            f"{key} in the rendezvous store is not signed with this session's secret: a node has another one, or "
            "somebody else writes to this store; give all nodes the same --secret-file, and keep the port within a "
            "network that you trust"
        )
    return (
        f"{key} in the rendezvous store is nothing that a node of this session writes: somebody else writes to this "
        "store; keep its port within a network that you trust, or give all nodes a --secret-file"
    )


def _count(content: bytes) -> int:
    count = json.loads(content)
    if not isinstance(count, int) or not 0 < count <= MOST_BYTES // PIECE_BYTES:
        raise ValueError(count)
    return count


def _unpacked(packed: bytes) -> bytes:
    whole = zlib.decompressobj()
    content = whole.decompress(packed, MOST_BYTES)
    if not whole.eof:
        raise ValueError("no end")
    return content


def connect(address: str, port: int, prefix: str, timeout: timedelta) -> Any:
    """A client of the store at `address`, whose keys all begin with `prefix`."""
    store = TCPStore(address, port, None, False, CONNECT, wait_for_workers=False)
    store.set_timeout(timeout)
    return PrefixStore(prefix, store)


def cut_off(address: str, port: int) -> None:
    """End this process' connections to that address: whoever waits for an answer there has an error at once."""
    with suppress(OSError):
        peers = {(str(known[4][0]), port) for known in socket.getaddrinfo(address, port, type=socket.SOCK_STREAM)}
        for fd in map(int, os.listdir("/proc/self/fd")):
            with suppress(OSError):  # closed meanwhile, or not connected
                if stat.S_ISSOCK(os.fstat(fd).st_mode):
                    with socket.socket(fileno=os.dup(fd)) as connection:
                        # torch's sockets are of IPv6, which has IPv4 addresses as ::ffff:10.0.0.1.
                        host, at, *_ = connection.getpeername() or ("", 0)
                        if (str(host).removeprefix("::ffff:"), at) in peers:
                            connection.shutdown(socket.SHUT_RDWR)
