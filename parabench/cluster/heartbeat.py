"""Signs of life and aborts, which the members of a session exchange through its rendezvous store."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable
from typing import Any

from parabench.launch.rendezvous import FAILED, HUNG, LOST, STOP
from parabench.launch.store_client import ForeignValue, StoreClient, StoreLost

# The time between two beats: an abort is noticed after it at the latest.
KEEP_ALIVE_S = 0.25


def beat_once(client: StoreClient, store: Any, key: str, count: int) -> None:
    """Write the `count`-th sign of life under the key. Call it in the heartbeat's thread, which has the `store`."""
    store.set(key, client.sealed(key, count))
    store.check([key])  # unlike `set`, it waits for an answer


def beats(client: StoreClient, store: Any, key: str, before: int) -> int:
    """Return the number of beats under the key, or `before`, the last known one, if no member has written a higher."""
    if not store.check([key]):
        return before
    try:
        return max(before, client.read(key, store.get(key), lambda content: int(json.loads(content))))
    except ForeignValue:
        return before


def abort(client: StoreClient, launch: int, reason: str) -> None:
    """Tell all members that a launch is over. Only the first reason counts."""
    key = f"abort/{launch}"
    client.call("compare_set", key, "", client.sealed(key, reason))


def abort_of(client: StoreClient, store: Any, launch: int) -> str | None:
    """Return why a launch was aborted; `None` if it was not. Call it in the heartbeat's thread."""
    key = f"abort/{launch}"
    reasons = {each: each for each in (FAILED, HUNG, STOP, LOST)}
    return client.read(key, store.get(key), lambda raw: reasons[json.loads(raw)]) if store.check([key]) else None


class Heartbeat:
    """Call `beat(store)` every KEEP_ALIVE_S in a separate thread.

    If the store does not answer for `timeout_s`, or is gone, `lost` has the error and `when_lost` is called.
    """

    def __init__(
        self, client: StoreClient, beat: Callable[[Any], None], when_lost: Callable[[], None], timeout_s: float
    ) -> None:
        self.client = client
        self.lost: StoreLost | None = None
        self._beat, self._when_lost, self._timeout_s = beat, when_lost, timeout_s
        self._over = threading.Event()
        threading.Thread(target=self._run, name="parabench heartbeat", daemon=True).start()

    def check(self) -> None:
        """Raise StoreLost if the store is lost."""
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
