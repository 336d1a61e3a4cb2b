from __future__ import annotations

import itertools

import numpy as np
import pandas as pd
import pytest
import torch
from torch.distributed import ReduceOp

from parabench.analysis.collectives.cost_model import Fit, fit_costs
from parabench.analysis.collectives.rounds import FORMULAS, INNER, NODE, OUTER, costs, formula
from parabench.collectives import LEVELS, wire
from parabench.collectives.algorithm import make, reduction
from parabench.plan.collective_case import OPS
from simulated import Simulation, rounds

SIZES = [2**16 * 4**i for i in range(6)]
MIB = 2**20
PIECE = 2 * MIB
TRUTH = {
    (NODE, "a"): 1e-4, (NODE, "b"): 2e-10, ("rank", "c"): 1e-10, (INNER, "a"): 1e-5, (INNER, "b"): 1e-10,
    (OUTER, "a"): 2e-4, (OUTER, "b"): 1e-9,
}  # fmt: skip


def seconds(op, algorithm, n, size, g=None, truth=TRUTH):
    return sum(truth[key] * count for key, count in costs(op, algorithm, n, size, g, PIECE).items())


def points(algorithm, ops, worlds, g=None, truth=TRUTH, noise=0.0, seed=0):
    random = np.random.default_rng(seed)
    return table(
        (op, algorithm, n, g, size, seconds(op, algorithm, n, size, g, truth) * (1 + noise * random.normal()), launch)
        for launch, (op, n, size) in enumerate(itertools.product(ops, worlds, SIZES))
    )


def table(rows):
    columns = ["op", "algorithm", "world_size", "ranks_per_node", "bytes", "call_s", "launch_id"]
    return pd.DataFrame(rows, columns=columns).assign(piece_bytes=PIECE)


def constants(fit: Fit):
    return {(constant.name, constant.tier): constant for constant in fit.constants}


# -- the formulas ------------------------------------------------------------------------------------------------


def test_every_algorithm_has_a_formula():
    lacking = {*itertools.product(LEVELS, OPS)} - {*FORMULAS}
    assert not lacking, f"analysis/collectives/rounds.py: give FORMULAS {sorted(lacking)}"
    assert set(FORMULAS) == set(itertools.product(LEVELS, OPS))
    for inner, outer in itertools.product(LEVELS, LEVELS):
        assert formula("all_reduce", f"two_level({inner},{outer})")


