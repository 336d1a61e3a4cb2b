"""Several hosts on one machine: network namespaces joined by a bridge. Needs root, `ip` and `tc`.

Every host has its own addresses, ports, links, /etc/hosts and hostname; cores, memory and files are the machine's. What
processes of one host send each other goes over that namespace's loopback and never meets a limit. As `ip netns exec`
mounts /sys anew, what else is mounted below it, such as control groups, is not seen from a host.
"""

from __future__ import annotations

import itertools
import json
import os
import re
import select
import shutil
import signal
import subprocess
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any

import psutil

# All ends lie in namespaces of their own, so these addresses meet no other network, nor do the names of interfaces.
ADDRESS, PREFIX_LENGTH = "10.231.7.{}", 24
INTERFACE, BRIDGE = "pb0", "bridge"

# How fast TCP sends must not depend on this machine's setting; every kernel has this one.
CONGESTION = "reno"

# tbf lets through at once what an idle link would have carried in so long, which no real link does: more would make
# small messages free, and less would cost rate wherever the kernel's timer is late, and the cores' time (with 0.4 ms
# four hosts that send at 300 Mbit/s took 66% of two cores, with 1 ms 9%). What waits, it queues so long.
BURST_S, LEAST_BURST = 1e-3, 8192
QUEUE = "100ms"

# The most that TCP hands it in one segment, as a share of what passes at once and in bytes.
SEGMENT, LARGEST_SEGMENT = 2 / 3, 65536

_RATE = re.compile(r"(\d+(?:\.\d+)?)([kmg]?)bit")
_UNITS = {"": 1.0, "k": 1e3, "m": 1e6, "g": 1e9}

# A link carries packets shortly after it is set up, once the kernel has told both ends.
UP_S, UP_POLL_S = 10.0, 0.005

# A command in a host: its own hostname, a private /etc/hosts that is nowhere on disk, and signals as usual, though
# whoever starts it may ignore them (a shell's background job ignores SIGINT). `exec` keeps the process id.
ENTER = """set -e
hostname "$1"
mount -t tmpfs tmpfs /mnt
printf %s "$2" > /mnt/hosts
mount --bind /mnt/hosts /etc/hosts
umount --lazy /mnt
shift 2
exec env --default-signal=INT,TERM,HUP "$@"
"""

_NAME = re.compile(r"parabench-(\d+)-\d+-(h\d+|bridge)")
_serial = itertools.count()


class NoNodes(Exception):
    """Why this machine cannot make hosts."""


@dataclass(frozen=True, slots=True)
class Host:
    """A namespace, and its link to the bridge that joins them. Its hostname is h0, h1, ...; all know these names."""

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
        """What runs these words in this host, as the very process that is started."""
        inside = ["ip", "netns", "exec", self.namespace, "unshare", "--uts"]
        return [*inside, "sh", "-c", ENTER, "enter", self.name, self.known, *words]

    def start(
        self,
        words: Sequence[str],
        *,
        environment: Mapping[str, str] | None = None,
        folder: Path | None = None,
        output: int | IO[Any] | None = None,
        errors: int | IO[Any] | None = None,
    ) -> subprocess.Popen[str]:
        """Run these words in this host, out of reach of the terminal's Ctrl-C; `environment` is added to our own."""
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
        """The ids of all processes in this host, whoever started them."""
        return _processes(self.namespace)

    def link(self, up: bool) -> None:
        """Join this host with the others, or cut it off. Packets that a cut loses are not announced to anyone."""
        _do("ip", "-n", self.namespace, "link", "set", self.interface, "up" if up else "down")
        if up:
            self._wait_until_up()

    def limit(self, rate: str | None) -> None:
        """Let the link carry `rate` (in kbit, mbit or gbit: "1gbit") each way from now on; None: as fast as it can.

        Headers count: of 1514 bytes on the link TCP has 1448 of payload.
        """
        burst = 0 if rate is None else _burst(rate)
        shape = ("noqueue",) if rate is None else ("tbf", "rate", rate, "burst", str(burst), "latency", QUEUE)
        segment = LARGEST_SEGMENT if rate is None else min(LARGEST_SEGMENT, int(SEGMENT * burst))
        for namespace, device in ((self.namespace, self.interface), (self.bridge, self.name)):
            _do("tc", "-n", namespace, "qdisc", "replace", "dev", device, "root", *shape)
            _do("ip", "-n", namespace, "link", "set", device, "gso_max_size", str(segment))

    def _wait_until_up(self) -> None:
        until = time.monotonic() + UP_S
        while not (
            _device(self.namespace, self.interface)["operstate"] == "UP"
            and _device(self.bridge, self.name)["linkinfo"]["info_slave_data"]["state"] == "forwarding"
        ):
            if time.monotonic() > until:
                raise NoNodes(f"the link of {self.name} is not up after {UP_S:g} s")
            time.sleep(UP_POLL_S)


@contextmanager
def hosts(count: int, rates: str | Sequence[str | None] | None = None) -> Iterator[tuple[Host, ...]]:
    """So many hosts; one rate for all links, or one for each (`Host.limit`). At the end they and all in them are gone.

    Raises NoNodes where that is not possible.
    """
    each = [rates] * count if rates is None or isinstance(rates, str) else rates
    if os.geteuid() != 0:
        raise NoNodes("several hosts on one machine need root, for network namespaces; run as root")
    for tool in ("ip", "tc"):
        if shutil.which(tool) is None:
            raise NoNodes(f"several hosts on one machine need the command {tool}; install iproute2")
    _remove_abandoned()
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


def _burst(rate: str) -> int:
    """How many bytes pass at once; of what is no rate anything, for `tc` says so."""
    read = _RATE.fullmatch(rate)
    return max(LEAST_BURST, round(float(read[1]) * _UNITS[read[2]] / 8 * BURST_S)) if read else LEAST_BURST


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
    """End all processes in the namespace, also those that they start meanwhile, and remove it."""
    while inside := _processes(namespace):
        for pid in inside:
            with suppress(ProcessLookupError, FileNotFoundError):
                _end(pid, Path("/run/netns", namespace))
    subprocess.run(["ip", "netns", "del", namespace], stderr=subprocess.DEVNULL)


def _end(pid: int, namespace: Path) -> None:
    """End that process if it is in that namespace; its exit code stays for its parent."""
    descriptor = os.pidfd_open(pid)
    try:
        # Only now does the number mean one process, which may be another than the one that was listed.
        if Path(f"/proc/{pid}/ns/net").samefile(namespace):
            signal.pidfd_send_signal(descriptor, signal.SIGKILL)
            select.select([descriptor], [], [])
    finally:
        os.close(descriptor)


def _remove_abandoned() -> None:
    """Remove the namespaces of processes that are gone: one that is killed cannot remove its own."""
    listed = subprocess.run(["ip", "netns", "list"], capture_output=True, text=True)
    for name in (line.split()[0] for line in listed.stdout.splitlines() if line.strip()):
        made_by = _NAME.fullmatch(name)
        if made_by and not psutil.pid_exists(int(made_by[1])):
            _remove(name)
