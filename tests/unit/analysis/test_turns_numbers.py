"""Configurations that shared a launch are compared round by round."""

import numpy as np
import pandas as pd
import pytest
from scipy.stats import trim_mean

import fake_results as fake
import fake_turns
from parabench.analysis.launch_number import TRIMMED, in_rounds, step_turns
from parabench.analysis.numbers import numbers
from parabench.analysis.session import select_session
from parabench.plan.schedule import TrainingSchedule

ROUNDS, TIMED = 20, 6
SCHEDULE = TrainingSchedule(rounds=ROUNDS, settle=2, timed=(TIMED,) * 9)
INTERLEAVING = {"protocol": SCHEDULE.to_dict(), "place": 0}
RATIOS = (1.0, 1.03, 0.98)


def shared(drift, rng, noise=0.0, launch=1):
    """Return the steps of a launch of three cases: 10 ms times the ratio of the case and the `drift` of the round."""
    rows = []
    for place, ratio in enumerate(RATIOS):
        seconds = 0.010 * ratio * drift[:, None] * np.exp(noise * rng.standard_normal((ROUNDS, TIMED)))
        rows += [(10 * launch + place, step, value) for step, value in enumerate(seconds.ravel().tolist())]
    return pd.DataFrame(rows, columns=["launch_id", "step", "step_s"])


def compared(steps, groups=None):
    """Return the number of each launch, alone and compared in `groups` of launches (default: the shared launch)."""
    alone = steps.groupby("launch_id")["step_s"].quantile(0.1)
    interleaving = pd.Series([INTERLEAVING] * len(alone), alone.index, dtype=object)
    groups = alone.index.to_series() // 10 if groups is None else pd.Series(groups, alone.index)
    turns = step_turns(interleaving, alone.index.to_series(), steps)
    return alone, in_rounds(alone, groups, turns)


def test_rounds_cancel_within_a_launch_and_keep_its_level():
    rng = np.random.default_rng(0)
    drifts = [level * np.exp(0.3 * rng.standard_normal(ROUNDS)) for level in (1.0, 1.5)]
    parts = [shared(drift, rng, launch=number) for number, drift in enumerate(drifts, 1)]
    alone, numbers = compared(pd.concat(parts, ignore_index=True))
    for launch in ([10, 11, 12], [20, 21, 22]):
        assert np.log(numbers[launch]).mean() == pytest.approx(np.log(alone[launch]).mean())
        assert numbers[launch].to_numpy() / numbers[launch[0]] == pytest.approx(RATIOS)


def test_in_rounds_keeps_launches_with_an_unknown_step():
    steps = shared(np.ones(ROUNDS), np.random.default_rng(2))
    steps.loc[steps["launch_id"].eq(12) & steps["step"].eq(5), "step_s"] = np.nan
    alone, numbers = compared(steps)
    assert numbers[12] == alone[12]
    assert numbers[11] / numbers[10] == pytest.approx(1.03)


def test_in_rounds_uses_the_trimmed_mean_of_rounds():
    rng = np.random.default_rng(5)
    steps = pd.concat([shared(np.ones(ROUNDS), rng, 0.1, launch=each) for each in (1, 2)], ignore_index=True)
    alone, found = compared(steps, [0, 1, 2, 0, 1, 2])
    level, logs = np.log(alone.to_numpy()), np.log(found.to_numpy())
    turns = np.median(np.log(steps["step_s"].to_numpy()).reshape(6, ROUNDS, TIMED), axis=2)
    assert logs[3:] - logs[:3] == pytest.approx(trim_mean(turns[3:] - turns[:3], TRIMMED, axis=1))
    # The level of both is what it was.
    assert logs[3:] + logs[:3] == pytest.approx(level[3:] + level[:3])


def test_numbers_name_the_shared_launch(tmp_path):
    cases = [fake.case(bucket_mib=size) for size in (1, 2, 3, 4)]
    rng = np.random.default_rng(0)
    launches = [fake.launch(cases[0])]
    for repetition, own in ((1, cases[:2]), (1, cases[2:]), (2, cases[:2])):
        launches += fake_turns.launches(
            fake_turns.shared([case.id for case in own], rng, seed=repetition), own, repetition
        )
    results = fake.write(tmp_path / "r.db", launches)
    table = numbers(results, select_session(results))
    assert table["shared_launch"].tolist() == [1, 2, 2, 4, 4, 6, 6]
    assert table["in_turns"].tolist() == [False, *[True] * 6]
    assert table["turns"].tolist() == [1, *[4] * 6]
    # Configurations that shared launches are compared there alone.
    assert table["timed"].tolist() == [False, *[True] * 6]
