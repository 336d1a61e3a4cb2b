"""What a task is told by Slurm's variables; those here are what Slurm 22.05 sets, and test_slurm.py runs a real one."""

from __future__ import annotations

import os
import socket
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from parabench.cluster.slurm import SlurmStep, first_host, step_of
from parabench.cluster.topology import LauncherFlags, Topology, topology_of
from parabench.errors import UsageError
from parabench.machine.machine import Machine

# Two nodes of a job of three: what srun adds to what the batch script has.
BATCH = {
    "SLURM_JOB_ID": "31415",
    "SLURM_NNODES": "3",
    "SLURM_NTASKS": "3",
    "SLURM_NODEID": "0",
    "SLURM_PROCID": "0",
    "SLURM_JOB_NODELIST": "n[1-3]",
}
TASK = BATCH | {
    "SLURM_NNODES": "2",
    "SLURM_NTASKS": "2",
    "SLURM_NODEID": "1",
    "SLURM_PROCID": "1",
    "SLURM_STEP_ID": "0",
    "SLURM_STEP_NODELIST": "n[2-3]",
    "SLURM_STEP_NUM_NODES": "2",
    "SLURM_STEP_NUM_TASKS": "2",
    "SLURM_LAUNCH_NODE_IPADDR": "10.0.0.1",
}


@pytest.fixture
def known(monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    """Names and what they resolve to; an address is known anyway."""
    names: dict[str, str] = {}

    def getaddrinfo(host: str, port: None, *, type: int) -> list[Any]:
        address = host if host[0].isdigit() else names.get(host)
        if address is None:
            raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")
        return [(socket.AF_INET, type, 6, "", (address, 0))]

    monkeypatch.setattr("socket.getaddrinfo", getaddrinfo)
    return names


@pytest.fixture
def scontrol(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], None]:
    """Puts a scontrol of that shell script on a PATH that has no other."""
    monkeypatch.setenv("PATH", str(tmp_path))

    def put(script: str) -> None:
        (tmp_path / "scontrol").write_text(f"#!/bin/sh\n{script}\n")
        os.chmod(tmp_path / "scontrol", 0o755)

    return put


def endpoint_host(environ: dict[str, str]) -> str:
    step = step_of(environ)
    assert step is not None
    return step.endpoint_host


def test_a_task_knows_its_step(known: dict[str, str]) -> None:
    known["n2"] = "10.0.0.2"
    assert step_of(TASK) == SlurmStep(nodes=2, node_rank=1, port=16415, job_id="31415", gpus_per_node=None, environ={})
    assert topology_of(LauncherFlags(), TASK, Machine(cores=2)) == Topology(
        nodes=2, ranks_per_node=1, host="n2", port=16415, node=1, run_id="31415"
    )


def test_without_a_meeting_nobody_is_asked_where_it_would_be(monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(*args: Any, **options: Any) -> None:
        raise AssertionError("a dry run asks neither the network nor Slurm")

    monkeypatch.setattr("socket.getaddrinfo", refused)
    monkeypatch.setattr("subprocess.run", refused)
    topology = topology_of(LauncherFlags(), TASK, Machine(cores=2), rendezvous=False)
    assert topology == Topology(nodes=2, ranks_per_node=1, node=0)


def test_tasks_in_another_order_than_their_nodes_do_not_move_the_meeting_point(known: dict[str, str]) -> None:
    """As `srun -m arbitrary` starts them: rank 0 is who runs on the node that all go to."""
    known["n2"] = "10.0.0.2"
    environ = TASK | {"SLURM_PROCID": "1", "SLURM_NODEID": "0"}
    first = step_of(environ)
    assert first is not None
    assert (endpoint_host(environ), first.node_rank) == ("n2", 0)


def test_gpus_are_those_that_slurm_gave() -> None:
    step = step_of(TASK | {"SLURM_GPUS_ON_NODE": "8"})
    assert step is not None
    assert step.gpus_per_node == 8


@pytest.mark.parametrize(
    "environ",
    [
        {},
        BATCH,
        TASK | {"SLURM_STEP_NUM_NODES": "1", "SLURM_STEP_NUM_TASKS": "4"},
    ],
    ids=["no Slurm", "a batch script", "one node"],
)
def test_who_is_alone_has_no_step(environ: dict[str, str]) -> None:
    assert step_of(environ) is None


def test_several_tasks_a_node_are_refused() -> None:
    with pytest.raises(UsageError) as refused:
        step_of(TASK | {"SLURM_STEP_NUM_TASKS": "16"})
    assert str(refused.value) == (
        "srun started 16 tasks on 2 nodes, and parabench run wants one a node; "
        "use srun --ntasks-per-node=1, or parabench worker in every task"
    )


@pytest.mark.parametrize(("job", "port"), [("15000", 15000), ("1", 15001), ("44999", 29999)])
def test_ports_are_below_the_ephemeral_ones(job: str, port: int) -> None:
    step = step_of(TASK | {"SLURM_JOB_ID": job})
    assert step is not None
    assert step.port == port


@pytest.mark.parametrize(
    ("nodelist", "first"),
    [
        ("n1", "n1"),
        ("n1,n2", "n1"),
        ("n[1-2]", "n1"),
        ("n[07,09-12]", "n07"),
        ("rack[1-2]n[03-04],x", "rack1n03"),
        ("n[2,4]-ib.example.org,m1", "n2-ib.example.org"),
        ("gpu-a-1,gpu-b-[1-2]", "gpu-a-1"),
    ],
)
def test_the_first_host_of_a_list(nodelist: str, first: str) -> None:
    assert first_host(nodelist) == first


def test_a_name_that_does_not_resolve_is_asked_of_slurm(known: dict[str, str], scontrol: Callable[[str], None]) -> None:
    scontrol('test "$*" = "--oneliner show node n2" && echo "NodeName=n2 NodeAddr=10.0.0.2 NodeHostName=n2 Port=6818"')
    assert endpoint_host(TASK) == "10.0.0.2"


@pytest.mark.parametrize("script", ["exit 1", "echo NodeName=n2 Port=6818", "echo NodeAddr=n2", None])
def test_where_srun_runs_is_the_last_resort(
    known: dict[str, str], scontrol: Callable[[str], None], script: str | None
) -> None:
    if script is not None:
        scontrol(script)
    assert endpoint_host(TASK | {"SLURM_JOB_NODELIST": "n[2-3]"}) == "10.0.0.1"
    # The step does not begin where its job does, so srun runs on none of its nodes, or not on the first.
    with pytest.raises(UsageError, match=r"^node 'n2', the first of this Slurm step, .* --rdzv-endpoint HOST:PORT"):
        endpoint_host(TASK)


@pytest.mark.parametrize(("slurms", "taken"), [("10.0.0.2", "10.0.0.2"), ("n2", "10.0.0.1"), ("127.0.0.1", "10.0.0.1")])
def test_a_name_that_a_host_has_for_its_own_loopback_is_not_taken(
    known: dict[str, str], scontrol: Callable[[str], None], slurms: str, taken: str
) -> None:
    known["n2"] = "127.0.1.1"
    scontrol(f"echo NodeAddr={slurms}")
    assert endpoint_host(TASK | {"SLURM_JOB_NODELIST": "n[2-3]"}) == taken


def test_where_all_is_loopback_the_name_will_do(known: dict[str, str], scontrol: Callable[[str], None]) -> None:
    known["n2"] = "127.0.1.1"
    scontrol("echo NodeAddr=127.0.0.1")
    assert endpoint_host(TASK) == "n2"
