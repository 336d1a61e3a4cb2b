"""Who takes part in a session: members that were admitted, those that ask to join, and when each was last alive.

torch elastic's dynamic rendezvous keeps participants, a wait list and keep-alive times too. Ours differs in what its
fault tests ask for:

- elastic stamps a keep-alive with the member's own wall clock, and compares it with the reader's. With clocks 20 s
  apart and a limit of 10 s (tried with torch 2.13) one node drops the other and goes on as "rank 1 of 1". Here a member
  counts in the store, and the coordinator times the counts by its own clock.
- elastic numbers nodes by the order of their addresses, and anew in each round. A node that comes back, or that has
  `--node-rank`, must have its own number, and number 0 is where the store is.
- elastic drops a dead participant from its state and tells nobody until workers fail. Here the launch is aborted, and
  the node named.
- elastic has no word for a member that is refused: one that differs, or is one too many, would wait without a reason.
"""

from __future__ import annotations

import json
import math
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from parabench.cluster import fingerprint
from parabench.cluster.heartbeat import KEEP_ALIVE_S, beats
from parabench.cluster.waiting import Waiting
from parabench.errors import UsageError
from parabench.launch.rendezvous import DEAD_AFTER_S
from parabench.launch.store_client import ForeignValue, StoreClient

# With a heartbeat in so many seconds a member surely lives: a few may come late.
ALIVE_S = 8 * KEEP_ALIVE_S

# So many who have an id are waited for at once, whatever number a stranger puts there.
MOST_PENDING = 100

# What a member gets to look at its own files.
ANSWER_S = 30.0


@dataclass(slots=True, kw_only=True)
class Member:
    """One that asks to join, or has joined. `join_id` is unique to this try; `number` is what it claims to be, if it
    claims any; `facts` must be as the coordinator's own, unless it has none; `about` is what it says of itself; the
    answer repeats `nonce`, which it has just thought of."""

    join_id: int
    number: int | None
    host: str
    address: str
    facts: Mapping[str, Any]
    about: Mapping[str, Any]
    nonce: str = ""
    lost: bool = False
    _beat: int = -1
    _at: float = field(default_factory=time.monotonic)

    @classmethod
    def of(cls, join_id: int, said: Mapping[str, Any]) -> Member:
        """One that asks to join, by what it says. Raises ValueError or TypeError where no member would say so."""
        member = cls(join_id=join_id, **said)
        # What is shown of it goes to a terminal.
        if not (member.host.isprintable() and member.address.isprintable()):
            raise ValueError("no name of a host")
        if not (member.number is None or isinstance(member.number, int)):
            raise TypeError("no number")
        if not (isinstance(member.facts, dict) and isinstance(member.about, dict)):
            raise TypeError("no facts")
        return member

    def look(self, client: StoreClient, store: Any) -> None:
        """See whether its heart has beaten: one that was lost for a while is back then."""
        beat = beats(client, store, f"heartbeat/{self.join_id}", self._beat)
        if beat != self._beat:
            self._beat, self._at, self.lost = beat, time.monotonic(), False

    @property
    def silent_s(self) -> float:
        """How long it has shown no sign of life."""
        return time.monotonic() - self._at


