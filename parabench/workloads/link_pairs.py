"""Which pairs are measured, and which of them at the same time: every rank is in one pair at a time."""

from __future__ import annotations

from collections.abc import Iterable

from parabench.plan.case import Case
from parabench.plan.protocol import LinkProtocol

Pair = tuple[int, int]
Round = tuple[Pair, ...]

# All pairs of more nodes than this would take longer than what they are measured for.
MOST_NODES = 64

# What joining may take, and each direction of a round beside what its protocol allows: a link that is slower than that
# hangs.
JOIN_S = 60.0
SLACK_S = 5.0


def schedule(nodes: int, ranks_per_node: int) -> tuple[Round, ...]:
    """The rounds, in which pairs of ranks are measured at the same time: first those across nodes, where the first
    rank of a node stands for it, then all pairs of ranks inside every node at once."""
    across = all_pairs(nodes) if nodes <= MOST_NODES else neighbours(nodes)
    first = [tuple((a * ranks_per_node, b * ranks_per_node) for a, b in each) for each in across]
    inside = [
        tuple((at + a, at + b) for at in range(0, nodes * ranks_per_node, ranks_per_node) for a, b in each)
        for each in all_pairs(ranks_per_node)
    ]
    return (*first, *inside)


def all_pairs(n: int) -> list[Round]:
    """Every pair of `n` once, in the fewest rounds of pairs that share nobody: the circle method of tournaments
    (Kirkman, 1847). One stays where it is, the others move on by one place; of an odd number one has no partner."""
    places = [*range(n), *([None] if n % 2 else [])]
    rounds = []
    for _ in range(len(places) - 1):
        half = len(places) // 2
        partners = zip(places[:half], reversed(places[half:]), strict=True)
        rounds.append(tuple((min(a, b), max(a, b)) for a, b in partners if a is not None and b is not None))
        places = [places[0], places[-1], *places[1:-1]]
    return [tuple(sorted(each)) for each in rounds if each]


def neighbours(n: int) -> list[Round]:
    """Pairs at the distances 1, 2, 4, ... of a circle of `n`: what rings, halving and doubling send along."""
    found: dict[Pair, None] = {}
    distance = 1
    while distance <= n // 2:
        for a in range(n):
            b = (a + distance) % n
            found[min(a, b), max(a, b)] = None
        distance *= 2
    return disjoint(found)


def disjoint(pairs: Iterable[Pair]) -> list[Round]:
    """The pairs in rounds that share nobody, each in the first that has room for it."""
    rounds: list[list[Pair]] = []
    busy: list[set[int]] = []
    for pair in pairs:
        at = next((i for i, taken in enumerate(busy) if not taken & set(pair)), len(rounds))
        if at == len(rounds):
            rounds.append([])
            busy.append(set())
        rounds[at].append(pair)
        busy[at] |= set(pair)
    return [tuple(each) for each in rounds]


def most_s(case: Case, protocol: LinkProtocol) -> float:
    """How long the measurement may take at most, in seconds."""
    rounds = len(schedule(case.nodes, case.world_size // case.nodes))
    return JOIN_S + rounds * 2 * (protocol.most_s + SLACK_S)
