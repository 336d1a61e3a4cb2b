"""Node 0 of a session: it admits the other nodes, sends them launches, and collects their results.

torch elastic has no way to decide the next launch during a session, or to send results to one node.
"""

from __future__ import annotations

import json
import math
import signal
import socket
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from types import TracebackType
from typing import Any

from parabench.cluster.fingerprint import user_code
from parabench.cluster.membership import Heartbeat, Membership, abort, abort_of
from parabench.cluster.participants import Participants
from parabench.cluster.secret import begin
from parabench.cluster.shared_store import SharedStore
from parabench.cluster.topology import Topology
from parabench.cluster.waiting import Waiting, numbered
from parabench.errors import NodeGone, UsageError
from parabench.launch.launcher import launch
from parabench.launch.node import run_on_node
from parabench.launch.rendezvous import DEAD_AFTER_S, HUNG, LOST, STOP, LaunchContext
from parabench.launch.results import NodeResult
from parabench.launch.spec import LaunchSpec
from parabench.launch.store_client import ForeignValue, StoreLost
from parabench.launch.workload import Workload
from parabench.signals import STOPPED, Interrupted, stop_signals
from parabench.store.record import AnyCase, Launch

# The exit code of the other nodes if node 0 finds a usage error.
WRONG = 2
# The time between two looks for results and requests.
LOOK_S = 0.005


