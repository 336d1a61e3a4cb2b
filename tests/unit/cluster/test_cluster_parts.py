"""Parts of a session on several nodes: clocks, failures and addresses."""

import threading
import time
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from torch._C._distributed_c10d import HashStore

from guard import GUARD_S
from parabench.cluster import network
from parabench.errors import UsageError
from parabench.launch.launcher import align, facts_of
from parabench.launch.outcome import diagnose
from parabench.launch.processes import ProcessOutcome
from parabench.launch.rendezvous import HUNG, RendezvousPoint
from parabench.launch.results import MarkLayout, NodeResult, RankError, RankReport
from parabench.probes import CaseReport
from parabench.store.record import CollectiveSample, DeviceSample, Failure, HostSample, Phase, Status

# -- clocks ----------------------------------------------------------------------------------------------------------


def test_clock_offset_is_measured_by_the_first_rank_of_a_node(monkeypatch: pytest.MonkeyPatch) -> None:
    store, point = HashStore(), RendezvousPoint("", 0, nodes=3, ranks_per_node=2)
    ahead = threading.local()
    monkeypatch.setattr("parabench.launch.rendezvous.perf_counter", lambda: time_of(ahead))
    offsets: dict[int, Any] = {}

    def rank(number: int, by: float) -> None:
        ahead.by = by
        offsets[number] = point.clock_offset(store, number)

    ranks = [threading.Thread(target=rank, args=each) for each in ((0, 0.0), (2, 50.0), (4, -7.0))]
    for each in ranks:
        each.start()
    for each in ranks:
        each.join(GUARD_S)
    assert point.clock_offset(store, 1) is None
    assert offsets[0] == {"offset_s": 0.0, "error_s": 0.0}
    for number, offset in ((2, -50.0), (4, 7.0)):
        assert abs(offsets[number]["offset_s"] - offset) <= offsets[number]["error_s"] + 1e-9


def time_of(ahead: threading.local) -> float:
    return time.perf_counter() + float(ahead.by)


def part(node: int, outcome: ProcessOutcome | None = None, **more: Any) -> NodeResult:
    ranks = range(2 * node, 2 * node + 2)
    marks = np.arange(10.0).reshape(2, 5) + 100 * node
    return NodeResult(
        node=node, host=f"h{node}", first_rank=ranks.start, began_s=100.0 * node,
        outcome=outcome or ProcessOutcome(ok=True), reports=[silent(rank) for rank in ranks],
        marks=[marks.copy() for _ in ranks], tails=["", ""],
        device_samples=[DeviceSample(0, 1.0, "used_bytes", 1.0, node=node)],
        host_samples=[HostSample(None, 1.0, "other_cpu_share", 0.0, node=node)], sampler={"ticks": 1},
    ) if not more else replace(part(node, outcome), **more)  # fmt: skip


def silent(rank: int) -> RankReport:
    return RankReport(rank=rank, reported=False)


def layout() -> MarkLayout:
    return MarkLayout(columns=5, moments=5, rows=2, position=lambda n: f"to moment {n}")


def test_align_shifts_times_to_the_clock_of_node_0() -> None:
    call = CollectiveSample(
        2, 0, 0, "all_reduce", "ring", 2, 8, 101.5, 0.25, Phase.INSTRUMENT, None, None, made_s=101.0
    )
    case = CaseReport(stalls=[(0, 101.0, 102.0)], calls=[call])
    reported = RankReport(rank=2, clock={"offset_s": -99.0, "error_s": 0.001}, cases=[case, None])
    first, second = align([part(0), part(1, reports=[reported, silent(3)])], layout())
    assert first.marks[0][0, 0] == 0.0
    assert second.marks[1].tolist() == [[1.0, 2.0, 3.0, 4.0, 5.0], [6.0, 7.0, 8.0, 9.0, 10.0]]
    case = second.reports[0].of(0)
    assert case.stalls == [(0, 2.0, 3.0)]
    assert case.calls == [call._replace(made_s=2.0, start_s=2.5)]
    # Node 1 started at 100 s on its clock, which is 1 s on the clock of node 0.
    assert [second.device_samples[0].t_s, second.host_samples[0].t_s] == [2.0, 2.0]
    assert [each["clock"] for each in facts_of([first, second])["nodes"]] == [None, reported.clock]


# -- judgement -------------------------------------------------------------------------------------------------------


def error(rank: int, message: str, at: float) -> RankReport:
    return RankReport(rank=rank, error=RankError(at, message, "Traceback", oom=False))


def judged(*parts: NodeResult) -> tuple[Status, Failure | None]:
    return diagnose(parts, layout().position, 5.0)


ECHO = error(0, "RuntimeError: Connection closed by peer [10.0.0.2]:1234", 0.0)


def test_diagnose_names_a_killed_rank_of_another_node() -> None:
    zero = part(0, ProcessOutcome(ok=False, rank=0), reports=[ECHO, silent(1)])
    one = part(1, ProcessOutcome(ok=False, rank=3, signal="SIGKILL"))
    status, failure = judged(zero, one)
    assert status is Status.CRASHED
    assert (failure.rank, failure.signal) == (3, "SIGKILL")
    assert str(failure).startswith("rank 3: ended by SIGKILL")
    assert str(failure).endswith("on node 1 (h1)")


