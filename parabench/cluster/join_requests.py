"""Where a node asks to be let in: it says who it is and what it has, and is welcomed or told why not."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from parabench.cluster import fingerprint
from parabench.launch import blobs
from parabench.launch.store_client import StoreClient

# What a node gets to look at its own files.
ANSWER_S = 30.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Guest:
    """A node that asks to be let in. `ticket` is unique to this try; `node` the number that it claims, if any."""

    ticket: int
    node: int | None
    host: str
    address: str
    facts: Mapping[str, Any]
    environment: Mapping[str, Any]

    def welcome(self, line: StoreClient, node: int, next_order: int) -> None:
        """Let it in as `node`; the next order is that one."""
        self._answer(line, {"node": node, "next": next_order})

    def refuse(self, line: StoreClient, why: str) -> None:
        self._answer(line, {"refused": why})

    def _answer(self, line: StoreClient, answer: dict[str, Any]) -> None:
        text = json.dumps(answer)
        line.ask(lambda store: store.set(f"welcome/{self.ticket}", text))


class Door:
    """Compares whoever knocks with node 0, which has `facts` and, in its files, the user's code called `own`."""

    def __init__(self, facts: Mapping[str, Any], own: Sequence[str] = ()) -> None:
        self.own = list(own)
        self._facts = facts
        self._seen = 0

    def knocking(self, line: StoreClient) -> list[Guest]:
        """Who has come since the last look."""
        count = line.ask(lambda store: store.add("guests", 0))
        guests = []
        for ticket in range(self._seen + 1, count + 1):
            if not line.ask(lambda store, t=ticket: blobs.arrived(store, f"guest/{t}")):  # type: ignore[misc]
                break  # it has a number, and is about to say who it is
            said = line.ask(lambda store, t=ticket: blobs.take(store, f"guest/{t}"))  # type: ignore[misc]
            guests.append(Guest(ticket=ticket, **said))
            self._seen = ticket
        return guests

    def differences(self, line: StoreClient, guest: Guest) -> list[str]:
        """In what the guest differs from node 0, in words."""
        found = fingerprint.differences(self._facts, guest.facts)
        if found or not self.own:
            return found
        key = f"own/{guest.ticket}"
        asked = json.dumps(self.own)
        line.ask(lambda store: store.set(f"{key}/asked", asked))
        if not line.there(f"{key}/told", timeout_s=ANSWER_S):
            return [f"not told what it has of {', '.join(self.own)}"]
        theirs = json.loads(line.ask(lambda store: store.get(f"{key}/told")))
        return fingerprint.differences(fingerprint.of_own(self.own), theirs)
