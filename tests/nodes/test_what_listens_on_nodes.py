"""The sockets of a session on several nodes are those that docs/how-to/several-nodes.md lists."""

import subprocess
import time
from contextlib import suppress
from pathlib import Path

import pytest

from cluster_helpers import cluster
from guard import GUARD_S
from listening_helpers import EVERY_S, Place, seen
from nodes_helpers import PORT, Nodes

SUITE = '''\
"""What listens on two nodes?"""

from parabench import Protocol, sweep

CASES = sweep(
    strategy="ddp", algorithm=("native", "two_level"), world_size=4, data="synthetic", seq_len=8, model="gpt-nano"
)
PROTOCOL = Protocol(warmup=2, steps=4, launches=1, instrumented=1)
'''


@pytest.mark.slow  # a session on two hosts
def test_only_the_documented_sockets_listen(tmp_path: Path) -> None:
    low, high = map(int, Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split())
    found: list[set[tuple[str, Place]]] = [set(), set()]
    with cluster(2) as hosts:
        drivers = Nodes(hosts, tmp_path, SUITE).all("--launches", "1")
        until = time.monotonic() + GUARD_S
        while any(driver.process.poll() is None for driver in drivers):
            assert time.monotonic() < until, "\n".join(drivers[0].lines)
            for number, driver in enumerate(drivers):
                found[number] |= seen(driver.process.pid)
            with suppress(subprocess.TimeoutExpired):
                drivers[0].process.wait(EVERY_S)
        assert [driver.ends() for driver in drivers] == [0, 0], "\n".join(drivers[0].lines)
        for number, host in enumerate(hosts):
            reached = found[number]
            control = {("driver", Place("tcp", host.address, PORT))} if number == 0 else set()
            assert control <= reached
            launches = reached - control
            # Only node 0 has rendezvous stores.
            assert {kind for kind, _ in launches} == {"rank"} | ({"driver"} if number == 0 else set())
            assert {(place.kind, place.address) for _, place in launches} == {("tcp", host.address)}
            assert all(low <= place.port <= high for _, place in launches)
