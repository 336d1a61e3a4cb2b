"""Plan the measurement of links: its protocol, and the pairs of ranks that are measured at the same time."""

from __future__ import annotations

from typing import ClassVar

from parabench.machine import accelerator
from parabench.plan.case import Case
from parabench.records import Record
from parabench.store.record import MIB

# The quantile of the round trips that is reported as a link's latency, by device. On the CPU, ranks share cores with
# other processes. The scheduler's time slices (2 ms) affect the median of most runs, but rarely the 10th percentile.
LATENCY_QUANTILE = {"cpu": 0.1, accelerator.TYPE: 0.5}

# The reason for an unknown bandwidth if all ranks succeeded. A second measurement would not change it.
TOO_QUICK = "the largest transfer took less than two round trips"


class LinkProtocol(Record, frozen=True, kw_only=True):
    """The number and sizes of the messages that measure a link between two ranks.

    - Latency: `round_trips` of the smallest message, after `warmup` uncounted ones.
    - Bandwidth: the size doubles until one transfer takes `transfer_s`. Up to `transfers` of that size follow.
    """

    kind: ClassVar[str] = "links"

    warmup: int = 10
    round_trips: int = 100
    least_bytes: int = MIB
    most_bytes: int = 256 * MIB
    # This is a thousand times longer than a delay of the scheduler or of TCP. One direction takes about a second.
    transfer_s: float = 0.1
    transfers: int = 6
    most_s: float = 3.0


Pair = tuple[int, int]
Round = tuple[Pair, ...]

# The longest time for all ranks to join, and the longest delay of each direction beyond the protocol's `most_s`. Slower
# links count as hung.
JOIN_S = 60.0
SLACK_S = 5.0


def schedule(nodes: int, ranks_per_node: int) -> tuple[Round, ...]:
    """Return the rounds of a measurement, each with the pairs of ranks that are measured at the same time.

    First come all pairs of nodes, each node with its first rank. Then come the pairs inside the nodes.
    """
    across = [tuple((a * ranks_per_node, b * ranks_per_node) for a, b in each) for each in all_pairs(nodes)]
    inside = [
        tuple((at + a, at + b) for at in range(0, nodes * ranks_per_node, ranks_per_node) for a, b in each)
        for each in all_pairs(ranks_per_node)
    ]
    return (*across, *inside)


def all_pairs(n: int) -> list[Round]:
    """Return all pairs of the numbers below `n`, in the fewest rounds of disjoint pairs.

    This is the circle method of tournaments (Kirkman, 1847). If `n` is odd, one number has no partner in each round.
    """
    places = [*range(n), *([None] if n % 2 else [])]
    rounds = []
    for _ in range(len(places) - 1):
        half = len(places) // 2
        partners = zip(places[:half], reversed(places[half:]), strict=True)
        rounds.append(tuple((min(a, b), max(a, b)) for a, b in partners if a is not None and b is not None))
        places = [places[0], places[-1], *places[1:-1]]
    return [tuple(sorted(each)) for each in rounds if each]


def most_s(case: Case, protocol: LinkProtocol) -> float:
    """Return the longest time in seconds that the measurement of all links of `case` may take."""
    rounds = len(schedule(case.nodes, case.world_size // case.nodes))
    return JOIN_S + rounds * 2 * (protocol.most_s + SLACK_S)
