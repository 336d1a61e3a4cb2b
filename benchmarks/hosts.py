"""Emulate several hosts on one machine: network namespaces joined by a bridge. Needs root, `ip` and `tc`.

Every host has its own addresses, ports, links, /etc/hosts and hostname. The hosts share the machine's cores, memory and
files. Traffic within a host uses its loopback and has no limit. `ip netns exec` mounts /sys again, so mounts below it,
such as control groups, are not visible in a host.
"""

from __future__ import annotations

import itertools
import json
import os
import shutil
import signal
import subprocess
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any

# All ends are in separate namespaces, so these addresses and interface names cannot collide with others.
ADDRESS, PREFIX_LENGTH = "10.231.7.{}", 24
INTERFACE, BRIDGE = "pb0", "bridge"
# Every kernel has it, so the speed of TCP does not depend on this machine's setting.
CONGESTION = "reno"
# Every port of a namespace is free.
PORT = 29400
ROOT = Path(__file__).parents[1]

# tbf sends a burst of this length at once. A longer burst would make small messages free. A shorter one loses rate if
# the kernel's timer is late, and needs CPU time (0.4 ms: 66% of two cores for four hosts at 300 Mbit/s; 1 ms: 9%).
BURST_S, LEAST_BURST = 1e-3, 8192
# Packets wait at most this long.
QUEUE = "100ms"
# The largest segment that TCP hands over, as a share of the burst and in bytes.
SEGMENT, LARGEST_SEGMENT = 2 / 3, 65536

_UNITS = {"k": 1e3, "m": 1e6, "g": 1e9}
# A new link carries packets after the kernel has informed both ends.
UP_S, POLL_S = 10.0, 0.005

# Run a command in a host with its hostname, a private /etc/hosts and default signals. `exec` keeps the process id.
ENTER = """set -e
hostname "$1"
mount -t tmpfs tmpfs /mnt
printf %s "$2" > /mnt/hosts
mount --bind /mnt/hosts /etc/hosts
umount --lazy /mnt
shift 2
exec env --default-signal=INT,TERM,HUP "$@"
"""

_serial = itertools.count()


class NoNodes(Exception):
    """The reason why this machine cannot emulate hosts."""


class NodeFailed(Exception):
    """A command failed on a node, or did not end in time."""


@dataclass(frozen=True, slots=True)
class Host:
    """A namespace and its link to the bridge. Hostnames are h0, h1, ..., and each host resolves all of them."""

    number: int
    namespace: str
    interface: str
    address: str
    bridge: str = field(repr=False)
    known: str = field(repr=False)
    _started: list[subprocess.Popen[str]] = field(default_factory=list, init=False, repr=False, compare=False)

    @property
    def name(self) -> str:
        return f"h{self.number}"

    def command(self, words: Sequence[str]) -> list[str]:
        """Return the command that runs these words in this host without another process."""
        inside = ["ip", "netns", "exec", self.namespace, "unshare", "--uts"]
        return [*inside, "sh", "-c", ENTER, "enter", self.name, self.known, *words]

    def start(
        self, words: Sequence[str], *, environment: Mapping[str, str] | None = None, folder: Path | None = None,
        output: int | IO[Any] | None = None, errors: int | IO[Any] | None = None
    ) -> subprocess.Popen[str]:  # fmt: skip
        """Run a command in this host, in a new session; `environment` is added to that of this process."""
        process = subprocess.Popen(
            self.command(words),
            env={**os.environ, **(environment or {})},
            cwd=folder,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=errors,
            start_new_session=True,
            text=True,
        )
        self._started.append(process)
        return process

    def processes(self) -> set[int]:
        """Return the ids of all processes in this host."""
        return _processes(self.namespace)

    def link(self, up: bool) -> None:
        """Connect this host to the bridge, or disconnect it without a message to either end."""
        _do("ip", "-n", self.namespace, "link", "set", self.interface, "up" if up else "down")
        until = time.monotonic() + UP_S
        while up and not (
            _device(self.namespace, self.interface)["operstate"] == "UP"
            and _device(self.bridge, self.name)["linkinfo"]["info_slave_data"]["state"] == "forwarding"
        ):
            if time.monotonic() > until:
                raise NoNodes(f"the link of {self.name} is not up after {UP_S:g} s")
            time.sleep(POLL_S)

    def limit(self, rate: str | None) -> None:
        """Limit the link to `rate` each way, in kbit, mbit or gbit; None: no limit.

        Headers count: 1514 bytes on the link have 1448 bytes of TCP payload.
        """
        shape: tuple[str, ...] = ("noqueue",)
        segment = LARGEST_SEGMENT
        if rate is not None:
            bits_per_s = float(rate[:-4]) * _UNITS[rate[-4]]
            burst = max(LEAST_BURST, round(bits_per_s / 8 * BURST_S))
            shape = ("tbf", "rate", rate, "burst", str(burst), "latency", QUEUE)
            segment = min(LARGEST_SEGMENT, int(SEGMENT * burst))
        for namespace, device in ((self.namespace, self.interface), (self.bridge, self.name)):
            _do("tc", "-n", namespace, "qdisc", "replace", "dev", device, "root", *shape)
            _do("ip", "-n", namespace, "link", "set", device, "gso_max_size", str(segment))


