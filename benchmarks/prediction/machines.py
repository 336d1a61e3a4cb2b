"""Sessions of parabench on emulated machines: hosts on this one (`benchmarks.hosts`), joined by links of a given rate.

Next to the database of each session is the CPU time of the whole machine that was idle. If the cores were the limit,
the step time says nothing about links and timers.
"""

from __future__ import annotations

import json
import shutil
import sys
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil

from benchmarks.hosts import hosts, rendezvous, run

MODEL = "benchmarks.prediction.timed_model:factory"
DEADLINE_S = 1200.0
# The period of reading the CPU's idle time. The kernel counts it in ticks of 10 ms.
PERIOD_S = 0.05
# Files in a session's folder.
STORE, IDLE, DONE, SUITE = "results.db", "idle.json", "done", "suite.py"


@dataclass(frozen=True, slots=True)
class Machine:
    """Nodes with ranks, and the rate of each node's link in the notation of `tc`; None on one node."""

    nodes: int
    per_node: int
    rate: str | None = None

    @property
    def ranks(self) -> int:
        return self.nodes * self.per_node

    def __str__(self) -> str:
        return f"{self.nodes}x{self.per_node}" + (f"-{self.rate}" if self.rate else "")


@dataclass(frozen=True, slots=True)
class Session:
    """A session on a machine: the words of its command, and the text of its suite file if it has one."""

    name: str
    machine: Machine
    words: tuple[str, ...]
    suite: str | None = None

    def run(self, folder: Path) -> None:
        """Run the session in a new folder. Raises NodeFailed and NoNodes."""
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        words = [sys.executable, "-m", "parabench", *self.words, "--out", str(folder)]
        if self.suite is not None:
            (folder / SUITE).write_text(self.suite)
            words.append(str(folder / SUITE))
        with idle_watched(folder / IDLE), hosts(self.machine.nodes, self.machine.rate) as nodes:
            run(nodes, words + rendezvous(nodes, self.machine.per_node), folder, DEADLINE_S)
        (folder / DONE).write_text(repr(self))

    def is_done(self, folder: Path) -> bool:
        """Return whether this session, with the same cases, has completed in this folder."""
        done = folder / DONE
        return done.exists() and done.read_text() == repr(self)


def trainings(
    name: str, machine: Machine, sweeps: Sequence[Mapping[str, Any]], compute: Sequence[Mapping[str, Any]] = (),
    **protocol: Any,
) -> Session:  # fmt: skip
    """Return a session of training runs of a timed model; `compute` are compute-only runs, which come first."""
    cases = [{"world_size": machine.ranks} | dict(axes) for axes in sweeps]
    lines = [
        f'"""How long does a step take on {machine}?"""',
        "from parabench import Protocol, sweep",
        f"COMMON = dict(model={MODEL!r}, data='synthetic')",
        f"CASES = [sweep(**COMMON, **axes) for axes in {cases!r}]",
        f"PROTOCOL = Protocol(rounds=0, **{protocol!r})",
    ]
    if compute:
        lines += [
            f"COMPUTE = [sweep(**COMMON, **axes) for axes in {list(compute)!r}]",
            f"COMPUTE_PROTOCOL = Protocol(**{protocol!r})",
        ]
    return Session(name, machine, ("run",), "\n".join(lines) + "\n")


@contextmanager
def idle_watched(path: Path) -> Iterator[None]:
    """Write rows of the time, on the clock of a launch's `phases`, and the machine's idle and total CPU seconds."""
    rows: list[tuple[float, float, float]] = []
    over = threading.Event()

    def watch() -> None:
        while not over.wait(PERIOD_S):
            times = psutil.cpu_times()
            idle = times.idle + times.iowait
            busy = times.user + times.nice + times.system + times.irq + times.softirq + times.steal
            rows.append((time.perf_counter(), idle, idle + busy))

    watcher = threading.Thread(target=watch, daemon=True)
    watcher.start()
    try:
        yield
    finally:
        over.set()
        watcher.join()
        path.write_text(json.dumps(rows))
