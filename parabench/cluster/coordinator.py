"""Node 0 of a session: it admits the other nodes, sends them launches, and collects their results."""

# torch elastic cannot decide the next launch during a session, or send results to one node. Its dynamic rendezvous
# compares clocks of hosts: if they differ by more than its limit (tried with torch 2.13), a node drops the other one
# and continues as "rank 1 of 1". Here a node is lost if its connection ends or is silent.

from __future__ import annotations

import errno
import itertools
import math
import signal
import socket
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from types import TracebackType
from typing import Any

from msgspec import Struct, convert

from parabench.cluster import agreement
from parabench.cluster.agent import Agent
from parabench.cluster.connection import Abort, Connection, Message, Reply, Stop, Waiting, accept_peer, numbered
from parabench.cluster.network import LOOPBACK, Route, is_ours, listen_route
from parabench.cluster.participants import Participants
from parabench.cluster.topology import Topology
from parabench.errors import NodeGone, UsageError
from parabench.launch.launcher import launch, run_on_node
from parabench.launch.rendezvous import HUNG, LOST, REASONS, STOP, LaunchContext, RendezvousPoint, open_store
from parabench.launch.results import NodeResult
from parabench.launch.spec import LaunchSpec, Workload
from parabench.signals import STOPPED, Interrupted, stop_signals
from parabench.store.record import AnyCase, Launch

# The exit code of the other nodes if node 0 finds a usage error.
WRONG = 2
# The time between two looks for results and nodes, in seconds.
LOOK_S = 0.005
# The most connections that are being authenticated at the same time.
MOST_PENDING = 100
# A node with a sign of life within this time surely lives.
ALIVE_S = 2.0

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


class Identity(Struct, kw_only=True, forbid_unknown_fields=True):
    """The answer of a node to `identify`. It wants to be this `number`, or any."""

    number: int | None
    host: str
    facts: dict[str, Any]
    about: dict[str, Any]

    def __post_init__(self) -> None:
        if not self.host.isprintable():  # a terminal shows it
            raise ValueError("the name of a host is not text")


class Member:
    """A node that is connected from `address`. `identity` is `None` until it has identified itself."""

    def __init__(self, connection: Connection, address: str) -> None:
        self.connection, self.address = connection, address
        self.asked = False
        self.identity: Identity | None = None

    @property
    def lives(self) -> bool:
        return self.connection.lost is None

    @property
    def host(self) -> str:
        return self.identity.host if self.identity else self.address


@dataclass(slots=True)
class Running:
    """The launch that runs: its number, its nodes besides node 0, its context on node 0, and its results by node."""

    number: int
    nodes: range
    context: LaunchContext
    results: dict[int, NodeResult] = field(default_factory=dict)
    # The reason that the other nodes got to end it early.
    reason: str | None = None


