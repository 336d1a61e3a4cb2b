"""What one node hands to another through the rendezvous store: JSON, compressed, in pieces that a store takes."""

from __future__ import annotations

import json
import zlib
from typing import Any

# torch's TCPStore refuses values of more than 8 MiB.
PIECE_BYTES = 4 << 20


def send(store: Any, key: str, content: Any) -> None:
    """Leave `content` below `key`; whoever finds the key finds all of it."""
    packed = zlib.compress(json.dumps(content).encode(), 1)
    pieces = [packed[at : at + PIECE_BYTES] for at in range(0, len(packed), PIECE_BYTES)]
    for at, piece in enumerate(pieces):
        store.set(f"{key}/{at}", piece)
    store.set(key, str(len(pieces)))


def arrived(store: Any, key: str) -> bool:
    """Whether something lies there."""
    return bool(store.check([key]))


def take(store: Any, key: str) -> Any:
    """What lies there, which is then gone from the store."""
    count = int(store.get(key))
    packed = b"".join(store.get(f"{key}/{at}") for at in range(count))
    for at in range(count):
        store.delete_key(f"{key}/{at}")
    store.delete_key(key)
    return json.loads(zlib.decompress(packed))
