"""The shipped batch script, and a cancelled job that is resumed, in a real Slurm of two nodes on this host.

munged, slurmctld and two slurmd run on loopback in a separate process namespace. Its first process waits for the end of
a pipe that this process holds. Then the kernel ends all daemons and tasks, even if the tests are killed.
"""

import json
import os
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from guard import GUARD_S
from paths import FIXTURES, ROOT
from process_helpers import query

pytestmark = pytest.mark.alone

NODES = ("n1", "n2")
PROGRAMS = ("munged", "slurmctld", "slurmd", "sbatch", "sinfo", "scontrol", "unshare")

POLL_S = 0.1

# The states of a job that has not ended, in `scontrol show job`.
ALIVE = frozenset({"PENDING", "CONFIGURING", "RUNNING", "COMPLETING", "SUSPENDED", "STOPPED", "SIGNALING"})

# munged goes to the background when it answers; the others run in the foreground of a shell that waits for a pipe.
FIRST_PROCESS = """
mount -t tmpfs tmpfs /dev/shm || exit
munged --force --key-file=munge.key --socket="$PWD/munge" --pid-file="$PWD/munge.pid" --log-file="$PWD/munge.log" \\
    --seed-file="$PWD/munge.seed" || exit
slurmctld -D -f "$PWD/slurm.conf" &
for node in %(nodes)s; do slurmd -D -N $node -f "$PWD/slurm.conf" & done
cat
"""

# NoInAddrAny, NoCtldInAddrAny: each daemon listens on its own address only. config_overrides: Slurm does not compare
# the configured nodes with this host.
CONFIGURATION = """
ClusterName=bed
SlurmctldHost=%(host)s(127.0.0.1)
SlurmctldPort=%(port)d
SlurmUser=root
CommunicationParameters=NoCtldInAddrAny,NoInAddrAny
AuthType=auth/munge
AuthInfo=socket=%(folder)s/munge
CredType=cred/munge
StateSaveLocation=%(folder)s/state
SlurmdSpoolDir=%(folder)s/%%n
SlurmctldPidFile=%(folder)s/slurmctld.pid
SlurmdPidFile=%(folder)s/%%n.pid
SlurmctldLogFile=%(folder)s/slurmctld.log
SlurmdLogFile=%(folder)s/%%n.log
SlurmdParameters=config_overrides
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
MpiDefault=none
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU
JobAcctGatherType=jobacct_gather/none
ReturnToService=2
%(nodes)s
PartitionName=all Nodes=ALL Default=YES MaxTime=INFINITE State=UP
"""


@dataclass(frozen=True, slots=True)
class Slurm:
    """A running Slurm. Its commands need the variables of `environment`."""

    folder: Path

    @property
    def environment(self) -> dict[str, str]:
        """Return this process' variables, without variables of an outer Slurm."""
        around = {name: value for name, value in os.environ.items() if not name.startswith(("SLURM_", "SBATCH_"))}
        return around | {"SLURM_CONF": str(self.folder / "slurm.conf")}

    def command(self, *argv: str | Path, environment: Mapping[str, str] | None = None, cwd: Path | None = None) -> str:
        """Return the output of a Slurm command."""
        ended = subprocess.run(
            argv, env=self.environment | dict(environment or {}), cwd=cwd, capture_output=True, text=True
        )
        assert ended.returncode == 0, f"{argv}: {ended.stderr}\n{self.logs()}"
        return ended.stdout

    def sbatch(self, file: Path, *arguments: str, environment: Mapping[str, str], cwd: Path) -> int:
        """Submit a batch script with its arguments, in folder `cwd`, and return the job's id."""
        said = self.command("sbatch", "--parsable", file, *arguments, environment=environment, cwd=cwd)
        return int(said.partition(";")[0])

    def wait(self, job: int, deadline_s: float) -> str:
        """Return the final state of a job: COMPLETED, FAILED, CANCELLED, ..."""
        end = time.monotonic() + deadline_s
        while (state := self.told(job)["JobState"]) in ALIVE:
            assert time.monotonic() < end, f"job {job} is {state} after {deadline_s:g} s\n{self.logs()}"
            time.sleep(POLL_S)
        return state

    def told(self, job: int) -> dict[str, str]:
        """Return the fields that `scontrol show job` prints."""
        words = self.command("scontrol", "--oneliner", "show", "job", str(job)).split()
        return {name: value for name, equals, value in (word.partition("=") for word in words) if equals}

    def logs(self) -> str:
        """Return the ends of the daemons' logs, for the message of a failing test."""
        said = sorted(self.folder.glob("*.log"))
        return "\n".join(f"--- {log.name}\n{log.read_text(errors='replace')[-4000:]}" for log in said)


