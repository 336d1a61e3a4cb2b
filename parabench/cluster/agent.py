"""Run the ranks of a node other than node 0, on request of node 0."""

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
from parabench.cluster.connection import Abort, Connection, Message, Stop, Waiting, answer, greet, request
from parabench.cluster.network import addresses_of, route_to
from parabench.cluster.topology import Topology
from parabench.errors import NodeGone, UsageError
from parabench.launch.launcher import run_on_node
from parabench.launch.rendezvous import LOST, REASONS, LaunchContext, RendezvousPoint
from parabench.launch.results import NodeResult, as_json
from parabench.launch.spec import LaunchSpec, workload_of
from parabench.signals import Interrupted

# The deadline of a launch is later here than at the coordinator, whose error message has more details.
LATER_S = 15.0
# The time between two checks for signals and a lost connection, in seconds.
LOOK_S = 0.05
# The longest attempt to connect to node 0, and the pause before the next one, in seconds.
TRY_S, TRY_EVERY_S = 3.0, 0.25


class Agent:
    """A node other than node 0. Node 0 calls the methods that are marked `@request`.

    `facts` must be equal on all nodes. `about` is the recorded environment of this node, and `traces` a folder.
    """

    # The connection to node 0, node 0's address, the received requests, and the last order to end a launch.
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
        # The requested number of the node, and after admission its actual number. `_over` is the exit code.
        self.number, self.joined = topology.node, False
        self._over: int | None = None
        # The number and context of the launch that runs.
        self._running: tuple[int, LaunchContext] | None = None

    # -- requests of node 0 --------------------------------------------------------------------------------------------

    @request
    def identify(self, *, code: list[str]) -> dict[str, Any]:
        """Describe this node. `code` are custom models, strategies and algorithms, as `package.module:name`."""
        facts = {**self._facts, **agreement.code_facts(code)}
        return {"number": self.number, "host": socket.gethostname(), "facts": facts, "about": self._about}

    @request
    def admit(self, *, number: int) -> None:
        """Join the session as the node with this number."""
        self.number, self.joined = number, True
        self._log(f"node {number} of {self.topology.nodes}, led by node 0 at {self.topology.endpoint}")

    @request
    def reject(self, *, why: str) -> None:
        """Raise UsageError with the reason why this node cannot join."""
        raise UsageError(why)

    @request
    def run(self, *, launch: int, spec: dict[str, Any], port: int) -> dict[str, Any]:
        """Run this node's ranks of a launch, whose rendezvous store is at `port` of node 0.

        Return {"launch": its number, "result": this node's result as JSON}.
        """
        assert self.number is not None
        mine = LaunchSpec.from_dict(spec, self._traces)
        point = RendezvousPoint(self._address, port, mine.nodes, mine.ranks_per_node)
        route = route_to(point.address, port, self.topology.interface, self.topology.local_addr)
        connection = self._connection
        context = point.context(self.number, route.environment(), lambda reason: connection.send(Abort(launch, reason)))
        self._running = launch, context
        # Node 0 may have aborted the launch before the context existed.
        reason = self._aborted.reason if self._aborted.launch == launch else LOST if connection.lost else None
        if reason is not None:
            context.abort(reason)
        try:
            return {"launch": launch, "result": as_json(self.launch_ranks(mine, context))}
        finally:
            self._running = None

    @request
    def show(self, *, line: str) -> None:
        """Log a line about the session."""
        self._log(f"node {self.number}: {line}")

    @request
    def end(self, *, code: int, why: str) -> None:
        """End this process with an exit code, because the session is over."""
        self._log(f"node {self.number}: {why}")
        self._over = code

    # ------------------------------------------------------------------------------------------------------------------

    def launch_ranks(self, spec: LaunchSpec, context: LaunchContext) -> NodeResult:
        """Run this node's ranks of a launch."""
        return run_on_node(spec.replace(deadline_s=spec.deadline_s + LATER_S), workload_of(spec.kind), context)

    def serve(self, connection: Connection, address: str) -> int:
        """Answer the requests of node 0, which is at `address`, until it ends the session. Return the exit code.

        Raises NodeGone if node 0 is lost, UsageError if this node is rejected, Interrupted on a stop signal.
        """
        self._connection, self._address = connection, address
        # A restarted node 0 counts launches from 0 again.
        self._messages, self._aborted = SimpleQueue(), Abort(-1, "")
        waiting = Waiting(self._log, math.inf, TRY_S)
        connection.start(self._handle, self._abort)
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

    def _handle(self, message: Message) -> None:
        """Queue a request of node 0, or abort the launch at once. The connection's thread calls this."""
        if not isinstance(message, Abort):
            self._messages.put(message)
            return
        reason, self._aborted = REASONS[message.reason], message
        if (running := self._running) is not None and running[0] == message.launch:
            running[1].abort(reason)

    def _abort(self) -> None:
        """End the launch that runs, because node 0 is lost."""
        if (running := self._running) is not None:
            running[1].abort(LOST)

    def reach(self, waiting: Waiting) -> tuple[Connection, str]:
        """Connect to node 0, with repeated attempts, and return the connection and node 0's address.

        Raises NodeGone with the last reason when the time is up, UsageError if node 0 has another session or secret.
        """
        topology = self.topology
        while True:
            why = f"{topology.host} resolves to no address"
            for address in addresses_of(topology.host):
                try:
                    with ExitStack() as stack:
                        connection = socket.create_connection((address, topology.port), timeout=TRY_S)
                        stack.enter_context(connection)
                        found = greet(connection, self._secret, topology.run_id, topology.endpoint)
                        stack.pop_all()
                        return found, address
                except NodeGone as lost:  # node 0 may be paused, or about to start
                    why = f"the program that listens at {topology.endpoint} ({address}) {lost}"
                except OSError as error:
                    why = f"{address} port {topology.port}: {error.strerror or error}"
            waiting.still(f"waiting for node 0 at {topology.endpoint}, {waiting.left_s:.0f} s at most ({why})")
            if not waiting.left_s:
                raise NodeGone(why)
            time.sleep(TRY_EVERY_S)

    def follow(self) -> int:
        """Join the session, and return its exit code when node 0 ends it. If node 0 is lost, wait until it is back.

        Raises UsageError if node 0 is not reached in time or rejects this node, Interrupted.
        """
        where, seconds = f"node 0 at {self.topology.endpoint}", self.topology.timeout_s
        waiting = Waiting(self._log, seconds, TRY_S)
        while True:
            try:
                connection, address = self.reach(waiting)
            except NodeGone as why:
                raise UsageError(
                    f"{where} was not reached within {seconds:g} s ({why}); start it there unless its session has "
                    "ended, open the port in its firewall, or give a longer --rdzv-timeout"
                ) from why
            try:
                return self.serve(connection, address)
            except NodeGone as why:
                if self.joined:
                    self._log(f"node 0 is lost: {why}; waiting for it, {seconds:.0f} s at most")
                    self.joined, waiting = False, Waiting(self._log, seconds, TRY_S)
                time.sleep(TRY_EVERY_S)