def test_diagnose_ignores_echoes_of_an_error() -> None:
    zero = part(0, ProcessOutcome(ok=False, rank=0), reports=[ECHO, silent(1)])
    one = part(1, ProcessOutcome(ok=False, rank=2), reports=[error(2, "ValueError: no such layer", 500.0), silent(3)])
    status, failure = judged(zero, one)
    assert (status, failure and failure.rank) == (Status.FAILED, 2)
    assert failure.message == "ValueError: no such layer on node 1 (h1)"


def test_diagnose_names_a_lost_node_and_a_hang() -> None:
    gone = NodeResult.silent(1, "h1", range(2, 4), layout(), lost="node 1 was lost")
    assert judged(part(0, ProcessOutcome(ok=False, rank=0)), gone) == (Status.CRASHED, Failure("node 1 was lost"))
    seen = {"marks": [np.full((2, 5), np.nan), part(1).marks[0]], "tails": ["stack", "stack"], "stacked": [2, 3]}
    one = part(1, ProcessOutcome(ok=False, aborted_by=HUNG), **seen)
    status, failure = judged(part(0, ProcessOutcome(ok=False, hung=True), stacked=[0, 1]), one)
    assert status is Status.HUNG
    assert failure.rank == 2
    assert "it came least far, to moment 0 on node 1 (h1)" in failure.message
    status, failure = judged(part(0), one)
    assert (status, failure and failure.rank) == (Status.HUNG, 2)


# -- addresses -------------------------------------------------------------------------------------------------------


OWN = {"127.0.0.1": "lo", "10.0.0.1": "eth0", "10.1.0.1": "ib0"}
NAMES = {"node0": ["127.0.1.1"], "both": ["127.0.1.1", "10.0.0.1"], "far": ["10.0.0.9"], "localhost": ["127.0.0.1"]}


@pytest.fixture
def host(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(network, "own_addresses", lambda: OWN)
    monkeypatch.setattr(network, "addresses_of", lambda name: NAMES.get(name, [name] if name[0].isdigit() else []))


@pytest.mark.usefixtures("host")
@pytest.mark.parametrize(
    ("changes", "address", "interface", "restricted"),
    [
        ({"endpoint": "10.0.0.1"}, "10.0.0.1", "eth0", False),
        ({"endpoint": "both"}, "10.0.0.1", "eth0", False),
        ({"endpoint": "localhost"}, "127.0.0.1", "lo", False),
        ({"endpoint": "node0"}, "0.0.0.0", None, False),
        ({"endpoint": "node0", "local_addr": "10.1.0.1"}, "10.1.0.1", "ib0", False),
        ({"endpoint": "far", "interface": "ib0"}, "10.1.0.1", "ib0", True),
    ],
)
def test_listen_route_follows_the_endpoint(changes: Any, address: str, interface: str, restricted: bool) -> None:
    assert network.listen_route(**changes) == network.Route(address, interface, restricted)


@pytest.mark.usefixtures("host")
def test_is_ours_accepts_only_addresses_of_this_host() -> None:
    assert [network.is_ours(name) for name in ("both", "node0", "localhost", "far", "nowhere")] == [
        True, True, True, False, False,
    ]  # fmt: skip


@pytest.mark.usefixtures("host")
@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"interface": "eth9"}, r"--interface 'eth9' has no address here; did you mean 'eth0'\? this host has lo, "),
        ({"local_addr": "10.9.9.9"}, "--local-addr '10.9.9.9' is not an address of this host; it has 127.0.0.1, 10"),
    ],
)
def test_check_refuses_unknown_interfaces_and_addresses(changes: Any, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        network.check(**{"interface": None, "local_addr": None} | changes)
    network.check(interface="eth0", local_addr="10.1.0.1")


@pytest.mark.parametrize(
    ("route", "environ", "expected"),
    [
        (network.Route("10.0.0.1", "eth0"), {}, {"GLOO_SOCKET_IFNAME": "eth0"}),
        (network.Route("10.0.0.1", "eth0"), {"GLOO_SOCKET_IFNAME": "ib0"}, {"GLOO_SOCKET_IFNAME": "ib0"}),
        (
            network.Route("10.0.0.1", "eth0", restricted=True),
            {"GLOO_SOCKET_IFNAME": "ib0"},
            {"GLOO_SOCKET_IFNAME": "eth0", "NCCL_SOCKET_IFNAME": "=eth0"},
        ),
        (network.Route("127.0.0.1", "lo"), {}, {"GLOO_SOCKET_IFNAME": "lo", "NCCL_SOCKET_IFNAME": "=lo"}),
        (network.Route("0.0.0.0", None), {}, {}),
    ],
)
def test_route_restricts_ranks_to_its_interface(
    route: network.Route, environ: dict[str, str], expected: dict[str, str]
) -> None:
    assert route.environment(environ) == expected
