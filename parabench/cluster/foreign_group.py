"""Run once per host inside torchrun, mpirun or srun: the first process of each host leads, and the others wait."""

# The leader takes the cores and visible devices of all processes of its host. Then it continues with torchrun's flags
# (`topology`) as the node of its host, and starts new ranks. The other processes never initialize CUDA.

# Sources of the variables:
# - RANK, WORLD_SIZE, LOCAL_RANK, LOCAL_WORLD_SIZE, GROUP_RANK, MASTER_ADDR: torchrun. Ray Train sets all but
#   GROUP_RANK. A pod of Kubeflow has RANK and WORLD_SIZE, which count pods, and no LOCAL_RANK.
# - OMPI_COMM_WORLD_*, PMIX_NAMESPACE: Open MPI, "Environment variables set for MPI applications".
# - PMI_RANK, PMI_SIZE, MPI_LOCALRANKID, MPI_LOCALNRANKS: Hydra, the mpiexec of MPICH and Intel MPI.
# - SLURM_*: seen with Slurm 22.05; torchrun reads none of them.
#   - A batch script has the job's variables (SLURM_NNODES, SLURM_NTASKS, ...) and SLURM_NODEID=0, SLURM_PROCID=0, as
#     if it were a task. SLURM_STEP_* exist only in processes that srun starts. The shell of `salloc` may be a task as
#     well: of an interactive step of one node.
#   - `srun --pty` connects its first task to a terminal, and sets SLURM_PTY_PORT, which steps that are started there
#     inherit. No other task has a terminal.
#   - SLURM_STEP_NODELIST and SLURM_NODEID are the step's own, also if it has only some of the job's nodes: node 0 is
#     the first of that list, which is sorted. SLURM_PROCID counts tasks; with `srun -m arbitrary` task 0 is on another
#     node.
#   - SLURM_LAUNCH_NODE_IPADDR is where srun itself runs: a batch script's node 0, or a login node.

from __future__ import annotations

import hashlib
import json
import os
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, MutableMapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Any

from parabench.cluster.connection import Waiting, numbered
from parabench.cluster.network import addresses_of, is_loopback
from parabench.errors import UsageError, print_error
from parabench.machine import nvml
from parabench.signals import STOP_SIGNALS

# Variables by launcher: the names of rank, size, local rank and local size; then those that distinguish groups on one
# host. The first match counts, because torchrun may run below mpirun, and mpirun below srun, but not the reverse.
NAMES = {
    "torchrun": (
        ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE"),
        ("TORCHELASTIC_RUN_ID", "MASTER_ADDR", "MASTER_PORT"),
    ),
    "mpirun": (
        ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_RANK", "OMPI_COMM_WORLD_LOCAL_SIZE"),
        ("PMIX_NAMESPACE",),
    ),
    "mpiexec": (("PMI_RANK", "PMI_SIZE", "MPI_LOCALRANKID", "MPI_LOCALNRANKS"), ("PMI_JOBID",)),
}

# Linux assigns ports from 32768 on to outgoing connections.
FIRST_PORT, PORTS = 15000, 15000

SCONTROL_DEADLINE_S = 30.0

# The seconds that processes of a host wait for each other, until the first line about it, and between two attempts.
MEET_S, FIRST_S, TRY_EVERY_S = 600.0, 5.0, 0.05

VISIBLE = ("CUDA_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES")

# The exit code of a process whose leader was killed.
LEADER_KILLED = 1
# The values that `share` returns.
Share = Mapping[str, Any]
# The leader's connections to the other processes, which stay open until its process ends. Then the launcher receives
# the leader's exit code first.
_descriptors: list[int] = []


@dataclass(frozen=True, slots=True)
class ForeignGroup:
    """The `size` processes that a `launcher` started, `local_size` on each host, and the ranks of this process.

    `node` is the launcher's number of this host, and `endpoint_host` the name of node 0, if known. `job` is unique.
    """

    launcher: str
    rank: int
    size: int
    local_rank: int
    local_size: int
    node: int | None
    endpoint_host: str | None
    job: str

    @property
    def address(self) -> str:
        """Return the name of the abstract Unix socket of this host's leader."""
        return f"\0parabench/{self.job}/{self.node}"

    def flags(self) -> dict[str, str]:
        """Return torchrun's flags for the leader of this host, as environment variables {PET_...: value}."""
        nodes = self.size // self.local_size
        found = {"PET_NNODES": str(nodes)}
        if self.local_size > 1:
            found["PET_NPROC_PER_NODE"] = str(self.local_size)
        if nodes == 1:
            return found
        found["PET_RDZV_ID"] = self.job
        if self.endpoint_host is not None:
            host = f"[{self.endpoint_host}]" if ":" in self.endpoint_host else self.endpoint_host
            found["PET_RDZV_ENDPOINT"] = f"{host}:{FIRST_PORT + int(self.job, 16) % PORTS}"
        # The first process is on the endpoint's host. Hosts without a number get one when they join.
        if self.node is not None or self.rank == 0:
            found["PET_NODE_RANK"] = str(self.node or 0)
        return found


