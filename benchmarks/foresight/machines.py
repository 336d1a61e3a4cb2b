"""Sessions of parabench on emulated machines: hosts on this one (`benchmarks.hosts`), joined by links of some rate.

One host alone needs no namespace and has no link: its ranks reach each other over loopback. Beside each session's store
stands how much CPU time of the whole machine was idle, because a case in which the cores were the limit tells nothing
of the links and timers that it was made of.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil

from benchmarks.hosts import hosts

ROOT = Path(__file__).parents[2]
MODEL = "benchmarks.foresight.timed_model:factory"

# In a namespace of its own every port is free.
PORT = 29400
DEADLINE_S, GOODBYE_S = 1200.0, 20.0
ENVIRONMENT = {"CUDA_VISIBLE_DEVICES": ""}

# How often the CPU's idle time is read. The kernel counts it in ticks of 10 ms.
PERIOD_S = 0.05

# In a session's folder.
STORE, IDLE, DONE, SUITE = "results.db", "idle.json", "done", "suite.py"


class SessionFailed(Exception):
    """A driver ended badly, or not in time."""


@dataclass(frozen=True, slots=True)
class Machine:
    """So many nodes of so many ranks each, and the rate of each node's link as `tc` takes it; None on one node."""

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
    """What runs on a machine: words of the command line, and for trainings the text of a suite file."""

    name: str
    machine: Machine
    words: tuple[str, ...]
    suite: str | None = None

    def run(self, folder: Path) -> None:
        """Run it into a new folder, from the beginning. Raises SessionFailed and NoNodes; no process is left then."""
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        words = [sys.executable, "-m", "parabench", *self.words, "--out", str(folder)]
        if self.suite is not None:
            (folder / SUITE).write_text(self.suite)
            words.append(str(folder / SUITE))
        with idle_watched(folder / IDLE):
            codes = self._on_hosts(words, folder) if self.machine.nodes > 1 else _alone(words, folder)
        if any(code != 0 for code in codes):
            raise SessionFailed(f"{self.name}: drivers ended with {codes}; see {folder}/node0.log")
        (folder / DONE).write_text(repr(self))

    def is_done(self, folder: Path) -> bool:
        """Whether it ran into this folder as it is now, with these cases, to its end."""
        done = folder / DONE
        return done.exists() and done.read_text() == repr(self)

    def _on_hosts(self, words: list[str], folder: Path) -> list[int | None]:
        with hosts(self.machine.nodes, self.machine.rate) as nodes:
            flags = ["--nnodes", str(len(nodes)), "--nproc-per-node", str(self.machine.per_node)]
            flags += ["--rdzv-endpoint", f"{nodes[0].address}:{PORT}"]
            drivers = []
            for node in nodes:
                with (folder / f"node{node.number}.log").open("w") as log:
                    driver = node.start(
                        [*words, *flags], environment=ENVIRONMENT, folder=ROOT, output=log, errors=subprocess.STDOUT
                    )
                drivers.append(driver)
            return _ended(drivers)


def trainings(
    name: str,
    machine: Machine,
    sweeps: Sequence[Mapping[str, Any]],
    compute: Sequence[Mapping[str, Any]] = (),
    *,
    model: str = MODEL,
    rounds: int = 0,
    **protocol: Any,
) -> Session:
    """A session of a timed model: cases with launches of their own, or with shared ones of so many `rounds`; before it
    one of what ranks `compute` alone."""
    cases = [{"world_size": machine.ranks} | dict(axes) for axes in sweeps]
    lines = [
        f'"""How long does a step take on {machine}?"""',
        "from parabench import Protocol, sweep",
        f"COMMON = dict(model={model!r}, data='synthetic')",
        f"CASES = [sweep(**COMMON, **axes) for axes in {cases!r}]",
        f"PROTOCOL = Protocol(rounds={rounds}, **{protocol!r})",
    ]
    if compute:
        lines += [
            f"COMPUTE = [sweep(**COMMON, **axes) for axes in {list(compute)!r}]",
            f"COMPUTE_PROTOCOL = Protocol(**{protocol!r})",
        ]
    return Session(name, machine, ("run",), "\n".join(lines) + "\n")


def _alone(words: list[str], folder: Path) -> list[int | None]:
    with (folder / "node0.log").open("w") as log:
        driver = subprocess.Popen(
            words,
            env={**os.environ, **ENVIRONMENT},
            cwd=ROOT,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            text=True,
        )
    return _ended([driver])


def _ended(drivers: list[subprocess.Popen[str]]) -> list[int | None]:
    """Their exit codes, None for one that had to be ended."""
    until = time.monotonic() + DEADLINE_S
    try:
        for driver in drivers:
            driver.wait(max(0.0, until - time.monotonic()))
        return [driver.returncode for driver in drivers]
    except subprocess.TimeoutExpired:
        return [driver.poll() for driver in drivers]
    finally:
        # A driver that is asked to end ends its ranks.
        for ask in (subprocess.Popen.terminate, subprocess.Popen.kill):
            for driver in drivers:
                if driver.poll() is None:
                    ask(driver)
            for driver in drivers:
                try:
                    driver.wait(GOODBYE_S)
                except subprocess.TimeoutExpired:
                    continue


@contextmanager
def idle_watched(path: Path) -> Iterator[None]:
    """Write how many CPU seconds of the whole machine had been idle, and how many there had been, at moments meanwhile.

    Moments are on the clock of a launch's `phases`, and in seconds since 1970.
    """
    rows: list[tuple[float, float, float, float]] = []
    over = threading.Event()

    def watch() -> None:
        while not over.wait(PERIOD_S):
            times = psutil.cpu_times()
            idle = times.idle + times.iowait
            busy = times.user + times.nice + times.system + times.irq + times.softirq + times.steal
            rows.append((time.perf_counter(), time.time(), idle, idle + busy))

    watcher = threading.Thread(target=watch, daemon=True)
    watcher.start()
    try:
        yield
    finally:
        over.set()
        watcher.join()
        path.write_text(json.dumps({"columns": ["clock_s", "utc_s", "idle_s", "all_s"], "rows": rows}))
