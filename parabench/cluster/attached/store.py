"""Where the processes of a group meet: a store that torchrun's agent already keeps, or that rank 0 does."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from parabench.cluster.attached.environment import ProcessEnvironment, WrongRank
from parabench.cluster.attached.waiting import Waiting
from parabench.cluster.hosting import host
from parabench.cluster.network import addresses_of, route_to
from parabench.cluster.topology import Topology
from parabench.errors import UsageError
from parabench.launch.context import LOOPBACK
from parabench.launch.meeting import RendezvousPoint
from parabench.launch.spec import LaunchSpec
from parabench.launch.store_client import StoreClient, StoreLost

# How long a rank waits for the others to begin, as torchrun does, and how often it tries.
BEGIN_S = 600.0
TRY_S, TRY_EVERY_S = 10.0, 0.25


@dataclass(frozen=True, slots=True, kw_only=True)
class SharedStore:
    """`prefix` begins the keys of this group at `address`:`port`. `environment` keeps the backends to the interface
    that leads there; `store` lives as long as this does, where it is kept here."""

    group: ProcessEnvironment
    address: str
    port: int
    prefix: str
    environment: Mapping[str, str]
    store: Any = None

    def line(self) -> StoreClient:
        """A connection of its own to the store."""
        return StoreClient(self.address, self.port, self.prefix)

    def meeting(self, number: int, order: LaunchSpec) -> RendezvousPoint:
        """Where the ranks of one launch meet."""
        return RendezvousPoint(
            self.address, self.port, f"{self.prefix}/launch/{number}", order.nodes, order.ranks_per_node
        )


def enter(group: ProcessEnvironment, say: Callable[[str], None]) -> SharedStore:
    """Open the store or reach it. Raises UsageError when that cannot be done in time."""
    store = _hosted(group, say) if group.rank == 0 and not group.agents else None
    address = _reached(group, say)
    site = Topology(nodes=group.nodes, ranks_per_node=group.local_size, host=group.address, port=group.port)
    return SharedStore(
        group=group,
        address=address,
        port=group.port,
        prefix=f"parabench/inside/{group.name}",
        environment=LOOPBACK if group.nodes == 1 else route_to(site, address).environment(),
        store=store,
    )


def _hosted(group: ProcessEnvironment, say: Callable[[str], None]) -> Any:
    try:
        hosted = host(
            Topology(nodes=group.nodes, ranks_per_node=group.local_size, host=group.address, port=group.port, node=0),
            say,
        )
    except UsageError as why:
        raise UsageError(
            f"rank 0 cannot listen on {group.address} port {group.port}: {_os_error(why)}; give all ranks another "
            "MASTER_PORT, or rank 0's own host as MASTER_ADDR"
        ) from why
    assert hosted is not None
    return hosted[0]


def _os_error(why: UsageError) -> str:
    return why.__cause__.strerror or str(why) if isinstance(why.__cause__, OSError) else str(why)


def _reached(group: ProcessEnvironment, say: Callable[[str], None]) -> str:
    """The address at which the store answers."""
    until, why = time.monotonic() + BEGIN_S, "nothing answers yet"
    waiting = Waiting(say)

    def watch() -> None:
        where = f"{group.address} port {group.port}"
        waiting.still(lambda: f"rank {group.rank} tries to reach rank 0 at {where}, for up to {BEGIN_S:g} s ({why})")

    while time.monotonic() < until:
        addresses = addresses_of(group.address)
        if not addresses:
            why = f"{group.address} resolves to no address"
        for address in addresses:
            line = StoreClient(address, group.port, "")
            try:
                line.ask(lambda store: store.check(["parabench"]), watch=watch, timeout_s=TRY_S)
            except StoreLost as lost:
                why = str(lost)
            else:
                return address
            finally:
                line.end()
        watch()
        time.sleep(TRY_EVERY_S)
    raise WrongRank(
        f"rank {group.rank} did not reach rank 0 at {group.address} port {group.port} within {BEGIN_S:g} s ({why}); "
        "give all ranks the same MASTER_ADDR and MASTER_PORT"
    )
