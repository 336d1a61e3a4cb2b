"""The network of this host is not as usual: ports are taken, loopback is down, names do not resolve."""

from __future__ import annotations

import socket
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from random import Random

from tests.faults.around import Around, check_namespaces, family
from tests.faults.trial import Trial, Verdict

USAGE = 2

UP = "ip link set lo up"

PLACES: Mapping[str, Around] = {
    "loopback only": Around(UP, "--mount --net"),
    "loopback down": Around("", "--mount --net", refused=("loopback", "ip link set lo up")),
    "no IPv6": Around(f"{UP}\nsysctl -q -w net.ipv6.conf.all.disable_ipv6=1", "--mount --net"),
    "a host name that does not resolve": Around(f"hostname no-such-host\n{UP}", "--mount --net --uts"),
    # Ranks of one machine take loopback, whatever it says.
    "GLOO_SOCKET_IFNAME of no interface": Around(environment={"GLOO_SOCKET_IFNAME": "nothere0"}),
    "no resolver": Around("mount --bind /dev/null /etc/resolv.conf"),
}


@contextmanager
def taken() -> Iterator[int]:
    """A port of loopback at which another process listens."""
    with socket.create_server(("127.0.0.1", 0)) as other:
        yield other.getsockname()[1]


def port_taken(lot: Random) -> Verdict:
    """A port that is to be listened at is another's, or its host is not to be found: it is said at once, and nothing is
    begun; with another port the session is."""
    check_namespaces()
    which = lot.choice(
        (
            "several nodes",
            "serve",
            "a host that does not resolve",
            "an interface that is not there",
            "GLOO_SOCKET_IFNAME",
        )
    )
    nodes = ("--nnodes", "2", "--nproc-per-node", "1", "--rdzv-timeout", "3")
    with Trial() as trial, taken() as port:
        serve = [sys.executable, "-m", "parabench", "serve", "results", "--port", str(port)]
        endpoint = f"127.0.0.1:{port}"
        driver, words = {
            "several nodes": lambda: (
                trial.start(*nodes, "--rdzv-endpoint", endpoint, "--node-rank", "0"),
                (f"port {port}", "another port"),
            ),
            "serve": lambda: (trial.start(command=serve), (f"port {port}", "--port")),
            "a host that does not resolve": lambda: (
                trial.start(*nodes, "--rdzv-endpoint", "no-such-host.invalid:29400", "--node-rank", lot.choice("01")),
                ("no-such-host.invalid",),
            ),
            "an interface that is not there": lambda: (
                trial.start(*nodes, "--rdzv-endpoint", endpoint, "--interface", "nothere0"),
                ("nothere0", "--interface"),
            ),
            "GLOO_SOCKET_IFNAME": lambda: (
                trial.start(*nodes, "--rdzv-endpoint", endpoint, environment={"GLOO_SOCKET_IFNAME": "nothere0"}),
                ("GLOO_SOCKET_IFNAME", "nothere0", "use one of"),
            ),
        }[which]()
        trial.check_exit(driver, trial.ended(driver), USAGE)
        trial.check_says(driver, *words)
        trial.check_orphans()
        trial.check_files()
        if trial.rows():
            trial.verdict.fault("wrong_status", "launches are stored of what never began")
        trial.check_statuses(trial.resume())
    trial.verdict.words[:] = [f"{which}: {each}" for each in trial.verdict.words]
    return trial.verdict


FAMILIES = {"ports and names": port_taken, "network": family(PLACES)}
