"""Node 0 and the agents of other nodes in one process, over real sockets, without ranks."""

import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from queue import SimpleQueue
from typing import Any

import pytest

from guard import GUARD_S
from parabench.cluster import agreement
from parabench.cluster import coordinator as coordinator_module
from parabench.cluster.agent import Agent
from parabench.cluster.coordinator import Coordinator, listen
from parabench.cluster.topology import Topology
from parabench.errors import UsageError
from parabench.launch.processes import ProcessOutcome
from parabench.launch.rendezvous import FAILED, HUNG, LOST, STOP, LaunchContext
from parabench.launch.results import MarkLayout, NodeResult
from parabench.launch.spec import LaunchSpec
from parabench.plan.case import Case
from parabench.plan.protocol import Protocol
from parabench.signals import STOPPED, Interrupted, signals_restored

FACTS = {"torch": "2.13.0"}
SPEC = LaunchSpec.of(Case(strategy="ddp", world_size=2, nodes=2, device="cpu", backend="gloo"), Protocol(), GUARD_S)
SECRET = b"what nobody else knows"
Does = Callable[[LaunchContext], None]


class NoWorkload:
    """Ranks that do nothing."""

    def ranks(self, spec: LaunchSpec) -> int:
        return spec.ranks_per_node

    def marks(self, spec: LaunchSpec) -> MarkLayout:
        return MarkLayout(columns=1, moments=1, rows=1, position=str)


def result_of(node: int, *, ok: bool = True) -> NodeResult:
    result = NodeResult.silent(node, f"h{node}", range(node, node + 1), NoWorkload().marks(SPEC))
    result.outcome = ProcessOutcome(ok=ok)
    return result


def until_abort(context: LaunchContext) -> None:
    ended = threading.Event()
    with context.on_abort(lambda reason: ended.set()):
        assert ended.wait(GUARD_S)


class Node(Agent):
    """An agent in a thread, whose ranks do `does(context)`. `aborts` has the reason why each launch ended."""

    def __init__(
        self,
        at: Topology,
        number: int | None = None,
        does: Does = lambda context: None,
        *,
        secret: bytes | None = None,
        facts: dict[str, str] | None = None,
    ) -> None:
        self.lines: list[str] = []
        topology = replace(at, node=number)
        super().__init__(topology, secret, facts or FACTS, {"host": "h1"}, Path("traces"), self.lines.append)
        self.does, self.aborts = does, SimpleQueue[str | None]()
        self._ended = SimpleQueue[Any]()
        threading.Thread(target=self._thread, daemon=True).start()

    def _thread(self) -> None:
        try:
            self._ended.put(self.follow())
        except BaseException as error:
            self._ended.put(error)

    def launch_ranks(self, spec: LaunchSpec, context: LaunchContext) -> NodeResult:
        self.does(context)
        self.aborts.put(context.aborted_by)
        return result_of(self.number)

    def end_of(self) -> Any:
        """Return its exit code, or the error that ended it."""
        return self._ended.get(timeout=GUARD_S)


class Leader(Coordinator):
    """Node 0, whose ranks do `does(context)`. `lines` has its output."""

    def __init__(self, nodes: int = 2, secret: bytes | None = None) -> None:
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        self.lines: list[str] = []
        topology = Topology(nodes=nodes, ranks_per_node=1, host="127.0.0.1", port=port, node=0, timeout_s=GUARD_S)
        listening = listen(topology, self.lines.append)
        self.does: Does = lambda context: None
        super().__init__(*listening, topology, secret, FACTS, self.lines.append)

    def launch(self, spec: LaunchSpec = SPEC) -> list[NodeResult]:
        return self.run(spec, NoWorkload())  # type: ignore[arg-type]


@pytest.fixture
def lead(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., Leader]]:
    """Return a function that starts node 0."""
    with signals_restored(), ExitStack() as stack:

        def start(**options: Any) -> Leader:
            leader = Leader(**options)
            monkeypatch.setattr(coordinator_module, "run_on_node", lambda spec, workload, context: ranks(context))

            def ranks(context: LaunchContext) -> NodeResult:
                leader.does(context)
                return result_of(0, ok=context.aborted_by is None)

            stack.callback(close, leader)
            return leader

        yield start


def close(leader: Leader) -> None:
    leader.goodbye_s = 0.0
    leader.close(1, "the test is over")


@pytest.fixture
def leader(lead: Callable[..., Leader]) -> Leader:
    return lead()


# -- launches ----------------------------------------------------------------------------------------------------------


def test_coordinator_collects_results_and_ends_all_nodes(leader: Leader) -> None:
    node = Node(leader.topology)
    leader.assemble(())
    for _ in range(2):
        assert [result.host for result in leader.launch()] == ["h0", "h1"]
    assert leader.environments == [{"node": 0}, {"node": 1, "host": "h1"}]
    leader.end(3)
    assert node.end_of() == 3
    assert node.lines[-1].startswith("node 1: the session is over; results and report are on node 0 (")


