"""The members of a session on several nodes: the admitted ones, those that ask to join, their signs of life, aborts.

torch elastic's dynamic rendezvous compares times of several hosts' clocks. With clocks 20 s apart and a limit of 10 s
(tried with torch 2.13), a node drops the other one and continues as "rank 1 of 1". Here a member counts, and the
coordinator times the counts. Also, a node that comes back keeps its number, and one that is refused gets the reason.
"""

from __future__ import annotations

import json
import math
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from msgspec import Struct, convert, field

from parabench.cluster import fingerprint
from parabench.cluster.waiting import Waiting
from parabench.errors import UsageError
from parabench.launch.rendezvous import DEAD_AFTER_S, FAILED, HUNG, LOST, STOP
from parabench.launch.store_client import ForeignValue, StoreClient, StoreLost

# The time between two beats: an abort is noticed after it at the latest.
KEEP_ALIVE_S = 0.25
# A member with a heartbeat within this time surely lives: some beats may be late.
ALIVE_S = 8 * KEEP_ALIVE_S
# The most ids whose requests are awaited at the same time.
MOST_PENDING = 100
# The time in which a member fingerprints its own files.
ANSWER_S = 30.0


def beat_once(client: StoreClient, store: Any, key: str, count: int) -> None:
    """Write the `count`-th sign of life under the key. Call it in the heartbeat's thread, which has the `store`."""
    store.set(key, client.sealed(key, count))
    store.check([key])  # unlike `set`, it waits for an answer


def beats(client: StoreClient, store: Any, key: str, before: int) -> int:
    """Return the number of beats under the key, or `before`, the last known one, if no member has written a higher."""
    if not store.check([key]):
        return before
    try:
        return max(before, client.read(key, store.get(key), lambda content: int(json.loads(content))))
    except ForeignValue:
        return before


def abort(client: StoreClient, launch: int, reason: str) -> None:
    """Tell all members that a launch is over. Only the first reason counts."""
    key = f"abort/{launch}"
    client.call("compare_set", key, "", client.sealed(key, reason))


def abort_of(client: StoreClient, store: Any, launch: int) -> str | None:
    """Return why a launch was aborted; `None` if it was not. Call it in the heartbeat's thread."""
    key = f"abort/{launch}"
    reasons = {each: each for each in (FAILED, HUNG, STOP, LOST)}
    return client.read(key, store.get(key), lambda raw: reasons[json.loads(raw)]) if store.check([key]) else None


class Heartbeat:
    """Call `beat(store)` every KEEP_ALIVE_S in a separate thread.

    If the store does not answer for `timeout_s`, or is gone, `lost` has the error and `when_lost` is called.
    """

    def __init__(
        self, client: StoreClient, beat: Callable[[Any], None], when_lost: Callable[[], None], timeout_s: float
    ) -> None:
        self.client = client
        self.lost: StoreLost | None = None
        self._beat, self._when_lost, self._timeout_s = beat, when_lost, timeout_s
        self._over = threading.Event()
        threading.Thread(target=self._run, name="parabench heartbeat", daemon=True).start()

    def check(self) -> None:
        """Raise StoreLost if the store is lost."""
        if self.lost is not None:
            raise self.lost

    def end(self) -> None:
        self._over.set()
        self.client.end()

    def _run(self) -> None:
        while not self._over.is_set():
            try:
                self.client.call(self._beat, timeout_s=self._timeout_s)
            except StoreLost as why:
                if not self._over.is_set():
                    self.lost = why
                    self._when_lost()
                return
            self._over.wait(KEEP_ALIVE_S)


class Member(Struct, kw_only=True, forbid_unknown_fields=True):
    """A node that asks to join as `number`, or any, or has joined. `join_id` is unique to this attempt.

    `facts` must equal the coordinator's, `about` is its environment, and the answer repeats the random `nonce`.
    """

    join_id: int
    number: int | None
    host: str
    address: str
    facts: dict[str, Any]
    about: dict[str, Any]
    nonce: str
    lost: bool = False
    _beat: int = -1
    _at: float = field(default_factory=time.monotonic)

    def __post_init__(self) -> None:
        if not (self.host.isprintable() and self.address.isprintable()):  # a terminal shows both
            raise ValueError("no name of a host")

    def look(self, client: StoreClient, store: Any) -> None:
        """Read its heartbeat. A member that was lost for a while is back when it beats again."""
        beat = beats(client, store, f"heartbeat/{self.join_id}", self._beat)
        if beat != self._beat:
            self._beat, self._at, self.lost = beat, time.monotonic(), False

    @property
    def silent_s(self) -> float:
        """The time since its last sign of life, in seconds."""
        return time.monotonic() - self._at


