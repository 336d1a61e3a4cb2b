"""The sampler: a thread that reads the host and its devices (`devices`) ten times a second while a launch runs.

It must not delay a launch or make it fail. A value that cannot be read is null, with the reason.
"""

from __future__ import annotations

import contextlib
import math
import os
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from time import perf_counter
from types import TracebackType
from typing import Any, TypeVar

import psutil

from parabench.files import hand_over_file
from parabench.store.record import DeviceSample, HostSample

T = TypeVar("T")

PERIOD_S = 0.1

# If a library hangs, for example because a device fell off the bus, it is left behind after this time.
PATIENCE_S = 1.0

# The number of readings between two searches for processes of this launch. A search costs more than a reading.
LOOK_EVERY = 10

ENDED = "the process has ended"
UNCOUNTED = "the kernel does not count the CPU time of the host"


class Source:
    """Collect `samples` (rows of the results database) while the ranks `pids` run. They started at `began_s`.

    The process `ours` and its descendants do not count as load of others.
    """

    name: str

    def __init__(
        self, began_s: float, pids: RankPids, *, ours: int | None = None, clock: Callable[[], float] = perf_counter
    ) -> None:
        self._ours = os.getpid() if ours is None else ours
        self.samples: list[Any] = []
        self._began_s, self._pids, self._clock = began_s, pids, clock
        self._ticks = 0
        self._reasons: dict[tuple[Any, ...], str] = {}

    def start(self) -> None: ...
    def tick(self) -> None: ...
    def stop(self) -> None: ...

    def now_s(self) -> float:
        """Return the seconds since the ranks started."""
        return self._clock() - self._began_s

    def keep(self, sample: HostSample | DeviceSample) -> None:
        """Keep a row. A null is kept only if its reason is new."""
        what = sample._replace(t_s=0.0, value=None, reason=None)
        if sample.reason is None:
            self._reasons.pop(what, None)
        elif self._reasons.get(what) == sample.reason:
            return
        else:
            self._reasons[what] = sample.reason
        self.samples.append(sample)


class Sampler:
    """Read `sources` in a `with` block, every `period_s` from `began_s` on, on `clock`.

    Late readings are left out. If a source raises an error, it is not read again.
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
        except RuntimeError as error:  # the limit of threads: the launch goes on without samples
            self._unread |= {source.name: str(error) for source in self._sources}
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stop.set()
        if self._thread.ident is not None:
            self._thread.join(PATIENCE_S)
        if self._thread.is_alive():
            self._unread |= {source.name: "a reading did not return" for source in self._sources}

    def run(self) -> None:
        self._each(lambda source: source.start())
        at = 0
        while True:
            self._each(lambda source: source.tick())
            self._ticks += 1
            self._cpu_s = time.thread_time()
            due = max(at + 1, math.ceil((self._clock() - self._began_s) / self._period_s))
            self._missed += due - at - 1
            at = due
            if self._stop.wait(max(0.0, self._began_s + at * self._period_s - self._clock())):
                break
        self._each(lambda source: source.stop())
        self._cpu_s = time.thread_time()

    def _each(self, act: Callable[[Source], None]) -> None:
        for source in list(self._sources):
            try:
                act(source)
            except Exception as error:
                self._unread[source.name] = f"{type(error).__name__}: {error}"
                self._sources.remove(source)

    def samples(self, kind: type[T]) -> list[T]:
        """Return the rows of one table."""
        return [sample for source in self._all for sample in source.samples if isinstance(sample, kind)]

    def facts(self) -> dict[str, Any]:
        """Return the cost of reading, and {name: reason} of the failed sources (`unread`)."""
        return {
            "period_s": self._period_s,
            "ticks": self._ticks,
            "missed": self._missed,
            "cpu_s": self._cpu_s,
            "unread": dict(self._unread),
        }


def leave_pid(folder: Path, rank: int) -> None:
    """Write the id of this process, which is `rank`, into the launch's folder, where RankPids reads it."""
    hand_over_file(folder / f"pid{rank}", str(os.getpid()))


