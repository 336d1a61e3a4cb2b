"""A node that follows node 0: it asks to be let in, runs its part of every launch, and hands over what it saw."""

from __future__ import annotations

import json
import socket
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from parabench.cluster import fingerprint
from parabench.cluster.heartbeat import Heartbeat
from parabench.cluster.hosting import ID_KEY
from parabench.cluster.launch_team import team_of
from parabench.cluster.network import Route, addresses_of, route_to
from parabench.cluster.topology import Topology
from parabench.errors import UsageError
from parabench.launch import blobs
from parabench.launch.context import LOST, Abort
from parabench.launch.node import run_on_node
from parabench.launch.spec import LaunchSpec
from parabench.launch.store_client import StoreClient, StoreLost
from parabench.launch.workload import workload_of
from parabench.signals import Interrupted

# How often a node that has not reached node 0 tries again, and how often it says so.
TRY_EVERY_S = 0.25
SAY_EVERY_S = 15.0
TRY_S = 2.0

# Node 0's deadline comes first: it says more.
LATER_S = 15.0

# What an interrupted node gets to tell the others.
LAST_WORD_S = 3.0


@dataclass(slots=True, kw_only=True)
class NodeAgent:
    """One node that is not node 0. `facts` and `environment` are what it says of itself; its
    ranks leave traces in the folder `traces`; `say` tells the user a line."""

    site: Topology
    facts: Mapping[str, Any]
    environment: Mapping[str, Any]
    traces: Path
    say: Callable[[str], None]
    # Since when node 0 has been waited for, unless it has let this node in.
    _since: float = field(default_factory=time.monotonic)
    _let_in: bool = False
    _node: int | None = None
    _word: Abort | None = None
    _number: int | None = None
    _ticket: int = 0
    _line: StoreClient = field(init=False)
    _pulse: Heartbeat | None = None

    def follow(self) -> int:
        """Take part until node 0 ends the session; the exit code that it gives. Raises UsageError when node 0 cannot be
        reached or refuses this node, Interrupted when this node is asked to stop."""
        why = "nothing was tried"
        while True:
            address = self._reach(why)
            try:
                return self._session(address)
            except StoreLost as lost:
                if why != str(lost) and not self._let_in:
                    self.say(f"waiting for node 0: {lost}")
                why = str(lost)
                if self._let_in:
                    self.say(f"node 0 is lost: {why}; waiting for it, {self.site.timeout_s:.0f} s at most")
                    self._let_in, self._since = False, time.monotonic()
                time.sleep(TRY_EVERY_S)
            except Interrupted as stop:
                self._tell_stop(stop)
                raise
            finally:
                if self._pulse:
                    self._pulse.end()

    def _reach(self, why: str) -> str:
        """Node 0's address, as soon as something listens there; `why` tells of the try before. Raises UsageError when
        node 0 has been waited for long enough."""
        say_at, until = time.monotonic() + TRY_S, self._since + self.site.timeout_s
        while True:
            if time.monotonic() > until:
                where, for_s = f"node 0 at {self.site.endpoint}", f"{self.site.timeout_s:g} s"
                if self._node is not None:
                    raise UsageError(
                        f"{where} was lost and did not come back within {for_s} ({why}); its own output says whether "
                        "the session has ended meanwhile"
                    )
                raise UsageError(
                    f"{where} was not reached within {for_s} ({why}); start it there, open the port in its firewall, "
                    "or give a longer --rdzv-timeout"
                )
            why = f"{self.site.host} resolves to no address"
            for address in addresses_of(self.site.host):
                try:
                    socket.create_connection((address, self.site.port), timeout=TRY_S).close()
                    return address
                except OSError as error:
                    why = f"{address} port {self.site.port}: {error.strerror or error}"
            now = time.monotonic()
            if now > say_at:
                self.say(f"waiting for node 0 at {self.site.endpoint}, {max(0.0, until - now):.0f} s at most")
                say_at = now + SAY_EVERY_S
            time.sleep(TRY_EVERY_S)

    def _session(self, address: str) -> int:
        prefix = self.site.prefix
        self._line = StoreClient(address, self.site.port, prefix)
        self._check_id(address)
        self._ticket = ticket = self._line.ask(lambda store: store.add("guests", 1), timeout_s=LAST_WORD_S)
        self._pulse = pulse = Heartbeat(StoreClient(address, self.site.port, prefix), self._beat, self._when_lost)
        way = route_to(self.site, address)
        about = {
            "host": socket.gethostname(),
            "address": way.address,
            "node": self.site.node if self._node is None else self._node,
            "facts": self.facts,
            "environment": self.environment,
        }
        self._line.ask(lambda store: blobs.send(store, f"guest/{ticket}", about), watch=pulse.check)
        self._node, number = self._welcome()
        self._let_in, node = True, self._node
        self.say(f"node {node} of {self.site.nodes}, led by node 0 at {self.site.endpoint}")
        while True:
            key = f"order/{number}"
            said = json.loads(self._line.ask(lambda store, key=key: store.get(key), watch=pulse.check))  # type: ignore[misc]
            for line in said["lines"]:
                self.say(f"node {node}: {line}")
            if "end" in said:
                self._line.ask(lambda store: store.set(f"bye/{ticket}", ""), timeout_s=LAST_WORD_S)
                self.say(f"node {node}: {said['end']['why']}")
                return int(said["end"]["code"])
            order = LaunchSpec.from_dict(said["order"], self.traces)
            if node < order.nodes:
                self._launch(order, node, number, address, way)
            number += 1

    def _check_id(self, address: str) -> None:
        """Raise UsageError when the store is another session's, Lost when it does not answer as one."""
        where = f"what listens at {self.site.endpoint} ({address})"
        try:
            there = self._line.ask(lambda store: store.underlying_store.get(ID_KEY).decode(), timeout_s=LAST_WORD_S)
        except StoreLost as why:
            # It may be stopped, or be about to begin: whoever knows better ends this wait.
            raise StoreLost(f"{where} does not answer as a session of parabench does: {why}") from why
        if there != self.site.run_id:
            raise UsageError(
                f"{where} has --rdzv-id {there}, and this node {self.site.run_id}; give all nodes the same"
            )

    def _welcome(self) -> tuple[int, int]:
        """This node's number and that of its first order, once node 0 has let it in. Raises UsageError."""
        pulse, ticket = self._pulse, self._ticket
        assert pulse is not None
        own, begin, said = f"own/{ticket}/asked", time.monotonic(), False
        while not self._line.ask(lambda store: store.check([f"welcome/{ticket}"]), watch=pulse.check):
            if self._line.ask(lambda store: store.check([own]), watch=pulse.check):
                names = json.loads(self._line.ask(lambda store: store.get(own), watch=pulse.check))
                self._tell(f"own/{ticket}/told", fingerprint.of_own(names))
            if not said and time.monotonic() - begin > TRY_S:
                self.say("node 0 is busy with a launch; waiting until it is over")
                said = True
            time.sleep(TRY_EVERY_S / 10)
        answer = json.loads(self._line.ask(lambda store: store.get(f"welcome/{ticket}"), watch=pulse.check))
        if "refused" in answer:
            raise UsageError(answer["refused"])
        return answer["node"], answer["next"]

    def _tell(self, key: str, what: Any) -> None:
        text = json.dumps(what)
        self._line.ask(lambda store: store.set(key, text), timeout_s=LAST_WORD_S)

    def _launch(self, order: LaunchSpec, node: int, number: int, address: str, way: Route) -> None:
        pulse, line = self._pulse, self._line
        assert pulse is not None
        team = team_of(
            order,
            number,
            node=node,
            site=self.site,
            address=address,
            way=way,
            word=Abort(),
            tell=lambda why: pulse.line.ask(lambda store: store.set(f"word/{number}", why), watch=pulse.check),
        )
        self._word, self._number = team.word, number
        try:
            later = replace(order, deadline_s=order.deadline_s + LATER_S)
            part = run_on_node(later, workload_of(order.kind), team)
        finally:
            self._word, self._number = None, None
            if team.line:
                team.line.end()
        line.ask(lambda store: blobs.send(store, f"{team.prefix}part/{node}", part.to_dict()), watch=pulse.check)

    def _beat(self, store: Any) -> None:
        """Show that this node lives, and hear what ends its launch. In the pulse's thread."""
        store.add(f"beat/{self._ticket}", 1)
        word, number = self._word, self._number
        if word is not None and store.check([f"word/{number}"]):
            word.say(store.get(f"word/{number}").decode())

    def _when_lost(self) -> None:
        if self._word is not None:
            self._word.say(LOST)

    def _tell_stop(self, stop: Interrupted) -> None:
        """Let node 0 know, which ends the session for all."""
        said = json.dumps({"ticket": self._ticket, "host": socket.gethostname(), "signal": stop.signal})
        if self._pulse and self._pulse.lost is None:
            with suppress(StoreLost):
                line = self._pulse.line
                line.ask(
                    lambda store: store.multi_set(["stop", f"bye/{self._ticket}"], [said, ""]), timeout_s=LAST_WORD_S
                )
