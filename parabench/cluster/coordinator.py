"""Node 0 and the nodes that it leads: it lets them in, gives them launches, and takes what they saw."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from parabench.cluster.heartbeat import Heartbeat
from parabench.cluster.join_requests import Door
from parabench.cluster.launch_team import team_of
from parabench.cluster.membership import Roll
from parabench.cluster.network import Route
from parabench.cluster.topology import Topology
from parabench.errors import NodeGone, UsageError
from parabench.launch import blobs
from parabench.launch.context import DEAD_AFTER_S, LOST, STOP, Abort, LaunchContext
from parabench.launch.node import run_on_node
from parabench.launch.results import NodeResult
from parabench.launch.spec import LaunchSpec
from parabench.launch.store_client import StoreClient
from parabench.launch.workload import Workload
from parabench.signals import Interrupted, stop_signals
from parabench.store.record import Launch

# How often node 0 looks for what has come.
LOOK_S = 0.005
# How soon a line tells again who is waited for.
SAY_EVERY_S = 15.0
# What a node that has ended its ranks gets to hand over what it saw, beyond the deadline.
HAND_OVER_S = 60.0
GOODBYE_S = 5.0


class Coordinator:
    """The other nodes of a session. They meet in `store`, `door` looks at who comes; `say` tells the user a line."""

    def __init__(self, site: Topology, way: Route, store: Any, door: Door, say: Callable[[str], None]) -> None:
        self.site = site
        self._store = store  # it lives as long as this does
        self._way, self._door, self._say = way, door, say
        self._line = self._new_line()
        self._roll = Roll(site, door, self._line, say)
        self._next = 0
        self._lines: list[str] = []
        self._stopped: tuple[int, str] | None = None
        # Of the launch that runs: what ends it here, and who takes part.
        self._word: Abort | None = None
        self._taking_part = 0
        self._missed: set[int] = set()
        self._pulse = Heartbeat(self._new_line(), self._beat, lambda: None)

    def _new_line(self) -> StoreClient:
        return StoreClient(self._way.address, self.site.port, self.site.prefix)

    # ---- who is there

    def assemble(self, own: Sequence[str]) -> None:
        """Wait for all nodes, which must have the same of the user's `own` code. Raises UsageError when one differs or
        does not come, Interrupted when any is asked to stop."""
        self._door.own = list(own)
        try:
            with stop_signals():
                self.wait_for(self.site.nodes)
        except NodeGone as why:
            raise UsageError(str(why)) from why
        self._roll.begun = True

    def wait_for(self, nodes: int) -> None:
        """Wait until the first `nodes` nodes are there. Raises NodeGone when one does not come in time, UsageError when
        one differs before the first launch, Interrupted when any is asked to stop."""
        until, say_at = time.monotonic() + self.site.timeout_s, 0.0
        while True:
            self.check_stop()
            self._roll.answer(self._next)
            missing = [node for node in range(1, nodes) if not self._roll.is_here(node)]
            if not missing:
                return
            now = time.monotonic()
            if now >= until:
                raise NodeGone(
                    f"{_named(missing)} did not come within {self.site.timeout_s:g} s; start it with the same "
                    f"--rdzv-endpoint {self.site.endpoint} and --rdzv-id {self.site.run_id}, see that it reaches "
                    f"{self._way.address} port {self.site.port}, or give a longer --rdzv-timeout"
                )
            if now >= say_at:
                self._say(f"waiting for {_named(missing)}, {until - now:.0f} s at most")
                say_at = now + SAY_EVERY_S
            time.sleep(LOOK_S)

    def environments(self) -> list[dict[str, Any]]:
        """What is recorded of the nodes, in their order; of node 0 itself only where it is."""
        return [{"node": 0}] + [
            {"node": node, **each.guest.environment} for node, each in sorted(self._roll.members.items())
        ]

    # ---- launches

    def run(self, spec: LaunchSpec, workload: Workload) -> list[NodeResult]:
        """As `Nodes.run`."""
        with self.launching(spec, workload) as context:
            here = run_on_node(spec, workload, context)
            return [here, *self.gather(spec, workload, context)]

    @contextmanager
    def launching(self, order: LaunchSpec, workload: Workload) -> Iterator[LaunchContext]:
        """Give `order` to the nodes that it needs, and wait for those that are not there; this node's view of them.

        Raises NodeGone, and Interrupted when any node is asked to stop.
        """
        self.wait_for(order.nodes)
        word = Abort()
        team = LaunchContext(ranks_per_node=workload.ranks(order), word=word)
        number = self._next
        if order.nodes > 1:
            self._next += 1
            team = team_of(
                order,
                number,
                node=0,
                site=self.site,
                address=self._way.address,
                way=self._way,
                word=word,
                tell=lambda why: self._end_launch(number, why),
            )
        # Before the order: a node may be lost as soon as it has it.
        self._taking_part, self._word = order.nodes, word
        try:
            if order.nodes > 1:
                self._publish(number, {"order": order.to_dict()})
            yield team
            self.check_stop()
        except BaseException:
            if order.nodes > 1:
                self._end_launch(number, STOP)
            raise
        finally:
            self._word, self._taking_part, self._missed = None, 0, set()
            if team.line:
                team.line.end()

    def gather(self, order: LaunchSpec, workload: Workload, team: LaunchContext) -> list[NodeResult]:
        """What the other nodes of a launch saw, or how they were lost. This node's ranks are over."""
        results = []
        until = time.monotonic() + order.deadline_s + HAND_OVER_S
        for node in range(1, order.nodes):
            member, key = self._roll.members[node], f"{team.prefix}part/{node}"
            while not self._line.ask(lambda store, key=key: blobs.arrived(store, key)):  # type: ignore[misc]
                self.check_stop()
                if node in self._missed or time.monotonic() > until:
                    host, ranks = (
                        member.guest.host,
                        range(node * order.ranks_per_node, (node + 1) * order.ranks_per_node),
                    )
                    lost = (
                        f"node {node} ({host}), which ran {_ranks(ranks)}, was lost: no sign of life for "
                        f"{DEAD_AFTER_S:g} s"
                    )
                    layout, report_type = workload.marks(order), workload.report_type
                    results.append(NodeResult.silent(node, host, ranks, layout, report_type, lost=lost))
                    break
                time.sleep(LOOK_S)
            else:
                part = self._line.ask(lambda store, key=key: blobs.take(store, key))  # type: ignore[misc]
                results.append(NodeResult.from_dict(part, workload.report_type))
        return results

    def keeping(self, keep: Callable[[Launch], None], outcome: Callable[[Launch], str]) -> Callable[[Launch], None]:
        """`keep`, after which every node is told how the launch ended, in the words of `outcome`."""

        def keep_and_tell(launch: Launch) -> None:
            keep(launch)
            self._lines.append(f"{launch.case.label}: {outcome(launch)}")

        return keep_and_tell

    def _publish(self, number: int, what: dict[str, Any]) -> None:
        text = json.dumps(what | {"lines": self._lines})
        self._lines = []
        self._line.ask(lambda store: store.set(f"order/{number}", text))

    def _end_launch(self, number: int, why: str) -> None:
        self._line.ask(lambda store: store.set(f"word/{number}", why))

    # ---- the end

    def check_stop(self) -> None:
        """Raise Interrupted when another node was asked to stop, NodeGone when this one's own store is out of reach."""
        if self._stopped is not None:
            raise Interrupted(*self._stopped)
        if self._pulse.lost is not None:
            raise NodeGone(f"node 0 cannot ask its own store: {self._pulse.lost}")

    def close(self, code: int, why: str) -> None:
        """Let every node end with the exit code `code`, and wait a moment for them."""
        self._roll.dismiss(why)
        self._publish(self._next, {"end": {"code": code, "why": why}})
        until = time.monotonic() + GOODBYE_S
        members = [each for each in self._roll.members.values() if not each.lost]
        left = [f"bye/{each.guest.ticket}" for each in members]
        while left and time.monotonic() < until:
            left = [key for key in left if not self._line.ask(lambda store, key=key: store.check([key]))]  # type: ignore[misc]
            time.sleep(LOOK_S)
        self._pulse.end()
        self._line.end()

    def _beat(self, store: Any) -> None:
        """Look who lives, and whether anybody was asked to stop. In the pulse's thread."""
        self._missed |= {node for node in self._roll.look(store) if node < self._taking_part}
        word, key = self._word, f"word/{self._next - 1}"
        if word is not None and self._taking_part > 1:
            if self._missed and word.why is None:
                self._end_launch(self._next - 1, LOST)
                word.say(LOST)
            elif store.check([key]):
                word.say(store.get(key).decode())
        if self._stopped is None and store.check(["stop"]):
            said = json.loads(store.get("stop"))
            node = self._roll.node_of(said["ticket"])
            if node is None:  # it was never let in, so it ends nobody but itself
                store.delete_key("stop")
                return
            self._stopped = said["signal"], f"node {node} ({said['host']})"
            if self._word:
                self._word.say(STOP)


def _named(nodes: Sequence[int]) -> str:
    shown = ", ".join(map(str, nodes[:8])) + (", ..." if len(nodes) > 8 else "")
    return f"{len(nodes)} nodes ({shown})" if len(nodes) > 1 else f"node {shown}"


def _ranks(ranks: range) -> str:
    return f"rank {ranks[0]}" if len(ranks) == 1 else f"ranks {ranks[0]} to {ranks[-1]}"
