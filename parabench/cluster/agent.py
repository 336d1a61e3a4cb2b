"""The agent of a node other than node 0: it joins the session, runs its ranks of each launch, and sends the results."""

from __future__ import annotations

import math
import socket
import time
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from pathlib import Path
from queue import Empty, SimpleQueue
from typing import Any

from parabench.cluster import agreement
from parabench.cluster.connection import (
    Abort,
    Connection,
    Message,
    PeerLost,
    Stop,
    Waiting,
    answer,
    greet,
    request,
)
from parabench.cluster.network import addresses_of, route_to
from parabench.cluster.topology import Topology
from parabench.errors import UsageError
from parabench.launch.launcher import run_on_node
from parabench.launch.rendezvous import LOST, REASONS, LaunchContext, RendezvousPoint
from parabench.launch.results import NodeResult, as_json
from parabench.launch.spec import LaunchSpec, workload_of
from parabench.signals import Interrupted

# The deadline here comes after the coordinator's, whose message says more.
LATER_S = 15.0
# How soon a signal or a lost connection is noticed during a wait, in seconds.
LOOK_S = 0.05
# The longest attempt to connect to node 0, and the time between two, in seconds.
TRY_S, TRY_EVERY_S = 3.0, 0.25


class Agent:
    """A node. `facts` must equal node 0's, `about` is its environment, and its ranks write `traces`."""

    # The connection to node 0, the address of node 0, the messages from there, and the last abort.
    _connection: Connection
    _address: str
    _messages: SimpleQueue[Message]
    _aborted: Abort

    def __init__(
        self,
        topology: Topology,
        secret: bytes | None,
        facts: Mapping[str, Any],
        about: Mapping[str, Any],
        traces: Path,
        log: Callable[[str], None],
    ) -> None:
        self.topology, self._secret, self._traces, self._log = topology, secret, traces, log
        self._facts, self._about = facts, about
        # The requested number of the node, then the one that it was admitted as. `over` is its exit code.
        self.number, self.joined = topology.node, False
        self._over: int | None = None
        # The launch that runs.
        self._running: tuple[int, LaunchContext] | None = None

    # -- requests of node 0 --------------------------------------------------------------------------------------------

    @request
    def identify(self, *, code: list[str]) -> dict[str, Any]:
        """Describe this node. `code` are names of the user's own models, strategies and algorithms."""
        facts = {**self._facts, **agreement.code_facts(code)}
        return {"number": self.number, "host": socket.gethostname(), "facts": facts, "about": self._about}

    @request
    def admit(self, *, number: int) -> None:
        """Take part as this node."""
        self.number, self.joined = number, True
        self._log(f"node {number} of {self.topology.nodes}, led by node 0 at {self.topology.endpoint}")

    @request
    def reject(self, *, why: str) -> None:
        """Do not take part. Raises UsageError."""
        raise UsageError(why)

    @request
    def run(self, *, launch: int, spec: dict[str, Any], port: int) -> dict[str, Any]:
        """Run this node's ranks of a launch, which meet at this port of node 0. Return {"launch", "result"}."""
        assert self.number is not None
        mine = LaunchSpec.from_dict(spec, self._traces)
        point = RendezvousPoint(self._address, port, mine.nodes, mine.ranks_per_node)
        route = route_to(point.address, port, self.topology.interface, self.topology.local_addr)
        connection = self._connection
        context = point.context(self.number, route.environment(), lambda reason: connection.send(Abort(launch, reason)))
        self._running = launch, context
        # The abort may have come before the context existed.
        reason = self._aborted.reason if self._aborted.launch == launch else LOST if connection.lost else None
        if reason is not None:
            context.abort(reason)
        try:
            return {"launch": launch, "result": as_json(self.launch_ranks(mine, context))}
        finally:
            self._running = None

    @request
    def show(self, *, line: str) -> None:
        """Show a line about the session."""
        self._log(f"node {self.number}: {line}")

    @request
    def end(self, *, code: int, why: str) -> None:
        """End the session with this exit code."""
        self._log(f"node {self.number}: {why}")
        self._over = code

    # ------------------------------------------------------------------------------------------------------------------

    def launch_ranks(self, spec: LaunchSpec, context: LaunchContext) -> NodeResult:
        """Run this node's ranks of a launch."""
        return run_on_node(spec.replace(deadline_s=spec.deadline_s + LATER_S), workload_of(spec.kind), context)

    def serve(self, connection: Connection, address: str) -> int:
        """Answer the requests of node 0, which is at `address`, until it ends the session. Return the exit code.

        Raises PeerLost if node 0 is lost, UsageError if this node is rejected, Interrupted if it is asked to stop.
        """
        self._connection, self._address = connection, address
        # Another node 0 counts launches from 0 again.
        self._messages, self._aborted = SimpleQueue(), Abort(-1, "")
        waiting = Waiting(self._log, math.inf, TRY_S)
        connection.start(self._heard, lambda: self._abort(LOST))
        try:
            while self._over is None:
                try:
                    message = self._messages.get(timeout=LOOK_S)
                except Empty:
                    if connection.lost is not None:
                        raise connection.lost from None
                    if not self.joined:
                        waiting.still("node 0 is busy with a launch; waiting until it is over")
                    continue
                connection.send(answer(self, message))
            return self._over
        except Interrupted as stop:
            connection.send(Stop(int(stop.signal)))
            raise
        finally:
            connection.close()

    def _heard(self, message: Message) -> None:
        """Take a message of node 0, in the connection's thread."""
        if not isinstance(message, Abort):
            self._messages.put(message)
            return
        reason = REASONS[message.reason]
        self._aborted = message
        if (running := self._running) is not None and running[0] == message.launch:
            self._abort(reason)

    def _abort(self, reason: str) -> None:
        """End the launch that runs."""
        if (running := self._running) is not None:
            running[1].abort(reason)

    def reach(self, waiting: Waiting) -> tuple[Connection, str]:
        """Return a connection to node 0 and node 0's address, as soon as it answers.

        Raises PeerLost with the last reason when the time is up, UsageError if it has another session or secret.
        """
        topology = self.topology
        while True:
            why = f"{topology.host} resolves to no address"
            for address in addresses_of(topology.host):
                try:
                    connection = socket.create_connection((address, topology.port), timeout=TRY_S)
                except OSError as error:
                    why = f"{address} port {topology.port}: {error.strerror or error}"
                    continue
                with ExitStack() as stack:
                    stack.callback(connection.close)
                    try:
                        found = greet(connection, self._secret, topology.run_id, topology.endpoint)
                        stack.pop_all()
                        return found, address
                    except PeerLost as lost:  # node 0 may be paused, or about to start
                        why = f"the program that listens at {topology.endpoint} ({address}) {lost}"
            waiting.still(f"waiting for node 0 at {topology.endpoint}, {waiting.left_s:.0f} s at most ({why})")
            if not waiting.left_s:
                raise PeerLost(why)
            time.sleep(TRY_EVERY_S)

    def follow(self) -> int:
        """Take part until node 0 ends the session, and return the exit code. If node 0 is lost, wait for it.

        Raises UsageError if node 0 is not reached in time or rejects this node, Interrupted.
        """
        where, seconds = f"node 0 at {self.topology.endpoint}", self.topology.timeout_s
        waiting = Waiting(self._log, seconds, TRY_S)
        while True:
            try:
                connection, address = self.reach(waiting)
            except PeerLost as why:
                raise UsageError(
                    f"{where} was not reached within {seconds:g} s ({why}); start it there unless its session has "
                    "ended, open the port in its firewall, or give a longer --rdzv-timeout"
                ) from why
            try:
                return self.serve(connection, address)
            except PeerLost as why:
                if self.joined:
                    self._log(f"node 0 is lost: {why}; waiting for it, {seconds:.0f} s at most")
                    self.joined, waiting = False, Waiting(self._log, seconds, TRY_S)
                time.sleep(TRY_EVERY_S)
