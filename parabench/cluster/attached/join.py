"""Where the processes of a group meet: a store that torchrun's agent already keeps, or that rank 0 does."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace

from parabench.cluster.attached.environment import LOOPBACK, ProcessEnvironment, WrongRank
from parabench.cluster.network import Route
from parabench.cluster.shared_store import TRY_S, SharedStore, open_store, reach_store
from parabench.cluster.topology import Topology
from parabench.cluster.waiting import Waiting
from parabench.errors import UsageError
from parabench.launch.store_client import StoreLost

# How long a rank waits for the others to begin, as torchrun does. They begin at the same moment, but import torch
# first: who waits for longer than FIRST_S wants to know for whom.
BEGIN_S, FIRST_S = 600.0, 5.0


def topology_of_group(group: ProcessEnvironment) -> Topology:
    """The group's hosts, and where it meets."""
    return Topology(
        nodes=group.nodes,
        ranks_per_node=group.local_size,
        host=group.address,
        port=group.port,
        node=int(group.rank > 0 or group.agents),
        run_id=f"inside/{group.name}",
    )


def join_group(group: ProcessEnvironment, log: Callable[[str], None]) -> SharedStore:
    """Open the store or reach it. Raises UsageError when that cannot be done in time."""
    topology, where = topology_of_group(group), f"{group.address} port {group.port}"
    try:
        store = open_store(topology, log)
    except UsageError as why:
        reason = why.__cause__.strerror if isinstance(why.__cause__, OSError) else None
        raise UsageError(
            f"rank 0 cannot listen on {where}: {reason or why}; give all ranks another MASTER_PORT, or rank 0's own "
            "host as MASTER_ADDR"
        ) from why
    if store is None:
        waiting = Waiting(log, BEGIN_S, FIRST_S)
        tries = f"rank {group.rank} tries to reach rank 0 at {where}, for up to {BEGIN_S:g} s"
        try:
            store = reach_store(
                topology,
                time.monotonic() + BEGIN_S,
                lambda why: waiting.still(lambda: f"{tries} ({why})"),
                lambda client: client.call("check", ["parabench"], timeout_s=TRY_S),
            )
        except StoreLost as why:
            raise WrongRank(
                f"rank {group.rank} did not reach rank 0 at {where} within {BEGIN_S:g} s ({why}); give all ranks the "
                "same MASTER_ADDR and MASTER_PORT"
            ) from why
    return store if group.nodes > 1 else replace(store, route=Route(LOOPBACK, "lo", restricted=True))
