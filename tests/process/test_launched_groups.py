"""`parabench run` inside groups of processes that torchrun and mpirun start."""

import json
import os
import shutil
import subprocess
import sys
import uuid
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import psutil
import pytest

from guard import GUARD_S
from process_helpers import environment, query, start

TORCHRUN = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2"]
# Each process may use one core alone.
MPIRUN = ["mpirun", "-np", "2", "--allow-run-as-root", "--bind-to", "core", sys.executable]
SUITE = '''\
"""Does it run in a group that is there?"""

from parabench import Protocol, sweep

CASES = sweep(strategy="{strategy}", bucket_mib=(1, 25), data="synthetic", seq_len=8, world_size=2)
PROTOCOL = Protocol(warmup=2, steps=2, launches=1, instrumented=1)
'''


class Place:
    """A folder with a suite. All processes that it starts have a mark in their environment."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.mark = folder, uuid.uuid4().hex

    def start(self, launcher: list[str], *options: str, strategy: str = "ddp") -> subprocess.Popen[str]:
        if shutil.which(launcher[0]) is None:
            pytest.skip(f"{launcher[0]} is not installed")
        if len(os.sched_getaffinity(0)) < 2:
            pytest.skip("two processes need two cores")
        (self.folder / "mine.py").write_text(SUITE.format(strategy=strategy))
        command = [*launcher, "-m", "parabench", "run", "mine.py", "--out", "results", *options]
        own = environment(PARABENCH_TEST_MARK=self.mark, PARABENCH_TEST_FOLDER=str(self.folder))
        return start(command, self.folder, env=own)

    def rows(self, sql: str) -> list[Any]:
        return query(self.folder / "results" / "results.db", sql)

    def left(self) -> list[psutil.Process]:
        found = []
        for process in psutil.process_iter():
            with suppress(psutil.Error):
                if process.environ().get("PARABENCH_TEST_MARK") == self.mark:
                    found.append(process)
        return found


@pytest.fixture
def place(tmp_path: Path) -> Iterator[Place]:
    """Check after the test that no process is left."""
    place = Place(tmp_path)
    try:
        yield place
        _, alive = psutil.wait_procs(place.left(), timeout=GUARD_S)
        assert alive == []
    finally:
        for process in place.left():
            process.kill()


@pytest.mark.parametrize("launcher", [TORCHRUN, MPIRUN], ids=["torchrun", "mpirun"])
def test_run_plans_for_the_processes_of_a_group(place: Place, launcher: list[str]) -> None:
    process = place.start(launcher, "--dry-run")
    said, _ = process.communicate(timeout=GUARD_S)
    assert process.returncode == 0, said
    assert said.count("planned for 1 node with 2 ranks per node") == 1


@pytest.mark.slow  # two real sessions
@pytest.mark.parametrize("launcher", [TORCHRUN, MPIRUN], ids=["torchrun", "mpirun"])
def test_run_measures_inside_a_group_and_records_a_killed_rank(place: Place, launcher: list[str]) -> None:
    process = place.start(launcher, strategy="faulty_helpers:killed")
    said, _ = process.communicate(timeout=GUARD_S)
    assert process.returncode == 1, said
    # The reference is fine, and the launch after a killed rank has fresh ones.
    launches = place.rows("SELECT status, error FROM launch WHERE repetition = 0")
    assert [(status, error.partition(" (")[0]) for status, error in launches] == [
        ("crashed", "rank 1: ended by SIGKILL")
    ] * 2
    assert place.rows("SELECT status FROM launch WHERE repetition = -1") == [("ok",)]
    ((environment,),) = place.rows("SELECT environment FROM session")
    assert json.loads(environment)["cores"] >= 2
    assert said.count("report: results/report.html") == 1
