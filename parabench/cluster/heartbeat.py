"""The heartbeat of a member of a session: it shows that the process lives, and hears aborts and stops meanwhile.

torch elastic's keep-alive carries no abort, and ends nobody's ranks (`membership.py` says what comes of a dead node).
"""

from __future__ import annotations

import json
import threading
from collections.abc import Callable
from typing import Any

from parabench.launch.rendezvous import FAILED, HUNG, LOST, STOP
from parabench.launch.store_client import ForeignValue, StoreClient, StoreLost

# An abort is heard so soon.
KEEP_ALIVE_S = 0.25


def beat_once(client: StoreClient, store: Any, key: str, count: int) -> None:
    """Show a sign of life under the key, the `count`th; in the heartbeat's thread, which has the `store`."""
    if client.seal.signed:
        store.set(key, client.sealed(key, count))
    else:
        store.add(key, 1)


def beats(client: StoreClient, store: Any, key: str, before: int) -> int:
    """How often it has beaten; `before` was seen last. Only a higher number that is signed is a sign of life."""
    if not client.seal.signed:
        return int(store.add(key, 0))
    if not store.check([key]):
        return before
    try:
        return max(before, client.read(key, store.get(key), lambda content: int(json.loads(content))))
    except ForeignValue:
        return before


def abort(client: StoreClient, launch: int, reason: str) -> None:
    """Let all members know that a launch is over; the first reason counts."""
    key = f"abort/{launch}"
    client.call("compare_set", key, "", client.sealed(key, reason))


def abort_of(client: StoreClient, store: Any, launch: int) -> str | None:
    """Why a launch is over, as far as anybody has said so; in the heartbeat's thread, which has the `store`."""
    key = f"abort/{launch}"
    return client.read(key, store.get(key), _reason) if store.check([key]) else None


def _reason(content: bytes) -> str:
    return {each: each for each in (FAILED, HUNG, STOP, LOST)}[json.loads(content)]


class Heartbeat:
    """Calls `beat(store)` every KEEP_ALIVE_S in a thread of its own. Once the store has not answered for `timeout_s`,
    or is gone, `lost` says why, and `when_lost` is called."""

    def __init__(
        self,
        client: StoreClient,
        beat: Callable[[Any], None],
        when_lost: Callable[[], None] = lambda: None,
        timeout_s: float | None = None,
    ) -> None:
        self.client = client
        self.lost: StoreLost | None = None
        self._beat, self._when_lost, self._timeout_s = beat, when_lost, timeout_s
        self._over = threading.Event()
        threading.Thread(target=self._run, name="parabench heartbeat", daemon=True).start()

    def check(self) -> None:
        """Raise StoreLost when the store is."""
        if self.lost is not None:
            raise self.lost

    def end(self) -> None:
        self._over.set()
        self.client.end()

    def _run(self) -> None:
        while not self._over.is_set():
            try:
                self.client.call(self._beat, timeout_s=self._timeout_s)
            except StoreLost as why:
                if not self._over.is_set():
                    self.lost = why
                    self._when_lost()
                return
            self._over.wait(KEEP_ALIVE_S)
