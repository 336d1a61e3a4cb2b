"""Which process each rank is: it says so in the launch's folder, for whoever watches from outside."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterable
from pathlib import Path


def leave_pid(folder: Path, rank: int) -> None:
    """Say that this process is `rank`: what a watcher finds is whole, or not there."""
    part = folder / f"pid{rank}.part"
    part.write_text(str(os.getpid()))
    part.replace(folder / f"pid{rank}")


class RankPids:
    """The process id of each of `ranks`, as far as they have said it; several threads may ask."""

    def __init__(self, folder: Path, ranks: Iterable[int]) -> None:
        self._folder = folder
        self._missing = list(ranks)
        self._known: dict[int, int] = {}
        self._lock = threading.Lock()

    def look(self) -> dict[int, int]:
        """{rank: process id} of those that have begun."""
        with self._lock:
            for rank in list(self._missing):
                try:
                    self._known[rank] = int((self._folder / f"pid{rank}").read_text())
                except FileNotFoundError:
                    continue
                self._missing.remove(rank)
            return dict(self._known)
