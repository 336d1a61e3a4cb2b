"""Groups of processes that torchrun, mpirun or srun started."""

import os
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from guard import GUARD_S
from parabench.cluster import foreign_group
from parabench.cluster.foreign_group import FIRST_PORT, PORTS, first_host, group_of, once_per_host, take
from parabench.errors import UsageError

TORCHRUN = {
    "RANK": "4", "WORLD_SIZE": "8", "LOCAL_RANK": "0", "LOCAL_WORLD_SIZE": "4", "GROUP_RANK": "1",
    "MASTER_ADDR": "host0", "MASTER_PORT": "29501", "TORCHELASTIC_RUN_ID": "none",
}  # fmt: skip
# As mpirun 4.1.4 sets them.
OPEN_MPI = {
    "OMPI_COMM_WORLD_RANK": "0", "OMPI_COMM_WORLD_SIZE": "2", "OMPI_COMM_WORLD_LOCAL_RANK": "0",
    "OMPI_COMM_WORLD_LOCAL_SIZE": "2", "PMIX_NAMESPACE": "1803878401",
}  # fmt: skip
HYDRA = {"PMI_RANK": "2", "PMI_SIZE": "4", "MPI_LOCALRANKID": "0", "MPI_LOCALNRANKS": "2", "MASTER_ADDR": "fd00::1"}
# As srun 22.05 sets them, for the second of two nodes.
SRUN = {
    "SLURM_STEP_NUM_TASKS": "4", "SLURM_STEP_NUM_NODES": "2", "SLURM_STEP_TASKS_PER_NODE": "2(x2)",
    "SLURM_STEP_NODELIST": "n[1-2]", "SLURM_PROCID": "1", "SLURM_LOCALID": "0", "SLURM_NODEID": "1",
    "SLURM_JOB_ID": "77", "SLURM_STEP_ID": "0", "MASTER_ADDR": "n1",
}  # fmt: skip
ONE_EACH = {"SLURM_STEP_NUM_TASKS": "2", "SLURM_STEP_TASKS_PER_NODE": "1(x2)"}


def flags(environ: Mapping[str, str]) -> dict[str, str]:
    group = group_of(environ)
    found = group.flags()
    host, _, port = found.pop("PET_RDZV_ENDPOINT", ":").rpartition(":")
    assert not port or FIRST_PORT <= int(port) < FIRST_PORT + PORTS
    assert found.pop("PET_RDZV_ID", group.job) == group.job
    return found | ({"host": host} if host else {})


@pytest.mark.parametrize(
    ("environ", "expected"),
    [
        (TORCHRUN, {"PET_NNODES": "2", "PET_NPROC_PER_NODE": "4", "PET_NODE_RANK": "1", "host": "host0"}),
        (OPEN_MPI, {"PET_NNODES": "1", "PET_NPROC_PER_NODE": "2"}),
        # mpirun numbers no hosts: only the first process is known to be on node 0.
        (
            OPEN_MPI | {"OMPI_COMM_WORLD_SIZE": "4"},
            {"PET_NNODES": "2", "PET_NPROC_PER_NODE": "2", "PET_NODE_RANK": "0"},
        ),
        (HYDRA, {"PET_NNODES": "2", "PET_NPROC_PER_NODE": "2", "host": "[fd00::1]"}),
        (SRUN, {"PET_NNODES": "2", "PET_NPROC_PER_NODE": "2", "PET_NODE_RANK": "1", "host": "n1"}),
        # One process of a host starts a rank for each device.
        (SRUN | ONE_EACH, {"PET_NNODES": "2", "PET_NODE_RANK": "1", "host": "n1"}),
    ],
)
def test_flags_describe_the_node_of_the_host(environ: dict[str, str], expected: dict[str, str]) -> None:
    assert flags(environ) == expected


def test_group_of_takes_the_innermost_launcher() -> None:
    for environ, launcher in ((SRUN | OPEN_MPI | TORCHRUN, "torchrun"), (SRUN | OPEN_MPI, "mpirun"), (SRUN, "srun")):
        assert group_of(environ).launcher == launcher


@pytest.mark.parametrize(
    ("environ", "terminal"),
    [
        ({}, False),
        ({"RANK": "0", "WORLD_SIZE": "2"}, False),
        (OPEN_MPI | {"OMPI_COMM_WORLD_SIZE": "1", "OMPI_COMM_WORLD_LOCAL_SIZE": "1"}, False),
        ({"SLURM_JOB_ID": "77", "SLURM_NTASKS": "4", "SLURM_PROCID": "0", "SLURM_NODEID": "0"}, False),
        (SRUN, True),
    ],
    ids=["no launcher", "a pod", "one process", "a batch script", "the shell of srun --pty"],
)
def test_group_of_returns_none_for_a_single_process(environ: dict[str, str], terminal: bool) -> None:
    assert group_of(environ, terminal=terminal) is None


# -- Slurm's hosts ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("nodelist", "first"),
    [
        ("n1,n2", "n1"), ("n[07,09-12]", "n07"), ("rack[1-2]n[03-04],x", "rack1n03"),
        ("n[2,4]-ib.example.org,m1", "n2-ib.example.org"), ("gpu-a-1,gpu-b-[1-2]", "gpu-a-1"),
    ],
)  # fmt: skip
def test_first_host_expands_the_list(nodelist: str, first: str) -> None:
    assert first_host(nodelist) == first


