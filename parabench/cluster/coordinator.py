"""Lead a session on several nodes: node 0 admits the others, sends them launches, and collects their results."""

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
from pathlib import Path
from typing import Any

from msgspec import Struct, convert

from parabench.cluster import agreement, network
from parabench.cluster.agent import Agent
from parabench.cluster.connection import Abort, Connection, Message, Reply, Stop, Waiting, accept_peer, numbered
from parabench.cluster.network import LOOPBACK, Route, is_ours, listen_route
from parabench.cluster.topology import Participants, Topology
from parabench.errors import NodeGone, UsageError
from parabench.launch.launcher import launch, run_on_node
from parabench.launch.processes import start_launching
from parabench.launch.rendezvous import HUNG, LOST, REASONS, STOP, LaunchContext, RendezvousPoint, open_store
from parabench.launch.results import NodeResult
from parabench.launch.spec import LaunchSpec, Workload
from parabench.machine.machine import Machine, environment
from parabench.signals import STOPPED, Interrupted, stop_signals
from parabench.store.record import TRACES, AnyCase, Launch

# The exit code of the other nodes if node 0 finds a usage error.
WRONG = 2
# The time between two checks for results and nodes, in seconds.
LOOK_S = 0.005
# The most connections that are being authenticated at the same time.
MOST_PENDING = 100
# A node that has sent anything within this time is certainly not lost.
ALIVE_S = 2.0

WARNING = (
    "warning: c10d has no authentication: anyone who reaches these ports can read and change what the ranks compute; "
    "keep them within a network that you trust"
)


def lead_or_follow(
    topology: Topology,
    options: Sequence[str],
    suite: Path | None,
    machine: Machine,
    out: Path,
    log: Callable[[str], None],
) -> Coordinator | int:
    """Return the coordinator on node 0. On another node, take part until the end, and return the exit code."""
    network.check(topology.interface, topology.local_addr)
    secret = agreement.read_secret(topology.secret_file)
    ranks = {"--nnodes": topology.nodes, "--nproc-per-node": topology.ranks_per_node}
    ranks["CUDA devices for its ranks"] = min(len(machine.gpus), topology.ranks_per_node)
    facts = agreement.facts_of(options, suite, **{name: str(count) for name, count in ranks.items()})
    about = environment(machine)
    start_launching()
    listening = listen(topology, log)
    if listening is not None:
        if secret is not None:
            log("node 0 accepts only messages that are signed with the secret")
        return Coordinator(*listening, topology, secret, facts, log)
    try:
        with stop_signals():
            return Agent(topology, secret, facts, about, out / TRACES, log).follow()
    except Interrupted as stop:
        log(f"stopped by {stop}")
        return STOPPED


