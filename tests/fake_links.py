"""Links of a session with a known truth."""

from __future__ import annotations

from collections.abc import Callable

import pandas as pd

from parabench.store.record import LinkSample
from parabench.workloads.link_pairs import schedule

# What lies within a node, and across: bytes a second, and seconds.
INSIDE, ACROSS = (4e9, 20e-6), (0.5e9, 60e-6)


def rows(
    nodes: int,
    ranks_per_node: int,
    slowed: Callable[[int, int], float] = lambda a, b: 1.0,
    delayed: Callable[[int, int], float] = lambda a, b: 1.0,
    device: str = "cuda",
) -> list[LinkSample]:
    """Both directions of each pair that is measured; from rank a to rank b the bandwidth is `slowed(a, b)` times, the
    latency `delayed(a, b)` times what is usual."""
    found = []
    for each in schedule(nodes, ranks_per_node):
        for pair in each:
            for a, b in (pair, pair[::-1]):
                ends = a // ranks_per_node, b // ranks_per_node
                rate, latency_s = INSIDE if ends[0] == ends[1] else ACROSS
                devices = ["cpu" if device == "cpu" else f"cuda:{rank % ranks_per_node}" for rank in (a, b)]
                found.append(LinkSample(a, b, *ends, *devices, latency_s * delayed(a, b), rate * slowed(a, b)))
    return found


def table(links: list[LinkSample]) -> pd.DataFrame:
    """As `results.links` has them, of session 1."""
    return pd.DataFrame(links, columns=LinkSample._fields).assign(session_id=1)
