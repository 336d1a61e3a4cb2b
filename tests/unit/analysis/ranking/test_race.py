"""Racing: eliminations, their bounds, and the error rate."""

import math

import numpy as np
import pandas as pd
import pytest

from parabench.analysis.ranking.race import ERROR, exits, race
from parabench.analysis.stats.contrasts import fit


def simulated(truth, noise, looks, rounds=None, seed=0):
    """Return the rows of a simulated race. After the first two launches, eliminated cases are not launched."""
    lot = np.random.default_rng(seed)
    rows = {name: [] for name in ("case", "repetition", "shared_launch", "in_turns", "turns", "step_s")}
    racing, found = list(truth), {}
    for repetition in range(1, looks + 2):
        turns = 1 if rounds is None else rounds(len(racing))
        level = lot.normal(0, 0.1)
        for case in racing:
            step_s = truth[case] * math.exp(level + lot.normal(0, noise / math.sqrt(turns)))
            for name, value in zip(rows, (case, repetition, repetition, True, turns, step_s), strict=True):
                rows[name].append(value)
        if repetition > 1:
            found = race(pd.DataFrame(rows), {each: 10.0 * each for each in range(repetition + 1)})
            racing = list(found["race"][-1]["racing"])
    return found


def test_race_eliminates_slow_cases_with_a_bound():
    found = simulated({"a": 1.0, "b": 1.01, "c": 1.5, "d": 3.0}, noise=0.01, looks=6)
    looks = found["race"]
    assert [(look["repetition"], look["seconds"]) for look in looks] == [
        (repetition, 10.0 * repetition) for repetition in range(2, 8)
    ]
    left = {row["case_id"]: row for row in found["eliminated"]}
    assert {"c", "d"} <= left.keys() <= {"b", "c", "d"}
    assert left["d"]["slower"] == pytest.approx(2.0, abs=0.2)
    for row in left.values():
        assert 0 < row["at_least"] < row["slower"]
    assert looks[-1]["racing"][0] == "a"
    assert all(early["half_width"] > late["half_width"] for early, late in zip(looks, looks[3:], strict=False))


def test_exits_have_the_last_elimination_of_a_case():
    looks = [{"racing": ("a", "b")}, {"racing": ("a", "b", "c", "d")}, {"racing": ("a", "c")}]
    left = [{"repetition": repetition, "case_id": case} for repetition, case in ((2, "c"), (2, "d"), (4, "d"))]
    assert exits({"race": looks, "eliminated": left}) == {"d": left[-1]}


def test_eliminated_case_stays_out_at_later_looks():
    """c has two launches. Later launches of a and b do not change its confidence level."""
    lot, rows = np.random.default_rng(0), []
    for repetition in range(1, 16):
        for case, behind in {"a": 0.0, "b": 0.0, **({"c": 0.2} if repetition < 3 else {})}.items():
            rows.append((case, repetition, repetition, True, 1, math.exp(behind + lot.normal(0, 0.03))))
    names = ("case", "repetition", "shared_launch", "in_turns", "turns", "step_s")
    launches = pd.DataFrame(rows, columns=names)
    found = race(launches, dict.fromkeys(range(16), 0.0))
    assert [(row["repetition"], row["case_id"]) for row in found["eliminated"]] == [(2, "c")]
    assert "c" not in found["race"][-1]["racing"]
    effects = fit(launches)
    assert "c" in effects.indistinguishable("a", 1 - ERROR / (10_000 * 9_999))


def test_race_eliminates_the_fastest_in_5_percent_at_most():
    """Twelve cases; five are as fast as the fastest."""
    truth = {"best": 1.0} | {f"near{n}": 1.0 for n in range(5)} | {f"far{n}": 1.2 + n / 10 for n in range(6)}
    lost = 0
    for seed in range(60):
        found = simulated(truth, noise=0.05, looks=8, rounds=lambda racing: max(1, 12 // racing), seed=seed)
        lost += "best" not in found["race"][-1]["racing"]
    # With a true rate of 5%, more are eliminated in one of a thousand such tests.
    assert lost <= 10
