"""Which pairs of ranks are measured at the same time: each rank is in one pair at a time."""

from __future__ import annotations

from parabench.plan.case import Case
from parabench.plan.protocol import LinkProtocol

Pair = tuple[int, int]
Round = tuple[Pair, ...]

# The longest time to join, and for each direction of a round in addition to its protocol's: a slower link hangs.
JOIN_S = 60.0
SLACK_S = 5.0


def schedule(nodes: int, ranks_per_node: int) -> tuple[Round, ...]:
    """Return the rounds of pairs that are measured at the same time: first the pairs across nodes, where the first rank
    of a node stands for it, then all pairs of ranks inside every node at once."""
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
