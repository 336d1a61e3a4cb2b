"""`parabench` whose launches are made up: all else, from the options to the store and the page, is as it is.

    python -m tests.faults.fakes run mine.py --out results

With `PARABENCH_FAULT_HOLD` set to `NUMBER FOLDER` the launch of that number, from 0, is held up: `FOLDER/held` is a pipe
that says so, and `FOLDER/go` one that lets it go on.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tests.faults.trial import ROOT, Trial

HOLD = "PARABENCH_FAULT_HOLD"

SUITE = '''\
"""Which bucket size survives?"""

from parabench import Protocol, sweep

CASES = sweep(strategy="ddp", bucket_mib=(0.5, 1), world_size=2)
PROTOCOL = Protocol(warmup=2, steps=2, launches=2, rounds=2, instrumented=1)
'''
# One of one device, one of each case, two that they share.
LAUNCHES = 5


class Held:
    """Where the driver stands: one of its launches waits to be let go."""

    def __init__(self, folder: Path, launch: int) -> None:
        self._folder = Path(tempfile.mkdtemp(prefix="held-", dir=folder))
        self.environment = {HOLD: f"{launch} {self._folder}"}
        os.mkfifo(self._folder / "held")
        os.mkfifo(self._folder / "go")

    def wait(self, driver: subprocess.Popen[bytes]) -> bool:
        """Until the driver has come there; False where it ended before."""
        handle = os.open(self._folder / "held", os.O_RDONLY | os.O_NONBLOCK)
        os.set_blocking(handle, True)
        # A writer of our own, which the driver's end lets nobody wait for.
        import select

        ended = os.pidfd_open(driver.pid)
        try:
            poll = select.poll()
            poll.register(handle, select.POLLIN)
            poll.register(ended, select.POLLIN)
            return any(fd == handle and event & select.POLLIN for fd, event in poll.poll())
        finally:
            os.close(handle)
            os.close(ended)

    def go(self) -> None:
        (self._folder / "go").write_text("go")


class FakesTrial(Trial):
    """A trial whose launches are made up."""

    def __init__(self) -> None:
        super().__init__()
        self.suite(SUITE)

    def environment(self, more: Mapping[str, str] | None = None) -> dict[str, str]:
        whole = super().environment(more)
        return {**whole, "PYTHONPATH": os.pathsep.join([whole["PYTHONPATH"], str(ROOT / "tests" / "fixtures")])}

    def command(self, *options: str) -> list[str]:
        return self.parabench("run", "mine.py", "--out", "results", *options)

    def parabench(self, *words: str) -> list[str]:
        """Any command of it."""
        return [sys.executable, "-m", "tests.faults.fakes", *words]


def launcher() -> Any:
    """What stands for real processes."""
    from fake_launch import FakeLauncher

    fake = FakeLauncher()
    number, _, folder = os.environ.get(HOLD, "-1 ").partition(" ")

    def launch(spec: Any) -> Any:
        if len(fake.specs) == int(number):
            Path(folder, "held").write_text("held")
            Path(folder, "go").read_text()
        return fake(spec)

    return launch


def main(words: list[str] | None = None) -> None:
    """The command line."""
    from parabench.cli import main as parabench
    from parabench.cluster.participants import Participants

    Participants.executor = lambda self: launcher()  # type: ignore[method-assign]
    parabench(words, prog_name="parabench")


if __name__ == "__main__":
    signal.signal(signal.SIGPIPE, signal.SIG_IGN)
    main()
