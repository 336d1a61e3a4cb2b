"""Read the nodes and ranks of a session from torchrun's flags, and join or lead the session. Free of torch."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Self

from parabench.cluster import network
from parabench.errors import UsageError, did_you_mean
from parabench.launch.spec import LaunchSpec
from parabench.machine.machine import Machine
from parabench.store.record import AnyCase, Launch

# torchrun's defaults.
PORT = 29400
TIMEOUT_S = 600.0
RUN_ID = "none"

# More nodes or ranks are a typing error.
_COUNT = re.compile("[1-9][0-9]{0,4}")
_ENDPOINT = re.compile(r"(\[[0-9A-Fa-f:.%]+\]|[^:\s]+)(?::([0-9]+))?")
_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")


@dataclass(frozen=True, slots=True, kw_only=True)
class LauncherFlags:
    """torchrun's flags as typed, and three of parabench: `rdzv_timeout`, `interface` and `secret_file`."""

    nnodes: str | None = None
    nproc_per_node: str | None = None
    rdzv_endpoint: str | None = None
    rdzv_id: str | None = None
    node_rank: int | None = None
    master_addr: str | None = None
    master_port: int | None = None
    local_addr: str | None = None
    rdzv_timeout: float | None = None
    interface: str | None = None
    secret_file: str | None = None


ONE_MACHINE = LauncherFlags()


@dataclass(frozen=True, slots=True, kw_only=True)
class Topology:
    """The nodes of a session, their ranks, and the endpoint of node 0 as `host` and `port`.

    `node` is this node. If it is `None`, the host of the endpoint is node 0, and others are numbered on arrival.
    """

    nodes: int
    ranks_per_node: int
    host: str = ""
    port: int = PORT
    node: int | None = None
    run_id: str = RUN_ID
    local_addr: str | None = None
    interface: str | None = None
    timeout_s: float = TIMEOUT_S
    secret_file: str | None = None

    @property
    def words(self) -> list[str]:
        """Return the flags that must be equal on all nodes, as words of a command."""
        given = {"--nnodes": self.nodes, "--nproc-per-node": self.ranks_per_node, "--rdzv-endpoint": self.endpoint}
        given |= {"--rdzv-id": self.run_id} if self.run_id != RUN_ID else {}
        given |= {"--interface": self.interface} if self.interface else {}
        given |= {"--secret-file": self.secret_file} if self.secret_file else {}
        return [word for name, value in given.items() for word in (name, str(value))]

    @property
    def endpoint(self) -> str:
        """Return the endpoint as HOST:PORT."""
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


def topology_of(flags: LauncherFlags, machine: Machine, *, rendezvous: bool = True) -> Topology | None:
    """Return the topology that flags request; `None` without flags, for a session on this machine.

    Without `rendezvous`, flags are checked, but the endpoint may be missing. Raises UsageError if a flag is wrong or
    missing.
    """
    if flags.nnodes is None:
        several = {"--rdzv-endpoint": flags.rdzv_endpoint, "--node-rank": flags.node_rank}
        for option, value in {**several, "--secret-file": flags.secret_file}.items():
            if value is not None:
                raise UsageError(f"{option} {value} is for several nodes; give --nnodes too")
        if flags.nproc_per_node is None:
            return None
    nodes = _nodes(flags.nnodes or "1")
    ranks = _ranks(flags.nproc_per_node, machine)
    node = flags.node_rank
    if node is not None and not 0 <= node < nodes:
        raise UsageError(f"--node-rank is {node}; with --nnodes {nodes} it is from 0 to {nodes - 1}")
    topology = Topology(nodes=nodes, ranks_per_node=ranks, node=0)
    if nodes == 1:
        return topology
    timeout_s = TIMEOUT_S if flags.rdzv_timeout is None else flags.rdzv_timeout
    if not 1 <= timeout_s <= 7 * 86400:
        raise UsageError(f"--rdzv-timeout is {timeout_s:g} s; give 1 or more, up to a week")
    run_id = flags.rdzv_id or RUN_ID
    if not _ID.fullmatch(run_id):
        raise UsageError(f"--rdzv-id {run_id!r} is not a valid name; use letters, digits, '.', '_' and '-', 64 at most")
    if not rendezvous:
        if flags.rdzv_endpoint is not None:
            _endpoint(flags)
        return topology
    host, port = _endpoint(flags)
    topology = replace(topology, host=host, port=port, node=node, run_id=run_id, timeout_s=timeout_s)
    return replace(topology, local_addr=flags.local_addr, interface=flags.interface, secret_file=flags.secret_file)


