"""Ten readings a second of what stands around a launch, by a thread of the driver, never by a rank.

It may not delay a launch, and not fail one: what cannot be read becomes a null with its reason.
"""

from __future__ import annotations

import math
import os
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from time import perf_counter
from types import TracebackType
from typing import Any, TypeVar

from parabench.files import hand_over_file
from parabench.store.record import DeviceSample, HostSample

T = TypeVar("T")

PERIOD_S = 0.1

# A library that hangs (a device that fell off the bus) is left behind after this.
PATIENCE_S = 1.0


class Source:
    """Something to read while the ranks `pids`, which began at `began_s`, run: `samples` are rows of a table of the
    results database. What the process `ours` started, and it itself, is no other load. `name` is used in reports."""

    name: str

    def __init__(
        self, began_s: float, pids: RankPids, *, ours: int | None = None, clock: Callable[[], float] = perf_counter
    ) -> None:
        self._ours = os.getpid() if ours is None else ours
        self.samples: list[Any] = []
        self._began_s, self._pids, self._clock = began_s, pids, clock
        self._ticks = 0
        self._told: dict[tuple[Any, ...], str] = {}

    def start(self) -> None: ...
    def tick(self) -> None: ...
    def stop(self) -> None: ...

    def now_s(self) -> float:
        """Seconds since the ranks began."""
        return self._clock() - self._began_s

    def keep(self, sample: HostSample | DeviceSample) -> None:
        """Keep a row: a value always, a null only when its reason is new."""
        what = sample._replace(t_s=0.0, value=None, reason=None)
        if sample.reason is None:
            self._told.pop(what, None)
        elif self._told.get(what) == sample.reason:
            return
        else:
            self._told[what] = sample.reason
        self.samples.append(sample)


class Sampler:
    """Reads `sources` while its block runs, every `period_s` from `began_s` on, on `clock`.

    The moments do not depend on how long reading takes; those that it took too long for are left out, not made up for.
    A source that raises is not asked again.
    """

    def __init__(
        self,
        began_s: float,
        sources: Sequence[Source],
        *,
        period_s: float = PERIOD_S,
        clock: Callable[[], float] = perf_counter,
        stop: Any = None,
    ) -> None:
        self._began_s, self._period_s = began_s, period_s
        self._clock = clock
        self._stop = stop or threading.Event()
        self._all, self._sources = tuple(sources), list(sources)
        self._unread: dict[str, str] = {}
        self._ticks = self._missed = 0
        self._cpu_s: float | None = None
        self._thread = threading.Thread(target=self.run, name="parabench sampler", daemon=True)

    def __enter__(self) -> Sampler:
        try:
            self._thread.start()
        except RuntimeError as error:  # no thread can be had: the launch goes on without
            self._unread |= {source.name: str(error) for source in self._sources}
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stop.set()
        if self._thread.ident is not None:
            self._thread.join(PATIENCE_S)
        if self._thread.is_alive():
            self._unread |= {source.name: "a reading did not come back" for source in self._sources}

    def run(self) -> None:
        for source in list(self._sources):
            self._guarded(source, source.start)
        at = 0
        while True:
            for source in list(self._sources):
                self._guarded(source, source.tick)
            self._ticks += 1
            self._cpu_s = time.thread_time()
            due = max(at + 1, math.ceil((self._clock() - self._began_s) / self._period_s))
            self._missed += due - at - 1
            at = due
            if self._stop.wait(max(0.0, self._began_s + at * self._period_s - self._clock())):
                break
        for source in list(self._sources):
            self._guarded(source, source.stop)
        self._cpu_s = time.thread_time()

    def _guarded(self, source: Source, act: Callable[[], None]) -> None:
        try:
            act()
        except Exception as error:
            self._unread[source.name] = f"{type(error).__name__}: {error}"
            self._sources.remove(source)

    def samples(self, kind: type[T]) -> list[T]:
        """The rows of one table that sources have read."""
        return [sample for source in self._all for sample in source.samples if isinstance(sample, kind)]

    def facts(self) -> dict[str, Any]:
        """What reading cost, and which source could not be read at all: {"period_s", "ticks", "missed", "cpu_s",
        "unread": {name: reason}}."""
        return {
            "period_s": self._period_s,
            "ticks": self._ticks,
            "missed": self._missed,
            "cpu_s": self._cpu_s,
            "unread": dict(self._unread),
        }


def leave_pid(folder: Path, rank: int) -> None:
    """Say that this process is `rank`, as RankPids looks for it."""
    hand_over_file(folder / f"pid{rank}", str(os.getpid()))


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
