"""What the processes of a group say to one another beside a launch, and below which keys."""

from __future__ import annotations

import json
import socket
from typing import Any

from parabench.cluster.attached.store import SharedStore
from parabench.launch import blobs
from parabench.launch.store_client import StoreLost
from parabench.signals import Interrupted

# What a rank that is asked to stop gets to tell the others.
LAST_WORD_S = 1.0


class Channel:
    """One process' way to the others. Orders have numbers, and a launch's word is why it ends before its time."""

    def __init__(self, grounds: SharedStore) -> None:
        self.rank = grounds.group.rank
        self.line = grounds.line()

    def tell(self, key: str, content: Any) -> None:
        """Leave something for another rank. Raises Lost."""
        self.line.ask(lambda store: blobs.send(store, key, content))

    def has(self, key: str) -> bool:
        """Whether another rank has left something there. Raises Lost."""
        return self.line.ask(lambda store: blobs.arrived(store, key))

    def told(self, key: str) -> Any | None:
        """What another rank has left, which is then gone; None while there is nothing. Raises Lost."""
        if not self.has(key):
            return None
        return self.line.ask(lambda store: blobs.take(store, key))

    def publish(self, number: int, order: dict[str, Any]) -> None:
        text = json.dumps(order)
        self.line.ask(lambda store: store.set(f"order/{number}", text))

    def order(self, number: int) -> dict[str, Any]:
        """The order with that number, when it comes. Raises Lost."""
        said: dict[str, Any] = json.loads(self.line.ask(lambda store: store.get(f"order/{number}")))
        return said

    def end_launch(self, number: int, why: str) -> None:
        """Let all ranks know that a launch is over, once; the first word counts."""
        self.line.ask(lambda store: store.compare_set(f"word/{number}", "", why))

    def word(self, number: int) -> str | None:
        """Why the launch is over; None while it is not."""
        key = f"word/{number}"
        if not self.line.ask(lambda store: store.check([key])):
            return None
        return str(self.line.ask(lambda store: store.get(key)).decode())

    def tell_stop(self, stop: Interrupted) -> None:
        """Let rank 0 know that this one is asked to stop."""
        said = json.dumps({"rank": self.rank, "host": socket.gethostname(), "signal": stop.signal})

        def leave(store: Any) -> None:
            store.set(f"stop/{self.rank}", said)
            store.set("stop", said)

        try:
            self.line.ask(leave, timeout_s=LAST_WORD_S)
        except StoreLost:
            return

    def check_stop(self) -> None:
        """Raise Interrupted when any rank is asked to stop."""
        if self.line.ask(lambda store: store.check(["stop"])):
            said = json.loads(self.line.ask(lambda store: store.get("stop")))
            raise Interrupted(said["signal"], f"rank {said['rank']} ({said['host']})")

    def stops(self, rank: int) -> bool:
        """Whether that rank was asked to stop, and said so."""
        return bool(self.line.ask(lambda store: store.check([f"stop/{rank}"])))
