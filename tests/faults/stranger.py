"""Somebody on the network who reaches the port of the rendezvous store, and what they may try there.

    python -m tests.faults.stranger ADDRESS PORT KIND SEED

It speaks c10d's protocol by itself (TCPStoreBackend.hpp of torch): little-endian, each text behind its length.
"""

from __future__ import annotations

import json
import socket
import struct
import sys
import time
import zlib
from collections.abc import Callable
from contextlib import suppress
from random import Random

MAGIC = 0x3C85F7CE
VALIDATE, SET, COMPARE_SET, GET, ADD, DELETE_KEY, APPEND, MULTI_SET, QUEUE_PUSH = 0, 1, 2, 3, 4, 8, 9, 11, 14
HELLO = struct.pack("<BI", VALIDATE, MAGIC)

# torch puts a "/" before every key, and `parabench run` without --rdzv-id has this one.
KEYS = "/parabench/none/{}"

# What a forged value can be known by.
EVIL = "evil"

CONNECTIONS, FLOOD_BYTES, PIECE = 300, 256 << 20, 4 << 20


class Port:
    """The port of a session's store, which may not be open yet."""

    def __init__(self, address: str, port: int, lot: Random) -> None:
        self.at, self.lot = (address, port), lot

    def open(self) -> socket.socket:
        while True:
            with suppress(OSError):
                return socket.create_connection(self.at, timeout=5.0)
            time.sleep(0.05)

    def send(self, *parts: bytes, keep: float = 0.0) -> None:
        """These bytes on a connection of their own, which is closed so many seconds later."""
        with suppress(OSError), self.open() as connection:
            for part in parts:
                connection.sendall(part)
            time.sleep(keep)


def text(value: bytes) -> bytes:
    return struct.pack("<Q", len(value)) + value


def put(key: str, value: bytes) -> bytes:
    return struct.pack("<B", SET) + text(KEYS.format(key).encode()) + text(value)


# -- who knows nothing of the protocol -------------------------------------------------------------------------------


def garbage(port: Port) -> None:
    port.send(port.lot.randbytes(port.lot.choice((1, 100, 100_000))))


def web(port: Port) -> None:
    port.send(b"GET / HTTP/1.1\r\nHost: parabench\r\n\r\n", keep=0.5)


def half(port: Port) -> None:
    """The beginning of a message, and silence."""
    whole = HELLO + put("id", b"none" * 100)
    port.send(whole[: port.lot.randrange(1, len(whole))], keep=1000.0)


def connections(port: Port) -> None:
    """So many at once, of which some say who they are."""
    held = []
    for _ in range(CONNECTIONS):
        held.append(port.open())
        if port.lot.random() < 0.5:
            with suppress(OSError):
                held[-1].sendall(HELLO)
    time.sleep(port.lot.uniform(0.0, 3.0))


def knocking(port: Port) -> None:
    """One connection after another, each closed at once."""
    for _ in range(1000):
        port.send()


# -- who speaks it ---------------------------------------------------------------------------------------------------


def huge(port: Port) -> None:
    """A key or a value that is said to be of 2 GB, or of a million TB."""
    size = port.lot.choice((2 << 30, 1 << 60, (1 << 64) - 1))
    command = port.lot.choice((SET, GET, ADD, APPEND, MULTI_SET, QUEUE_PUSH, COMPARE_SET))
    says = [struct.pack("<BQ", command, size), struct.pack("<B", SET) + text(b"/a") + struct.pack("<Q", size)]
    port.send(HELLO, port.lot.choice(says), b"a" * (1 << 20), keep=0.5)


def filling(port: Port) -> None:
    """As much as fits into keys of their own, up to a limit that this machine bears."""
    for at in range(FLOOD_BYTES // PIECE):
        port.send(HELLO, put(f"mine/{at}", b"a" * PIECE))
    time.sleep(1000.0)


def _forging(values: Callable[[Random], bytes]) -> Callable[[Port], None]:
    def forge(port: Port) -> None:
        lot = port.lot
        launch, member = lot.randrange(8), lot.randrange(1, 3)
        kind = lot.choice(
            ("next", "abort", "stop", "join", "answer", "result", "heartbeat", "hello", "code", "joining")
        )
        key = {
            "next": f"next/{launch}",
            "abort": f"abort/{launch}",
            "join": f"join/{member + 1}",
            "answer": f"answer/{member}",
            "result": f"launch/{launch}/result/1",
            "heartbeat": f"heartbeat/{member}",
            "code": f"code/{member}/told",
        }.get(kind, kind)
        value = values(lot)
        pieces = [put(f"{key}/0", zlib.compress(value)), put(key, b"1")] if kind in ("join", "result") else []
        if kind == "join":
            pieces.append(struct.pack("<B", ADD) + text(KEYS.format("joining").encode()) + struct.pack("<q", 1))
        port.send(HELLO, *(pieces or [put(key, value)]), keep=0.1)
        time.sleep(lot.uniform(0.0, 2.0))

    return forge


def _nothing_right(lot: Random) -> bytes:
    return lot.choice((b"", b"{", b"null", b"1e999", b"[[[]]]", b'{"nonce": 1}', b"\xff" * 40, b"[" * 100_000))


def _well_formed(lot: Random) -> bytes:
    """What a node could say, but for the signature."""
    member = {"number": 1, "host": EVIL, "address": EVIL, "facts": {}, "about": {}, "nonce": ""}
    end = {"lines": [EVIL], "end": {"code": 0, "why": EVIL}}
    stop = {"join_id": 1, "host": EVIL, "signal": 15}
    signed = lot.choice((b"", lot.randbytes(32)))
    return signed + json.dumps(lot.choice((member, end, stop, "failed", EVIL, 1, None))).encode()


KINDS: dict[str, Callable[[Port], None]] = {
    "garbage": garbage,
    "web": web,
    "half": half,
    "connections": connections,
    "knocking": knocking,
    "huge": huge,
    "filling": filling,
    "nothing right": _forging(_nothing_right),
    "well-formed": _forging(_well_formed),
}
# Which of them write what members read: a session need not survive them.
FORGERS = ("nothing right", "well-formed")


def main() -> None:
    address, number, kind, seed = sys.argv[1:]
    port = Port(address, int(number), Random(seed))
    while True:
        KINDS[kind](port)


if __name__ == "__main__":
    main()
