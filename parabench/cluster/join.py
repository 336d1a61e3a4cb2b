"""Beginning a session on several nodes: node 0 leads it, every other node follows."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from parabench.cluster import fingerprint, network
from parabench.cluster.agent import NodeAgent
from parabench.cluster.coordinator import Coordinator
from parabench.cluster.hosting import host
from parabench.cluster.join_requests import Door
from parabench.cluster.topology import Topology
from parabench.errors import UsageError
from parabench.launch.processes import start_launching
from parabench.machine.machine import Machine, environment
from parabench.signals import STOPPED, Interrupted, stop_signals
from parabench.store.record import TRACES

WRONG = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """What a node was asked for, as far as all must have been asked for the same: the suite's file, and the options
    that decide the cases, as they are typed."""

    suite: Path | None
    options: Sequence[str]

    def facts(self, site: Topology, machine: Machine) -> dict[str, Any]:
        """{what: how it is here} of everything that must be equal on all nodes."""
        facts = fingerprint.software() | {"--nnodes": str(site.nodes), "--nproc-per-node": str(site.ranks_per_node)}
        if self.suite is not None:
            facts[f"suite file {self.suite.name}"] = fingerprint.of_file(self.suite)
        facts["CUDA devices for its ranks"] = str(min(len(machine.gpus), site.ranks_per_node))
        return facts | {"options": shlex.join(self.options) or None}


def take_place(
    site: Topology, asked: Asked, machine: Machine, out: Path, say: Callable[[str], None]
) -> Coordinator | int:
    """This node's place in the session: node 0 has a crew to lead; every other node follows, and gets the exit code
    with which it ends. Raises UsageError."""
    network.check(site)
    facts, has = asked.facts(site, machine), environment(machine)
    start_launching()
    hosted = host(site, say)
    if hosted is not None:
        store, way = hosted
        return Coordinator(site, way, store, Door(facts), say)
    try:
        with stop_signals():
            return NodeAgent(site=site, facts=facts, environment=has, traces=out / TRACES, say=say).follow()
    except Interrupted as stop:
        say(f"stopped by {stop}")
        return STOPPED


@contextmanager
def leading(crew: Coordinator) -> Iterator[None]:
    """Run the block as node 0: however it ends, no node waits for this one."""
    try:
        yield
    except Interrupted as stop:
        crew.close(STOPPED, f"the session was stopped by {stop}")
        raise
    except UsageError as why:
        crew.close(WRONG, f"node 0 ends the session: {why}")
        raise
    except BaseException as error:
        crew.close(1, f"node 0 ends the session: {type(error).__name__}")
        raise
