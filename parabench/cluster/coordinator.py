"""Node 0 of a session and the nodes that it leads: it admits them, gives them launches, and takes what they saw.

torch elastic's agents agree on what to run before they meet, and end with it. Here one of them decides between launches
what is next, and results come back to where the session's store is: elastic has nothing for either.
"""

from __future__ import annotations

import json
import math
import signal
import socket
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from functools import partial
from types import TracebackType
from typing import Any

import psutil

from parabench.cluster.fingerprint import user_code
from parabench.cluster.heartbeat import Heartbeat, abort, abort_of
from parabench.cluster.membership import Membership
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

# How often node 0 looks for what has come.
LOOK_S = 0.005


class Coordinator(Participants):
    """The other nodes of a session, which meet in `store`; all must have the same `facts`. `log` tells the user a line.

    As a context it leaves no member waiting, however its block fails.
    """

    # By so many bytes may the driver of node 0 grow while it keeps the store. A session of 10,000 cases takes less than
    # half of it; torch's store takes whatever is sent, in pieces of 8 MiB, from whoever reaches its port.
    most_growth = 2 << 30
    # How long a node may take to hand over what it saw once a launch is aborted, and to read that the session ended.
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
        # Of the launch that runs: how this node sees it, how many members take part, who of them is lost, and what each
        # saw that has handed it over.
        self._context: LaunchContext | None = None
        self._members = 0
        self._missed: set[int] = set()
        self._results: dict[int, NodeResult] = {}
        self._began_bytes = _memory()
        heart = store.client()
        heart.seal = self._client.seal
        self._heartbeat = Heartbeat(heart, self._beat, self._when_lost, timeout_s=DEAD_AFTER_S)

    # ---- who is there

    def assemble(self, cases: Sequence[AnyCase]) -> None:
        """Wait for all nodes, which must have the same of the user's own code. Raises UsageError when one differs or
        does not come, Interrupted when any is asked to stop."""
        self._membership.code = user_code(cases)
        try:
            with stop_signals():
                self.wait_for(self.topology.nodes)
        except NodeGone as why:
            broken = isinstance(why, ForeignValue) or self._heartbeat.lost is not None
            raise UsageError(f"{why}{'; then start all nodes again' if broken else ''}") from why
        self._membership.begun = True
        members = sorted(self._membership.participants.items())
        # Of node 0 itself only where it is: the rest is the session's.
        self.environments = [{"node": 0}] + [{"node": node, **each.about} for node, each in members]

    def wait_for(self, nodes: int) -> None:
        """Wait until the first `nodes` nodes are there. Raises NodeGone when one does not come in time, UsageError when
        one differs before the first launch, Interrupted when any is asked to stop."""

        seconds, at = self.topology.timeout_s, self._store
        waiting = Waiting(self._log, seconds)
        while True:
            self.check_stop()
            self._membership.answer(self._next)
            missing = [node for node in range(1, nodes) if not self._membership.is_here(node)]
            if not missing:
                return
            who = numbered("node", missing)
            waiting.still(partial("waiting for {}, {:.0f} s at most".format, who, waiting.left_s))
            if not waiting.left_s:
                raise NodeGone(
                    f"{who} did not come within {seconds:g} s; start it with the same "
                    f"--rdzv-endpoint {self.topology.endpoint} and --rdzv-id {self.topology.run_id}, see that it "
                    f"reaches {at.address} port {at.port}, or give a longer --rdzv-timeout"
                )
            time.sleep(LOOK_S)

    # ---- launches

    def executor(self) -> Callable[[LaunchSpec], Launch]:
        return partial(launch, run=self.run)

    def run(self, spec: LaunchSpec, workload: Workload) -> list[NodeResult]:
        """What each node of the launch saw, in their order; of one that was lost, that it is.

        Raises NodeGone when a node does not come (back), Interrupted when any is asked to stop.
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
        """Give `spec` to the members that it needs, and wait for those that are not there; this one's view of it."""
        members, number = spec.nodes, self._next
        self.wait_for(members)
        context = LaunchContext(local_world_size=workload.ranks(spec))
        if members > 1:
            self._next += 1
            context = self._store.context(spec, number, 0, tell=partial(self._abort, number))
        # Before the spec is out: a member may be lost as soon as it has it.
        self._members, self._context, self._results = members, context, {}
        try:
            if members > 1:
                self._publish(number, {"launch": spec.to_dict()})
            yield context
            self.check_stop()
        except BaseException:
            if members > 1:
                self._abort(number, STOP)
            raise
        finally:
            self._context, self._members, self._missed = None, 0, set()

    def _collect(self, spec: LaunchSpec, workload: Workload, context: LaunchContext, deadline: float) -> None:
        """Take what the other members of the launch saw; nothing of who is lost, or has handed over nothing
        `hand_over_s` after the launch was aborted, as it is at its deadline."""
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
        """Take the results that have arrived, and return the nodes whose results have not."""
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

    def _publish(self, number: int, what: dict[str, Any]) -> None:
        lines, self._lines = self._lines, []
        self._client.put(f"next/{number}", what | {"lines": lines})

    def _abort(self, number: int, reason: str) -> None:
        """Let all members know that a launch is over; the first reason counts."""
        abort(self._client, number, reason)

    # ---- the end

    def check_stop(self) -> None:
        """Raise Interrupted when another member was asked to stop, NodeGone when the store here is out of reach."""
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
        """Let every member end with the exit code `code`, and wait a moment for them."""
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
        if isinstance(self._heartbeat.lost, ForeignValue):
            # Nobody is to write there while the report is made.
            self._store = replace(self._store, server=None)

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
        """Look who lives, and whether anybody was asked to stop. In the heartbeat's thread."""
        if _memory() > self._began_bytes + self.most_growth:
            raise ForeignValue(
                f"node 0 has grown by more than {self.most_growth >> 20:,} MiB: somebody fills its rendezvous store; "
                "keep its port within a network that you trust"
            )
        self._missed |= {node for node in self._membership.look(store) if node < self._members}
        context, number = self._context, self._next - 1
        if context is not None and self._members > 1:
            if self._missed and context.abort.reason is None:
                self._abort(number, LOST)
                context.abort.set(LOST)
            elif (reason := abort_of(self._client, store, number)) is not None:
                context.abort.set(reason)
        if self._stopped is None and store.check(["stop"]):
            join_id, host, told = self._client.read("stop", store.get("stop"), _stop)
            number_of = self._membership.number_of(join_id)
            if number_of is None:  # it was never admitted, so it ends nobody but itself
                store.delete_key("stop")
                return
            self._stopped = told, f"node {number_of} ({host})"
            if context:
                context.abort.set(STOP)

    def _when_lost(self) -> None:
        if (context := self._context) is not None:
            context.abort.set(LOST)


def _stop(content: bytes) -> tuple[int, str, signal.Signals]:
    """Who was asked to stop, where, and by which signal."""
    said = json.loads(content)
    return int(said["join_id"]), said["host"], signal.Signals(said["signal"])


def _memory() -> int:
    """What this process has in memory, in bytes."""
    return int(psutil.Process().memory_info().rss)
