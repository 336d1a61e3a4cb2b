"""Two nodes on one host: network namespaces joined by a link of a chosen rate. Needs root, `ip` and `tc`.

What ranks of one node send each other goes over that namespace's loopback and never meets the limit.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import IO

import psutil

# Both ends lie in namespaces of their own, so these addresses meet no other network.
ADDRESSES = ("10.231.7.1", "10.231.7.2")
NETWORK, PREFIX_LENGTH = "10.231.7.0", 30

# How fast TCP sends must not depend on this host's setting; every kernel has this one.
CONGESTION = "reno"

# tbf lets through so much at once, more than the largest segment that TCP hands it, and queues what waits so long.
BURST = "128kb"
QUEUE = "100ms"

_NAME = re.compile(r"parabench-(\d+)-[ab]")


class NoNodes(Exception):
    """Why this machine cannot make two nodes."""


@dataclass(frozen=True, slots=True)
class Node:
    """A namespace, and its end of the link."""

    namespace: str
    interface: str
    address: str

    def start(self, module: str, arguments: Sequence[str], errors: IO[bytes]) -> subprocess.Popen[bytes]:
        """Run `python -m module` in this node, out of reach of the terminal's Ctrl-C; stderr goes to `errors`."""
        return subprocess.Popen(
            ["ip", "netns", "exec", self.namespace, sys.executable, "-m", module, *arguments],
            env={**os.environ, "GLOO_SOCKET_IFNAME": self.interface, "OMP_NUM_THREADS": "1"},
            stderr=errors,
            start_new_session=True,
        )


@contextmanager
def two_nodes(rate: str) -> Iterator[tuple[Node, Node]]:
    """Two nodes whose link carries `rate` (as `tc` takes it, such as "1gbit") each way; gone at the end.

    Raises NoNodes where that is not possible.
    """
    if os.geteuid() != 0:
        raise NoNodes("two nodes need root, for network namespaces; run as root")
    for tool in ("ip", "tc"):
        if shutil.which(tool) is None:
            raise NoNodes(f"two nodes need the command {tool}; install iproute2")
    _remove_abandoned()
    me = os.getpid()
    nodes = tuple(
        Node(f"parabench-{me}-{letter}", f"pb{me}{letter}", address)
        for letter, address in zip("ab", ADDRESSES, strict=True)
    )
    first, second = nodes
    try:
        for node in nodes:
            _do("ip", "netns", "add", node.namespace)
        ends = ("ip", "link", "add", first.interface, "netns", first.namespace, "type", "veth")
        _do(*ends, "peer", "name", second.interface, "netns", second.namespace)
        for node in nodes:
            inside, device = ("-n", node.namespace), ("dev", node.interface)
            _do("ip", *inside, "addr", "add", f"{node.address}/{PREFIX_LENGTH}", *device)
            _do("ip", *inside, "link", "set", "lo", "up")
            _do("ip", *inside, "link", "set", node.interface, "up")
            route = (f"{NETWORK}/{PREFIX_LENGTH}", *device, "src", node.address)
            _do("ip", *inside, "route", "replace", *route, "congctl", CONGESTION)
            limit = ("tbf", "rate", rate, "burst", BURST, "latency", QUEUE)
            _do("tc", *inside, "qdisc", "add", *device, "root", *limit)
        yield first, second
    finally:
        for node in nodes:
            subprocess.run(["ip", "netns", "del", node.namespace], stderr=subprocess.DEVNULL)


def _do(*command: str) -> None:
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        raise NoNodes(f"{' '.join(command)}: {done.stderr.strip() or f'exit code {done.returncode}'}")


def _remove_abandoned() -> None:
    """Remove the namespaces of processes that are gone: one that is killed cannot remove its own."""
    listed = subprocess.run(["ip", "netns", "list"], capture_output=True, text=True)
    for name in (line.split()[0] for line in listed.stdout.splitlines() if line.strip()):
        made_by = _NAME.fullmatch(name)
        if made_by and not psutil.pid_exists(int(made_by[1])):
            subprocess.run(["ip", "netns", "del", name], stderr=subprocess.DEVNULL)
