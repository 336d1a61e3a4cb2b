"""Node 0 of a session: it admits the other nodes, sends them launches, and collects their results.

torch elastic has no way to decide the next launch during a session, or to send results to one node. Its dynamic
rendezvous also compares times of several hosts' clocks: with clocks 20 s apart and a limit of 10 s (tried with torch
2.13), a node drops the other one and continues as "rank 1 of 1". Here a node is lost if its connection ends or is
silent. A node that comes back keeps its number, and one that is refused gets the reason.
"""

from __future__ import annotations

import errno
import math
import signal
import socket
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from queue import Empty, SimpleQueue
from types import TracebackType
from typing import Any

from msgspec import Struct, convert

from parabench.cluster import fingerprint
from parabench.cluster.connection import MOST_BYTES, Connection, Message, PeerLost, accept_peer
from parabench.cluster.network import LOOPBACK, Route, is_ours, listen_route
from parabench.cluster.participants import Participants
from parabench.cluster.secret import Secret
from parabench.cluster.topology import Topology
from parabench.cluster.waiting import Waiting, numbered
from parabench.errors import NodeGone, UsageError
from parabench.launch.launcher import launch, run_on_node
from parabench.launch.rendezvous import HUNG, LOST, REASONS, STOP, LaunchContext, RendezvousPoint, open_store
from parabench.launch.results import NodeResult
from parabench.launch.spec import LaunchSpec
from parabench.launch.workload import Workload
from parabench.signals import STOPPED, Interrupted, stop_signals
from parabench.store.record import AnyCase, Launch

# The exit code of the other nodes if node 0 finds a usage error.
WRONG = 2
# The time between two looks for results and requests.
LOOK_S = 0.005
# The most connections that are being authenticated at the same time.
MOST_PENDING = 100
# A node with a sign of life within this time surely lives.
ALIVE_S = 2.0
# The time in which a node fingerprints its own files.
ANSWER_S = 30.0

WARNING = (
    "warning: c10d has no authentication: anyone who reaches these ports can read and change what the ranks compute; "
    "keep them within a network that you trust"
)


def listen(topology: Topology, log: Callable[[str], None]) -> tuple[socket.socket, Route] | None:
    """Return the listening socket of node 0 and its route, and log what listens where; None on other nodes.

    Raises UsageError if the port is not available.
    """
    if topology.node or (topology.node is None and not is_ours(topology.host)):
        return None
    route = listen_route(topology.host, topology.interface, topology.local_addr)
    listening = socket.socket(socket.AF_INET6 if ":" in route.address else socket.AF_INET, socket.SOCK_STREAM)
    try:
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listening.bind((route.address, topology.port))
        listening.listen()
    except OSError as error:
        listening.close()
        if topology.node is None and error.errno == errno.EADDRINUSE:
            return None  # another process of this host was first: that is node 0
        raise UsageError(
            f"node 0 cannot listen on {route.address} port {topology.port}: {error.strerror}; give another port in "
            "--rdzv-endpoint, on every node"
        ) from error
    if route.interface != LOOPBACK:
        where = f"interface {route.interface}" if route.interface else "every interface"
        log(f"node 0 listens on {route.address} port {topology.port}, and each launch on further ports of {where}")
        log(WARNING)
    return listening, route


class Join(Struct, kw_only=True, forbid_unknown_fields=True):
    """The request of a node to join as `number`, or as any. `facts` must equal node 0's, `about` is its environment."""

    number: int | None
    host: str
    address: str
    facts: dict[str, Any]
    about: dict[str, Any]

    def __post_init__(self) -> None:
        if not (self.host.isprintable() and self.address.isprintable()):  # a terminal shows both
            raise ValueError("the name of a host is not text")


class Member:
    """A node that asks to join, or has joined."""

    def __init__(self, connection: Connection, join: Join) -> None:
        self.connection, self.join = connection, join
        # The fingerprints of its own code, when it has answered.
        self.code: SimpleQueue[dict[str, str]] = SimpleQueue()

    @property
    def lives(self) -> bool:
        return self.connection.lost is None

    def send(self, message: Message) -> None:
        """Send a message, unless the node is lost."""
        with suppress(PeerLost):
            self.connection.send(message)