def group_of(environ: Mapping[str, str], *, terminal: bool = False) -> ForeignGroup | None:
    """Return the group of processes that the environment describes; `None` for a single process.

    `terminal` is whether the process has a terminal. Then srun's variables belong to the shell of `srun --pty`. Raises
    UsageError if hosts have different numbers of processes.
    """
    by = next((by for by, (names, _) in NAMES.items() if all(environ.get(name, "").isdigit() for name in names)), None)
    if by is not None:
        names, job = NAMES[by]
        rank, size, local_rank, local_size = (int(environ[name]) for name in names)
        node = int(environ["GROUP_RANK"]) if by == "torchrun" and "GROUP_RANK" in environ else None
        nodelist, uneven = environ.get("SLURM_JOB_NODELIST"), size % local_size != 0
    elif "SLURM_STEP_NUM_TASKS" in environ and not terminal:
        by, job, nodelist = "srun", ("SLURM_JOB_ID", "SLURM_STEP_ID"), environ["SLURM_STEP_NODELIST"]
        rank, size = int(environ["SLURM_PROCID"]), int(environ["SLURM_STEP_NUM_TASKS"])
        local_rank, local_size = int(environ["SLURM_LOCALID"]), size // int(environ["SLURM_STEP_NUM_NODES"])
        node, uneven = int(environ["SLURM_NODEID"]), "," in environ["SLURM_STEP_TASKS_PER_NODE"]
    else:
        return None
    if size == 1:
        return None
    if uneven:
        raise UsageError(
            f"{by} started {size} processes, but not equally many on each host; give every host the same number"
        )
    host = None
    if local_rank == 0 and size > local_size:
        host = environ.get("MASTER_ADDR") or (reachable_host(nodelist, environ) if nodelist else None)
    name = "/".join(environ.get(each, "") for each in job)
    hashed = hashlib.sha256(name.encode()).hexdigest()[:12]
    return ForeignGroup(by, rank, size, local_rank, local_size, node=node, endpoint_host=host, job=hashed)


@contextmanager
def once_per_host(*, measures: bool, environ: MutableMapping[str, str] = os.environ) -> Iterator[None]:
    """Run the block in the first process of each host. The others wait for its end, and exit with its exit code.

    Raises UsageError without `measures`, for a command of one process, or if a process does not start in time.
    """
    group = group_of(environ, terminal=any(os.isatty(stream) for stream in (0, 1, 2)))
    if group is None:
        yield
        return
    if group.local_rank > 0:
        sys.exit(follow(group, environ))
    code = 2
    try:
        shares = gather(group, environ) if group.local_size > 1 else []
        if not measures:
            raise UsageError(
                f"this command runs in one process, and {group.launcher} started {group.size}; start it without "
                f"{group.launcher}"
            )
        if shares:
            take(shares, group.launcher, environ)
        if group.launcher == "torchrun":
            for name in [name for name in environ if name.startswith("PET_")]:  # torchrun's own flags
                del environ[name]
        if group.launcher == "mpirun":
            environ["TERM"] = "dumb"  # mpirun connects its processes to a pseudo-terminal, also if it writes to a file
        for name, value in group.flags().items():
            environ.setdefault(name, value)
        yield
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else int(end.code is not None)
        raise
    finally:
        for each in _descriptors:
            with suppress(OSError):
                os.write(each, bytes([code]))


def gather(group: ForeignGroup, environ: Mapping[str, str]) -> list[Share]:
    """Wait for the other processes of this host, and return the `share` of each process. Raises UsageError."""
    shares = {0: share(group, environ)}
    waiting = Waiting(print_error, MEET_S, FIRST_S)

    def missing() -> str:
        left = [each for each in range(group.local_size) if each not in shares]
        return f"{numbered('process', left)} of {group.local_size} on this host"

    with socket.socket(socket.AF_UNIX) as listening:
        try:
            listening.bind(group.address)
        except OSError as error:
            raise UsageError(f"another group of processes of job {group.job} is on this host: {error}") from error
        listening.listen(group.local_size)
        listening.settimeout(TRY_EVERY_S)
        while len(shares) < group.local_size:
            try:
                connection, _ = listening.accept()
            except TimeoutError:
                waiting.still(f"waiting for {missing()}, {waiting.left_s:.0f} s at most")
                if waiting.left_s:
                    continue
                raise UsageError(
                    f"{missing()} did not start the same command within {MEET_S:g} s; start it in all of them, or "
                    f"without {group.launcher}"
                ) from None
            with connection.makefile() as lines:
                theirs = json.loads(lines.readline())
            shares[theirs["local_rank"]] = theirs
            _descriptors.append(connection.detach())
    return [shares[each] for each in sorted(shares)]