def counted(op: str, algorithm: str, n: int, pieces: int, monkeypatch: pytest.MonkeyPatch) -> tuple[int, float]:
    """Return (rounds, bytes over S) of one call on the simulated wire. The largest message of a round counts."""
    numel = 16 * 105
    flat = lambda count=numel: torch.ones(count, dtype=torch.int64)  # noqa: E731
    monkeypatch.setattr(wire, "PIECE_BYTES", flat().nbytes // pieces)
    made, sum_of = make(algorithm, None), reduction(ReduceOp.SUM, n)
    work = {
        "all_reduce": lambda w: made.all_reduce(w, flat(), sum_of),
        "reduce_scatter": lambda w: made.reduce_scatter(w, flat(numel // n), flat(), sum_of),
        "all_gather": lambda w: made.all_gather(w, flat(), flat(numel // n)),
        "broadcast": lambda w: made.broadcast(w, flat(), 0),
    }[op]
    largest: dict[int, int] = {}
    one_port = (algorithm, op) not in {("tree", "reduce_scatter"), ("tree", "all_gather")}
    for message, at in rounds(Simulation(n).run(work), one_port=one_port).items():
        largest[at] = max(largest.get(at, 0), message.nbytes)
    return len(largest), sum(largest.values()) / flat().nbytes


@pytest.mark.parametrize("n", [2, 4, 8, 16])
@pytest.mark.parametrize(("algorithm", "op"), [*FORMULAS])
def test_a_formula_counts_what_the_algorithm_sends(algorithm, op, n, monkeypatch):
    found = costs(op, algorithm, n, MIB, None, MIB)
    # The two trees of 8 ranks wait for each other once more.
    waits = (op, algorithm, n) == ("all_reduce", "tree", 8)
    expected = (found[NODE, "a"] + waits, pytest.approx(found[NODE, "b"] / MIB + waits / 2))
    assert counted(op, algorithm, n, 1, monkeypatch) == expected


# -- the fit -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("algorithm", LEVELS)
def test_exact_times_give_back_the_constants(algorithm):
    (fit,) = fit_costs(points(algorithm, OPS, (2, 4, 8)))
    found = constants(fit)
    for key, name in (((NODE, "a"), "a"), ((NODE, "b"), "b"), (("rank", "c"), "c")):
        constant = found[name, key[0]]
        assert constant.value == pytest.approx(TRUTH[key], rel=1e-6)
        assert constant.low == pytest.approx(constant.high, rel=1e-4)
    assert fit.typical_error < 1e-9


def test_fit_separates_both_tiers_of_several_shapes():
    (fit,) = fit_costs(points("two_level", OPS, (8, 16), 4))
    found = constants(fit)
    for key, value in TRUTH.items():
        if key[0] != NODE:
            assert found[key[1], key[0]].value == pytest.approx(value, rel=1e-6)


def coverage(ops, worlds, launches, noise, of_launch, sessions):
    """Return the share of intervals with the truth, and the mean of estimate / truth.

    Each launch has a separate effect on all of its sizes.
    """
    random = np.random.default_rng(7)
    factor = lambda spread: float(np.exp(random.normal(-(spread**2) / 2, spread)))  # noqa: E731
    held, ratios = [], []
    for _ in range(sessions):
        measured = []
        for number, (op, n, _) in enumerate(itertools.product(ops, worlds, range(launches))):
            effect = factor(of_launch)
            measured += [
                (op, "ring", n, None, s, seconds(op, "ring", n, s) * effect * factor(noise), number) for s in SIZES
            ]
        (fit,) = fit_costs(table(measured))
        known = [c for c in fit.constants if c.low is not None and (c.tier, c.name) in TRUTH]
        held += [c.low <= TRUTH[c.tier, c.name] <= c.high for c in known]
        ratios += [c.value / TRUTH[c.tier, c.name] for c in known]
    return np.mean(held), np.mean(ratios)


@pytest.mark.parametrize(
    ("ops", "worlds", "launches"),
    [
        (("all_reduce", "reduce_scatter", "all_gather"), (2, 4), 3),
        (("all_gather",), (2,), 3),
    ],
)
def test_intervals_have_the_truth_if_launches_differ(ops, worlds, launches):
    """With independent points, half of the intervals were wrong."""
    held, _ = coverage(ops, worlds, launches, noise=0.02, of_launch=0.05, sessions=150)
    assert 0.88 < held < 0.99


def test_fit_gives_the_sum_of_unidentifiable_constants():
    (fit,) = fit_costs(points("ring", ("all_reduce",), (2, 4)))
    found = constants(fit)
    assert found["b + 0.5 c", "node + rank"].value == pytest.approx(2.5e-10)
    assert found["a", NODE].value == pytest.approx(1e-4)
    for name, tier in (("b", NODE), ("c", "rank")):
        assert found[name, tier].value is None
        assert "not identifiable" in found[name, tier].reason
        assert "b + 0.5 c" in found[name, tier].reason


def test_fit_of_native_is_a_line_per_operation_and_size():
    measured = [
        (op, "native", n, None, size, 1e-4 * n + size * 1e-10, launch)
        for launch, (op, n, size) in enumerate(itertools.product(("all_reduce", "broadcast"), (2, 4), SIZES))
    ]
    fits = fit_costs(table(measured))
    assert [(fit.op, fit.world_size) for fit in fits] == [
        ("all_reduce", 2), ("all_reduce", 4), ("broadcast", 2), ("broadcast", 4),
    ]  # fmt: skip
    assert [c.value for c in fits[1].constants] == [pytest.approx(4e-4), pytest.approx(1e-10)]
