"""A node other than node 0: it joins the session, runs its part of each launch, and hands over the results."""

from __future__ import annotations

import json
import math
import socket
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from parabench.cluster import fingerprint
from parabench.cluster.membership import Heartbeat, abort, abort_of, beat_once
from parabench.cluster.secret import Secret, meet, new_nonce
from parabench.cluster.shared_store import TRY_EVERY_S, TRY_S, SharedStore, reach_store
from parabench.cluster.topology import Topology
from parabench.cluster.waiting import Waiting
from parabench.errors import UsageError
from parabench.launch.node import run_on_node
from parabench.launch.rendezvous import DEAD_AFTER_S, LOST, LaunchContext
from parabench.launch.results import NodeResult, as_json
from parabench.launch.spec import LaunchSpec
from parabench.launch.store_client import ForeignValue, StoreClient, StoreLost
from parabench.launch.workload import workload_of
from parabench.signals import Interrupted

# The deadline here comes after the coordinator's, whose message says more.
LATER_S = 15.0
# The time that a node has to tell the others that it ends.
LAST_WORD_S = 3.0
# The time between two looks for an answer to the request to join.
LOOK_S = 0.025


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
        self._join_id, self._beats, self._launch = 0, 0, -1
        self._context: LaunchContext | None = None

    def run(self, spec: LaunchSpec, context: LaunchContext) -> NodeResult:
        """Run this node's part of a launch."""
        return run_on_node(spec.replace(deadline_s=spec.deadline_s + LATER_S), workload_of(spec.kind), context)

    def serve(self, store: SharedStore) -> int:
        """Take part until node 0 ends the session, and return its exit code.

        Raises StoreLost if node 0 is lost, UsageError if this node is rejected, Interrupted if it is asked to stop.
        """
        client = store.client()
        try:
            meet(client, store.secret, store.session, DEAD_AFTER_S)
        except BaseException:
            client.end()
            raise
        self._join_id = client.call("add", "joining", 1, timeout_s=LAST_WORD_S)
        self._heart, self._beats = store.client(), 0
        self._heart.seal = client.seal
        heartbeat = Heartbeat(self._heart, self._beat, self._when_lost, DEAD_AFTER_S)
        client.check = heartbeat.check
        self._nonce = new_nonce()
        request = {"number": self.number, "host": socket.gethostname(), "address": store.route.address}
        about = {"nonce": self._nonce, "facts": self._facts, "about": self._about}
        try:
            client.put_blob(f"join/{self._join_id}", request | about)
            answer = self._answer(client)
            if "rejected" in answer:
                raise UsageError(answer["rejected"])
            self.joined, self.number = True, answer["number"]
            self._log(f"node {self.number} of {self.topology.nodes}, led by node 0 at {self.topology.endpoint}")
            return self._follow(store, client, answer["next"])
        except Interrupted as stop:
            message = {"join_id": self._join_id, "host": socket.gethostname(), "signal": stop.signal}
            values = {"stop": message, f"bye/{self._join_id}": ""}
            sealed = [client.sealed(key, value) for key, value in values.items()]
            if heartbeat.lost is None:
                with suppress(StoreLost):
                    heartbeat.client.call("multi_set", list(values), sealed, timeout_s=LAST_WORD_S)
            raise
        finally:
            heartbeat.end()
            client.end()

    def _answer(self, client: StoreClient) -> dict[str, Any]:
        """Return the answer to the request to join. Node 0 may ask for fingerprints of the user's code first."""
        waiting, code, told = Waiting(self._log, math.inf, TRY_S), f"code/{self._join_id}", False
        while not client.has(f"answer/{self._join_id}"):
            if not told and client.has(f"{code}/asked"):
                of_own = client.get(f"{code}/asked", lambda names: fingerprint.of_own(json.loads(names)))
                client.put(f"{code}/told", of_own)
                told = True
            waiting.still("node 0 is busy with a launch; waiting until it is over")
            time.sleep(LOOK_S)
        return client.get(f"answer/{self._join_id}", self._answered)

    def _answered(self, content: bytes) -> dict[str, Any]:
        """Return the answer. Raises ValueError if it answers another request."""
        answer: dict[str, Any] = json.loads(content)
        if answer["nonce"] != self._nonce or not ("rejected" in answer or isinstance(answer["next"], int)):
            raise ValueError("no answer to this request")
        return answer

    def _follow(self, store: SharedStore, client: StoreClient, number: int) -> int:
        """Run launch `number` and all that follow, and return node 0's exit code."""
        assert self.number is not None
        while True:
            lines, spec, end = client.get(f"next/{number}", self._next_of)
            for line in lines:
                self._log(f"node {self.number}: {line}")
            if spec is None:
                client.put(f"bye/{self._join_id}", "", timeout_s=LAST_WORD_S)
                self._log(f"node {self.number}: {end['why']}")
                return int(end["code"])
            if self.number < spec.nodes:
                self._launch = number
                self._context = store.context(spec, number, self.number, partial(abort, self._heart, number))
                try:
                    result = self.run(spec, self._context)
                finally:
                    self._context = None
                client.put_blob(f"launch/{number}/result/{self.number}", as_json(result))
            number += 1

    def _next_of(self, content: bytes) -> tuple[Sequence[str], LaunchSpec | None, dict[str, Any]]:
        """Return lines to print and the next launch; without one, how the session ends."""
        message = json.loads(content)
        if "end" in message:
            return message["lines"], None, {"why": message["end"]["why"], "code": int(message["end"]["code"])}
        return message["lines"], LaunchSpec.from_dict(message["launch"], self._traces), {}

    def _beat(self, store: Any) -> None:
        """Show a sign of life, and read what aborts the launch. In the heartbeat's thread."""
        self._beats += 1
        beat_once(self._heart, store, f"heartbeat/{self._join_id}", self._beats)
        context, number = self._context, self._launch
        if context is not None and (reason := abort_of(self._heart, store, number)) is not None:
            context.abort.set(reason)

    def _when_lost(self) -> None:
        if (context := self._context) is not None:
            context.abort.set(LOST)

    def follow(self) -> int:
        """Take part until node 0 ends the session, and return its exit code. If node 0 is lost, wait for it.

        Raises UsageError if node 0 is not reached in time or rejects this node, Interrupted if it is asked to stop.
        """
        where, seconds = f"node 0 at {self.topology.endpoint}", self.topology.timeout_s
        waiting = Waiting(self._log, seconds, TRY_S)
        while True:
            try:
                store = reach_store(self.topology, waiting)
            except StoreLost as why:
                raise UsageError(
                    f"{where} was not reached within {seconds:g} s ({why}); start it there unless its session has "
                    "ended, open the port in its firewall, or give a longer --rdzv-timeout"
                ) from why
            try:
                return self.serve(replace(store, secret=self._secret))
            except ForeignValue as why:
                raise UsageError(f"{where}: {why}") from why
            except StoreLost as why:
                if self.joined:
                    self._log(f"node 0 is lost: {why}; waiting for it, {seconds:.0f} s at most")
                    self.joined, waiting = False, Waiting(self._log, seconds, TRY_S)
                time.sleep(TRY_EVERY_S)
