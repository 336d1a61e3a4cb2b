"""The nodes that take part in a session, and the place of this process among them. Free of torch."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from parabench.cluster import network
from parabench.cluster.topology import Topology
from parabench.launch.spec import LaunchSpec
from parabench.machine.machine import Machine, environment
from parabench.signals import STOPPED, Interrupted, stop_signals
from parabench.store.record import TRACES, AnyCase, Launch


class Participants:
    """A session on this machine alone. The coordinator of several nodes is a subclass.

    As a context manager, it lets all nodes end, even if its block fails.
    """

    # The options of the command that resumes the session.
    options: Sequence[str] = ()
    # Why the session ended early, and the command that resumes it; `None` if it did not.
    over: str | None = None
    # The recorded environment of each node.
    environments: Sequence[Mapping[str, Any]] = ()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None: ...

    def assemble(self, cases: Sequence[AnyCase]) -> None:
        """Wait for all nodes.

        Raises UsageError if one does not come, or has other user code for these cases, Interrupted if any is asked to
        stop.
        """

    def executor(self) -> Callable[[LaunchSpec], Launch]:
        """Start the fork server, and return the function that launches on all nodes. Imports torch."""
        from parabench.launch.launcher import launch
        from parabench.launch.processes import start_launching

        start_launching()
        return launch

    def show(self, line: str) -> None:
        """Show a line on all other nodes."""

    def end(self, code: int) -> None:
        """End the session on all nodes, with this exit code."""


def join_cluster(
    topology: Topology | None,
    options: Sequence[str],
    suite: Path | None,
    machine: Machine,
    out: Path,
    log: Callable[[str], None],
) -> Participants | int:
    """Return the participants if this process leads them; else follow node 0 and return the exit code.

    All nodes must have the same `options`, as typed, and the same `suite` file. Raises UsageError.
    """
    if topology is None or topology.nodes == 1:
        network.check_loopback()
        return Participants()
    from parabench.cluster.agent import Agent
    from parabench.cluster.agreement import facts_of, read_secret
    from parabench.cluster.coordinator import Coordinator, listen
    from parabench.launch.processes import start_launching

    network.check(topology.interface, topology.local_addr)
    secret = read_secret(topology.secret_file)
    ranks = {"--nnodes": topology.nodes, "--nproc-per-node": topology.ranks_per_node}
    ranks["CUDA devices for its ranks"] = min(len(machine.gpus), topology.ranks_per_node)
    facts = facts_of(options, suite, **{name: str(count) for name, count in ranks.items()})
    about = environment(machine)
    start_launching()
    listening = listen(topology, log)
    if listening is not None:
        if secret is not None:
            log("node 0 accepts only messages that are signed with the secret")
        return Coordinator(*listening, topology, secret, facts, log)
    try:
        with stop_signals():
            return Agent(topology, secret, facts, about, out / TRACES, log).follow()
    except Interrupted as stop:
        log(f"stopped by {stop}")
        return STOPPED
