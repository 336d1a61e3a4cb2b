"""Launches that hang, ended when their ranks have come to where they wait for ever: no span of time that a slow machine
may need to get there."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TYPE_CHECKING

import psutil

from parabench.launch import processes as ranks

if TYPE_CHECKING:  # ranks import this too
    import pytest

Condition = Callable[[list[psutil.Process]], bool]

CAME = "came"

# A rank that waits for an answer of the driver sleeps too, but not for so many looks in a row.
LOOKS, LOOK_S = 20, 0.02


def came() -> None:
    """For a rank: it stands before what it will wait for. The driver reads that from the name of the process."""
    Path("/proc/self/comm").write_text(CAME)


def stuck(processes: Iterable[psutil.Process]) -> bool:
    """Whether each process came to where it waits, and none has a thread that runs."""
    folders = [Path(f"/proc/{process.pid}") for process in processes]
    try:
        states = [
            thread.read_text().rpartition(")")[2].split()[0] for each in folders for thread in each.glob("task/*/stat")
        ]
        return (
            bool(folders)
            and all((each / "comm").read_text().strip() == CAME for each in folders)
            and set(states) <= set("STt")
        )
    except (FileNotFoundError, ProcessLookupError):  # a process or a thread that ended meanwhile
        return False


def pass_when(monkeypatch: pytest.MonkeyPatch, condition: Condition = stuck) -> None:
    """A launch's deadline passes when `condition` holds of its processes, however long that takes."""

    class Deadline(ranks._Deadline):
        def __init__(self, seconds: float, others: set[int]) -> None:
            super().__init__(0.0, others)

        def _passed(self) -> None:
            seen = 0
            while seen < LOOKS:
                if self._over.wait(LOOK_S):
                    return
                seen = seen + 1 if condition(ranks._ranks(self._others)) else 0
            super()._passed()

    monkeypatch.setattr(ranks, "_Deadline", Deadline)