class Coordinator(Participants):
    """Lead the other nodes of a session, which must have the same `facts` and `secret`."""

    # The time that nodes have to hand over results after an abort, and to close their connections at the end.
    hand_over_s, goodbye_s = 60.0, 5.0

    def __init__(
        self,
        listening: socket.socket,
        route: Route,
        topology: Topology,
        secret: bytes | None,
        facts: Mapping[str, Any],
        log: Callable[[str], None],
    ) -> None:
        self.topology, self.options = topology, topology.words
        self._listening, self._route, self._secret, self._facts, self._log = listening, route, secret, facts, log
        self._refused, self._pending = Waiting(log, math.inf), threading.BoundedSemaphore(MOST_PENDING)
        # The nodes that wait to be admitted, and those that were admitted, by number.
        self._arrived: list[Member] = []
        self._members: dict[int, Member] = {}
        # The user code that must be equal on all nodes, and whether all nodes have joined once.
        self._code: list[str] = []
        self._begun = False
        self._stopped: tuple[int, str] | None = None
        self._launches = itertools.count()
        self._running: Running | None = None
        threading.Thread(target=self._accept, name="parabench node 0", daemon=True).start()

    # -- connections, in other threads ---------------------------------------------------------------------------------

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
        """Let a node wait that proves the secret. A silent stranger blocks only this thread."""
        try:
            member = Member(accept_peer(connection, self._secret, self.topology.run_id), host)
        except Exception as why:  # whatever a stranger sends
            self._refuse(host, why)
            connection.close()
            return
        finally:
            self._pending.release()
        member.connection.start(partial(self._heard, member), partial(self._when_lost, member))
        self._arrived.append(member)

    def _refuse(self, host: str, why: Exception) -> None:
        self._refused.still(f"refused: {host}: {str(why) or type(why).__name__}")

    def _heard(self, member: Member, message: Message) -> None:
        """Take a message of a node. Raises an error, which ends the connection, if no node sends it."""
        number, running = self._number_of(member), self._running
        match message:
            case Reply(values) if member.identity is None:
                try:
                    member.identity = convert(values, Identity)
                except Exception as why:
                    self._refuse(member.address, why)
                    raise
            case Reply({"launch": at, "result": result}) if number is not None:
                if running is not None and at == running.number:
                    running.results[number] = NodeResult.from_json(result)
            case Reply():
                pass
            case Abort(at, reason) if number is not None:
                if running is not None and at == running.number:
                    self._abort(REASONS[reason])
            case Stop(stop) if number is not None:
                self._stopped = signal.Signals(stop), f"node {number} ({member.host})"
                if running is not None:
                    running.context.abort(STOP)
            case _:
                raise ValueError("a message that no node sends")

    def _when_lost(self, member: Member) -> None:
        number, running = self._number_of(member), self._running
        if running is not None and number in running.nodes and number not in running.results:
            self._abort(LOST)

    def _number_of(self, member: Member) -> int | None:
        return next((number for number, each in [*self._members.items()] if each is member), None)

    def _abort(self, reason: str) -> None:
        """End the launch that runs on all nodes. Only the first reason counts."""
        if (running := self._running) is not None and running.context.aborted_by is None:
            running.context.abort(reason)
            self._tell(reason)

    def _tell(self, reason: str) -> None:
        """Let the other nodes end the launch that runs."""
        if (running := self._running) is not None and running.reason is None:
            running.reason = reason
            for number in running.nodes:
                self._members[number].connection.send(Abort(running.number, reason))

    # -- members -------------------------------------------------------------------------------------------------------

    def assemble(self, cases: Sequence[AnyCase]) -> None:
        self._code = agreement.user_code(cases)
        self._facts = {**self._facts, **agreement.code_facts(self._code)}
        try:
            with stop_signals():
                self.wait_for(self.topology.nodes)
        except NodeGone as why:
            raise UsageError(str(why)) from why
        self._begun = True
        # The rest of node 0's environment is the session's.
        members = sorted(self._members.items())
        about = [{"node": number, **each.identity.about} for number, each in members if each.identity]
        self.environments = [{"node": 0}, *about]

    def wait_for(self, nodes: int) -> None:
        """Wait for the first `nodes` nodes, and admit or reject all that have arrived.

        Raises NodeGone if one does not come in time, UsageError if one differs before the first launch, Interrupted if
        any is asked to stop.
        """
        seconds = self.topology.timeout_s
        waiting = Waiting(self._log, seconds)
        while True:
            self.check_stop()
            for member in [*self._arrived]:  # other threads append to the list
                if not member.asked:
                    member.asked = True
                    member.connection.say(Agent.identify, code=self._code)
                if member.lives and (member.identity is None or not self._decide(member, member.identity)):
                    continue
                self._arrived.remove(member)
            missing = [node for node in range(1, nodes) if not self._is_here(node)]
            if not missing:
                return
            who = numbered("node", missing)
            waiting.still(f"waiting for {who}, {waiting.left_s:.0f} s at most")
            if not waiting.left_s:
                raise NodeGone(
                    f"{who} did not join within {seconds:g} s; start it with the same "
                    f"--rdzv-endpoint {self.topology.endpoint} and --rdzv-id {self.topology.run_id}, check that it "
                    f"reaches {self._route.address} port {self.topology.port}, or give a longer --rdzv-timeout"
                )
            time.sleep(LOOK_S)

    def _is_here(self, number: int) -> bool:
        return number in self._members and self._members[number].lives

    def _decide(self, member: Member, identity: Identity) -> bool:
        """Admit or reject a node. Return False if it must wait: a silent node, which may be lost, has its number.

        Raises UsageError if it differs from node 0 before anything was launched.
        """
        size, asked = self.topology.nodes, identity.number
        free = [number for number in range(1, size) if not self._is_here(number)]
        number = next(iter(free), None) if asked is None else asked
        differences = agreement.differences(self._facts, identity.facts)
        if differences:
            who = "a node" if number is None else f"node {number}"
            why = f"{who} ({identity.host}) has {'; '.join(differences)}: give all nodes the same"
        elif number in free:
            self._members[number] = member
            member.connection.say(Agent.admit, number=number)
            self._log(f"node {number} is here: {identity.host}, {member.address}")
            return True
        elif asked is not None and not 0 <= asked < size:
            why = f"--node-rank is {asked}; with --nnodes {size} it is from 0 to {size - 1}"
        else:
            holders = [each for at, each in self._members.items() if asked in (None, at)]
            if any(each.connection.silent_s >= ALIVE_S for each in holders):
                return False
            there = f"all {size} nodes are" if asked is None else f"node {asked} is"
            why = f"{identity.host} came too, and {there} there already; give each node its own --node-rank"
        member.connection.say(Agent.reject, why=why)
        if differences and not self._begun:
            raise UsageError(why)
        self._log(why)
        return True

    # -- launches ------------------------------------------------------------------------------------------------------

    def executor(self) -> Callable[[LaunchSpec], Launch]:
        return partial(launch, run=self.run)

    def run(self, spec: LaunchSpec, workload: Workload) -> list[NodeResult]:
        """Run a launch and return the result of each of its nodes, in their order.

        Raises NodeGone if a node does not come (back), Interrupted if any is asked to stop.
        """
        self.wait_for(spec.nodes)
        context, store = LaunchContext(local_world_size=workload.ranks(spec)), None
        if spec.nodes > 1:
            store = open_store(self._route.address)
            point = RendezvousPoint(self._route.address, store.port, spec.nodes, spec.ranks_per_node)
            context = point.context(0, self._route.environment(), self._tell)
        # Set before the launch is sent: a node may be lost as soon as it has it.
        self._running = running = Running(next(self._launches), range(1, spec.nodes), context)
        deadline = time.monotonic() + spec.deadline_s
        try:
            for number in running.nodes:
                connection, port = self._members[number].connection, store.port if store else 0
                connection.say(Agent.run, launch=running.number, spec=spec.to_dict(), port=port)
            if not all(self._is_here(number) for number in running.nodes):  # lost since the wait
                self._abort(LOST)
            running.results[0] = run_on_node(spec, workload, context)
            if running.reason is not None:
                context.abort(running.reason)
            self._collect(running, deadline)
            self.check_stop()
        except BaseException:
            context.abort(STOP)
            self._tell(STOP)
            raise
        finally:
            self._running = None
        return [running.results.get(each) or self._silent(each, spec, workload) for each in range(spec.nodes)]

    def _silent(self, number: int, spec: LaunchSpec, workload: Workload) -> NodeResult:
        """Return the result of a node that handed over nothing."""
        member = self._members[number]
        ranks = range(number * spec.ranks_per_node, (number + 1) * spec.ranks_per_node)
        ran = f"rank {ranks[0]}" if len(ranks) == 1 else f"ranks {ranks[0]} to {ranks[-1]}"
        why = member.connection.lost or f"no result within {self.hand_over_s:g} s"
        lost = f"node {number} ({member.host}), which ran {ran}, was lost: {why}"
        return NodeResult.silent(number, member.host, ranks, workload.marks(spec), lost=lost)

    def _collect(self, running: Running, deadline: float) -> None:
        """Wait for the other nodes' results. Abort at the deadline; `hand_over_s` after an abort, nodes are lost."""
        ended = math.inf
        while left := [number for number in running.nodes if number not in running.results]:
            self.check_stop()
            now = time.monotonic()
            if now > deadline:
                self._abort(HUNG)
            if running.context.aborted_by is not None:
                ended = min(ended, now)
            if now > ended + self.hand_over_s or not any(self._is_here(number) for number in left):
                return
            time.sleep(LOOK_S)

    def show(self, line: str) -> None:
        for each in self._members.values():
            each.connection.say(Agent.show, line=line)

    def check_stop(self) -> None:
        """Raise Interrupted if another node was asked to stop."""
        if self._stopped is not None:
            raise Interrupted(*self._stopped)

    # -- the end -------------------------------------------------------------------------------------------------------

    def end(self, code: int) -> None:
        host = f"node 0 ({socket.gethostname()})"
        over = f"the session was stopped; resume it on {host}, which has the results"
        self.close(code, over if code == STOPPED else f"the session is over; results and report are on {host}")

    def close(self, code: int, why: str) -> None:
        """Let every node end with this exit code, and wait a moment for them."""
        with suppress(OSError):
            self._listening.shutdown(socket.SHUT_RDWR)  # ends the `accept` of the other thread
        self._listening.close()
        for each in self._arrived:
            each.connection.say(Agent.reject, why=why)
        for each in self._members.values():
            each.connection.say(Agent.end, code=code, why=why)
        until = time.monotonic() + self.goodbye_s
        while any(each.lives for each in self._members.values()) and time.monotonic() < until:
            time.sleep(LOOK_S)
        for each in [*self._arrived, *self._members.values()]:
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