@contextmanager
def hosts(count: int, rates: str | Sequence[str | None] | None = None) -> Iterator[tuple[Host, ...]]:
    """Make hosts with one rate for all links, or one for each (`Host.limit`); remove them with all processes.

    Raises NoNodes if this machine cannot make them.
    """
    each = [rates] * count if rates is None or isinstance(rates, str) else rates
    if os.geteuid() != 0:
        raise NoNodes("several hosts on one machine need root, for network namespaces; run as root")
    for tool in ("ip", "tc"):
        if shutil.which(tool) is None:
            raise NoNodes(f"several hosts on one machine need the command {tool}; install iproute2")
    prefix = f"parabench-{os.getpid()}-{next(_serial)}"
    bridge = f"{prefix}-bridge"
    addresses = [ADDRESS.format(1 + number) for number in range(count)]
    known = "127.0.0.1 localhost\n" + "".join(f"{address} h{number}\n" for number, address in enumerate(addresses))
    made = tuple(
        Host(number, f"{prefix}-h{number}", INTERFACE, address, bridge, known)
        for number, address in enumerate(addresses)
    )
    try:
        _do("ip", "netns", "add", bridge)
        _do("ip", "-n", bridge, "link", "add", BRIDGE, "type", "bridge")
        _do("ip", "-n", bridge, "link", "set", BRIDGE, "up")
        for host, rate in zip(made, each, strict=True):
            _join(host)
            host.limit(rate)
        for host in made:
            host.link(True)
        yield made
    finally:
        for host in made:
            for process in host._started:
                with process:
                    process.kill()
        for namespace in (*(host.namespace for host in made), bridge):
            _remove(namespace)


def rendezvous(nodes: Sequence[Host], per_node: int) -> list[str]:
    """Return the options of `parabench` on several nodes; on one node there are none."""
    if len(nodes) == 1:
        return []
    endpoint = f"{nodes[0].address}:{PORT}"
    return ["--nnodes", str(len(nodes)), "--nproc-per-node", str(per_node), "--rdzv-endpoint", endpoint]


def run(nodes: Sequence[Host], words: Sequence[str], folder: Path, deadline_s: float = 600.0) -> float:
    """Run a command on all nodes; return the seconds until all have ended. Raises NodeFailed.

    `folder` receives the output of each node in `nodeN.log`.
    """
    begin = time.perf_counter()
    started = []
    for node in nodes:
        environment = {"OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": "", "GLOO_SOCKET_IFNAME": node.interface}
        with (folder / f"node{node.number}.log").open("w") as log:
            process = node.start(words, environment=environment, folder=ROOT, output=log, errors=subprocess.STDOUT)
        started.append(process)
    try:
        codes = [process.wait(max(0.0, begin + deadline_s - time.perf_counter())) for process in started]
    except subprocess.TimeoutExpired:
        codes = [process.poll() for process in started]
    if any(code != 0 for code in codes):
        last = (folder / "node0.log").read_text(errors="replace")[-2000:]
        raise NodeFailed(f"{' '.join(words)} ended with {codes}; node 0: {last}")
    return time.perf_counter() - begin


def _join(host: Host) -> None:
    """Make the namespace and its link to the bridge, which is still down."""
    inside, bridge = ("ip", "-n", host.namespace), ("ip", "-n", host.bridge)
    _do("ip", "netns", "add", host.namespace)
    setting = f"echo {CONGESTION} > /proc/sys/net/ipv4/tcp_congestion_control"
    _do("ip", "netns", "exec", host.namespace, "sh", "-c", setting)
    _do(*bridge, "link", "add", host.name, "type", "veth", "peer", "name", host.interface, "netns", host.namespace)
    _do(*bridge, "link", "set", host.name, "master", BRIDGE, "up")
    _do(*inside, "addr", "add", f"{host.address}/{PREFIX_LENGTH}", "dev", host.interface)
    _do(*inside, "link", "set", "lo", "up")


def _do(*command: str) -> str:
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        raise NoNodes(f"{' '.join(command)}: {done.stderr.strip() or f'exit code {done.returncode}'}")
    return done.stdout


def _device(namespace: str, device: str) -> Any:
    (shown,) = json.loads(_do("ip", "-n", namespace, "-json", "-details", "link", "show", device))
    return shown


def _processes(namespace: str) -> set[int]:
    listed = subprocess.run(["ip", "netns", "pids", namespace], capture_output=True, text=True)
    return {int(pid) for pid in listed.stdout.split()}


def _remove(namespace: str) -> None:
    """Kill all processes in the namespace, also those that start meanwhile, and remove it."""
    while inside := _processes(namespace):
        for pid in inside:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        time.sleep(POLL_S)
    subprocess.run(["ip", "netns", "del", namespace], stderr=subprocess.DEVNULL)