@contextmanager
def slurm() -> Iterator[Slurm]:
    """Start a Slurm with two idle nodes; skip the test if that is impossible."""
    if os.geteuid() != 0:
        pytest.skip("a Slurm of its own needs root")
    if missing := [each for each in PROGRAMS if shutil.which(each) is None]:
        pytest.skip(f"{', '.join(missing)} not found; Debian's slurm-wlm and munge have Slurm's")
    if subprocess.run(["unshare", "--pid", "--fork", "--mount-proc", "true"], capture_output=True).returncode:
        pytest.skip("no process namespace can be made here")
    # Not tmp_path: a Unix socket's whole path has at most 107 characters.
    with tempfile.TemporaryDirectory(prefix="slurm-", dir="/tmp", ignore_cleanup_errors=True) as name:
        bed = Slurm(Path(name))
        configure(bed.folder)
        with running(bed):
            yield bed


def configure(folder: Path) -> None:
    """Write the files that the daemons read."""
    (folder / "state").mkdir()
    key = folder / "munge.key"
    key.touch(0o600)
    key.write_bytes(os.urandom(128))
    port, *ports = free_ports(1 + len(NODES))
    host = socket.gethostname()
    nodes = "\n".join(
        f"NodeName={node} NodeHostname={host} NodeAddr=127.0.0.1 Port={each} CPUs=8 RealMemory=1000"
        for node, each in zip(NODES, ports, strict=True)
    )
    values = {"host": host, "port": port, "folder": folder, "nodes": nodes}
    (folder / "slurm.conf").write_text(CONFIGURATION % values)


def free_ports(number: int) -> list[int]:
    """Return a number of ports that were free a moment ago."""
    with ExitStack() as stack:
        held = [stack.enter_context(socket.create_server(("127.0.0.1", 0))) for _ in range(number)]
        return [each.getsockname()[1] for each in held]


@contextmanager
def running(bed: Slurm) -> Iterator[None]:
    """Run the daemons until the end of the block; wait until every node is idle."""
    script = FIRST_PROCESS % {"nodes": " ".join(NODES)}
    command = ["unshare", "--pid", "--fork", "--kill-child", "--mount-proc", "sh", "-c", script]
    said = bed.folder / "first.log"
    with (
        said.open("w") as log,
        subprocess.Popen(
            command, cwd=bed.folder, env=bed.environment, stdin=subprocess.PIPE, stdout=log, stderr=log
        ) as first,
    ):
        # The end of the block closes the pipe and waits for the end of the namespace.
        end = time.monotonic() + GUARD_S
        while not idle(bed):
            assert first.poll() is None, f"the daemons have ended\n{bed.logs()}"
            assert time.monotonic() < end, f"the nodes are not up after {GUARD_S:g} s\n{bed.logs()}"
            time.sleep(POLL_S)
        yield


def idle(bed: Slurm) -> bool:
    """Return whether every node is idle."""
    command = ["sinfo", "--noheader", "--Node", "--format=%t"]
    said = subprocess.run(command, env=bed.environment, capture_output=True, text=True)
    return said.returncode == 0 and said.stdout.split() == ["idle"] * len(NODES)


# -- the tests

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
