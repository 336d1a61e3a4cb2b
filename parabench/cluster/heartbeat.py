"""The pulse of a node: it shows the others that it lives, and hears what they say while its driver waits or works."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

from parabench.launch.context import LOST_AFTER_S
from parabench.launch.store_client import Line, Lost

# How often; a word of another node is heard so soon.
PERIOD_S = 0.25


class Pulse:
    """Calls `beat(store)` every period in a thread of its own. `lost`, once set, says why it cannot any more; then
    `when_lost` is called."""

    def __init__(self, line: Line, beat: Callable[[Any], None], when_lost: Callable[[], None]) -> None:
        self.line = line
        self.lost: str | None = None
        self._beat, self._when_lost = beat, when_lost
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run, name="parabench pulse", daemon=True)
        self._thread.start()

    def check(self) -> None:
        """Raise Lost when it is."""
        if self.lost is not None:
            raise Lost(self.lost)

    def end(self) -> None:
        self._over.set()
        self.line.end()

    def _run(self) -> None:
        while not self._over.is_set():
            try:
                self.line.ask(self._beat, timeout_s=LOST_AFTER_S)
            except Lost as why:
                if not self._over.is_set():
                    self.lost = str(why)
                    self._when_lost()
                return
            self._over.wait(PERIOD_S)
