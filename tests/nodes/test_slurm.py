"""A real Slurm of two nodes: the shipped batch script, tasks for ranks, and a cancelled job that is resumed."""

import json
import os
import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from guard import GUARD_S
from paths import FIXTURES, ROOT
from process_helpers import query
from slurm_helpers import ALIVE, POLL_S, Slurm, slurm

pytestmark = pytest.mark.alone

SCRIPT = ROOT / "examples" / "slurm.sbatch"

# A task for each rank, as in job scripts of other programs.
TASKS = """\
#!/bin/bash
#SBATCH --nodes=2 --ntasks-per-node=2 --overcommit --output=parabench-%j.log
exec srun --kill-on-bad-exit=0 --wait=0 parabench run "$SUITE" --out "$OUT" "$@"
"""

# As in an activated environment.
ACTIVATED = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])


SUITE = '''\
"""What does the second node give?"""

from parabench import Protocol, sweep

CASES = [
    sweep(strategy="single", data="synthetic", seq_len=8),
    sweep(strategy="%(strategy)s", bucket_mib=(1, 25), world_size=%(ranks)d, data="synthetic", seq_len=8),
]
PROTOCOL = Protocol(warmup=2, steps=2, launches=1, instrumented=1)
'''


@pytest.fixture(scope="module")
def bed() -> Iterator[Slurm]:
    with slurm() as made:
        yield made


class User:
    """Submits a script in a folder with a suite. The shipped script has one rank per node."""

    def __init__(self, bed: Slurm, folder: Path, strategy: str, ranks: int = 2, script: Path = SCRIPT) -> None:
        self.bed, self.folder, self.script = bed, folder, script
        (folder / "mine.py").write_text(SUITE % {"strategy": strategy, "ranks": ranks})

    def sbatch(self, *arguments: str, **environment: str) -> int:
        own = {
            "PATH": ACTIVATED,
            "PYTHONPATH": os.pathsep.join([str(FIXTURES), *filter(None, [os.environ.get("PYTHONPATH")])]),
            "PARABENCH_TEST_FOLDER": str(self.folder),
            "CUDA_VISIBLE_DEVICES": "",
            "SUITE": "mine.py",
            "RANKS_PER_NODE": "1",
        }
        return self.bed.sbatch(self.script, *arguments, environment=own | environment, cwd=self.folder)

    def said(self, job: int) -> str:
        """Return the output of a job, or the logs of Slurm if there is none."""
        log = self.folder / f"parabench-{job}.log"
        return log.read_text() if log.exists() else self.bed.logs()

    def stored(self, out: str, columns: str, table: str) -> list[tuple[Any, ...]]:
        return query(self.folder / out / "results.db", f"SELECT {columns} FROM {table} ORDER BY id")

    def held_up(self, job: int) -> None:
        """Wait until the second launch of a job blocks."""
        pipe = os.open(self.folder / "pipe", os.O_RDONLY | os.O_NONBLOCK)
        try:
            end = time.monotonic() + GUARD_S
            while self.bed.told(job)["JobState"] in ALIVE and time.monotonic() < end:
                # b"" until the other end is open, then the whole message.
                with suppress(BlockingIOError):
                    if os.read(pipe, 100) == b"held up":
                        return
                time.sleep(POLL_S)
        finally:
            os.close(pipe)
        pytest.fail(f"no launch was held up\n{self.said(job)}")


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
    # Only the log and the results are left.
    assert {each.name for each in tmp_path.iterdir()} == {"mine.py", "parabench-results", f"parabench-{job}.log"}


# Two jobs, and the wait for one to be stopped.
@pytest.mark.slow
def test_a_cancelled_job_with_a_task_for_each_rank_is_resumed(bed: Slurm, tmp_path: Path) -> None:
    """Slurm sends SIGTERM to every process of a task at once, and to all tasks."""
    script = tmp_path / "tasks.sbatch"
    script.write_text(TASKS)
    user = User(bed, tmp_path, "faulty_helpers:held_up", ranks=4, script=script)
    os.mkfifo(tmp_path / "pipe")
    job = user.sbatch(OUT="results")
    user.held_up(job)
    bed.command("scancel", str(job))
    assert bed.wait(job, GUARD_S) == "CANCELLED"
    before = user.stored("results", "id, case_id, status", "launch")
    assert {status for *_, status in before} == {"ok"}, user.said(job)

    (tmp_path / "go").touch()
    resumed = user.sbatch("--resume", OUT="results")
    assert bed.wait(resumed, GUARD_S) == "COMPLETED", user.said(resumed)
    after = user.stored("results", "id, case_id, status, facts", "launch")
    assert [row[:3] for row in after[: len(before)]] == before
    assert {status for _, _, status, _ in after} == {"ok"}
    assert [(node["node"], node["ranks"]) for node in json.loads(after[-1][3])["nodes"]] == [(0, 2), (1, 2)]
    assert len(user.stored("results", "id", "session")) == 1
    assert (tmp_path / "results" / "report.html").exists()
    # The first task of each node prints; the others are silent.
    assert user.said(resumed).count("node 1 of 2, led by node 0") == 1