def _nodes(text: str) -> int:
    if re.fullmatch(r"[0-9]+:[0-9]+", text):
        least, most = text.split(":")
        if least != most:
            raise UsageError(f"--nnodes {text}: the number of nodes cannot change during a session; give one number")
        text = most
    if not _COUNT.fullmatch(text):
        raise UsageError(f"--nnodes {text!r} is not a number of nodes; give one, such as 2")
    return int(text)


def _ranks(text: str | None, machine: Machine) -> int:
    """Return the number of ranks per node from --nproc-per-node: a number, `gpu`, `cpu` or `auto`, as in torchrun.

    `auto` is the number of devices, or of cores without devices. The default is the number of devices, or 1.
    """
    devices = len(machine.gpus)
    if text is None:
        return devices or 1
    if text == "gpu" and not devices:
        raise UsageError(f"--nproc-per-node gpu: no CUDA device is here ({machine.gpus_reason}); give a number, or cpu")
    named = {"gpu": devices, "cpu": machine.cores, "auto": devices or machine.cores}
    if text in named:
        return named[text]
    if not _COUNT.fullmatch(text):
        hint = did_you_mean(text, named)
        raise UsageError(f"--nproc-per-node {text!r} is not a number of ranks; {hint}give 8, or auto, gpu or cpu")
    return int(text)


def _endpoint(flags: LauncherFlags) -> tuple[str, int]:
    text = flags.rdzv_endpoint
    if text is None and flags.master_addr is not None:
        return flags.master_addr.strip("[]"), flags.master_port or PORT
    if text is None:
        raise UsageError(
            f"{flags.nnodes} nodes need --rdzv-endpoint HOST:PORT, the same on every node: node 0's address and a free "
            "port there"
        )
    found = _ENDPOINT.fullmatch(text.strip())
    port = int(found[2]) if found and found[2] else PORT
    if found is None or not 0 < port < 1 << 16:
        raise UsageError(f"--rdzv-endpoint {text!r} is not HOST:PORT; write it as host0:29400")
    return found[1].strip("[]"), port


class Participants:
    """The nodes that run a session: this machine alone. The coordinator of several nodes is a subclass.

    As a context manager, it ends all other nodes if its block fails.
    """

    # The options of the command that resumes the session.
    options: Sequence[str] = ()
    # Why the session ended early, and the command that resumes it; `None` if it did not.
    over: str | None = None
    # The recorded environment of each node.
    environments: Sequence[Mapping[str, Any]] = ()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: object) -> None: ...

    def assemble(self, cases: Sequence[AnyCase]) -> None:
        """Wait until all nodes have joined.

        Raises UsageError if one does not join in time, or has different custom code for these cases. Raises Interrupted
        if one receives a stop signal.
        """

    def executor(self) -> Callable[[LaunchSpec], Launch]:
        """Start the fork server, and return a function that runs a launch on all nodes. Imports torch."""
        from parabench.launch.launcher import launch
        from parabench.launch.processes import start_launching

        start_launching()
        return launch

    def show(self, line: str) -> None:
        """Log a line on all other nodes."""

    def end(self, code: int) -> None:
        """End the other nodes with this exit code."""


def join_cluster(
    topology: Topology | None,
    options: Sequence[str],
    suite: Path | None,
    machine: Machine,
    out: Path,
    log: Callable[[str], None],
) -> Participants | int:
    """Return the participants if this process is node 0. Another node takes part until the end; return its exit code.

    All nodes must have the same `options`, as typed, and the same `suite` file. Raises UsageError.
    """
    if topology is None or topology.nodes == 1:
        network.check_loopback()
        return Participants()
    from parabench.cluster.coordinator import lead_or_follow

    return lead_or_follow(topology, options, suite, machine, out, log)