def test_group_of_asks_slurm_for_an_unknown_host(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    script = 'test "$*" = "--oneliner show node n2" && echo "NodeName=n2 NodeAddr=10.0.0.2 NodeHostName=n2 Port=6818"'
    (tmp_path / "scontrol").write_text(f"#!/bin/sh\n{script}\n")
    (tmp_path / "scontrol").chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(foreign_group, "addresses_of", lambda host: [host] if host[0].isdigit() else [])
    environ = SRUN | {"SLURM_STEP_NODELIST": "n[2-3]", "SLURM_JOB_NODELIST": "n[1-3]"}
    del environ["MASTER_ADDR"]
    assert group_of(environ | {"SLURM_LAUNCH_NODE_IPADDR": "10.0.0.1"}).endpoint_host == "10.0.0.2"


# -- cores and devices -----------------------------------------------------------------------------------------------


def share(core: int, *devices: str, **visible: str) -> dict[str, Any]:
    return {"local_rank": core, "cores": [core], "devices": [*devices], "visible": visible}


@pytest.mark.parametrize(
    ("shares", "hidden"),
    [
        ([share(0), share(5)], "1 cores"),
        # As --gpus-per-task=1 with ConstrainDevices: each task's device has the number 0.
        ([share(each, f"{each}A", CUDA_VISIBLE_DEVICES="0") for each in range(3)], "2 devices"),
    ],
)
def test_take_names_the_remedy_when_a_control_group_forbids_it(
    monkeypatch: pytest.MonkeyPatch, shares: list[dict[str, Any]], hidden: str
) -> None:
    # The control group allows four cores, and the process sees one device.
    now = {0}
    monkeypatch.setattr("os.sched_setaffinity", lambda _, cores: now.update({*cores} & {0, 1, 2, 3}))
    monkeypatch.setattr("os.sched_getaffinity", lambda _: now)
    monkeypatch.setattr(foreign_group, "visible_devices", lambda: ["0A"])
    with pytest.raises(UsageError) as error:
        take(shares, "srun", {})
    assert str(error.value) == (
        f"srun hides {hidden} of this host's other processes from the first one; start one process per host instead, "
        "as srun --ntasks-per-node=1 or mpirun --map-by ppr:1:node does"
    )


# -- processes of one host -------------------------------------------------------------------------------------------

# Runs the leader's code. At its end, each process prints whether it has imported torch, and so may use CUDA.
PROCESS = """
import atexit, sys
from parabench.cluster.foreign_group import once_per_host
atexit.register(lambda: print("torch:", "torch" in sys.modules))
with once_per_host(measures=True):
    exec(sys.argv[1])
"""


@pytest.fixture
def start() -> Iterator[Callable[[int, str], subprocess.Popen[str]]]:
    """Return a function that starts process `local_rank` of two. The leader runs its code."""
    started: list[subprocess.Popen[str]] = []

    def start(local_rank: int, code: str) -> subprocess.Popen[str]:
        place = {"OMPI_COMM_WORLD_RANK": str(local_rank), "OMPI_COMM_WORLD_LOCAL_RANK": str(local_rank)}
        environ = os.environ | OPEN_MPI | place | {"PMIX_NAMESPACE": f"test-{os.getpid()}"}
        command = [sys.executable, "-c", PROCESS, code]
        pipe = subprocess.PIPE
        started.append(subprocess.Popen(command, env=environ, stdin=pipe, stdout=pipe, stderr=pipe, text=True))
        return started[-1]

    yield start
    for each in started:
        each.kill()
        each.communicate()


def test_once_per_host_gives_all_processes_the_exit_code(start: Callable[..., subprocess.Popen[str]]) -> None:
    code = "import os; print(os.environ['PET_NPROC_PER_NODE']); sys.exit(3)"
    first, second = start(0, code), start(1, code)
    outputs = [each.communicate(timeout=GUARD_S) for each in (first, second)]
    assert outputs == [("2\ntorch: False\n", ""), ("torch: False\n", "")]
    assert (first.returncode, second.returncode) == (3, 3)


@pytest.mark.parametrize(
    ("local_rank", "message"),
    [
        ("0", "process 1 of 2 on this host did not start the same command within 0.01 s; start it in all of them"),
        ("1", "the first process of this host did not start the same command within 0.01 s"),
    ],
)
def test_once_per_host_names_the_missing_process(
    monkeypatch: pytest.MonkeyPatch, local_rank: str, message: str
) -> None:
    monkeypatch.setattr(foreign_group, "MEET_S", 0.01)
    environ = OPEN_MPI | {"OMPI_COMM_WORLD_LOCAL_RANK": local_rank, "PMIX_NAMESPACE": f"alone-{os.getpid()}"}
    with pytest.raises(UsageError, match=message), once_per_host(measures=True, environ=environ):
        pass


def test_once_per_host_refuses_commands_of_one_process() -> None:
    environ = SRUN | ONE_EACH
    refused = pytest.raises(UsageError, match="this command runs in one process, and srun started 2; start it without")
    with refused, once_per_host(measures=False, environ=environ):
        pass
    assert "PET_NNODES" not in environ
