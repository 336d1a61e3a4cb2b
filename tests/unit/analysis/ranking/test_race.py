"""Racing: eliminations, their bounds, and the error rate."""

from __future__ import annotations

import math

import numpy as np
import pandas as pd
import pytest

from parabench.analysis.ranking.race import Exit, Look, confidence_of, exits, race
from parabench.analysis.stats.contrasts import fit


def simulated(truth, noise, looks, rounds=None, seed=0):
    """Yield the looks of a simulated race. After the first two launches, eliminated cases are not launched."""
    lot = np.random.default_rng(seed)
    rows = {name: [] for name in ("case", "repetition", "shared_launch", "in_turns", "turns", "step_s")}
    racing = list(truth)
    for block in range(1, looks + 2):
        turns = 1 if rounds is None else rounds(len(racing))
        level = lot.normal(0, 0.1)
        for case in racing:
            step_s = truth[case] * math.exp(level + lot.normal(0, noise / math.sqrt(turns)))
            for name, value in zip(rows, (case, block, block, True, turns, step_s), strict=True):
                rows[name].append(value)
        launches = pd.DataFrame(rows)
        if block > 1:
            found = race(launches, {each: 10.0 * each for each in range(block + 1)})
            yield found
            racing = list(found[-1].racing)


def last(*args, **more):
    *_, looks = simulated(*args, **more)
    return looks


def test_race_eliminates_slow_cases_with_a_bound():
    looks = last({"a": 1.0, "b": 1.01, "c": 1.5, "d": 3.0}, noise=0.01, looks=6)
    assert [look.block for look in looks] == [2, 3, 4, 5, 6, 7]
    assert [look.seconds for look in looks] == [10.0 * block for block in range(2, 8)]
    left = {each.case_id: each for look in looks for each in look.left}
    assert {"c", "d"} <= left.keys() <= {"b", "c", "d"}
    assert left["d"].slower == pytest.approx(2.0, abs=0.2)
    for each in left.values():
        assert 0 < each.at_least < each.slower
    assert looks[-1].racing[0] == "a"
    assert all(early.half_width > late.half_width for early, late in zip(looks, looks[3:], strict=False))


def test_exits_have_the_last_elimination_of_a_case():
    looks = (
        Look(2, 10.0, ("a", "b"), (Exit("c", 0.2, 0.1), Exit("d", 0.3, 0.1)), 0.05),
        Look(3, 20.0, ("a", "b", "c", "d"), (), 0.05),
        Look(4, 30.0, ("a", "c"), (Exit("d", 0.3, 0.2),), 0.04),
    )
    assert {case: look.block for case, (look, _) in exits(looks).items()} == {"d": 4}


def test_eliminated_case_stays_out_at_later_looks():
    """Nothing is heard of c after its two launches, and what a and b do later changes nothing about them."""
    lot, rows = np.random.default_rng(0), []
    for block in range(1, 16):
        for case, behind in {"a": 0.0, "b": 0.0, **({"c": 0.2} if block < 3 else {})}.items():
            rows.append((case, block, block, True, 1, math.exp(behind + lot.normal(0, 0.03))))
    names = ("case", "repetition", "shared_launch", "in_turns", "turns", "step_s")
    launches = pd.DataFrame(rows, columns=names)
    first, *_, late = race(launches, dict.fromkeys(range(16), 0.0))
    assert first.left[0].case_id == "c"
    assert "c" not in late.racing
    effects = fit(launches)
    assert "c" in effects.indistinguishable("a", confidence_of(10_000))


def test_racing_of_equal_cases_ends_when_it_is_sharp():
    *_, looks = simulated({"a": 1.0, "b": 1.0, "c": 1.0}, noise=0.02, looks=14, seed=1)
    assert set(looks[-1].racing) == {"a", "b", "c"}
    assert looks[-1].decided
    assert not looks[0].decided


def test_the_fastest_leaves_in_one_race_of_twenty_at_most():
    """Twelve cases; five are as fast as the fastest."""
    truth = {"best": 1.0} | {f"near{n}": 1.0 for n in range(5)} | {f"far{n}": 1.2 + n / 10 for n in range(6)}
    lost = 0
    for seed in range(60):
        looks = last(truth, noise=0.05, looks=8, rounds=lambda racing: max(1, 12 // racing), seed=seed)
        lost += "best" not in looks[-1].racing
    # What a chance of one in twenty exceeds once in a thousand such tests.
    assert lost <= 10
