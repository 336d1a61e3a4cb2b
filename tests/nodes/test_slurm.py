"""The shipped batch script under a real Slurm of two nodes: it measures, and what is cancelled is resumed."""

from __future__ import annotations

import json
import os
import sqlite3
import sys
import time
from collections.abc import Iterator
from contextlib import closing, suppress
from pathlib import Path
from typing import Any

import pytest

from guard import GUARD_S
from paths import FIXTURES, ROOT
from slurm_helpers import ALIVE, POLL_S, Slurm, slurm

pytestmark = pytest.mark.alone

SCRIPT = ROOT / "examples" / "slurm.sbatch"

# As in an activated environment.
ACTIVATED = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])


SUITE = '''\
"""What does the second node give?"""

from parabench import Protocol, sweep

CASES = [
    sweep(strategy="single", data="synthetic", seq_len=8),
    sweep(strategy="%(strategy)s", bucket_mib=(1, 25), world_size=2, data="synthetic", seq_len=8),
]
PROTOCOL = Protocol(warmup=2, steps=2, launches=1, instrumented=1)
'''

# What a process of a job is told: its node, and what it is there; or None.
TELL = """\
import os
from parabench.cluster.slurm import step_of
from parabench.errors import UsageError
try:
    step = step_of(os.environ)
except UsageError as error:
    print(str(error).partition(";")[0])
else:
    print(step and (os.environ["SLURMD_NODENAME"], step.node_rank, step.nodes, step.endpoint_host))
"""

STEPS = """\
#!/bin/bash
#SBATCH --nodes=2 --ntasks-per-node=1 --output=said
step() { echo "- $1"; "${@:2}" python tell.py 2>&1 | sort; }
step "batch script" env
step "two nodes" srun
printf 'n2\\nn1\\n' > order
SLURM_HOSTFILE=order step "in another order" srun --distribution=arbitrary --ntasks=2
step "one node" srun --nodes=1 --ntasks=1
step "several tasks a node" srun --ntasks-per-node=2 --ntasks=4 --overcommit
"""

# The nodes' names do not resolve: their addresses are Slurm's.
TOLD = """\
- batch script
None
- two nodes
('n1', 0, 2, '127.0.0.1')
('n2', 1, 2, '127.0.0.1')
- in another order
('n1', 0, 2, '127.0.0.1')
('n2', 1, 2, '127.0.0.1')
- one node
None
- several tasks a node
srun started 4 tasks on 2 nodes, and parabench run wants one a node
srun started 4 tasks on 2 nodes, and parabench run wants one a node
srun started 4 tasks on 2 nodes, and parabench run wants one a node
srun started 4 tasks on 2 nodes, and parabench run wants one a node
"""


@pytest.fixture(scope="module")
def bed() -> Iterator[Slurm]:
    with slurm() as made:
        yield made


class User:
    """Someone in a folder of their own, with a suite there, who submits the shipped script with one rank a node."""

    def __init__(self, bed: Slurm, folder: Path, strategy: str) -> None:
        self.bed, self.folder = bed, folder
        (folder / "mine.py").write_text(SUITE % {"strategy": strategy})

    def sbatch(self, *arguments: str, **environment: str) -> int:
        own = {
            "PATH": ACTIVATED,
            "PYTHONPATH": os.pathsep.join([str(FIXTURES), *filter(None, [os.environ.get("PYTHONPATH")])]),
            "PARABENCH_TEST_FOLDER": str(self.folder),
            "CUDA_VISIBLE_DEVICES": "",
            "SUITE": "mine.py",
            "RANKS_PER_NODE": "1",
        }
        return self.bed.sbatch(SCRIPT, *arguments, environment=own | environment, cwd=self.folder)

    def said(self, job: int) -> str:
        """What the job wrote, for a test that fails too."""
        log = self.folder / f"parabench-{job}.log"
        return log.read_text() if log.exists() else self.bed.logs()

    def stored(self, out: str, columns: str, table: str) -> list[tuple[Any, ...]]:
        with closing(sqlite3.connect(self.folder / out / "results.db")) as db:
            return db.execute(f"SELECT {columns} FROM {table} ORDER BY id").fetchall()

    def held_up(self, job: int) -> None:
        """Wait until the job's second launch says that it is held up."""
        pipe = os.open(self.folder / "pipe", os.O_RDONLY | os.O_NONBLOCK)
        try:
            end = time.monotonic() + GUARD_S
            while self.bed.told(job)["JobState"] in ALIVE and time.monotonic() < end:
                # b"" as long as nobody has it open; then all that is written at once.
                with suppress(BlockingIOError):
                    if os.read(pipe, 100) == b"held up":
                        return
                time.sleep(POLL_S)
        finally:
            os.close(pipe)
        pytest.fail(f"no launch was held up\n{self.said(job)}")


# What the next test stands on, looked at apart.
@pytest.mark.slow
def test_who_is_told_what_by_slurm(bed: Slurm, tmp_path: Path) -> None:
    """What test_slurm_environment.py takes for granted."""
    (tmp_path / "tell.py").write_text(TELL)
    (tmp_path / "steps.sbatch").write_text(STEPS)
    job = bed.sbatch(tmp_path / "steps.sbatch", environment={"PATH": ACTIVATED}, cwd=tmp_path)
    state, said = bed.wait(job, GUARD_S), (tmp_path / "said").read_text()
    assert (state, said) == ("COMPLETED", TOLD)


def test_the_batch_script_measures_on_both_nodes(bed: Slurm, tmp_path: Path) -> None:
    user = User(bed, tmp_path, "ddp")
    job = user.sbatch()
    assert bed.wait(job, GUARD_S) == "COMPLETED", user.said(job)
    out = f"parabench-results/{job}"
    assert (tmp_path / out / "report.html").exists()
    ((environment,),) = user.stored(out, "environment", "session")
    assert [node["node"] for node in json.loads(environment)["nodes"]] == [0, 1]
    launches = user.stored(out, "strategy, status, facts", "launch")
    assert {status for _, status, _ in launches} == {"ok"}, user.said(job)
    spread = {
        strategy: [(node["node"], node["ranks"]) for node in json.loads(facts)["nodes"]]
        for strategy, _, facts in launches
        if strategy != "single"
    }
    assert spread == {"ddp": [(0, 1), (1, 1)]}
    # Beside the log and the results nobody has left anything.
    assert {each.name for each in tmp_path.iterdir()} == {"mine.py", "parabench-results", f"parabench-{job}.log"}


# Two jobs, and the wait for one to be stopped.
@pytest.mark.slow
def test_a_cancelled_job_is_resumed(bed: Slurm, tmp_path: Path) -> None:
    """Slurm sends SIGTERM to every process of a task at once, not to drivers only."""
    user = User(bed, tmp_path, "faulty_helpers:held_up")
    os.mkfifo(tmp_path / "pipe")
    job = user.sbatch()
    user.held_up(job)
    bed.command("scancel", str(job))
    assert bed.wait(job, GUARD_S) == "CANCELLED"
    out = f"parabench-results/{job}"
    before = user.stored(out, "id, case_id, status", "launch")
    assert {status for *_, status in before} == {"ok"}, user.said(job)

    (tmp_path / "go").touch()
    resumed = user.sbatch("--resume", OUT=out)
    assert bed.wait(resumed, GUARD_S) == "COMPLETED", user.said(resumed)
    after = user.stored(out, "id, case_id, status", "launch")
    assert after[: len(before)] == before
    assert {status for *_, status in after} == {"ok"}
    assert len(user.stored(out, "id", "session")) == 1
    assert (tmp_path / out / "report.html").exists()
