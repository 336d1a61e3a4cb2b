"""Where the ranks of a launch on several nodes meet, and how their clocks are brought together."""

from __future__ import annotations

import json
from dataclasses import dataclass
from datetime import timedelta
from time import perf_counter
from typing import Any

from parabench.launch.store_client import connect

# Of so many questions the one that was answered soonest tells a clock best (Cristian, "Probabilistic clock
# synchronization", 1989).
ROUNDS = 8


@dataclass(frozen=True, slots=True)
class RendezvousPoint:
    """The rendezvous store of the session, and below which keys the ranks of one launch meet there."""

    address: str
    port: int
    prefix: str
    nodes: int
    ranks_per_node: int

    def store(self, timeout_s: float) -> Any:
        return connect(self.address, self.port, self.prefix, timedelta(seconds=timeout_s))

    def clock(self, store: Any, rank: int) -> dict[str, float] | None:
        """{"offset_s", "error_s"} of this rank's host: what to add to its clock for node 0's, and how far that may be
        off. The first rank of each node takes part, node after node; None for the others.

        Node 0 answers with its own time, which is right to half the time that the question took.
        """
        node, place = divmod(rank, self.ranks_per_node)
        if place:
            return None
        if node == 0:
            for asking in range(1, self.nodes):
                for round_ in range(ROUNDS):
                    store.get(f"clock/{asking}/{round_}/asked")
                    store.set(f"clock/{asking}/{round_}/told", json.dumps(perf_counter()))
            return {"offset_s": 0.0, "error_s": 0.0}
        best = (float("inf"), 0.0)
        for round_ in range(ROUNDS):
            asked = perf_counter()
            store.set(f"clock/{node}/{round_}/asked", "")
            told = json.loads(store.get(f"clock/{node}/{round_}/told"))
            came = perf_counter()
            best = min(best, ((came - asked) / 2, told - (asked + came) / 2))
        return {"offset_s": best[1], "error_s": best[0]}