class Membership:
    """`size` members, number 0 of which is the coordinator with these `facts`. All must have the same user `code`."""

    def __init__(self, size: int, facts: Mapping[str, Any], client: StoreClient, log: Callable[[str], None]) -> None:
        self.participants: dict[int, Member] = {}
        self.wait_list: list[Member] = []
        self.code: Sequence[str] = ()
        self.begun = False
        self._size, self._facts, self._client, self._log = size, facts, client, log
        # The ids whose requests did not arrive yet: such a node is about to send it, or was killed.
        self._pending: set[int] = set()
        self._seen = 0
        self._refused = Waiting(log, math.inf)
        self._lock = threading.Lock()  # the heartbeat's thread takes requests too

    def look(self, store: Any) -> list[int]:
        """Take requests and read heartbeats, in its thread. Return the members that were lost just now."""
        self.take_requests()
        for each in [*self.wait_list, *self.participants.values()]:
            each.look(self._client, store)
        members = list(self.participants.items())
        lost = [number for number, each in members if each.silent_s > DEAD_AFTER_S and not each.lost]
        for number in lost:
            self.participants[number].lost = True
        return lost

    def take_requests(self) -> None:
        """Put the nodes that ask to join on the wait list."""
        with self._lock:
            asked = self._client.call("add", "joining", 0)
            last = min(asked, self._seen + MOST_PENDING - len(self._pending))
            self._pending.update(range(self._seen + 1, last + 1))
            self._seen = max(self._seen, last)
            for join_id in sorted(self._pending):
                if self._client.has(f"join/{join_id}"):
                    self._pending.remove(join_id)
                    self._take(join_id)

    def _take(self, join_id: int) -> None:
        def member(request: Any) -> Member:
            return convert(request | {"join_id": join_id}, Member)

        try:
            self.wait_list.append(self._client.pop_blob(f"join/{join_id}", member))
        except ForeignValue as why:
            self._refused.still(f"refused: {why}")

    def is_here(self, number: int) -> bool:
        """Return whether this member was admitted and lives."""
        return number in self.participants and not self.participants[number].lost

    def number_of(self, join_id: int) -> int | None:
        """Return the number of a member; `None` for a stranger."""
        return next((number for number, each in self.participants.items() if each.join_id == join_id), None)

    def answer(self, next_launch: int) -> None:
        """Admit or reject the nodes that wait. A node that may be a lost member waits until the loss is certain.

        Raises UsageError if one differs from the coordinator before anything was launched.
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
                continue
            holders = [*self.participants.values()] if number is None else [self.participants[number]]
            if all(one.silent_s < ALIVE_S for one in holders):
                there = f"all {self._size} nodes are" if number is None else f"node {number} is"
                why = f"{each.host} came too, and {there} there already; give each node its own --node-rank"
                self._reject(each, why)
                self._log(why)

    def _is_alike(self, number: int, member: Member) -> bool:
        """Return whether a node has the same facts and code as node 0; reject it if not. Raises UsageError likewise."""
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
        key = f"code/{member.join_id}"
        self._client.put(f"{key}/asked", list(self.code))
        if not self._client.wait(f"{key}/told", timeout_s=ANSWER_S):
            return [f"no fingerprint of {', '.join(self.code)}"]
        theirs = self._client.get(f"{key}/told", lambda content: dict(json.loads(content)))
        return fingerprint.differences(fingerprint.of_own(self.code), theirs)

    def _admit(self, member: Member, number: int, next_launch: int) -> None:
        self.wait_list.remove(member)
        self.participants[number] = member
        self._client.put(f"answer/{member.join_id}", {"number": number, "next": next_launch, "nonce": member.nonce})
        self._log(f"node {number} is here: {member.host}, {member.address}")

    def _reject(self, member: Member, why: str) -> None:
        self.wait_list.remove(member)
        self._client.put(f"answer/{member.join_id}", {"rejected": why, "nonce": member.nonce})

    def close(self, why: str) -> None:
        """Reject all nodes that wait."""
        self.take_requests()
        for each in list(self.wait_list):
            self._reject(each, why)