class Membership:
    """`size` members, of which number 0 is the coordinator, who has `facts`; `code` is the user's own code that all
    must have alike. What is kept of them is by their numbers."""

    def __init__(self, size: int, facts: Mapping[str, Any], client: StoreClient, log: Callable[[str], None]) -> None:
        self.participants: dict[int, Member] = {}
        self.wait_list: list[Member] = []
        self.code: Sequence[str] = ()
        self.begun = False
        self._size, self._facts, self._client, self._log = size, facts, client, log
        # Who has an id, and is about to say who it is, or was killed before; and since when.
        self._pending: dict[int, float] = {}
        self._seen = 0
        self._refused = Waiting(log, math.inf)
        self._lock = threading.Lock()  # requests are taken by the heartbeat's thread too

    def look(self, store: Any) -> list[int]:
        """See who came and who lives; who was lost just now. Called in the heartbeat's thread."""
        self.take_requests()
        for each in [*self.wait_list, *self.participants.values()]:
            each.look(self._client, store)
        members = list(self.participants.items())
        lost = [number for number, each in members if each.silent_s > DEAD_AFTER_S and not each.lost]
        for number in lost:
            self.participants[number].lost = True
        return lost

    def take_requests(self) -> None:
        """Put who asks to join on the wait list."""
        with self._lock:
            asked = self._client.call("add", "joining", 0)
            room = self._seen + MOST_PENDING - len(self._pending)
            for join_id in range(self._seen + 1, min(asked, room) + 1):
                self._pending[join_id], self._seen = time.monotonic(), join_id
            for join_id, since in list(self._pending.items()):
                if self._client.has(f"join/{join_id}"):
                    del self._pending[join_id]
                    self._take(join_id)
                elif time.monotonic() - since > DEAD_AFTER_S:
                    del self._pending[join_id]

    def _take(self, join_id: int) -> None:
        try:
            self.wait_list.append(self._client.pop_blob(f"join/{join_id}", partial(Member.of, join_id)))
        except ForeignValue as why:
            self._refused.still(partial("refused: {}".format, why))

    def is_here(self, number: int) -> bool:
        """Whether that member was admitted and lives."""
        return number in self.participants and not self.participants[number].lost

    def number_of(self, join_id: int) -> int | None:
        """Return the number of a member; None for a stranger."""
        return next((number for number, each in self.participants.items() if each.join_id == join_id), None)

    def answer(self, next_launch: int) -> None:
        """Admit or reject who waits. Who may be a member that was lost a moment ago waits until that is sure.

        Raises UsageError when one differs from the coordinator before anything was launched.
        """
        for each in list(self.wait_list):
            if each.silent_s > DEAD_AFTER_S:
                self.wait_list.remove(each)
                continue
            free = (number for number in range(1, self._size) if not self.is_here(number))
            number = next(free, None) if each.number is None else each.number
            if number is not None and not self.is_here(number):
                if self._is_alike(number, each):
                    self._admit(each, number, next_launch)
                    self._log(f"node {number} is here: {each.host}, {each.address}")
                continue
            holders = [*self.participants.values()] if number is None else [self.participants[number]]
            if all(one.silent_s < ALIVE_S for one in holders):
                there = f"all {self._size} nodes are" if number is None else f"node {number} is"
                why = f"{each.host} came too, and {there} there already; give each node its own --node-rank"
                self._reject(each, why)
                self._log(why)

    def _is_alike(self, number: int, member: Member) -> bool:
        """Return whether a node has the same facts and code as node 0; reject it if not.

        Raises:
            UsageError: If it is rejected before anything was launched.
        """
        found = self._differences(member)
        if not found:
            return True
        why = f"node {number} ({member.host}) has {'; '.join(found)}: give all nodes the same"
        self._reject(member, why)
        if not self.begun:
            raise UsageError(why)
        self._log(why)
        return False

    def _differences(self, member: Member) -> list[str]:
        found = fingerprint.differences(self._facts, member.facts)
        if found or not self.code:
            return found
        self._client.put(f"code/{member.join_id}/asked", list(self.code))
        if not self._client.wait(f"code/{member.join_id}/told", timeout_s=ANSWER_S):
            return [f"not told what it has of {', '.join(self.code)}"]
        told = self._client.get(f"code/{member.join_id}/told", lambda content: dict(json.loads(content)))
        return fingerprint.differences(fingerprint.of_own(self.code), told)

    def _admit(self, member: Member, number: int, next_launch: int) -> None:
        """Let it join as that number; its first launch is that one."""
        self.wait_list.remove(member)
        self.participants[number] = member
        self._client.put(f"answer/{member.join_id}", {"number": number, "next": next_launch, "nonce": member.nonce})

    def _reject(self, member: Member, why: str) -> None:
        """Send it away."""
        self.wait_list.remove(member)
        self._client.put(f"answer/{member.join_id}", {"rejected": why, "nonce": member.nonce})

    def close(self, why: str) -> None:
        """Send away all nodes that wait."""
        self.take_requests()
        for each in list(self.wait_list):
            self._reject(each, why)