def test_failure_of_one_node_aborts_the_launch_on_the_other(lead: Callable[..., Leader]) -> None:
    leader = lead()
    leader.does = until_abort
    Node(leader.topology, does=lambda context: context.tell(FAILED))
    leader.assemble(())
    assert [result.outcome.ok for result in leader.launch()] == [False, True]
    leader = lead()
    leader.does = lambda context: context.tell(FAILED)
    node = Node(leader.topology, does=until_abort)
    leader.assemble(())
    leader.launch()
    assert node.aborts.get(timeout=GUARD_S) == FAILED


def test_node_without_a_result_after_the_deadline_is_lost(leader: Leader) -> None:
    over = threading.Event()
    leader.hand_over_s = 0.5
    node = Node(leader.topology, does=lambda context: assert_set(over))
    leader.assemble(())
    lost = leader.launch(SPEC.replace(deadline_s=0.0))[1].lost
    assert lost.startswith("node 1 (")
    assert lost.endswith(", which ran rank 1, was lost: no result within 0.5 s")
    over.set()
    assert node.aborts.get(timeout=GUARD_S) == HUNG


def assert_set(event: threading.Event) -> None:
    assert event.wait(GUARD_S)


def test_stop_of_a_node_ends_the_launch_of_the_others(lead: Callable[..., Leader]) -> None:
    def stopped(context: LaunchContext) -> None:
        raise Interrupted(15)

    leader = lead(nodes=3)
    leader.does = until_abort
    first, second = Node(leader.topology, 1, stopped), Node(leader.topology, 2, until_abort)
    spec = LaunchSpec.of(SPEC.cases[0].replace(world_size=3, nodes=3), Protocol(), GUARD_S)
    with pytest.raises(Interrupted, match="SIGTERM on node 1"), leader:
        leader.launch(spec)
    assert isinstance(first.end_of(), Interrupted)
    assert second.aborts.get(timeout=GUARD_S) == STOP
    assert second.end_of() == STOPPED


def test_node_that_closes_its_connection_is_lost_and_may_return(leader: Leader) -> None:
    def leave(context: LaunchContext) -> None:
        raise UsageError("broken")

    node = Node(leader.topology, does=leave)
    leader.assemble(())
    lost = leader.launch()[1].lost
    assert lost.endswith(", which ran rank 1, was lost: its process has ended, or closed the connection")
    assert str(node.end_of()) == "broken"
    Node(leader.topology)
    assert leader.launch()[1].lost is None


def test_node_that_loses_node_0_ends_its_ranks_and_waits(leader: Leader) -> None:
    started = threading.Event()

    def run(context: LaunchContext) -> None:
        started.set()
        until_abort(context)

    node = Node(leader.topology, does=run)
    leader.assemble(())
    leader._members[1].connection.send_request(Agent.run, launch=0, spec=SPEC.to_dict(), port=leader.topology.port)
    assert_set(started)
    leader._members[1].connection._lose(EOFError("gone"))
    assert node.aborts.get(timeout=GUARD_S) == LOST
    leader.wait_for(2)
    leader.end(0)
    assert node.end_of() == 0


# -- admission of nodes ------------------------------------------------------------------------------------------------


def test_node_with_other_facts_or_code_is_rejected(
    lead: Callable[..., Leader], monkeypatch: pytest.MonkeyPatch
) -> None:
    leader = lead()
    node = Node(leader.topology, facts={"torch": "2.11.0"})
    with pytest.raises(UsageError, match=r"node 1 \(.*\) has torch 2\.11\.0, and node 0 has 2\.13\.0: give all nodes"):
        leader.assemble(())
    assert "and node 0 has 2.13.0" in str(node.end_of())
    found = iter(["aa", "bb"])
    monkeypatch.setattr(agreement, "code_facts", lambda names: {name: next(found) for name in names})
    leader = lead()
    node = Node(leader.topology)
    with pytest.raises(UsageError, match=r"node 1 \(.*\) has mine:model bb, and node 0 has aa"):
        leader.assemble([SPEC.case.replace(model="mine:model")])
    assert isinstance(node.end_of(), UsageError)


@pytest.mark.parametrize("number", [None, 1])
def test_surplus_node_is_rejected(leader: Leader, number: int | None) -> None:
    Node(leader.topology, 1)
    leader.assemble(())
    surplus = Node(leader.topology, number)
    while not (ended := str(surplus.end_of() if not surplus._ended.empty() else "")):
        leader.wait_for(2)
    there = "all 2 nodes are" if number is None else "node 1 is"
    assert f"came too, and {there} there already; give each node its own --node-rank" in ended


def test_node_with_a_wrong_secret_ends_and_the_session_starts(lead: Callable[..., Leader]) -> None:
    leader = lead(secret=SECRET)
    assert "has a secret, and this node has none" in str(Node(leader.topology).end_of())
    assert "has another secret" in str(Node(leader.topology, secret=b"x" * 16).end_of())
    (line,) = [line for line in leader.lines if line.startswith("refused: ")]
    assert line.startswith("refused: 127.0.0.1: ")
    Node(leader.topology, secret=SECRET)
    leader.assemble(())
    assert [result.node for result in leader.launch()] == [0, 1]
