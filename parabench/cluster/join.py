"""Give a process its place in a session: alone, node 0, or another node."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

from parabench.cluster import network
from parabench.cluster.participants import Participants
from parabench.cluster.topology import Topology
from parabench.machine.machine import Machine, environment
from parabench.signals import STOPPED, Interrupted, stop_signals
from parabench.store.record import TRACES


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
    from parabench.cluster.coordinator import Coordinator
    from parabench.cluster.fingerprint import facts_of
    from parabench.cluster.secret import read_secret
    from parabench.cluster.shared_store import open_store
    from parabench.launch.processes import start_launching

    network.check(topology.interface, topology.local_addr)
    secret = read_secret(topology.secret_file)
    ranks = {"--nnodes": topology.nodes, "--nproc-per-node": topology.ranks_per_node}
    ranks["CUDA devices for its ranks"] = min(len(machine.gpus), topology.ranks_per_node)
    facts = facts_of(options, suite, **{name: str(count) for name, count in ranks.items()})
    about = environment(machine)
    start_launching()
    store = open_store(topology, log)
    if store is not None:
        if secret is not None:
            log("node 0 takes from other nodes only what is signed with the secret")
        return Coordinator(replace(store, secret=secret), topology, facts, log)
    try:
        with stop_signals():
            return Agent(topology, secret, facts, about, out / TRACES, log).follow()
    except Interrupted as stop:
        log(f"stopped by {stop}")
        return STOPPED
