"""`parabench worker`: real groups of processes that torchrun, mpirun or nobody in particular started."""

from __future__ import annotations

import multiprocessing
import os
import shutil
import signal
import socket
import sqlite3
import subprocess
import sys
import uuid
from collections.abc import Iterator
from contextlib import closing, suppress
from pathlib import Path
from time import perf_counter
from typing import Any

import psutil
import pytest

from guard import GUARD_S
from parabench.cluster.attached.monitor import GONE, HostMonitor, Request
from paths import FIXTURES

TORCHRUN = [str(Path(sys.executable).with_name("torchrun")), "--nproc-per-node", "2"]
MPIRUN = ["mpirun", "-np", "2", "--allow-run-as-root", "--oversubscribe", sys.executable]
SUITE = '''\
"""Does it run in a group that is there?"""

from parabench import Protocol, sweep

CASES = sweep(strategy={strategies}, data="synthetic", seq_len=8, world_size=2, {more})
PROTOCOL = Protocol(warmup=2, steps=2, launches=1, instrumented=1)
'''


class Place:
    """A folder with a suite, and the processes that were started there, which all have a mark in their environment."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.mark = folder, uuid.uuid4().hex

    def suite(self, *strategies: str, more: str = "") -> None:
        (self.folder / "mine.py").write_text(SUITE.format(strategies=strategies, more=more))

    def start(self, launcher: list[str], *options: str, **environment: str) -> subprocess.Popen[str]:
        path = os.pathsep.join([str(FIXTURES), *filter(None, [os.environ.get("PYTHONPATH")])])
        own = {"PYTHONPATH": path, "CUDA_VISIBLE_DEVICES": "", "PARABENCH_TEST_MARK": self.mark}
        own |= {"PARABENCH_TEST_FOLDER": str(self.folder), **environment}
        return subprocess.Popen(
            [*launcher, "-m", "parabench", "worker", "mine.py", "--out", "results", *options],
            cwd=self.folder,
            env={**os.environ, **own},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            stdin=subprocess.DEVNULL,
            text=True,
            start_new_session=True,
        )

    def ranks(self, *options: str) -> list[subprocess.Popen[str]]:
        """Two ranks that nobody looks after: what happens to one is no launcher's business."""
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = str(free.getsockname()[1])
        common = {"WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
        return [self.start([sys.executable], *options, RANK=rank, LOCAL_RANK=rank, **common) for rank in ("0", "1")]

    def rows(self, query: str) -> list[Any]:
        with closing(sqlite3.connect(self.folder / "results" / "results.db")) as db:
            return db.execute(query).fetchall()

    def left(self) -> list[psutil.Process]:
        found = []
        for process in psutil.process_iter():
            with suppress(psutil.Error):
                if process.environ().get("PARABENCH_TEST_MARK") == self.mark:
                    found.append(process)
        return found


@pytest.fixture
def place(tmp_path: Path) -> Iterator[Place]:
    """However a group ends, nothing of it is left a moment later."""
    place = Place(tmp_path)
    try:
        yield place
        _, alive = psutil.wait_procs(place.left(), timeout=GUARD_S)
        assert alive == []
    finally:
        for process in place.left():
            process.kill()


@pytest.mark.parametrize(
    "launcher",
    [pytest.param(TORCHRUN, id="torchrun"), pytest.param(MPIRUN, id="mpirun", marks=pytest.mark.slow)],
)
def test_a_group_that_is_there_runs_a_suite(place: Place, launcher: list[str]) -> None:
    if shutil.which(launcher[0]) is None:
        pytest.skip(f"{launcher[0]} is not installed")
    place.suite("ddp", "fsdp", more="nodes=1")
    process = place.start(launcher, "--label", "here")
    said, _ = process.communicate(timeout=GUARD_S)
    assert process.returncode == 0, said
    # The reference first, alone; each launch verified against it, and seen by both ranks.
    launches = place.rows("SELECT status, block, strategy, world_size FROM launch ORDER BY id")
    assert launches[0] == ("ok", -1, "single", 1)
    assert sorted(launches[1:]) == [("ok", 0, "ddp", 2), ("ok", 0, "fsdp", 2)]
    ranks = "SELECT DISTINCT launch_id, rank FROM sample WHERE metric = '{}' ORDER BY 1, 2"
    assert place.rows(ranks.format("step_s")) == [(1, 0), (2, 0), (2, 1), (3, 0), (3, 1)]
    assert place.rows(ranks.format("peak_rss_bytes")) == [(1, 0), (2, 0), (2, 1), (3, 0), (3, 1)]
    watched = place.rows("SELECT DISTINCT launch_id, rank FROM host_sample WHERE rank IS NOT NULL ORDER BY 1, 2")
    assert watched == [(1, 0), (2, 0), (2, 1), (3, 0), (3, 1)]
    assert "shared_processes" in [code for (code,) in place.rows("SELECT code FROM finding")]
    assert (place.folder / "results" / "report.html").exists()
    # One rank talks.
    assert said.count("store:  results/results.db") == 1


@pytest.mark.slow  # `test_launcher` has what a rank that raises leaves
def test_a_rank_that_raises_ends_the_session_with_its_record(place: Place) -> None:
    place.suite("faulty_helpers:raising")
    first, second = place.ranks()
    said, _ = first.communicate(timeout=GUARD_S)
    silence, _ = second.communicate(timeout=GUARD_S)
    assert (first.returncode, second.returncode) == (1, 1), said
    assert silence == ""
    assert place.rows("SELECT status, error FROM launch WHERE block = 0") == [
        ("failed", "rank 1: RuntimeError: the dog ate it")
    ]
    assert "leaves its processes where no other can begin" in said
    assert (place.folder / "results" / "report.html").exists()


# It waits until the others notice.
@pytest.mark.slow
def test_a_rank_that_is_killed_is_recorded(place: Place) -> None:
    """Nobody tells rank 0: its collective fails, and the other has nothing to say."""
    place.suite("faulty_helpers:killed")
    first, second = place.ranks()
    said, _ = first.communicate(timeout=GUARD_S)
    second.communicate(timeout=GUARD_S)
    assert (first.returncode, second.returncode) == (1, -signal.SIGKILL), said
    assert place.rows("SELECT status, error FROM launch WHERE block = 0") == [
        ("crashed", "rank 1: ended without a trace")
    ]


# A session that waits, or two of them: many seconds.
@pytest.mark.slow
def test_a_hang_ends_with_the_deadline(place: Place) -> None:
    place.suite("faulty_helpers:waiting")
    first, second = place.ranks("--deadline", "5")
    said, _ = first.communicate(timeout=GUARD_S)
    second.communicate(timeout=GUARD_S)
    assert (first.returncode, second.returncode) == (1, 1), said
    ((status, error),) = place.rows("SELECT status, error FROM launch WHERE block = 0")
    assert status == "hung"
    assert error.startswith("rank 1: no end after 5 s; it came least far, to step 3")


# A session that waits, or two of them: many seconds.
@pytest.mark.slow
def test_a_stopped_session_goes_on_where_it_was(place: Place) -> None:
    """One rank is asked to stop, amid a launch: both end, what is done is kept, and a new group does the rest."""
    place.suite("faulty_helpers:held_up", more="bucket_mib=(1, 25)")
    os.mkfifo(place.folder / "pipe")
    first, second = place.ranks()
    assert (place.folder / "pipe").read_text() == "held up"
    second.terminate()
    said, _ = first.communicate(timeout=GUARD_S)
    second.communicate(timeout=GUARD_S)
    assert (first.returncode, second.returncode) == (130, 130), said
    assert "stopped by SIGTERM on rank 1" in said
    assert place.rows("SELECT status, block FROM launch") == [("ok", -1), ("ok", 0)]
    (place.folder / "go").touch()
    first, second = place.ranks("--resume")
    said, _ = first.communicate(timeout=GUARD_S)
    second.communicate(timeout=GUARD_S)
    assert (first.returncode, second.returncode) == (0, 0), said
    assert place.rows("SELECT status, block, session_id FROM launch") == [("ok", -1, 1), ("ok", 0, 1), ("ok", 0, 1)]


def test_who_watches_ends_with_its_rank_or_is_missed(tmp_path: Path) -> None:
    watch = HostMonitor()
    watch.begin(Request(tmp_path, perf_counter(), {3: os.getpid()}))
    seen = watch.end()
    assert {(sample.rank, sample.metric) for sample in seen.hosts} >= {(3, "rss_bytes")}
    assert seen.facts["unread"] == {}
    (process,) = [each for each in multiprocessing.active_children() if each.name == "parabench watch"]
    process.kill()
    process.join()
    watch.begin(Request(tmp_path, perf_counter(), {3: os.getpid()}))
    gone = watch.end()
    assert gone.hosts == []
    assert gone.facts["unread"] == {"host": GONE, "nvml": GONE}


def test_a_rank_that_breaks_does_not_wait_for_who_watches() -> None:
    code = "from parabench.cluster.attached.monitor import HostMonitor\nw = HostMonitor()\nraise RuntimeError('broken')"
    broken = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=GUARD_S)
    assert broken.returncode == 1
    assert broken.stderr.endswith("RuntimeError: broken\n")


@pytest.mark.slow  # three groups of processes; refusals have unit tests
def test_what_is_wrong_is_said_once_and_nothing_is_written(place: Place) -> None:
    place.suite("ddp")
    first, second = place.ranks("--set", "world_size=3")
    said, _ = first.communicate(timeout=GUARD_S)
    silence, _ = second.communicate(timeout=GUARD_S)
    assert (first.returncode, second.returncode) == (2, 2)
    assert silence == ""
    assert said.startswith("parabench: world_size 3 is not this group's: the group has 2 processes; use parabench run")
    assert len(said.splitlines()) == 1
    assert not (place.folder / "results").exists()
