"""The pulse of a node: it shows the others that it lives, and hears what they say while its driver waits or works."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

from parabench.launch.context import DEAD_AFTER_S
from parabench.launch.store_client import StoreClient, StoreLost

# How often; a word of another node is heard so soon.
KEEP_ALIVE_S = 0.25


class Heartbeat:
    """Calls `beat(store)` every period in a thread of its own. `lost`, once set, says why it cannot any more; then
    `when_lost` is called."""

    def __init__(self, line: StoreClient, beat: Callable[[Any], None], when_lost: Callable[[], None]) -> None:
        self.line = line
        self.lost: str | None = None
        self._beat, self._when_lost = beat, when_lost
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run, name="parabench pulse", daemon=True)
        self._thread.start()

    def check(self) -> None:
        """Raise Lost when it is."""
        if self.lost is not None:
            raise StoreLost(self.lost)

    def end(self) -> None:
        self._over.set()
        self.line.end()

    def _run(self) -> None:
        while not self._over.is_set():
            try:
                self.line.ask(self._beat, timeout_s=DEAD_AFTER_S)
            except StoreLost as why:
                if not self._over.is_set():
                    self.lost = str(why)
                    self._when_lost()
                return
            self._over.wait(KEEP_ALIVE_S)
