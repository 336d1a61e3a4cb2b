"""Find the addresses and interfaces of a host that lead to other nodes. Free of torch."""

from __future__ import annotations

import ipaddress
import os
import socket
from collections.abc import Mapping
from dataclasses import dataclass

import psutil

from parabench.errors import UsageError, did_you_mean

FAMILIES = (socket.AF_INET, socket.AF_INET6)
LOOPBACK = "lo"


@dataclass(frozen=True, slots=True)
class Route:
    """The address that this node uses between nodes, and its interface; `None` for all interfaces.

    `restricted` is whether the user named the interface.
    """

    address: str
    interface: str | None
    restricted: bool = False

    def environment(self, environ: Mapping[str, str] = os.environ) -> dict[str, str]:
        """Return environment variables that restrict gloo to the interface.

        NCCL is restricted, too, if the user named the interface, or if it is loopback. Unless the user named it,
        variables that are already set keep their values.
        """
        found = {}
        if self.interface is not None:
            found["GLOO_SOCKET_IFNAME"] = self.interface
            # NCCL often finds faster interfaces than the rendezvous uses.
            if self.restricted or self.interface == LOOPBACK:
                found["NCCL_SOCKET_IFNAME"] = f"={self.interface}"  # without the sign, eth1 would include eth10
        return found if self.restricted else {name: environ.get(name, value) for name, value in found.items()}


def own_addresses() -> dict[str, str]:
    """Return {IP address: interface} of this host."""
    return {
        entry.address.partition("%")[0]: name
        for name, entries in psutil.net_if_addrs().items()
        for entry in entries
        if entry.family in FAMILIES
    }


def addresses_of(host: str) -> list[str]:
    """Return the IP addresses of a host name; an empty list if it does not resolve."""
    try:
        found = socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)
    except OSError:
        return []
    return list(dict.fromkeys(str(entry[4][0]).partition("%")[0] for entry in found))


def is_ours(host: str) -> bool:
    """Return whether a host name resolves to an address of this host."""
    own = own_addresses()
    return any(address in own or is_loopback(address) for address in addresses_of(host))


def check_loopback() -> None:
    """Raise UsageError if ranks of this host cannot reach each other."""
    state = psutil.net_if_stats().get(LOOPBACK)
    if state is None or not state.isup or LOOPBACK not in own_addresses().values():
        raise UsageError(
            f"interface {LOOPBACK} (loopback), which connects ranks of one machine, is down or has no address; bring "
            f"it up: ip link set {LOOPBACK} up"
        )


def check(interface: str | None, local_addr: str | None) -> None:
    """Raise UsageError for an interface or address that this host does not have."""
    own = own_addresses()
    have = ", ".join(dict.fromkeys(own.values()))
    if interface is not None and interface not in own.values():
        hint = did_you_mean(interface, own.values())
        raise UsageError(f"--interface {interface!r} has no address here; {hint}this host has {have}")
    if local_addr is not None and not any(address in own for address in addresses_of(local_addr)):
        raise UsageError(f"--local-addr {local_addr!r} is not an address of this host; it has {', '.join(own)}")


def listen_route(endpoint: str, interface: str | None = None, local_addr: str | None = None) -> Route:
    """Return the listening address of node 0: the address of the endpoint's host, or else all interfaces.

    This host may not have that address, because a network device translates it.
    """
    own = own_addresses()
    if interface is not None:
        return Route(next(address for address in own if own[address] == interface), interface, restricted=True)
    for host in filter(None, (local_addr, endpoint)):
        found = addresses_of(host)
        # Debian resolves the name of the host to 127.0.1.1, which other nodes cannot reach.
        far = [address for address in found if address in own and not is_loopback(address)]
        if far:
            return Route(far[0], own[far[0]])
        if found and (host == "localhost" or is_loopback(host)):
            return Route(found[0], LOOPBACK)
    return Route("0.0.0.0", None)


def route_to(address: str, port: int, interface: str | None = None, local_addr: str | None = None) -> Route:
    """Return the route that this host uses to reach node 0 at `address`."""
    own = own_addresses()
    if interface is not None:
        return Route(next(address for address in own if own[address] == interface), interface, restricted=True)
    for mine in addresses_of(local_addr) if local_addr else []:
        if mine in own:
            return Route(mine, own[mine])
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    with socket.socket(family, socket.SOCK_DGRAM) as probe:
        probe.connect((address, port))  # sends nothing: the kernel only looks up the route
        mine = str(probe.getsockname()[0])
    return Route(mine, LOOPBACK if is_loopback(mine) else own.get(mine))


def is_loopback(address: str) -> bool:
    """Return whether a text is an IP address of loopback. Host names are not addresses."""
    try:
        return ipaddress.ip_address(address).is_loopback
    except ValueError:
        return False