class Coordinator(Participants):
    """Lead the other nodes of a session, which meet in `store` and must have the same `facts`."""

    # The time that nodes have to hand over results after an abort, and to read that the session ended.
    hand_over_s, goodbye_s = 60.0, 5.0

    def __init__(
        self, store: SharedStore, topology: Topology, facts: Mapping[str, Any], log: Callable[[str], None]
    ) -> None:
        self.topology, self._store, self._log = topology, store, log
        self.options = topology.words
        self._client = store.client()
        begin(self._client, store.secret, store.session)
        self._membership = Membership(topology.nodes, facts, self._client, log)
        self._next = 0
        self._lines: list[str] = []
        self._stopped: tuple[int, str] | None = None
        # The launch that runs: its context here, the number of its nodes, the lost ones, and the results so far.
        self._context: LaunchContext | None = None
        self._members = 0
        self._missed: set[int] = set()
        self._results: dict[int, NodeResult] = {}
        heart = store.client()
        heart.seal = self._client.seal
        self._heartbeat = Heartbeat(heart, self._beat, self._when_lost, DEAD_AFTER_S)

    def assemble(self, cases: Sequence[AnyCase]) -> None:
        self._membership.code = user_code(cases)
        try:
            with stop_signals():
                self.wait_for(self.topology.nodes)
        except NodeGone as why:
            broken = isinstance(why, ForeignValue) or self._heartbeat.lost is not None
            raise UsageError(f"{why}{'; then start all nodes again' if broken else ''}") from why
        self._membership.begun = True
        members = sorted(self._membership.participants.items())
        # The rest of node 0's environment is the session's.
        self.environments = [{"node": 0}] + [{"node": node, **each.about} for node, each in members]

    def wait_for(self, nodes: int) -> None:
        """Wait for the first `nodes` nodes.

        Raises NodeGone if one does not come in time, UsageError if one differs before the first launch, Interrupted if
        any is asked to stop.
        """
        seconds, at = self.topology.timeout_s, self._store
        waiting = Waiting(self._log, seconds)
        while True:
            self.check_stop()
            self._membership.answer(self._next)
            missing = [node for node in range(1, nodes) if not self._membership.is_here(node)]
            if not missing:
                return
            who = numbered("node", missing)
            waiting.still(f"waiting for {who}, {waiting.left_s:.0f} s at most")
            if not waiting.left_s:
                raise NodeGone(
                    f"{who} did not come within {seconds:g} s; start it with the same "
                    f"--rdzv-endpoint {self.topology.endpoint} and --rdzv-id {self.topology.run_id}, see that it "
                    f"reaches {at.address} port {at.port}, or give a longer --rdzv-timeout"
                )
            time.sleep(LOOK_S)

    def executor(self) -> Callable[[LaunchSpec], Launch]:
        return partial(launch, run=self.run)

    def run(self, spec: LaunchSpec, workload: Workload) -> list[NodeResult]:
        """Run a launch and return the result of each of its nodes, in their order.

        Raises NodeGone if a node does not come (back), Interrupted if any is asked to stop.
        """
        with self._launching(spec, workload) as context:
            deadline = time.monotonic() + spec.deadline_s
            self._results[0] = run_on_node(spec, workload, context)
            self._collect(spec, workload, context, deadline)
        return [self._results.get(each) or self._silent(each, spec, workload) for each in range(spec.nodes)]

    def _silent(self, number: int, spec: LaunchSpec, workload: Workload) -> NodeResult:
        """Return the result of a node that handed over nothing."""
        host = self._membership.participants[number].host
        ranks = range(number * spec.ranks_per_node, (number + 1) * spec.ranks_per_node)
        ran = f"rank {ranks[0]}" if len(ranks) == 1 else f"ranks {ranks[0]} to {ranks[-1]}"
        lost = f"node {number} ({host}), which ran {ran}, was lost: no sign of life for {DEAD_AFTER_S:g} s"
        return NodeResult.silent(number, host, ranks, workload.marks(spec), lost=lost)

    @contextmanager
    def _launching(self, spec: LaunchSpec, workload: Workload) -> Iterator[LaunchContext]:
        """Wait for the nodes of a launch and send it to them. Yield this node's context."""
        members, number = spec.nodes, self._next
        self.wait_for(members)
        context = LaunchContext(local_world_size=workload.ranks(spec))
        if members > 1:
            self._next += 1
            context = self._store.context(spec, number, 0, tell=partial(abort, self._client, number))
        # Set before the launch is sent: a node may be lost as soon as it has it.
        self._members, self._context, self._results = members, context, {}
        try:
            if members > 1:
                self._publish(number, {"launch": spec.to_dict()})
            yield context
            self.check_stop()
        except BaseException:
            if members > 1:
                abort(self._client, number, STOP)
            raise
        finally:
            self._context, self._members, self._missed = None, 0, set()

    def _collect(self, spec: LaunchSpec, workload: Workload, context: LaunchContext, deadline: float) -> None:
        """Collect the other nodes' results. Abort at the deadline; `hand_over_s` after an abort, nodes are lost."""
        ended = math.inf
        while left := self._collect_now(spec, workload):
            self.check_stop()
            now = time.monotonic()
            if now > deadline and context.abort.reason is None:
                context.tell(HUNG)
                context.abort.set(HUNG)
            if context.abort.reason is not None:
                ended = min(ended, now)
            if now > ended + self.hand_over_s or self._missed.issuperset(left):
                return
            time.sleep(LOOK_S)

    def _collect_now(self, spec: LaunchSpec, workload: Workload) -> list[int]:
        """Take the results that have arrived. Return the nodes whose results have not."""
        for number in range(1, spec.nodes):
            key = f"launch/{self._next - 1}/result/{number}"
            if number not in self._results and self._client.has(key):
                self._results[number] = self._client.pop_blob(key, NodeResult.from_json)
        return [number for number in range(1, spec.nodes) if number not in self._results]

    def keeping(self, keep: Callable[[Launch], None], outcome: Callable[[Launch], str]) -> Callable[[Launch], None]:
        def keep_and_tell(launch: Launch) -> None:
            keep(launch)
            self._lines.append(f"{launch.case.label}: {outcome(launch)}")

        return keep_and_tell

    def _publish(self, number: int, message: dict[str, Any]) -> None:
        lines, self._lines = self._lines, []
        self._client.put(f"next/{number}", message | {"lines": lines})

    def check_stop(self) -> None:
        """Raise Interrupted if another node was asked to stop, and NodeGone if the rendezvous store does not answer."""
        if self._stopped is not None:
            raise Interrupted(*self._stopped)
        lost = self._heartbeat.lost
        if isinstance(lost, ForeignValue):
            raise lost
        if lost is not None:
            raise NodeGone(
                f"node 0 cannot ask its own rendezvous store, which somebody else may have broken: {lost}; keep its "
                "port within a network that you trust"
            )

    def end(self, code: int) -> None:
        host = f"node 0 ({socket.gethostname()})"
        over = f"the session was stopped; what is done is on {host}, where it can be resumed"
        self.close(code, over if code == STOPPED else f"the session is over; store and report are on {host}")

    def close(self, code: int, why: str) -> None:
        """Let every node end with this exit code, and wait a moment for them."""
        with suppress(StoreLost):
            self._membership.close(why)
            self._publish(self._next, {"end": {"code": code, "why": why}})
            until = time.monotonic() + self.goodbye_s
            left = [f"bye/{each.join_id}" for each in self._membership.participants.values() if not each.lost]
            while left and time.monotonic() < until:
                left = [key for key in left if not self._client.has(key)]
                time.sleep(LOOK_S)
        self._heartbeat.end()
        self._client.end()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if isinstance(error, Interrupted):
            self.close(STOPPED, f"the session was stopped by {error}")
        elif isinstance(error, UsageError):
            self.close(WRONG, f"node 0 ends the session: {error}")
        elif kind is not None:
            self.close(1, f"node 0 ends the session: {kind.__name__}")

    def _beat(self, store: Any) -> None:
        """Read the others' signs of life, aborts and stops. In the heartbeat's thread."""
        self._missed |= {node for node in self._membership.look(store) if node < self._members}
        context, number = self._context, self._next - 1
        if context is not None and self._members > 1:
            if self._missed and context.abort.reason is None:
                abort(self._client, number, LOST)
                context.abort.set(LOST)
            elif (reason := abort_of(self._client, store, number)) is not None:
                context.abort.set(reason)
        if self._stopped is None and store.check(["stop"]):
            join_id, host, stop_signal = self._client.read("stop", store.get("stop"), _stop)
            node = self._membership.number_of(join_id)
            if node is None:  # it was never admitted, so only itself ends
                store.delete_key("stop")
                return
            self._stopped = stop_signal, f"node {node} ({host})"
            if context:
                context.abort.set(STOP)

    def _when_lost(self) -> None:
        if (context := self._context) is not None:
            context.abort.set(LOST)


def _stop(content: bytes) -> tuple[int, str, signal.Signals]:
    """Return the join id and host of a member that was asked to stop, and the signal."""
    message = json.loads(content)
    return int(message["join_id"]), message["host"], signal.Signals(message["signal"])
