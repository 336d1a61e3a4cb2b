"""`parabench run` is interrupted, killed and resumed: no launch is lost, and no process or file is left."""

import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import psutil
import pytest

from guard import GUARD_S
from listening_helpers import beyond_this_machine, seen
from parabench.files import own_folder, shared_memory_folder
from process_helpers import end, end_all, environment, left_of, query, start

SUITE = '''\
"""Which bucket size is held up?"""

from parabench import Protocol, sweep

CASES = sweep(strategy="faulty_helpers:held_up", bucket_mib=(0.5, 1), world_size=2, data="synthetic", seq_len=8)
PROTOCOL = Protocol(warmup=2, steps=2, launches=1, instrumented=1)
'''


class Driver:
    """`parabench run` in a new folder. Its second launch waits for the file `go`."""

    def __init__(self, folder: Path, stack: ExitStack) -> None:
        self.folder = folder
        self._stack = stack
        self.pipe = folder / "pipe"
        os.mkfifo(self.pipe)
        (folder / "mine.py").write_text(SUITE)
        # Elsewhere than the tests' own folders, whose paths are too long for a socket.
        self.temporary = Path(stack.enter_context(tempfile.TemporaryDirectory()))

    def start(self, *options: str) -> subprocess.Popen[str]:
        command = [sys.executable, "-m", "parabench", "run", "mine.py", "--out", "results", *options]
        own = environment(PARABENCH_TEST_FOLDER=str(self.folder), TMPDIR=str(self.temporary))
        process = start(command, self.folder, env=own)
        self._stack.callback(end, process)
        return process

    def held_up(self) -> tuple[subprocess.Popen[str], list[psutil.Process]]:
        """Start a driver, wait until its second launch blocks, and return it with all its processes."""
        process = self.start()
        assert self.pipe.read_text() == "held up"
        family = psutil.Process(process.pid).children(recursive=True)
        self._stack.callback(end_all, family)
        return process, family

    def left_by(self, process: subprocess.Popen[str]) -> list[Path]:
        """Return a driver's files in memory and in the temporary folder, without the caches of torch and Jinja."""
        memory = Path(shared_memory_folder() or self.temporary)
        caches = [*self.temporary.glob("torchinductor_*"), *self.temporary.glob("_jinja2-cache-*")]
        return [*memory.glob(f"parabench-run-{process.pid}-*"), *set(self.temporary.iterdir()).difference(caches)]

    def noted(self) -> list[str]:
        """Return the launched cases in order."""
        return (self.folder / "launches").read_text().splitlines()

    def stored(self) -> list[tuple[str, str]]:
        """Return (case id, status) of every stored launch in order."""
        return query(self.folder / "results" / "results.db", "SELECT case_id, status FROM launch ORDER BY id")


@pytest.fixture
def driver(tmp_path: Path) -> Iterator[Driver]:
    with ExitStack() as stack:
        yield Driver(tmp_path, stack)


def output_of(process: subprocess.Popen[str]) -> str:
    return process.communicate(timeout=GUARD_S)[0]


def test_a_stop_keeps_what_is_finished(driver: Driver) -> None:
    """No process of the session listens beyond loopback."""
    process, family = driver.held_up()
    found = seen(process.pid)
    assert {(kind, place.kind) for kind, place in found} == {("rank", "tcp")}
    assert beyond_this_machine(found) == set()
    process.send_signal(signal.SIGTERM)
    output = output_of(process)
    assert process.returncode == 130, output
    assert "stopped by SIGTERM" in output
    assert "resume with: parabench run --resume --out results" in output
    assert "Traceback" not in output
    assert left_of(family) == []
    reference, first = driver.stored()
    assert (reference[1], first[1]) == ("ok", "ok")
    assert first[0] == driver.noted()[0]


@pytest.mark.alone  # any other driver of this user would remove what the killed one leaves
def test_next_run_removes_the_files_of_a_killed_driver(driver: Driver) -> None:
    """Files of a driver that runs are not removed."""
    process, family = driver.held_up()
    listener, *_ = (each for left in driver.left_by(process) for each in left.rglob("listener-*"))
    mine = own_folder()  # the test's process is a driver that lives
    assert len(family) >= 4  # two ranks, the fork server, the resource tracker
    process.kill()
    process.wait(GUARD_S)
    assert left_of(family) == []
    kept, noted = driver.stored(), driver.noted()
    assert [status for _, status in kept] == ["ok", "ok"]
    assert listener.is_socket()
    (driver.folder / "go").touch()
    following = driver.start("--resume")
    output = output_of(following)
    assert following.returncode == 0, output
    assert "resuming: 1 of 2 launches are done" in output
    # The finished launch and the reference ran once; the one that was killed ran again, from its start.
    assert driver.noted() == [noted[0], noted[1], noted[1]]
    stored = driver.stored()
    assert stored[:2] == kept
    assert [each for each, _ in stored[1:]] == noted
    assert {status for _, status in stored} == {"ok"}
    assert (driver.folder / "results" / "report.html").exists()
    assert "Traceback" not in output
    assert driver.left_by(process) == driver.left_by(following) == []
    assert mine.is_dir()
