"""A coordinator and agents in one process, over real sockets: admission, the results of a launch, and the end."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from guard import GUARD_S
from parabench.cluster import coordinator as coordinator_module
from parabench.cluster.agent import Agent
from parabench.cluster.connection import Connection
from parabench.cluster.coordinator import Coordinator, listen
from parabench.cluster.secret import Secret
from parabench.cluster.topology import Topology
from parabench.cluster.waiting import Waiting
from parabench.errors import UsageError
from parabench.launch.processes import ProcessOutcome
from parabench.launch.rendezvous import FAILED, HUNG, LaunchContext
from parabench.launch.results import MarkLayout, NodeResult
from parabench.launch.spec import LaunchSpec
from parabench.plan.case import Case
from parabench.plan.protocol import Protocol
from parabench.signals import Interrupted, signals_restored

FACTS = {"torch": "2.13.0"}
SPEC = LaunchSpec.of(Case(strategy="ddp", world_size=2, nodes=2, device="cpu", backend="gloo"), Protocol(), 60.0)


class NoWorkload:
    """Ranks that do nothing."""

    def ranks(self, spec: LaunchSpec) -> int:
        return spec.ranks_per_node

    def marks(self, spec: LaunchSpec) -> MarkLayout:
        return MarkLayout(columns=1, moments=1, rows=1, position=str)


def result_of(node: int, *, ok: bool = True) -> NodeResult:
    layout = NoWorkload().marks(SPEC)
    result = NodeResult.silent(node, f"h{node}", range(node, node + 1), layout)
    result.outcome = ProcessOutcome(ok=ok)
    return result


class Node(Agent):
    """An agent in a thread, whose ranks do `does(context)`; what it logs, and how it ends."""

    def __init__(
        self,
        cluster: Cluster,
        secret: Secret | None = None,
        facts: Any = None,
        number: int | None = None,
        does: Callable[[Any], None] = print,
    ) -> None:
        self.said: list[str] = []
        topology = replace(cluster.topology, node=number)
        super().__init__(topology, secret, facts or FACTS, {"host": "h1"}, Path("traces"), self.said.append)
        self.ended: Any = None
        self.does = does
        self._thread = threading.Thread(target=self._serve, daemon=True)
        self._thread.start()

    def _serve(self) -> None:
        try:
            self.ended = self.serve(*self.reach(Waiting(print, 0.0)))
        except BaseException as error:
            self.ended = error

    def run(self, spec: LaunchSpec, context: LaunchContext) -> NodeResult:
        self.does(context)
        assert self.number is not None
        return result_of(self.number)

    def end(self) -> Any:
        self._thread.join(GUARD_S)
        return self.ended


class Cluster:
    """Node 0, which may have a secret."""

    def __init__(self, secret: Secret | None = None) -> None:
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        self.said: list[str] = []
        self.topology = Topology(nodes=2, ranks_per_node=1, host="127.0.0.1", port=port, node=0, timeout_s=GUARD_S)
        listening = listen(self.topology, self.said.append)
        assert listening is not None
        self.node_0 = Coordinator(*listening, self.topology, secret, FACTS, self.said.append)

    def stranger(self, *messages: Any) -> Connection:
        """Return a connection of another program, which has found the port and sent messages."""
        found = Connection(socket.create_connection((self.topology.host, self.topology.port)))
        for each in messages:
            found.send(each)
        return found

    def run(self, spec: LaunchSpec = SPEC) -> list[NodeResult]:
        return self.node_0.run(spec, NoWorkload())  # type: ignore[arg-type]


@pytest.fixture
def cluster(monkeypatch: pytest.MonkeyPatch) -> Iterator[Cluster]:
    monkeypatch.setattr(coordinator_module, "run_on_node", lambda spec, workload, context: result_of(0))
    with signals_restored():
        yield Cluster()


def test_launch_collects_the_results_of_all_nodes(cluster: Cluster) -> None:
    node = Node(cluster)
    cluster.node_0.assemble(())
    assert [result.node for result in cluster.run()] == [0, 1]
    assert [result.host for result in cluster.run()] == ["h0", "h1"]
    assert cluster.node_0.environments == [{"node": 0}, {"node": 1, "host": "h1"}]
    cluster.node_0.end(3)
    assert node.end() == 3
    assert node.said[-1].startswith("node 1: the session is over; store and report are on node 0 (")


def test_different_node_is_refused_with_both_values(cluster: Cluster) -> None:
    node = Node(cluster, facts={"torch": "2.11.0"})
    with pytest.raises(UsageError, match=r"has torch 2\.11\.0, and node 0 has 2\.13\.0: give all nodes the same"):
        cluster.node_0.assemble(())
    assert "and node 0 has 2.13.0" in str(node.end())
    cluster.node_0.close(2, "over")


def test_code_of_the_users_own_is_compared_where_it_is(cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    told = iter(["aa", "bb"])
    monkeypatch.setattr("parabench.cluster.fingerprint.of_own", lambda names: {names[0]: next(told)})
    node = Node(cluster)
    with pytest.raises(UsageError, match=r"node 1 \(.*\) has mine:model (aa|bb), and node 0 has (aa|bb)"):
        cluster.node_0.assemble([SPEC.case.replace(model="mine:model")])
    assert isinstance(node.end(), UsageError)
    cluster.node_0.close(2, "over")


def test_one_too_many_is_sent_away(cluster: Cluster) -> None:
    node = Node(cluster)
    cluster.node_0.assemble(())
    third = Node(cluster, number=1)
    while third.ended is None:
        cluster.node_0.wait_for(2)
    assert "came too, and node 1 is there already; give each node its own --node-rank" in str(third.end())
    cluster.node_0.end(0)
    assert node.end() == 0


def test_a_failure_of_one_node_aborts_the_launch_on_the_other(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    aborted = threading.Event()

    def wait(spec: LaunchSpec, workload: Any, context: LaunchContext) -> NodeResult:
        with context.abort.on_abort(lambda reason: aborted.set()):
            assert aborted.wait(GUARD_S)
        assert context.abort.reason == FAILED
        return result_of(0, ok=False)

    monkeypatch.setattr(coordinator_module, "run_on_node", wait)
    node = Node(cluster, does=lambda context: context.tell(FAILED))
    cluster.node_0.assemble(())
    assert [result.outcome.ok for result in cluster.run()] == [False, True]
    cluster.node_0.end(0)
    assert node.end() == 0


def test_node_without_results_after_the_deadline_is_lost(cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    over = threading.Event()
    reasons: list[str] = []

    def hang(context: LaunchContext) -> None:
        with context.abort.on_abort(reasons.append):
            assert over.wait(GUARD_S)

    monkeypatch.setattr(Coordinator, "hand_over_s", 1.0)
    node = Node(cluster, does=hang)
    cluster.node_0.assemble(())
    results = cluster.run(SPEC.replace(deadline_s=0.0))
    assert results[1].lost is not None
    assert results[1].lost.startswith("node 1 (")
    over.set()
    cluster.node_0.end(0)
    assert node.end() == 0
    assert reasons == [HUNG]


def test_a_node_that_is_asked_to_stop_stops_all(cluster: Cluster) -> None:
    def stop(context: LaunchContext) -> None:
        raise Interrupted(15)

    node = Node(cluster, does=stop)
    cluster.node_0.assemble(())
    with pytest.raises(Interrupted, match="SIGTERM on node 1"), cluster.node_0:
        cluster.run()
    assert isinstance(node.end(), Interrupted)


# -- with a secret, and strangers ------------------------------------------------------------------------------------

SECRET = Secret(b"what nobody else knows")


@pytest.fixture
def signed(monkeypatch: pytest.MonkeyPatch) -> Iterator[Cluster]:
    monkeypatch.setattr(coordinator_module, "run_on_node", lambda spec, workload, context: result_of(0))
    with signals_restored():
        yield Cluster(SECRET)


def test_node_without_the_secret_ends_in_a_line(signed: Cluster) -> None:
    for secret, said in ((None, "has a secret, and this node has none"), (Secret(b"x" * 16), "has another secret")):
        assert said in str(Node(signed, secret).end())
    node = Node(signed, SECRET)
    signed.node_0.assemble(())
    assert [result.node for result in signed.run()] == [0, 1]
    signed.node_0.end(0)
    assert node.end() == 0


def test_stranger_without_the_secret_is_refused_in_one_line(signed: Cluster) -> None:
    strangers = [signed.stranger({"nonce": "", "proof": "x"}, JOIN) for _ in range(3)]
    node = Node(signed, SECRET)
    signed.node_0.assemble(())
    (line,) = [line for line in signed.said if line.startswith("refused: ")]
    assert line == "refused: 127.0.0.1: it does not know this session's secret; give all nodes the same --secret-file"
    signed.node_0.end(0)
    assert node.end() == 0
    for each in strangers:
        each.close()


JOIN = {"join": {"number": 1, "host": "evil", "address": "evil", "facts": FACTS, "about": {}}}


@pytest.mark.parametrize("said", [{"host": "\x1b[2J"}, {"number": "1"}, {"more": 1}])
def test_malformed_request_to_join_is_refused(cluster: Cluster, said: dict[str, Any]) -> None:
    stranger = cluster.stranger({"nonce": ""}, {"join": JOIN["join"] | said})
    node = Node(cluster)
    cluster.node_0.assemble(())
    while not any(line.startswith("refused: 127.0.0.1: ") for line in cluster.said):
        pass
    cluster.node_0.end(0)
    assert node.end() == 0
    stranger.close()


def test_silent_connections_block_no_node(signed: Cluster) -> None:
    strangers = [signed.stranger() for _ in range(20)]
    node = Node(signed, SECRET)
    signed.node_0.assemble(())
    assert [result.node for result in signed.run()] == [0, 1]
    signed.node_0.end(0)
    assert node.end() == 0
    for each in strangers:
        each.close()


def test_node_that_disconnects_is_lost_and_may_rejoin(cluster: Cluster) -> None:
    def leave(context: LaunchContext) -> None:
        raise UsageError("broken")

    node = Node(cluster, does=leave)
    cluster.node_0.assemble(())
    lost = cluster.run()[1].lost
    assert lost is not None
    assert lost.startswith("node 1 (")
    assert lost.endswith(", which ran rank 1, was lost: its process has ended, or closed the connection")
    assert str(node.end()) == "broken"
    again = Node(cluster)
    assert cluster.run()[1].lost is None
    cluster.node_0.end(0)
    assert again.end() == 0
