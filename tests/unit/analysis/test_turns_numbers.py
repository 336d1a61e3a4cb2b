"""The numbers of launches in which cases took turns."""

from __future__ import annotations

import json

import numpy as np
import pandas as pd
import pytest
from scipy.stats import trim_mean

from parabench.analysis.turns import (
    IN_TURNS,
    TRIMMED,
    pair_launches,
    paired_numbers,
    shared_launches,
    turns_told,
)
from parabench.plan.turns import TurnsProtocol

PROTOCOL = TurnsProtocol(rounds=20, timed=6)
ROUNDS, TIMED = PROTOCOL.rounds, PROTOCOL.timed
FACTS = json.dumps({"turns": {"protocol": PROTOCOL.to_dict(), "place": 0}})
RATIOS = (1.0, 1.03, 0.98)


def shared(drift, rng, noise=0.0, launch=1):
    """The steps of a launch of three cases: 10 ms, times each case's ratio, times what `drift` made of each round."""
    rows = []
    for place, ratio in enumerate(RATIOS):
        seconds = 0.010 * ratio * drift[:, None] * np.exp(noise * rng.standard_normal((ROUNDS, TIMED)))
        rows += [(10 * launch + place, step, value) for step, value in enumerate(seconds.ravel().tolist())]
    return pd.DataFrame(rows, columns=["launch_id", "step", "step_s"])


def numbers_of(steps):
    """{launch id: (its number by itself, the one that is made of its rounds)}."""
    alone = steps.groupby("launch_id")["step_s"].quantile(0.1)
    ids = alone.index.to_numpy()
    told = turns_told(np.array([FACTS] * len(ids), dtype=object))
    found = paired_numbers(ids, np.ones(len(ids), dtype=bool), ids // 10, alone.to_numpy(), told, steps)
    return alone, pd.Series(found, ids)


def test_the_facts_are_known_by_their_text():
    assert IN_TURNS in FACTS


def test_what_hits_a_round_cancels_and_the_level_is_the_launches():
    rng = np.random.default_rng(0)
    alone, numbers = numbers_of(shared(np.exp(0.3 * rng.standard_normal(ROUNDS)), rng))
    assert np.log(numbers).mean() == pytest.approx(np.log(alone).mean())
    assert numbers.to_numpy() / numbers.iloc[0] == pytest.approx(RATIOS)


def test_turns_that_somebody_came_into_are_trimmed():
    rng = np.random.default_rng(1)
    steps = shared(np.ones(ROUNDS), rng)
    disturbed = steps["launch_id"].eq(10) & (steps["step"] // TIMED).isin([3, 11])
    steps.loc[disturbed, "step_s"] *= 5
    _, numbers = numbers_of(steps)
    assert numbers.to_numpy() / numbers.iloc[0] == pytest.approx(RATIOS, rel=1e-6)


def test_a_case_of_unknown_steps_is_left_as_it_is_and_the_others_compared():
    rng = np.random.default_rng(2)
    steps = shared(np.ones(ROUNDS), rng)
    steps.loc[steps["launch_id"].eq(12) & steps["step"].eq(5), "step_s"] = np.nan
    alone, numbers = numbers_of(steps)
    assert numbers[12] == alone[12]
    assert numbers[11] / numbers[10] == pytest.approx(1.03)


def test_launches_are_of_the_processes_that_their_cases_shared():
    facts = [json.dumps({"turns": {"cases": cases}}) for cases in (["a", "b"], ["a", "b"], ["c", "d"], ["c", "d"])]
    ids = np.arange(1, 7)
    found = shared_launches(
        ids,
        np.array([False, True, True, True, True, True]),
        np.ones(6, dtype=int),
        np.array([0, 1, 1, 1, 1, 2]),
        turns_told(np.array(["{}", *facts, facts[0]], dtype=object)),
    )
    assert found.tolist() == [1, 2, 2, 4, 4, 6]


def test_the_sides_of_an_ab_are_apart_by_the_mean_of_their_rounds():
    rng = np.random.default_rng(5)
    steps = pd.concat([shared(np.ones(ROUNDS), rng, 0.1, launch=each) for each in (1, 2)], ignore_index=True)
    ids = np.array([10, 11, 12, 20, 21, 22])
    sides = [{"run": "x", "side": side, "first": []} for side in "aaabbb"]
    facts = [json.dumps({"turns": {"pair": side, "protocol": PROTOCOL.to_dict(), "place": 0}}) for side in sides]
    told = turns_told(np.array(facts, dtype=object))
    assert all("pair" in each for each in told)
    pair = pair_launches(ids, np.array(list("uvw") * 2), np.ones(6, dtype=int), told)
    assert pair.tolist() == [10, 11, 12, 10, 11, 12]
    level = steps.groupby("launch_id")["step_s"].quantile(0.1).to_numpy()
    in_turns = np.ones(6, dtype=bool)
    found = np.log(paired_numbers(ids, in_turns, pair, level, told, steps))
    turns = np.median(np.log(steps["step_s"].to_numpy()).reshape(6, ROUNDS, TIMED), axis=2)
    assert found[3:] - found[:3] == pytest.approx(trim_mean(turns[3:] - turns[:3], TRIMMED, axis=1))
    # The level of both is what it was.
    assert found[3:] + found[:3] == pytest.approx(np.log(level[3:]) + np.log(level[:3]))