class RankPids:
    """The process ids of `ranks`, which `leave_pid` wrote into `folder`. Safe for several threads."""

    def __init__(self, folder: Path, ranks: Iterable[int]) -> None:
        self._folder = folder
        self._missing = list(ranks)
        self._known: dict[int, int] = {}
        self._lock = threading.Lock()

    def look(self) -> dict[int, int]:
        """Return {rank: process id} of the ranks that have started."""
        with self._lock:
            for rank in list(self._missing):
                try:
                    self._known[rank] = int((self._folder / f"pid{rank}").read_text())
                except FileNotFoundError:
                    continue
                self._missing.remove(rank)
            return dict(self._known)


class Host(Source):
    """Read the resident set of each rank, and the share of other processes in the host's CPU time."""

    name = "host"

    def __init__(self, began_s: float, pids: RankPids, **more: Any) -> None:
        super().__init__(began_s, pids, **more)
        self._processes: dict[int, psutil.Process] = {}
        self._spent: dict[int, float] = {}  # CPU seconds of each process of ours, since `start`
        self._before: dict[int, float] = {}
        self._begin = self._last = 0.0
        self._others_s = 0.0

    def start(self) -> None:
        self._find_ours()
        self._before = {pid: _cpu_s(process) for pid, process in self._processes.items()}
        self._begin, self._last = _busy_and_all()

    def tick(self) -> None:
        for rank, pid in self._pids.look().items():
            self._read(rank, "rss_bytes", lambda pid=pid: self._resident_bytes(pid))  # type: ignore[misc]
        if self._ticks:  # the first reading has no earlier one
            self._read(None, "other_cpu_share", self._other_share)
        self._ticks += 1

    def _read(self, rank: int | None, metric: str, ask: Callable[[], float]) -> None:
        t_s, value, reason = self.now_s(), None, None
        try:
            value = ask()
        except psutil.NoSuchProcess:
            reason = ENDED
        except (psutil.Error, OSError, ValueError, ArithmeticError) as error:
            reason = str(error) or type(error).__name__
        self.keep(HostSample(rank, t_s, metric, value, reason))

    def _resident_bytes(self, pid: int) -> float:
        resident = self._process(pid).memory_info().rss
        if resident == 0:  # it has ended, and its parent has not waited for it
            raise psutil.NoSuchProcess(pid)
        return float(resident)

    def _process(self, pid: int) -> psutil.Process:
        if pid not in self._processes:
            self._processes[pid] = psutil.Process(pid)
        return self._processes[pid]

    def _find_ours(self) -> None:
        for pid in (self._ours, *descendants(self._ours)):
            with contextlib.suppress(psutil.NoSuchProcess):
                self._process(pid)

    def _other_share(self) -> float:
        """Return the share of other processes in the CPU time since the last reading."""
        # The host's time is counted in ticks of 10 ms and a process's more finely, so the time of others may decrease.
        # Only a new maximum counts: then shares are not negative, and their sum is correct.
        if self._ticks % LOOK_EVERY == 1:
            self._find_ours()
        new = self._processes.keys() - self._spent.keys()
        for pid, process in self._processes.items():
            with contextlib.suppress(psutil.NoSuchProcess):
                self._spent[pid] = _cpu_s(process) - self._before.get(pid, 0.0)
        busy, whole = _busy_and_all()
        passed, self._last = whole - self._last, whole
        if passed <= 0:
            raise ValueError(UNCOUNTED)
        others_s = busy - self._begin - sum(self._spent.values())
        grown = max(0.0, others_s - self._others_s)
        # Until now, the time of a new process of ours was counted as time of others.
        self._others_s = others_s if new else self._others_s + grown
        return grown / passed


def _cpu_s(process: psutil.Process) -> float:
    times = process.cpu_times()
    return float(times.user + times.system)


def _busy_and_all() -> tuple[float, float]:
    """Return (busy, all) CPU seconds of all cores since the host started."""
    times = psutil.cpu_times()
    busy = times.user + times.nice + times.system + times.irq + times.softirq
    return busy, busy + times.idle + times.iowait + times.steal


def descendants(pid: int) -> list[int]:
    """Return the process ids of all descendants. psutil would read every process of the host."""
    found: list[int] = []
    try:
        for task in Path(f"/proc/{pid}/task").iterdir():
            found += map(int, (task / "children").read_text().split())
    except OSError:  # it has ended, or this kernel does not list children
        pass
    return found + [below for child in found for below in descendants(child)]
