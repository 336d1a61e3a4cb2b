"""Several hosts on one machine: they reach each other at the rates they were given, and nothing of them is left."""

from __future__ import annotations

import re
import signal
import subprocess
import sys
from collections.abc import Iterator

import psutil
import pytest

from benchmarks.hosts import Host
from cluster_helpers import cluster, namespaces
from guard import GUARD_S

pytestmark = pytest.mark.alone

PORT = 29400

# For each connection in turn: read it to its end, and say so.
RECEIVE = """
import socket, sys
with socket.create_server((sys.argv[1], int(sys.argv[2]))) as server:
    print("ready", flush=True)
    while True:
        connection, _ = server.accept()
        with connection:
            while connection.recv(1 << 20):
                pass
            connection.sendall(b"all")
"""

# Print the seconds from the first byte sent to the news that the last one came; bytes, then where to.
SEND = """
import socket, sys, time
payload = bytes(int(sys.argv[1]))
with socket.create_connection((sys.argv[2], int(sys.argv[3]))) as connection:
    begin = time.perf_counter()
    connection.sendall(payload)
    connection.shutdown(socket.SHUT_WR)
    assert connection.recv(3, socket.MSG_WAITALL) == b"all"
    print(time.perf_counter() - begin)
"""

# Say when it runs, and what it is; then wait for a signal.
SPEAK = "import os, signal, socket; print(os.getpid(), socket.gethostname(), flush=True); signal.pause()"

PAYLOAD = 2 << 20
# With headers; what passes at once is next to nothing.
LIMITED = PAYLOAD * 1514 / 1448
TRANSFERS = 5


@pytest.fixture
def pair() -> Iterator[tuple[Host, ...]]:
    with cluster(2) as made:
        yield made


def python(host: Host, *words: str) -> subprocess.Popen[str]:
    return host.start([sys.executable, "-c", *words], output=subprocess.PIPE, errors=subprocess.STDOUT)


def said(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    return process.stdout.readline().strip()


def receiver(host: Host) -> None:
    assert said(python(host, RECEIVE, host.address, str(PORT))) == "ready"


def sent(size: int, source: Host, target: str) -> tuple[int, str]:
    """The exit code of sending so many bytes to that host, and what was said."""
    process = python(source, SEND, str(size), target, str(PORT))
    output, _ = process.communicate(timeout=GUARD_S)
    return process.returncode, output.strip()


def rate_seen(source: Host, target: Host) -> float:
    """Bits per second on the link: of a few transfers the one that the machine held up least."""
    return 8 * LIMITED / quickest(PAYLOAD, source, target)


def quickest(size: int, source: Host, target: Host) -> float:
    """The seconds of that transfer."""
    seconds = []
    for _ in range(TRANSFERS):
        code, output = sent(size, source, target.name)
        assert code == 0, output
        seconds.append(float(output))
    return min(seconds)


def test_all_reach_each_other_by_name() -> None:
    with cluster(4) as made:
        for host in made:
            receiver(host)
        assert [host.address for host in made] == ["10.231.7.1", "10.231.7.2", "10.231.7.3", "10.231.7.4"]
        for source in made:
            for target in made:
                assert sent(1, source, target.name)[0] == 0
                assert sent(1, source, target.address)[0] == 0


# Several transfers at a low rate.
@pytest.mark.slow
def test_each_link_has_its_rate_both_ways() -> None:
    with cluster(3, ["200mbit", "100mbit", None]) as made:
        first, second, free = made
        for host in made:
            receiver(host)
        assert rate_seen(first, free) == pytest.approx(200e6, rel=0.1)
        assert rate_seen(free, first) == pytest.approx(200e6, rel=0.1)
        assert rate_seen(free, second) == pytest.approx(100e6, rel=0.1)
        assert rate_seen(first, second) == pytest.approx(100e6, rel=0.1)


def test_a_host_that_is_cut_off_is_reached_again_when_its_link_is_up(pair: tuple[Host, ...]) -> None:
    first, second = pair
    receiver(first)
    receiver(second)
    first.link(False)
    for source, target in (pair, pair[::-1]):
        code, output = sent(1, source, target.address)
        assert code == 1
        assert re.search(r"OSError: \[Errno \d+\] (Network is unreachable|No route to host)", output), output
    # What a host says to itself meets no link.
    assert sent(1, first, "h0")[0] == 0
    first.link(True)
    assert sent(1, first, "h1")[0] == 0
    assert sent(1, second, "h0")[0] == 0


def test_what_runs_in_a_host_ends_with_it_and_nothing_else_does() -> None:
    with cluster(2) as others:
        other = python(others[0], SPEAK)
        said(other)
        # Its child takes no signal but SIGKILL, lies in a session of its own and is no longer ours.
        deep = "import signal, subprocess, sys; subprocess.Popen(['setsid', sys.executable, '-c', sys.argv[1]])"
        deaf = "import os, signal; signal.signal(signal.SIGTERM, signal.SIG_IGN); print(os.getpid(), flush=True)"
        with cluster(2) as made:
            parent = python(made[1], deep, f"{deaf}; signal.pause()")
            child = psutil.Process(int(said(parent)))
            assert parent.wait(GUARD_S) == 0
            assert made[1].processes() == {child.pid}
            # This one may not have come so far as to be in the host.
            last = made[0].start(["sleep", "inf"])
        assert last.returncode == -signal.SIGKILL
        assert not child.is_running() or child.status() == psutil.STATUS_ZOMBIE
        assert other.poll() is None
        assert others[0].processes() == {other.pid}
    assert other.returncode == -signal.SIGKILL


def test_what_a_killed_process_has_left_is_removed(pair: tuple[Host, ...]) -> None:
    code = """if True:
        import sys
        from benchmarks.hosts import hosts
        with hosts(2) as made:
            print(made[0].namespace, made[0].bridge, flush=True)
            made[0].start([sys.executable, "-c", sys.argv[1]])
            input()
    """
    with subprocess.Popen([sys.executable, "-c", code, SPEAK], stdin=-1, stdout=-1, text=True) as owner:
        left = set(said(owner).split())
        deserted = psutil.Process(int(said(owner).split()[0]))
        with cluster(2):
            assert left <= namespaces()
        assert deserted.is_running()
        owner.kill()
    with cluster(2):
        assert not left & namespaces()
    assert not deserted.is_running() or deserted.status() == psutil.STATUS_ZOMBIE