def follow(group: ForeignGroup, environ: Mapping[str, str]) -> int:
    """Send the leader the `share` of this process, wait until the leader ends, and return its exit code.

    Stop signals are ignored, because launchers send them to all processes. Raises UsageError without a leader.
    """
    own = json.dumps(share(group, environ)).encode() + b"\n"
    until = time.monotonic() + MEET_S
    while time.monotonic() < until:
        with socket.socket(socket.AF_UNIX) as leader, suppress(ConnectionError):
            leader.connect(group.address)
            for number in STOP_SIGNALS:
                signal.signal(number, signal.SIG_IGN)
            leader.sendall(own)
            code = LEADER_KILLED
            with suppress(ConnectionError):
                while byte := leader.recv(1):
                    code = byte[0]
            return code
        time.sleep(TRY_EVERY_S)
    raise UsageError(
        f"the first process of this host did not start the same command within {MEET_S:g} s; start it in all "
        f"processes, or without {group.launcher}"
    )


def share(group: ForeignGroup, environ: Mapping[str, str]) -> Share:
    """Return the cores and devices that this process may use, as JSON. NVML lists devices without a CUDA context."""
    return {
        "local_rank": group.local_rank,
        "cores": sorted(os.sched_getaffinity(0)),
        "devices": visible_devices(),
        "visible": {name: environ[name] for name in VISIBLE if name in environ},
    }


def visible_devices() -> list[str]:
    """Return the PCI addresses of the devices that CUDA shows this process; an empty list if NVML is not available."""
    found, _ = nvml.asked(lambda: [used.address for used in nvml.devices_at(nvml.visible_devices())])
    return found or []


def take(shares: Sequence[Share], launcher: str, environ: MutableMapping[str, str]) -> None:
    """Let this process use the cores and devices of all `shares`. Raises UsageError if a control group forbids it."""
    cores = {core for each in shares for core in each["cores"]}
    os.sched_setaffinity(0, cores)
    for name in VISIBLE:
        values = [each["visible"].get(name) for each in shares]
        if None in values:
            environ.pop(name, None)  # a process without the variable may use all devices
        else:
            environ[name] = ",".join(dict.fromkeys(entry for value in values for entry in value.split(",") if entry))
    devices = {device for each in shares for device in each["devices"]}
    hidden = {"cores": cores - os.sched_getaffinity(0), "devices": devices.difference(visible_devices())}
    for what, missing in hidden.items():
        if missing:
            raise UsageError(
                f"{launcher} hides {len(missing)} {what} of this host's other processes from the first one; start one "
                "process per host instead, as srun --ntasks-per-node=1 or mpirun --map-by ppr:1:node does"
            )


def reachable_host(nodelist: str, environ: Mapping[str, str]) -> str | None:
    """Return a name or address of the first node in Slurm's list; `None` if neither the network nor Slurm resolves it.

    Loopback is the last choice: other hosts cannot use 127.0.1.1, which /etc/hosts may have.
    """
    known = None
    for host in _hosts(first_host(nodelist), environ):
        addresses = addresses_of(host)
        if not all(is_loopback(address) for address in addresses):
            return host
        known = known or (host if addresses else None)
    return known


def first_host(nodelist: str) -> str:
    """Return the first name of Slurm's list: `rack1n03` for `rack[1-2]n[03-04],x`."""
    first = re.match(r"(?:[^,\[]|\[[^\]]*\])*", nodelist)
    assert first is not None
    return re.sub(r"\[([^\],-]*)[^\]]*\]", r"\1", first[0])


def _hosts(name: str, environ: Mapping[str, str]) -> Iterator[str]:
    """Yield names and addresses of a node, the best first."""
    yield name
    # The address that Slurm itself uses. scontrol fails in many containers.
    command = ["scontrol", "--oneliner", "show", "node", name]
    with suppress(OSError, subprocess.SubprocessError):
        shown = subprocess.run(command, capture_output=True, text=True, timeout=SCONTROL_DEADLINE_S, check=True).stdout
        if found := re.search(r"\bNodeAddr=(\S+)", shown):
            yield found[1]
    # The host of the batch script, unless srun was started elsewhere, which no variable shows.
    if "SLURM_LAUNCH_NODE_IPADDR" in environ and first_host(environ["SLURM_JOB_NODELIST"]) == name:
        yield environ["SLURM_LAUNCH_NODE_IPADDR"]