class Coordinator(Participants):
    """Lead the other nodes of a session, which must have the same `facts` and `secret`."""

    # The time that nodes have to hand over results after an abort, and to close their connections at the end.
    hand_over_s, goodbye_s = 60.0, 5.0

    def __init__(
        self,
        listening: socket.socket,
        route: Route,
        topology: Topology,
        secret: Secret | None,
        facts: Mapping[str, Any],
        log: Callable[[str], None],
    ) -> None:
        self.topology, self.options = topology, topology.words
        self._listening, self._route, self._secret, self._facts, self._log = listening, route, secret, facts, log
        self._refused, self._pending = Waiting(log, math.inf), threading.BoundedSemaphore(MOST_PENDING)
        self._wait_list: list[Member] = []
        self._members: dict[int, Member] = {}
        # The user code that must be equal on all nodes, and whether all nodes have joined once.
        self._code: Sequence[str] = ()
        self._begun = False
        self._lines: list[str] = []
        self._stopped: tuple[int, str] | None = None
        # The launch that runs: its number, its context here, the number of its nodes, why it was aborted, its results.
        self._number = -1
        self._context: LaunchContext | None = None
        self._size = 0
        self._told: str | None = None
        self._results: dict[int, NodeResult] = {}
        threading.Thread(target=self._accept, name="parabench node 0", daemon=True).start()

    # -- connections, in other threads -----------------------------------------------------------------------------

    def _accept(self) -> None:
        while self._listening.fileno() >= 0:  # it is closed at the end
            try:
                connection, (host, *_) = self._listening.accept()
            except OSError:  # such as too many open files, for now
                time.sleep(LOOK_S)
                continue
            if self._pending.acquire(blocking=False):
                threading.Thread(target=self._meet, args=(connection, host), daemon=True).start()
            else:
                connection.close()

    def _meet(self, connection: socket.socket, host: str) -> None:
        """Put a node that proves the secret and asks to join on the wait list. A silent stranger blocks only this."""
        try:
            other = accept_peer(connection, self._secret, self.topology.run_id)
            member = Member(other, convert((other.receive() or {})["join"], Join))
        except Exception as why:  # whatever a stranger sends
            self._refused.still(f"refused: {host}: {str(why) or type(why).__name__}")
            connection.close()
            return
        finally:
            self._pending.release()
        other.most_bytes = MOST_BYTES
        other.start(partial(self._heard, member), partial(self._when_lost, member))
        self._wait_list.append(member)

    def _heard(self, member: Member, message: Message) -> None:
        """Take a message of a node. Raises LookupError, TypeError or ValueError if no node sends it."""
        number = self._number_of(member)
        if "code" in message:
            member.code.put(dict(message["code"]))
        elif number is None:
            raise ValueError("a message of a node that was not admitted")
        elif "stop" in message:
            self._stopped = signal.Signals(message["stop"]), f"node {number} ({member.join.host})"
            if context := self._context:
                context.abort.set(STOP)
        elif message["launch"] == self._number:
            if "abort" in message:
                self._abort(REASONS[message["abort"]])
            else:
                self._results[number] = NodeResult.from_json(message["result"])

    def _when_lost(self, member: Member) -> None:
        number = self._number_of(member)
        if number is not None and number < self._size and number not in self._results:
            self._abort(LOST)

    def _number_of(self, member: Member) -> int | None:
        return next((number for number, each in [*self._members.items()] if each is member), None)

    def _abort(self, reason: str) -> None:
        """End the launch that runs on all nodes. Only the first reason counts."""
        if (context := self._context) is not None and context.abort.reason is None:
            context.abort.set(reason)
            self._tell(reason)

    def _tell(self, reason: str) -> None:
        """Let the other nodes end the launch that runs."""
        if self._told is None:
            self._told = reason
            for number, member in sorted(self._members.items()):
                if number < self._size:
                    member.send({"abort": reason, "launch": self._number})

    # -- members ---------------------------------------------------------------------------------------------------

    def assemble(self, cases: Sequence[AnyCase]) -> None:
        self._code = fingerprint.user_code(cases)
        try:
            with stop_signals():
                self.wait_for(self.topology.nodes)
        except NodeGone as why:
            raise UsageError(str(why)) from why
        self._begun = True
        # The rest of node 0's environment is the session's.
        members = sorted(self._members.items())
        self.environments = [{"node": 0}] + [{"node": number, **each.join.about} for number, each in members]

    def wait_for(self, nodes: int) -> None:
        """Wait for the first `nodes` nodes.

        Raises NodeGone if one does not come in time, UsageError if one differs before the first launch, Interrupted if
        any is asked to stop.
        """
        seconds = self.topology.timeout_s
        waiting = Waiting(self._log, seconds)
        while True:
            self.check_stop()
            self._answer()
            missing = [node for node in range(1, nodes) if not self._is_here(node)]
            if not missing:
                return
            who = numbered("node", missing)
            waiting.still(f"waiting for {who}, {waiting.left_s:.0f} s at most")
            if not waiting.left_s:
                raise NodeGone(
                    f"{who} did not come within {seconds:g} s; start it with the same "
                    f"--rdzv-endpoint {self.topology.endpoint} and --rdzv-id {self.topology.run_id}, see that it "
                    f"reaches {self._route.address} port {self.topology.port}, or give a longer --rdzv-timeout"
                )
            time.sleep(LOOK_S)

    def _is_here(self, number: int) -> bool:
        return number in self._members and self._members[number].lives

    def _answer(self) -> None:
        """Admit or reject the nodes that wait. A node that may be a lost member waits until the loss is certain.

        Raises UsageError if one differs from node 0 before anything was launched.
        """
        size = self.topology.nodes
        for member in [each for each in self._wait_list if each.lives]:
            asked = member.join.number
            free = (number for number in range(1, size) if not self._is_here(number))
            number = next(free, None) if asked is None else asked
            if asked is not None and not 0 <= asked < size:
                if self._is_alike(asked, member):  # its --nnodes differs, unless it is a stranger
                    why = f"--node-rank is {asked}; with --nnodes {size} it is from 0 to {size - 1}"
                    member.send({"rejected": why})
                self._wait_list.remove(member)
                continue
            if number is not None and 0 < number < size and not self._is_here(number):
                if self._is_alike(number, member):
                    self._members[number] = member
                    member.send({"admitted": number})
                    self._log(f"node {number} is here: {member.join.host}, {member.join.address}")
                self._wait_list.remove(member)
                continue
            holders = [*self._members.values()] if asked is None else [self._members[asked]] if asked else []
            if all(each.connection.silent_s < ALIVE_S for each in holders):
                there = f"all {size} nodes are" if asked is None else f"node {asked} is"
                why = f"{member.join.host} came too, and {there} there already; give each node its own --node-rank"
                self._wait_list.remove(member)
                member.send({"rejected": why})
                self._log(why)
        # One by one: other threads append to the list.
        for member in [each for each in self._wait_list if not each.lives]:
            self._wait_list.remove(member)

    def _is_alike(self, number: int, member: Member) -> bool:
        """Return whether a node has the same facts and code as node 0; reject it if not. Raises UsageError likewise."""
        found = self._differences(member)
        if not found:
            return True
        why = f"node {number} ({member.join.host}) has {'; '.join(found)}: give all nodes the same"
        member.send({"rejected": why})
        if not self._begun:
            raise UsageError(why)
        self._log(why)
        return False

    def _differences(self, member: Member) -> list[str]:
        found = fingerprint.differences(self._facts, member.join.facts)
        if found or not self._code:
            return found
        member.send({"code": list(self._code)})
        try:
            theirs = member.code.get(timeout=ANSWER_S)
        except Empty:
            return [f"no fingerprint of {', '.join(self._code)}"]
        return fingerprint.differences(fingerprint.of_own(self._code), theirs)

    # -- launches --------------------------------------------------------------------------------------------------

    def executor(self) -> Callable[[LaunchSpec], Launch]:
        return partial(launch, run=self.run)

    def run(self, spec: LaunchSpec, workload: Workload) -> list[NodeResult]:
        """Run a launch and return the result of each of its nodes, in their order.

        Raises NodeGone if a node does not come (back), Interrupted if any is asked to stop.
        """
        with self._launching(spec, workload) as context:
            deadline = time.monotonic() + spec.deadline_s
            self._results[0] = run_on_node(spec, workload, context)
            if self._told is not None:
                context.abort.set(self._told)
            self._collect(spec.nodes, deadline)
            return [self._results.get(each) or self._silent(each, spec, workload) for each in range(spec.nodes)]

    def _silent(self, number: int, spec: LaunchSpec, workload: Workload) -> NodeResult:
        """Return the result of a node that handed over nothing."""
        member = self._members[number]
        ranks = range(number * spec.ranks_per_node, (number + 1) * spec.ranks_per_node)
        ran = f"rank {ranks[0]}" if len(ranks) == 1 else f"ranks {ranks[0]} to {ranks[-1]}"
        why = member.connection.lost or f"no result within {self.hand_over_s:g} s"
        lost = f"node {number} ({member.join.host}), which ran {ran}, was lost: {why}"
        return NodeResult.silent(number, member.join.host, ranks, workload.marks(spec), lost=lost)

    @contextmanager
    def _launching(self, spec: LaunchSpec, workload: Workload) -> Iterator[LaunchContext]:
        """Wait for the nodes of a launch and send it to them. Yield this node's context."""
        self.wait_for(spec.nodes)
        context, store = LaunchContext(local_world_size=workload.ranks(spec)), None
        if spec.nodes > 1:
            store = open_store(self._route.address)
            point = RendezvousPoint(self._route.address, store.port, spec.nodes, spec.ranks_per_node)
            context = point.context(0, self._route.environment(), self._tell)
        # Set before the launch is sent: a node may be lost as soon as it has it.
        self._number, self._results, self._told = self._number + 1, {}, None
        self._size, self._context = spec.nodes, context
        try:
            if store is not None:
                self._publish({"launch": self._number, "spec": spec.to_dict(), "port": store.port})
            if not all(self._is_here(number) for number in range(1, spec.nodes)):  # lost since the wait
                self._abort(LOST)
            yield context
            self.check_stop()
        except BaseException:
            context.abort.set(STOP)
            self._tell(STOP)
            raise
        finally:
            self._context, self._size = None, 0

    def _collect(self, nodes: int, deadline: float) -> None:
        """Wait for the other nodes' results. Abort at the deadline; `hand_over_s` after an abort, nodes are lost."""
        context, ended = self._context, math.inf
        assert context is not None
        while left := [number for number in range(1, nodes) if number not in self._results]:
            self.check_stop()
            now = time.monotonic()
            if now > deadline:
                self._abort(HUNG)
            if context.abort.reason is not None:
                ended = min(ended, now)
            if now > ended + self.hand_over_s or not any(self._is_here(number) for number in left):
                return
            time.sleep(LOOK_S)

    def keeping(self, keep: Callable[[Launch], None], outcome: Callable[[Launch], str]) -> Callable[[Launch], None]:
        def keep_and_tell(launch: Launch) -> None:
            keep(launch)
            self._lines.append(f"{launch.case.label}: {outcome(launch)}")

        return keep_and_tell

    def _publish(self, message: Message) -> None:
        lines, self._lines = self._lines, []
        for each in [*self._members.values()]:
            each.send({**message, "lines": lines})

    def check_stop(self) -> None:
        """Raise Interrupted if another node was asked to stop."""
        if self._stopped is not None:
            raise Interrupted(*self._stopped)

    # -- the end ---------------------------------------------------------------------------------------------------

    def end(self, code: int) -> None:
        host = f"node 0 ({socket.gethostname()})"
        over = f"the session was stopped; what is done is on {host}, where it can be resumed"
        self.close(code, over if code == STOPPED else f"the session is over; store and report are on {host}")

    def close(self, code: int, why: str) -> None:
        """Let every node end with this exit code, and wait a moment for them."""
        with suppress(OSError):
            self._listening.shutdown(socket.SHUT_RDWR)  # ends the `accept` of the other thread
        self._listening.close()
        for each in [*self._wait_list]:
            each.send({"rejected": why})
        self._publish({"end": code, "why": why})
        until = time.monotonic() + self.goodbye_s
        while any(each.lives for each in self._members.values()) and time.monotonic() < until:
            time.sleep(LOOK_S)
        for each in [*self._wait_list, *self._members.values()]:
            each.connection.close()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if isinstance(error, Interrupted):
            self.close(STOPPED, f"the session was stopped by {error}")
        elif isinstance(error, UsageError):
            self.close(WRONG, f"node 0 ends the session: {error}")
        elif kind is not None:
            self.close(1, f"node 0 ends the session: {kind.__name__}")
