"""A session on several hosts, for tests: a driver on each, what it says line by line, and what is left of it."""

from __future__ import annotations

import os
import re
import signal
import sqlite3
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import psutil
from guard import GUARD_S

from benchmarks.hosts import Host

PORT = 29400


class Driver:
    """`parabench run` on one host. What it has said so far is in `lines`."""

    def __init__(self, host: Host, process: subprocess.Popen[str]) -> None:
        self.host, self.process = host, process
        self.lines: list[str] = []
        self._news = threading.Condition()
        threading.Thread(target=self._read, daemon=True).start()

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            with self._news:
                self.lines.append(line.rstrip("\n"))
                self._news.notify_all()

    def says(self, pattern: str) -> str:
        """The first line that matches, as soon as it is there."""
        with self._news:
            found = self._news.wait_for(lambda: next(self._matching(pattern), None), GUARD_S)
        assert found, "\n".join(self.lines)
        return found

    def _matching(self, pattern: str) -> Iterator[str]:
        return (line for line in list(self.lines) if re.search(pattern, line))

    def said(self, pattern: str) -> bool:
        """Whether a line so far matches."""
        return next(self._matching(pattern), None) is not None

    def ends(self) -> int:
        """Its exit code."""
        try:
            return self.process.wait(GUARD_S)
        except subprocess.TimeoutExpired:
            raise AssertionError("\n".join(self.lines)) from None

    def ranks(self) -> list[psutil.Process]:
        """The processes below it."""
        return psutil.Process(self.process.pid).children(recursive=True)

    def kill(self) -> None:
        """As the kernel or the power supply would."""
        self.process.send_signal(signal.SIGKILL)


class Nodes:
    """Drivers on `hosts` that all run the suite in `folder`, each with an output folder of its own."""

    def __init__(self, hosts: tuple[Host, ...], folder: Path, suite: str) -> None:
        self.hosts, self.folder = hosts, folder
        (folder / "mine.py").write_text(suite)

    def start(self, number: int, *options: str, command: tuple[str, ...] = ("run", "mine.py")) -> Driver:
        """The driver of host `number`; `options` come after those that every node has."""
        host = self.hosts[number]
        here = str(Path(__file__).parent)
        words = [sys.executable, "-m", "parabench", *command, "--nnodes", str(len(self.hosts)), "--nproc-per-node", "2"]
        words += ["--rdzv-endpoint", f"{self.hosts[0].address}:{PORT}", "--out", str(self.out(number))]
        environment = {
            "PYTHONPATH": os.pathsep.join([here, *filter(None, [os.environ.get("PYTHONPATH")])]),
            "PARABENCH_TEST_FOLDER": str(self.folder),
            "CUDA_VISIBLE_DEVICES": "",
            "PYTHONUNBUFFERED": "1",
        }
        process = host.start(
            [*words, *options],
            environment=environment,
            folder=self.folder,
            output=subprocess.PIPE,
            errors=subprocess.STDOUT,
        )
        return Driver(host, process)

    def all(self, *options: str, command: tuple[str, ...] = ("run", "mine.py")) -> list[Driver]:
        """A driver on every host."""
        return [self.start(number, *options, command=command) for number in range(len(self.hosts))]

    def out(self, number: int) -> Path:
        """The output folder of a host."""
        return self.folder / f"out{number}"

    def launches(self) -> list[dict[str, Any]]:
        """What node 0 has stored of launches that count."""
        return self.rows("SELECT * FROM launch WHERE block >= 0 ORDER BY id")

    def rows(self, query: str) -> list[dict[str, Any]]:
        """Rows of node 0's store."""
        with closing(sqlite3.connect(self.out(0) / "results.db")) as db:
            db.row_factory = sqlite3.Row
            return [dict(row) for row in db.execute(query)]


@contextmanager
def nothing_left(*drivers: Driver) -> Iterator[None]:
    """After the block no process that a driver had started before it is left."""
    family = [process for driver in drivers for process in driver.ranks()]
    yield
    _, alive = psutil.wait_procs(family, timeout=GUARD_S)
    assert not alive
