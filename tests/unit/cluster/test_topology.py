"""Nodes and ranks from torchrun's flags and Slurm's variables, and wrong values of these."""

from dataclasses import replace
from typing import Any

import pytest

from parabench.cli import main
from parabench.cluster.topology import PORT, RUN_ID, TIMEOUT_S, LauncherFlags, Topology, topology_of
from parabench.machine.accelerator import Gpu
from parabench.machine.machine import Machine

CPU = Machine(cores=4, gpus_reason="this torch is a CPU build")
GPUS = Machine(cores=4, gpus=(Gpu("H", 1, 0),) * 8)
TWO = LauncherFlags(nnodes="2", nproc_per_node="8", rdzv_endpoint="host0:29400", rdzv_id="job42")


def test_topology_of_reads_the_flags_of_torchrun() -> None:
    assert topology_of(TWO, CPU) == Topology(nodes=2, ranks_per_node=8, host="host0", port=29400, run_id="job42")
    given = replace(TWO, node_rank=1, local_addr="10.0.0.2", interface="ib0", rdzv_timeout=30.0)
    assert topology_of(given, CPU) == Topology(
        nodes=2, ranks_per_node=8, host="host0", run_id="job42", node=1, local_addr="10.0.0.2", interface="ib0",
        timeout_s=30.0,
    )  # fmt: skip
    defaults = Topology(nodes=3, ranks_per_node=1, host="host0", port=PORT, run_id=RUN_ID, timeout_s=TIMEOUT_S)
    assert topology_of(LauncherFlags(nnodes="3", rdzv_endpoint="host0"), CPU) == defaults


@pytest.mark.parametrize(
    ("text", "machine", "ranks"),
    [
        ("auto", GPUS, 8), ("auto", CPU, 4), ("gpu", GPUS, 8), ("cpu", GPUS, 4), ("2", GPUS, 2), (None, GPUS, 8),
        (None, CPU, 1),
    ],
)  # fmt: skip
def test_topology_of_counts_the_ranks_of_a_node(text: str | None, machine: Machine, ranks: int) -> None:
    assert topology_of(replace(TWO, nproc_per_node=text), machine).ranks_per_node == ranks


@pytest.mark.parametrize(
    ("flags", "host", "port", "shown"),
    [
        ({"rdzv_endpoint": "host0"}, "host0", 29400, "host0:29400"),
        ({"rdzv_endpoint": "10.0.0.1:1234"}, "10.0.0.1", 1234, "10.0.0.1:1234"),
        ({"rdzv_endpoint": "[fe80::1]:1234"}, "fe80::1", 1234, "[fe80::1]:1234"),
        ({"master_addr": "pod-0", "master_port": 23456}, "pod-0", 23456, "pod-0:23456"),
    ],
)
def test_topology_has_the_endpoint(flags: dict[str, Any], host: str, port: int, shown: str) -> None:
    topology = topology_of(LauncherFlags(nnodes="2", node_rank=1, **flags), CPU)
    assert (topology.host, topology.port, topology.endpoint, topology.node) == (host, port, shown, 1)


def test_options_read_the_variables_of_torchrun() -> None:
    for command in ("run", "collectives"):
        options = {
            option.name: option.envvar
            for option in main.get_command(None, command).params
            if option.name in LauncherFlags.__slots__
        }
        assert options == {
            "nnodes": "PET_NNODES", "nproc_per_node": "PET_NPROC_PER_NODE", "rdzv_endpoint": "PET_RDZV_ENDPOINT",
            "rdzv_id": "PET_RDZV_ID", "node_rank": "PET_NODE_RANK", "master_addr": "PET_MASTER_ADDR",
            "master_port": "PET_MASTER_PORT", "local_addr": "PET_LOCAL_ADDR", "rdzv_timeout": None, "interface": None,
            "secret_file": None,
        }  # fmt: skip
