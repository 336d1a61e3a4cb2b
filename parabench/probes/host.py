"""The host while a launch runs: the memory of each rank, and the CPU time of other processes."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil

from parabench.probes.sampler import RankPids, Source
from parabench.store.record import HostSample

# The number of readings between two searches for processes of this launch. A search costs more than a reading.
LOOK_EVERY = 10

ENDED = "the process has ended"
UNCOUNTED = "the kernel does not count the CPU time of the host"


class Host(Source):
    """Read the resident set of each rank, and the share of other processes in the host's CPU time since the last
    reading."""

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
            self._read(rank, "rss_bytes", lambda pid=pid: _resident_bytes(self._process(pid)))  # type: ignore[misc]
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

    def _process(self, pid: int) -> psutil.Process:
        if pid not in self._processes:
            self._processes[pid] = psutil.Process(pid)
        return self._processes[pid]

    def _find_ours(self) -> None:
        for pid in (self._ours, *descendants(self._ours)):
            with contextlib.suppress(psutil.NoSuchProcess):
                self._process(pid)

    def _other_share(self) -> float:
        """Return the share of others in the CPU time since the last reading."""
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


def _resident_bytes(process: psutil.Process) -> float:
    resident = process.memory_info().rss
    if resident == 0:  # it has ended, and its parent has not waited for it
        raise psutil.NoSuchProcess(process.pid)
    return float(resident)


def _cpu_s(process: psutil.Process) -> float:
    times = process.cpu_times()
    return float(times.user + times.system)


def _busy_and_all() -> tuple[float, float]:
    """Return the CPU seconds of all cores since the host started: (busy, all)."""
    times = psutil.cpu_times()
    busy = times.user + times.nice + times.system + times.irq + times.softirq
    return busy, busy + times.idle + times.iowait + times.steal


def descendants(pid: int) -> list[int]:
    """Return the descendants of a process. psutil would read every process of the host."""
    found: list[int] = []
    try:
        for task in Path(f"/proc/{pid}/task").iterdir():
            found += map(int, (task / "children").read_text().split())
    except OSError:  # it has ended, or this kernel does not list children
        pass
    return found + [below for child in found for below in descendants(child)]
