"""The heartbeat of a member of a session: it shows that the process lives, and hears aborts and stops meanwhile.

torch elastic's keep-alive carries no abort, and ends nobody's ranks (`membership.py` says what comes of a dead node).
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

from parabench.launch.store_client import StoreClient, StoreLost

# An abort is heard so soon.
KEEP_ALIVE_S = 0.25


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
        self.lost: str | None = None
        self._beat, self._when_lost, self._timeout_s = beat, when_lost, timeout_s
        self._over = threading.Event()
        threading.Thread(target=self._run, name="parabench heartbeat", daemon=True).start()

    def check(self) -> None:
        """Raise StoreLost when the store is."""
        if self.lost is not None:
            raise StoreLost(self.lost)

    def end(self) -> None:
        self._over.set()
        self.client.end()

    def _run(self) -> None:
        while not self._over.is_set():
            try:
                self.client.call(self._beat, timeout_s=self._timeout_s)
            except StoreLost as why:
                if not self._over.is_set():
                    self.lost = str(why)
                    self._when_lost()
                return
            self._over.wait(KEEP_ALIVE_S)
