"""A node other than node 0: it joins the session, runs its part of each launch, and hands over the results."""

from __future__ import annotations

import math
import socket
import time
from collections.abc import Callable, Mapping
from contextlib import ExitStack, suppress
from pathlib import Path
from queue import Empty, SimpleQueue
from typing import Any

from parabench.cluster import fingerprint
from parabench.cluster.connection import MOST_BYTES, Connection, PeerLost, greet
from parabench.cluster.network import addresses_of, route_to
from parabench.cluster.secret import Secret
from parabench.cluster.topology import Topology
from parabench.cluster.waiting import Waiting
from parabench.errors import UsageError
from parabench.launch.launcher import run_on_node
from parabench.launch.rendezvous import LOST, REASONS, LaunchContext, RendezvousPoint
from parabench.launch.results import NodeResult, as_json
from parabench.launch.spec import LaunchSpec
from parabench.launch.workload import workload_of
from parabench.signals import Interrupted

# The deadline here comes after the coordinator's, whose message says more.
LATER_S = 15.0
# How soon a signal or a lost connection is noticed during a wait, in seconds.
LOOK_S = 0.05
# The longest attempt to connect to node 0, and the time between two, in seconds.
TRY_S, TRY_EVERY_S = 3.0, 0.25


class Agent:
    """One node. `facts` must equal node 0's, `about` is its environment, and its ranks write `traces`."""

    def __init__(
        self,
        topology: Topology,
        secret: Secret | None,
        facts: Mapping[str, Any],
        about: Mapping[str, Any],
        traces: Path,
        log: Callable[[str], None],
    ) -> None:
        self.topology, self._secret, self._traces, self._log = topology, secret, traces, log
        self._facts, self._about = facts, about
        # The number that it asks for, then the one that it was admitted as.
        self.number, self.joined = topology.node, False
        self._messages: SimpleQueue[dict[str, Any]] = SimpleQueue()
        # The number of the launch that runs, and why launches were aborted.
        self._launch = -1
        self._context: LaunchContext | None = None
        self._aborted: dict[int, str] = {}

    def run(self, spec: LaunchSpec, context: LaunchContext) -> NodeResult:
        """Run this node's part of a launch."""
        return run_on_node(spec.replace(deadline_s=spec.deadline_s + LATER_S), workload_of(spec.kind), context)

    def serve(self, connection: Connection, address: str) -> int:
        """Take part until node 0, which is at `address`, ends the session. Return its exit code.

        Raises PeerLost if node 0 is lost, UsageError if this node is rejected, Interrupted if it is asked to stop.
        """
        request = {"number": self.number, "host": socket.gethostname(), "address": connection.address}
        self._messages, self._aborted = SimpleQueue(), {}
        connection.most_bytes = MOST_BYTES
        try:
            connection.send({"join": {**request, "facts": self._facts, "about": self._about}})
            connection.start(self._heard, self._when_lost)
            self.number = self._admitted(connection)
            self.joined = True
            self._log(f"node {self.number} of {self.topology.nodes}, led by node 0 at {self.topology.endpoint}")
            return self._follow(connection, address, self.number)
        except Interrupted as stop:
            with suppress(PeerLost):
                connection.send({"stop": int(stop.signal)})
            raise
        finally:
            connection.close()

    def _heard(self, message: dict[str, Any]) -> None:
        """Take a message of node 0, in the connection's thread."""
        if "abort" not in message:
            self._messages.put(message)
            return
        self._aborted[message["launch"]] = reason = REASONS[message["abort"]]
        if (context := self._context) is not None and self._launch == message["launch"]:
            context.abort.set(reason)

    def _when_lost(self) -> None:
        if (context := self._context) is not None:
            context.abort.set(LOST)

    def _next(self, connection: Connection) -> dict[str, Any] | None:
        """Return the next message; None after a moment without one. Raises PeerLost."""
        try:
            return self._messages.get(timeout=LOOK_S)
        except Empty:
            if connection.lost is not None:
                raise connection.lost from None
            return None

    def _admitted(self, connection: Connection) -> int:
        """Return the number of this node. Node 0 may ask for fingerprints of the user's code first."""
        waiting = Waiting(self._log, math.inf, TRY_S)
        while True:
            message = self._next(connection) or {}
            if "code" in message:
                connection.send({"code": fingerprint.of_own(message["code"])})
            if "rejected" in message:
                raise UsageError(str(message["rejected"]))
            if "admitted" in message:
                return int(message["admitted"])
            waiting.still("node 0 is busy with a launch; waiting until it is over")

    def _follow(self, connection: Connection, address: str, number: int) -> int:
        """Run the launches that node 0 sends, and return its exit code."""
        while True:
            message = self._next(connection)
            if message is None:
                continue
            for line in message["lines"]:
                self._log(f"node {number}: {line}")
            if "end" in message:
                self._log(f"node {number}: {message['why']}")
                return int(message["end"])
            spec = LaunchSpec.from_dict(message["spec"], self._traces)
            if number < spec.nodes:
                at = message["launch"]
                result = self._run(
                    spec, at, RendezvousPoint(address, message["port"], spec.nodes, spec.ranks_per_node), connection
                )
                with suppress(PeerLost):  # the message that ends the session may have arrived before
                    connection.send({"launch": at, "result": as_json(result)})

    def _run(self, spec: LaunchSpec, at: int, point: RendezvousPoint, connection: Connection) -> NodeResult:
        """Run this node's part of launch `at`."""
        assert self.number is not None
        route = route_to(point.address, point.port, self.topology.interface, self.topology.local_addr)

        def tell(reason: str) -> None:
            with suppress(PeerLost):
                connection.send({"launch": at, "abort": reason})

        self._launch, self._context = at, point.context(self.number, route.environment(), tell)
        reason = self._aborted.get(at) or (LOST if connection.lost else None)
        if reason is not None:  # the abort came before the context existed
            self._context.abort.set(reason)
        try:
            return self.run(spec, self._context)
        finally:
            self._context = None

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
                        why = f"what listens at {topology.endpoint} ({address}) {lost}"
            waiting.still(f"waiting for node 0 at {topology.endpoint}, {waiting.left_s:.0f} s at most ({why})")
            if not waiting.left_s:
                raise PeerLost(why)
            time.sleep(TRY_EVERY_S)

    def follow(self) -> int:
        """Take part until node 0 ends the session, and return its exit code. If node 0 is lost, wait for it.

        Raises UsageError if node 0 is not reached in time or rejects this node, Interrupted if it is asked to stop.
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
