"""Node 0 of a session and its other nodes, all in this process and without ranks."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from queue import SimpleQueue
from typing import Any

import pytest

from guard import GUARD_S
from parabench.cluster import coordinator as node_0
from parabench.cluster.agent import Agent
from parabench.cluster.coordinator import Coordinator, listen
from parabench.cluster.topology import Topology
from parabench.errors import UsageError
from parabench.launch.rendezvous import LOST, STOP, LaunchContext
from parabench.launch.results import NodeResult
from parabench.launch.spec import LaunchSpec
from parabench.launch.workload import workload_of
from parabench.plan.case import Case
from parabench.plan.protocol import Protocol
from parabench.signals import STOPPED, Interrupted

SPEC = LaunchSpec.of(Case(world_size=3, nodes=3, device="cpu", backend="gloo"), Protocol(), GUARD_S)
WORKLOAD = workload_of(SPEC.kind)
Run = Callable[[LaunchContext], None]


def until_abort(context: LaunchContext) -> None:
    ended = threading.Event()
    with context.abort.on_abort(lambda reason: ended.set()):
        assert ended.wait(GUARD_S)


def silent(context: LaunchContext) -> NodeResult:
    ranks = range(context.first_rank, context.first_rank + 1)
    return NodeResult.silent(context.node_rank, "lab", ranks, WORKLOAD.marks(SPEC))


class Node(Agent):
    """Another node in a thread. `aborts` has the reason why each of its launches ended, `ended` its exit code."""

    def __init__(
        self, at: Topology, number: int, run: Run = until_abort, facts: Mapping[str, str] | None = None
    ) -> None:
        topology = Topology(nodes=at.nodes, ranks_per_node=1, host=at.host, port=at.port, node=number)
        super().__init__(topology, None, facts or {}, {}, Path("traces"), lambda line: None)
        self.act, self.aborts, self.ended = run, SimpleQueue[str | None](), SimpleQueue[Any]()
        threading.Thread(target=self._thread, daemon=True).start()

    def _thread(self) -> None:
        try:
            self.ended.put(self.follow())
        except BaseException as error:
            self.ended.put(error)

    def run(self, spec: LaunchSpec, context: LaunchContext) -> NodeResult:
        self.act(context)
        self.aborts.put(context.abort.reason)
        return silent(context)


def free_port() -> int:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return int(free.getsockname()[1])


@pytest.fixture
def led() -> Iterator[Coordinator]:
    topology = Topology(nodes=3, ranks_per_node=1, host="127.0.0.1", port=free_port(), node=0, timeout_s=GUARD_S)
    listening = listen(topology, lambda line: None)
    assert listening is not None
    leader = Coordinator(*listening, topology, None, {}, lambda line: None)
    yield leader
    leader.goodbye_s = 0.0
    leader.close(1, "the test is over")


@pytest.fixture(autouse=True)
def without_ranks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let node 0 take part in a launch until it is aborted."""

    def run(spec: LaunchSpec, workload: Any, context: LaunchContext) -> NodeResult:
        until_abort(context)
        return silent(context)

    monkeypatch.setattr(node_0, "run_on_node", run)


def test_stop_of_one_node_ends_the_launch_of_the_others(led: Coordinator) -> None:
    def stopped(context: LaunchContext) -> None:
        raise Interrupted(2)

    first, second = Node(led.topology, 1, stopped), Node(led.topology, 2)
    with pytest.raises(Interrupted, match="SIGINT on node 1"), led:
        led.run(SPEC, WORKLOAD)
    assert isinstance(first.ended.get(timeout=GUARD_S), Interrupted)
    assert second.aborts.get(timeout=GUARD_S) == STOP
    assert second.ended.get(timeout=GUARD_S) == STOPPED


def test_end_is_followed_when_the_result_comes_too_late(led: Coordinator) -> None:
    late = threading.Event()
    nodes = [Node(led.topology, number, lambda context: assert_set(late)) for number in (1, 2)]
    led.wait_for(3)
    led._publish({"launch": 0, "spec": SPEC.to_dict(), "port": led.topology.port})
    led.goodbye_s = 0.0
    led.end(0)
    late.set()
    assert [each.ended.get(timeout=GUARD_S) for each in nodes] == [0, 0]


def assert_set(event: threading.Event) -> None:
    assert event.wait(GUARD_S)


def test_node_lost_before_the_launch_aborts_it(led: Coordinator, monkeypatch: pytest.MonkeyPatch) -> None:
    nodes = [Node(led.topology, number) for number in (1, 2)]
    wait_for = led.wait_for

    def then_lost(number: int) -> None:
        wait_for(number)
        led._members[2].connection.close()
        led._members[2].connection._lose(EOFError("gone"))

    monkeypatch.setattr(led, "wait_for", then_lost)
    found = led.run(SPEC, WORKLOAD)
    assert nodes[0].aborts.get(timeout=GUARD_S) == LOST
    assert found[2].lost is not None
    assert "node 2" in found[2].lost


def test_node_with_a_number_out_of_range_is_refused(led: Coordinator) -> None:
    led._facts = {"--nnodes": "3"}
    node = Node(led.topology, 3, facts={"--nnodes": "4"})
    error = r"node 3 \(.+\) has --nnodes 4, and node 0 has 3"
    with pytest.raises(UsageError, match=error):
        led.wait_for(3)
    ended = node.ended.get(timeout=GUARD_S)
    assert isinstance(ended, UsageError)
    assert "has --nnodes 4" in str(ended)


def test_stranger_with_a_number_out_of_range_is_refused(led: Coordinator) -> None:
    stranger, _, _ = [Node(led.topology, number) for number in (-1, 1, 2)]
    led.wait_for(3)
    while stranger.ended.empty():
        led._answer()
    assert "--node-rank is -1" in str(stranger.ended.get())
