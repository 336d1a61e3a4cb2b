"""The rounds of collectives, against the messages that their algorithms send."""

import itertools

import pytest
import torch
from torch.distributed import ReduceOp

from message_logs import BYTES, sent
from parabench.analysis.collectives.rounds import BETWEEN, PIECE_BYTES, WITHIN, Round, rounds
from parabench.collectives import LEVELS, wire
from parabench.collectives.algorithm import make, reduction
from parabench.plan.collective_case import OPS
from simulated import Record, Simulation
from simulated import rounds as simulated_rounds

MIB = 1 << 20
SHAPES = [(n, g) for n, g in itertools.product((2, 4, 8, 16), (1, 2, 4)) if g < n]
TWO_LEVELS = ("two_level", "two_level(tree,halving_doubling)", "two_level(parameter_server,tree)")


def link_bytes(record: Record[None], n: int, g: int, *, node: int | None = None) -> int:
    """Return the bytes over the busiest link in its busier direction, or of `node` in both directions."""
    out, into = [0] * (n // g), [0] * (n // g)
    for message in record.messages:
        a, b = message.src // g, message.dst // g
        if a != b:
            out[a] += message.nbytes
            into[b] += message.nbytes
    return max(*out, *into) if node is None else out[node] + into[node]


def across(found: tuple[Round, ...], tier: str = BETWEEN) -> float:
    """Return the share of the collective's bytes over the busiest link of a tier."""
    return sum(each.times * each.share * each.flows for each in found if each.tier == tier)


def counted(op: str, algorithm: str, n: int, monkeypatch: pytest.MonkeyPatch) -> tuple[int, float]:
    """Return (rounds, bytes over S) of one call on the simulated wire. The largest message of a round counts."""
    numel = 16 * 105
    flat = lambda count=numel: torch.ones(count, dtype=torch.int64)  # noqa: E731
    monkeypatch.setattr(wire, "PIECE_BYTES", flat().nbytes)
    made, sum_of = make(algorithm, None), reduction(ReduceOp.SUM, n)
    work = {
        "all_reduce": lambda w: made.all_reduce(w, flat(), sum_of),
        "reduce_scatter": lambda w: made.reduce_scatter(w, flat(numel // n), flat(), sum_of),
        "all_gather": lambda w: made.all_gather(w, flat(), flat(numel // n)),
        "broadcast": lambda w: made.broadcast(w, flat(), 0),
    }[op]
    largest: dict[int, int] = {}
    one_port = (algorithm, op) not in {("tree", "reduce_scatter"), ("tree", "all_gather")}
    for message, at in simulated_rounds(Simulation(n).run(work), one_port=one_port).items():
        largest[at] = max(largest.get(at, 0), message.nbytes)
    return len(largest), sum(largest.values()) / flat().nbytes


# -- by hand -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("op", "algorithm", "n", "g", "expected"),
    [
        ("all_reduce", "ring", 8, 4, [Round(4, 1 / 8, BETWEEN, 3.5)]),
        # Two pieces over the first link; then the last one over the others.
        ("broadcast", "ring", 9, 3, [
            Round(2, 1 / 2, BETWEEN), Round(1, 1 / 2, BETWEEN), Round(6, 1 / 2, WITHIN),
        ]),
        ("all_reduce", "halving_doubling", 8, 2, [
            Round(2, 1 / 2, BETWEEN, 2), Round(2, 1 / 4, BETWEEN, 2), Round(2, 1 / 8, WITHIN),
        ]),
        # Half the bytes go up and down from two children each; then the last piece.
        ("all_reduce", "tree", 16, 4, [
            Round(10, 1 / 2, BETWEEN), Round(4, 1 / 2, WITHIN),
        ]),
        ("all_reduce", "two_level", 8, 4, [
            Round(3, 1 / 4, WITHIN), Round(2, 1 / 8, BETWEEN, 4), Round(3, 1 / 4, WITHIN),
        ]),
        ("broadcast", "native", 16, 4, [Round(2, 1, WITHIN), Round(2, 1, BETWEEN, 4)]),
    ],
)  # fmt: skip
def test_rounds_by_hand(op, algorithm, n, g, expected):
    size = 2 * PIECE_BYTES if op == "broadcast" else MIB
    assert rounds(op, algorithm, n, g, size) == tuple(expected)


@pytest.mark.parametrize("n", [2, 4, 8, 16])
@pytest.mark.parametrize("op", OPS)
@pytest.mark.parametrize("algorithm", LEVELS)
def test_rounds_match_the_messages_on_one_node(algorithm, op, n, monkeypatch):
    found = rounds(op, algorithm, n, n, MIB, MIB)
    assert found, f"analysis/collectives/rounds.py has no rounds of {algorithm} {op}"
    # The two trees of 8 ranks wait for each other once more.
    waits = (op, algorithm, n) == ("all_reduce", "tree", 8)
    messages = sum(each.times for each in found) + waits
    assert counted(op, algorithm, n, monkeypatch) == (messages, pytest.approx(across(found, WITHIN) + waits / 2))


@pytest.mark.parametrize("op", ["all_reduce", "reduce_scatter", "all_gather"])
@pytest.mark.parametrize("algorithm", [*LEVELS, *TWO_LEVELS])
def test_bytes_between_nodes_match_the_messages(algorithm, op):
    for n, g in SHAPES:
        counted = across(rounds(op, algorithm, n, g, BYTES)) * BYTES
        # All send to the server before the server sends to all.
        node = 0 if algorithm == "parameter_server" else None
        link = link_bytes(sent(op, algorithm, n, g if "two" in algorithm else None, BYTES), n, g, node=node)
        if "tree" in algorithm:
            # Trees that wait for one another leave links idle.
            assert link * 0.99 <= counted
        else:
            assert counted == pytest.approx(link)
