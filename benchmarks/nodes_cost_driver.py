"""One node's driver of `nodes_cost`: `main` with the arguments HOST PORT FOLDER, HOST being node 0's.

It takes its place as the driver of any session does. Node 0's says "ready" once all nodes are there; for every line
that comes in it launches once and writes a line: the launch's wall time without that of its steps, in seconds.
"""

from __future__ import annotations

import sys
from collections import defaultdict
from pathlib import Path

from benchmarks.nodes_cost_rank import CASE, NODES, PROTOCOL, RANKS_PER_NODE, busiest_s
from parabench.cluster.join import join_cluster
from parabench.cluster.participants import Participants
from parabench.cluster.topology import Topology
from parabench.launch.spec import LaunchSpec
from parabench.machine.machine import this_machine
from parabench.signals import stop_signals

DEADLINE_S = 120.0
# What the other node gets to come.
TIMEOUT_S = 60.0


def main() -> int:
    host, port, folder = sys.argv[1], int(sys.argv[2]), Path(sys.argv[3])
    topology = Topology(nodes=NODES, ranks_per_node=RANKS_PER_NODE, host=host, port=port, timeout_s=TIMEOUT_S)
    nodes = join_cluster(topology, (), None, this_machine(), folder, say)
    if isinstance(nodes, int):
        return nodes
    with nodes:
        lead(nodes)
    return 0


def lead(nodes: Participants) -> None:
    """Launch whenever a line comes in, until none does."""
    nodes.assemble(())
    with stop_signals():
        print("ready", flush=True)
        for _ in sys.stdin:
            print(beyond_steps_s(nodes), flush=True)
    nodes.end(0)


def beyond_steps_s(nodes: Participants) -> float:
    done = nodes.executor()(LaunchSpec.of(CASE, PROTOCOL, deadline_s=DEADLINE_S))
    assert done.status == "ok", done.failure
    steps = defaultdict(list)
    for sample in done.samples:
        if sample.metric == "step_s":
            steps[sample.rank].append(sample.value or 0.0)
    return done.wall_s - busiest_s(steps.values())


def say(line: str) -> None:
    print(line, file=sys.stderr, flush=True)