def listen(topology: Topology, log: Callable[[str], None]) -> tuple[socket.socket, Route] | None:
    """Open the listening socket of node 0, log its address, and return it with its route; `None` on other nodes.

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
            return None  # another process of this host already listens: it is node 0
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
    """The answer of a node to `identify`. `number` is its --node-rank; `None` means any free number."""

    number: int | None
    host: str
    facts: dict[str, Any]
    about: dict[str, Any]

    def __post_init__(self) -> None:
        if not self.host.isprintable():  # a terminal shows it
            raise ValueError("the name of a host is not text")


class Member:
    """A connected node. `identity` is `None` until it has answered `identify`."""

    def __init__(self, connection: Connection, address: str) -> None:
        self.connection, self.address = connection, address
        self.asked = False  # whether `identify` was sent
        self.identity: Identity | None = None

    @property
    def connected(self) -> bool:
        return self.connection.lost is None

    @property
    def host(self) -> str:
        return self.identity.host if self.identity else self.address


@dataclass(slots=True)
class Running:
    """The launch that runs: its number, its nodes except node 0, its context on node 0, and its results by node."""

    number: int
    nodes: range
    context: LaunchContext
    results: dict[int, NodeResult] = field(default_factory=dict)
    # The reason of the abort that was sent to the other nodes.
    reason: str | None = None


class Coordinator(Participants):
    """Lead the other nodes of a session, which must have the same `facts` and `secret`."""

    # The seconds that nodes have to send results after an abort, and to close their connections at the end.
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
        # The nodes that wait for admission, and the admitted nodes by number.
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
                threading.Thread(target=self._authenticate, args=(connection, host), daemon=True).start()
            else:
                connection.close()

    def _authenticate(self, connection: socket.socket, host: str) -> None:
        """Add the other end of a new connection to the arrived nodes, if it has the secret."""
        try:
            member = Member(accept_peer(connection, self._secret, self.topology.run_id), host)
        except Exception as why:  # a stranger may send anything
            self._refuse(host, why)
            connection.close()
            return
        finally:
            self._pending.release()
        member.connection.start(partial(self._handle, member), partial(self._when_lost, member))
        self._arrived.append(member)

    def _refuse(self, host: str, why: Exception) -> None:
        self._refused.still(f"refused: {host}: {str(why) or type(why).__name__}")

    def _handle(self, member: Member, message: Message) -> None:
        """Handle a message of a node. An error, such as for an unexpected message, ends the connection."""
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
        """End the launch that runs, on all nodes. Only the first reason counts."""
        if (running := self._running) is not None and running.context.aborted_by is None:
            running.context.abort(reason)
            self._send_abort(reason)

    def _send_abort(self, reason: str) -> None:
        """Send the other nodes, once, the order to end the launch that runs."""
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
        """Wait until nodes 0 to `nodes` - 1 have joined. Admit or reject all nodes that arrive meanwhile.

        Raises NodeGone at the timeout, UsageError if a node differs before the first launch, Interrupted.
        """
        seconds = self.topology.timeout_s
        waiting = Waiting(self._log, seconds)
        while True:
            self.check_stop()
            for member in [*self._arrived]:  # other threads append to the list
                if not member.asked:
                    member.asked = True
                    member.connection.send_request(Agent.identify, code=self._code)
                if member.connected and (member.identity is None or not self._admit_or_reject(member, member.identity)):
                    continue
                self._arrived.remove(member)
            missing = [node for node in range(1, nodes) if not self._is_connected(node)]
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

    def _is_connected(self, number: int) -> bool:
        return number in self._members and self._members[number].connected

    def _admit_or_reject(self, member: Member, identity: Identity) -> bool:
        """Admit or reject a node. Return False if it must wait, because the node with its number may be lost.

        Raises UsageError if it differs from node 0 before the first launch.
        """
        size, asked = self.topology.nodes, identity.number
        free = [number for number in range(1, size) if not self._is_connected(number)]
        number = next(iter(free), None) if asked is None else asked
        differences = agreement.differences(self._facts, identity.facts)
        if differences:
            who = "a node" if number is None else f"node {number}"
            why = f"{who} ({identity.host}) has {'; '.join(differences)}: give all nodes the same"
        elif number in free:
            self._members[number] = member
            member.connection.send_request(Agent.admit, number=number)
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
        member.connection.send_request(Agent.reject, why=why)
        if differences and not self._begun:
            raise UsageError(why)
        self._log(why)
        return True

    # -- launches ------------------------------------------------------------------------------------------------------

    def executor(self) -> Callable[[LaunchSpec], Launch]:
        return partial(launch, run=self.run)

    def run(self, spec: LaunchSpec, workload: Workload) -> list[NodeResult]:
        """Run a launch, and return the result of each of its nodes, in order of their numbers.

        Raises NodeGone if a node does not join or return, Interrupted if one receives a stop signal.
        """
        self.wait_for(spec.nodes)
        context, store = LaunchContext(local_world_size=workload.ranks(spec)), None
        if spec.nodes > 1:
            store = open_store(self._route.address)
            point = RendezvousPoint(self._route.address, store.port, spec.nodes, spec.ranks_per_node)
            context = point.context(0, self._route.environment(), self._send_abort)
        # Set before the request is sent, because a node may be lost immediately afterwards.
        self._running = running = Running(next(self._launches), range(1, spec.nodes), context)
        deadline = time.monotonic() + spec.deadline_s
        try:
            for number in running.nodes:
                connection, port = self._members[number].connection, store.port if store else 0
                connection.send_request(Agent.run, launch=running.number, spec=spec.to_dict(), port=port)
            if not all(self._is_connected(number) for number in running.nodes):  # lost since the wait
                self._abort(LOST)
            running.results[0] = run_on_node(spec, workload, context)
            if running.reason is not None:
                context.abort(running.reason)
            self._collect(running, deadline)
            self.check_stop()
        except BaseException:
            context.abort(STOP)
            self._send_abort(STOP)
            raise
        finally:
            self._running = None
        return [running.results.get(each) or self._lost_result(each, spec, workload) for each in range(spec.nodes)]

    def _lost_result(self, number: int, spec: LaunchSpec, workload: Workload) -> NodeResult:
        """Return the result of a node that has sent none, with the reason."""
        member = self._members[number]
        ranks = range(number * spec.ranks_per_node, (number + 1) * spec.ranks_per_node)
        ran = f"rank {ranks[0]}" if len(ranks) == 1 else f"ranks {ranks[0]} to {ranks[-1]}"
        why = member.connection.lost or f"no result within {self.hand_over_s:g} s"
        lost = f"node {number} ({member.host}), which ran {ran}, was lost: {why}"
        return NodeResult.silent(number, member.host, ranks, workload.marks(spec), lost=lost)

    def _collect(self, running: Running, deadline: float) -> None:
        """Wait for the results of the other nodes. Abort the launch at `deadline` (of `time.monotonic`).

        After an abort, nodes without a result are lost after `hand_over_s`.
        """
        ended = math.inf
        while left := [number for number in running.nodes if number not in running.results]:
            self.check_stop()
            now = time.monotonic()
            if now > deadline:
                self._abort(HUNG)
            if running.context.aborted_by is not None:
                ended = min(ended, now)
            if now > ended + self.hand_over_s or not any(self._is_connected(number) for number in left):
                return
            time.sleep(LOOK_S)

    def show(self, line: str) -> None:
        for each in self._members.values():
            each.connection.send_request(Agent.show, line=line)

    def check_stop(self) -> None:
        """Raise Interrupted if another node has received a stop signal."""
        if self._stopped is not None:
            raise Interrupted(*self._stopped)

    # -- the end -------------------------------------------------------------------------------------------------------

    def end(self, code: int) -> None:
        host = f"node 0 ({socket.gethostname()})"
        over = f"the session was stopped; resume it on {host}, which has the results"
        self.close(code, over if code == STOPPED else f"the session is over; results and report are on {host}")

    def close(self, code: int, why: str) -> None:
        """End all nodes with an exit code, and wait up to `goodbye_s` until they have closed their connections."""
        with suppress(OSError):
            self._listening.shutdown(socket.SHUT_RDWR)  # ends the `accept` of the other thread
        self._listening.close()
        for each in self._arrived:
            each.connection.send_request(Agent.reject, why=why)
        for each in self._members.values():
            each.connection.send_request(Agent.end, code=code, why=why)
        until = time.monotonic() + self.goodbye_s
        while any(each.connected for each in self._members.values()) and time.monotonic() < until:
            time.sleep(LOOK_S)
        for each in [*self._arrived, *self._members.values()]:
            each.connection.close()

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: object) -> None:
        if isinstance(error, Interrupted):
            self.close(STOPPED, f"the session was stopped by {error}")
        elif isinstance(error, UsageError):
            self.close(WRONG, f"node 0 ends the session: {error}")
        elif kind is not None:
            self.close(1, f"node 0 ends the session: {kind.__name__}")
