"""The measurement of links: its protocol, and the pairs of ranks that are measured at the same time."""

from __future__ import annotations

from typing import ClassVar

from parabench.machine import accelerator
from parabench.plan.case import Case
from parabench.records import Record
from parabench.store.record import MIB

# The quantile of a link's round trips that is its latency, by device. On the CPU, ranks share cores with other
# processes, and the scheduler's time slices (2 ms) affect the median of most runs, but rarely the 10th percentile.
LATENCY_QUANTILE = {"cpu": 0.1, accelerator.TYPE: 0.5}

# The reason for an unknown bandwidth if all ranks succeeded. A second measurement would not change it.
TOO_QUICK = "the largest transfer took less than two round trips"


class LinkProtocol(Record, frozen=True, kw_only=True):
    """How a launch measures the links between its ranks.

    - Latency: `round_trips` of the smallest message, after `warmup` uncounted ones.
    - Bandwidth: the size doubles until one transfer takes `transfer_s`. Up to `transfers` of that size follow.
    """

    kind: ClassVar[str] = "links"

    warmup: int = 10
    round_trips: int = 100
    least_bytes: int = MIB
    most_bytes: int = 256 * MIB
    # A thousand times longer than a delay of the scheduler or of TCP. One direction takes about a second.
    transfer_s: float = 0.1
    transfers: int = 6
    most_s: float = 3.0


Pair = tuple[int, int]
Round = tuple[Pair, ...]

# The longest time to join, and for each direction of a round in addition to its protocol's: a slower link hangs.
JOIN_S = 60.0
SLACK_S = 5.0


def schedule(nodes: int, ranks_per_node: int) -> tuple[Round, ...]:
    """Return the rounds of pairs that are measured at the same time.

    First come pairs of nodes, represented by their first ranks. Then all pairs inside every node at once.
    """
    across = [tuple((a * ranks_per_node, b * ranks_per_node) for a, b in each) for each in all_pairs(nodes)]
    inside = [
        tuple((at + a, at + b) for at in range(0, nodes * ranks_per_node, ranks_per_node) for a, b in each)
        for each in all_pairs(ranks_per_node)
    ]
    return (*across, *inside)


def all_pairs(n: int) -> list[Round]:
    """Return every pair of `n` once, in the fewest rounds of disjoint pairs: the circle method of tournaments (Kirkman,
    1847). One stays where it is, the others move on by one place; if `n` is odd, one has no partner."""
    places = [*range(n), *([None] if n % 2 else [])]
    rounds = []
    for _ in range(len(places) - 1):
        half = len(places) // 2
        partners = zip(places[:half], reversed(places[half:]), strict=True)
        rounds.append(tuple((min(a, b), max(a, b)) for a, b in partners if a is not None and b is not None))
        places = [places[0], places[-1], *places[1:-1]]
    return [tuple(sorted(each)) for each in rounds if each]


def most_s(case: Case, protocol: LinkProtocol) -> float:
    """Return the longest time that the measurement may take, in seconds."""
    rounds = len(schedule(case.nodes, case.world_size // case.nodes))
    return JOIN_S + rounds * 2 * (protocol.most_s + SLACK_S)
