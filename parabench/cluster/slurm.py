"""What Slurm tells a task about the nodes it runs on with others: where they meet, and which of them it is.

torchrun reads none of it: there the batch script has to find the endpoint.
"""

# Seen with Slurm 22.05:
# - A batch script has the job's variables (SLURM_NNODES, SLURM_NTASKS, ...) and SLURM_NODEID=0, SLURM_PROCID=0, as if
#   it were a task. SLURM_STEP_* exist only in what srun starts. The shell of `salloc` may be a task as well: of an
#   interactive step of one node.
# - SLURM_STEP_NODELIST and SLURM_NODEID are the step's own, also when it has but some of the job's nodes: node 0 is the
#   first of that list, which is sorted. SLURM_PROCID counts tasks; with `srun -m arbitrary` task 0 is on another node.
# - SLURM_LAUNCH_NODE_IPADDR is where srun itself runs: a batch script's node 0, but a login node when srun was typed
#   there or below salloc.

from __future__ import annotations

import re
import subprocess
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from parabench.cluster.network import addresses_of, is_loopback
from parabench.errors import UsageError

# Below the ports that Linux gives to whoever connects (from 32768 on), so that none is taken by chance.
FIRST_PORT, PORTS = 15000, 15000

SCONTROL_DEADLINE_S = 30.0


@dataclass(frozen=True, slots=True, kw_only=True)
class SlurmStep:
    """One task of a job step that has one task on each of several nodes.

    Task `node_rank` of `nodes`; all of them meet at `endpoint_host`:`port`, on the node with rank 0. Jobs that share a
    node have ports of their own, steps of a job have not. `gpus_per_node` is None where Slurm manages no GPUs.
    """

    nodes: int
    node_rank: int
    port: int
    job_id: str
    gpus_per_node: int | None
    environ: Mapping[str, str] = field(repr=False, compare=False)

    @property
    def endpoint_host(self) -> str:
        """A name or address of the step's first node, as the network or Slurm knows it when asked. One that leads to
        loopback is the last choice: where /etc/hosts has a host's own name as 127.0.1.1, nobody else would reach what
        that host opens there. Raises UsageError where none is known."""
        known = []
        for host in _hosts(self.environ):
            addresses = addresses_of(host)
            if not all(is_loopback(address) for address in addresses):
                return host
            known += [host] if addresses else []
        if known:
            return known[0]
        name = first_host(self.environ["SLURM_STEP_NODELIST"])
        raise UsageError(
            f"node {name!r}, the first of this Slurm step, has no address that this node knows; "
            "give one with --rdzv-endpoint HOST:PORT on every node"
        )


def step_of(environ: Mapping[str, str]) -> SlurmStep | None:
    """The step whose task has these variables; None for what is no task of srun's, or has its node alone.

    Raises UsageError when the step has not one task a node.
    """
    nodes = int(environ.get("SLURM_STEP_NUM_NODES", 1))
    if nodes == 1:
        return None
    tasks = int(environ["SLURM_STEP_NUM_TASKS"])
    if tasks != nodes:
        raise UsageError(
            f"srun started {tasks} tasks on {nodes} nodes, and parabench run wants one a node; "
            "use srun --ntasks-per-node=1, or parabench worker in every task"
        )
    job, gpus = environ["SLURM_JOB_ID"], environ.get("SLURM_GPUS_ON_NODE")
    return SlurmStep(
        nodes=nodes,
        node_rank=int(environ["SLURM_NODEID"]),
        port=FIRST_PORT + int(job) % PORTS,
        job_id=job,
        gpus_per_node=int(gpus) if gpus is not None else None,
        environ=environ,
    )


def first_host(nodelist: str) -> str:
    """The first name of a list as Slurm writes it: `rack1n03` of `rack[1-2]n[03-04],x`."""
    first = re.match(r"(?:[^,\[]|\[[^\]]*\])*", nodelist)
    assert first is not None
    return re.sub(r"\[([^\],-]*)[^\]]*\]", r"\1", first[0])


def _hosts(environ: Mapping[str, str]) -> Iterator[str]:
    """What may lead to the step's first node, the best first."""
    name = first_host(environ["SLURM_STEP_NODELIST"])
    yield name
    address = _slurms_address(name)
    if address is not None:
        yield address
    # Where the batch script runs, unless srun was started elsewhere, which no variable tells.
    if "SLURM_LAUNCH_NODE_IPADDR" in environ and first_host(environ["SLURM_JOB_NODELIST"]) == name:
        yield environ["SLURM_LAUNCH_NODE_IPADDR"]


def _slurms_address(name: str) -> str | None:
    """What Slurm itself uses to reach a node: its NodeAddr. None when Slurm does not tell, as in many containers."""
    command = ["scontrol", "--oneliner", "show", "node", name]
    try:
        said = subprocess.run(command, capture_output=True, text=True, timeout=SCONTROL_DEADLINE_S, check=True).stdout
    except (OSError, subprocess.SubprocessError):
        return None
    found = re.search(r"\bNodeAddr=(\S+)", said)
    return found[1] if found else None
