"""A real Slurm of two nodes on this host: munged, slurmctld and a slurmd for each node, all on loopback.

The daemons live in a process namespace of their own, with a /proc and a /dev/shm of their own. Its first process waits
for the end of a pipe that this process holds, and the kernel ends all others with it: daemons, slurmstepd and tasks,
even when the tests are killed.
"""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest
from guard import GUARD_S

NODES = ("n1", "n2")
PROGRAMS = ("munged", "slurmctld", "slurmd", "sbatch", "sinfo", "scontrol", "unshare")

POLL_S = 0.1

# What `scontrol show job` says of a job that is not over.
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

# NoInAddrAny, NoCtldInAddrAny: each listens on its own address only. config_overrides: what a node is said to have is
# not compared with what this host has.
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
    """A Slurm that runs. Its commands find it by `environment`."""

    folder: Path

    @property
    def environment(self) -> dict[str, str]:
        """This process' variables, without those of a Slurm around the tests."""
        around = {name: value for name, value in os.environ.items() if not name.startswith(("SLURM_", "SBATCH_"))}
        return around | {"SLURM_CONF": str(self.folder / "slurm.conf")}

    def command(self, *argv: str | Path, environment: Mapping[str, str] | None = None, cwd: Path | None = None) -> str:
        """What one of Slurm's commands prints."""
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
        """The state in which a job ended: COMPLETED, FAILED, CANCELLED, ..."""
        end = time.monotonic() + deadline_s
        while (state := self.told(job)["JobState"]) in ALIVE:
            assert time.monotonic() < end, f"job {job} is {state} after {deadline_s:g} s\n{self.logs()}"
            time.sleep(POLL_S)
        return state

    def told(self, job: int) -> dict[str, str]:
        """What `scontrol show job` tells of a job, by name."""
        words = self.command("scontrol", "--oneliner", "show", "job", str(job)).split()
        return {name: value for name, equals, value in (word.partition("=") for word in words) if equals}

    def logs(self) -> str:
        """What the daemons said, for a test that fails."""
        said = sorted(self.folder.glob("*.log"))
        return "\n".join(f"--- {log.name}\n{log.read_text(errors='replace')[-4000:]}" for log in said)


@contextmanager
def slurm() -> Iterator[Slurm]:
    """Two idle nodes of a Slurm of its own; skips the test where that cannot be."""
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
    """Everything the daemons read."""
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
    """As many ports as that, which were free a moment ago."""
    with ExitStack() as stack:
        held = [stack.enter_context(socket.create_server(("127.0.0.1", 0))) for _ in range(number)]
        return [each.getsockname()[1] for each in held]


@contextmanager
def running(bed: Slurm) -> Iterator[None]:
    """The daemons, until the end of the block; inside, every node is idle."""
    script = FIRST_PROCESS % {"nodes": " ".join(NODES)}
    command = ["unshare", "--pid", "--fork", "--kill-child", "--mount-proc", "sh", "-c", script]
    said = bed.folder / "first.log"
    with (
        said.open("w") as log,
        subprocess.Popen(
            command, cwd=bed.folder, env=bed.environment, stdin=subprocess.PIPE, stdout=log, stderr=log
        ) as first,
    ):
        # Leaving the block closes the pipe and waits for the namespace's end.
        end = time.monotonic() + GUARD_S
        while not idle(bed):
            assert first.poll() is None, f"the daemons have ended\n{bed.logs()}"
            assert time.monotonic() < end, f"the nodes are not up after {GUARD_S:g} s\n{bed.logs()}"
            time.sleep(POLL_S)
        yield


def idle(bed: Slurm) -> bool:
    """Whether every node waits for work."""
    command = ["sinfo", "--noheader", "--Node", "--format=%t"]
    said = subprocess.run(command, env=bed.environment, capture_output=True, text=True)
    return said.returncode == 0 and said.stdout.split() == ["idle"] * len(NODES)
