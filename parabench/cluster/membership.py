"""Who is there: the nodes that were let in, those that ask to be, and when each last showed that it lives."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from parabench.cluster.heartbeat import KEEP_ALIVE_S
from parabench.cluster.join_requests import Door, Guest
from parabench.cluster.topology import Topology
from parabench.errors import UsageError
from parabench.launch.context import DEAD_AFTER_S
from parabench.launch.store_client import StoreClient

# Who showed a sign of life in so many seconds surely lives: a few beats may come late.
ALIVE_S = 8 * KEEP_ALIVE_S


@dataclass(slots=True)
class Life:
    """The signs of life of one who came, by the beats that it counts in the store."""

    guest: Guest
    beat: int = -1
    at: float = field(default_factory=time.monotonic)
    lost: bool = False

    def look(self, store: Any) -> None:
        """See whether its heart has beaten: one that was lost for a while is back then."""
        beat = store.add(f"beat/{self.guest.ticket}", 0)
        if beat != self.beat:
            self.beat, self.at, self.lost = beat, time.monotonic(), False

    @property
    def silent_s(self) -> float:
        """How long it has shown no sign of life."""
        return time.monotonic() - self.at


class Roll:
    """The nodes of a session but node 0, by their numbers, and the guests that wait to be let in."""

    def __init__(self, site: Topology, door: Door, line: StoreClient, say: Callable[[str], None]) -> None:
        self._site, self._door, self._line, self._say = site, door, line, say
        self.members: dict[int, Life] = {}
        self._waiting: list[Life] = []
        self.begun = False
        self._door_open = threading.Lock()

    def look(self, store: Any) -> list[int]:
        """See who came and who lives; the nodes that were lost just now. Called in the pulse's thread."""
        self._see_new()
        for each in [*self._waiting, *self.members.values()]:
            each.look(store)
        lost = [node for node, each in list(self.members.items()) if each.silent_s > DEAD_AFTER_S and not each.lost]
        for node in lost:
            self.members[node].lost = True
        return lost

    def is_here(self, node: int) -> bool:
        """Whether the node was let in and lives."""
        return node in self.members and not self.members[node].lost

    def node_of(self, ticket: int) -> int | None:
        """The number of the member that has this ticket."""
        return next((node for node, each in self.members.items() if each.guest.ticket == ticket), None)

    def answer(self, next_order: int) -> None:
        """Let in or send away who waits. Who may be a node that was lost a moment ago waits until that is sure.

        Raises UsageError when one differs from node 0 before anything was launched.
        """
        for each in list(self._waiting):
            guest = each.guest
            if each.silent_s > DEAD_AFTER_S:
                self._waiting.remove(each)
                continue
            node = self._place_for(guest)
            if node is not None and not self.is_here(node):
                self._waiting.remove(each)
                self._let_in(each, node, next_order)
            elif self._sure(node):
                self._waiting.remove(each)
                there = f"all {self._site.nodes} nodes are" if node is None else f"node {node} is"
                why = f"{guest.host} came too, and {there} there already; give each node its own --node-rank"
                guest.refuse(self._line, why)
                self._say(why)

    def dismiss(self, why: str) -> None:
        """Send away whoever waits."""
        self._see_new()
        for each in self._waiting:
            each.guest.refuse(self._line, why)
        self._waiting.clear()

    def _see_new(self) -> None:
        with self._door_open:
            self._waiting += [Life(guest) for guest in self._door.knocking(self._line)]

    def _place_for(self, guest: Guest) -> int | None:
        free = [node for node in range(1, self._site.nodes) if not self.is_here(node)]
        return guest.node if guest.node is not None else next(iter(free), None)

    def _sure(self, node: int | None) -> bool:
        """Whether the node, or where none is free every one, lives for sure."""
        asked: Sequence[Life] = [*self.members.values()] if node is None else [self.members[node]]
        return all(each.silent_s < ALIVE_S for each in asked)

    def _let_in(self, each: Life, node: int, next_order: int) -> None:
        guest = each.guest
        differences = self._door.differences(self._line, guest)
        if not differences:
            guest.welcome(self._line, node, next_order)
            self.members[node] = each
            self._say(f"node {node} is here: {guest.host}, {guest.address}")
            return
        why = f"node {node} ({guest.host}) has {'; '.join(differences)}: give all nodes the same"
        guest.refuse(self._line, why)
        if not self.begun:
            raise UsageError(why)
        self._say(why)
