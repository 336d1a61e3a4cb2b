"""Ratios exist only between connected cases. Levels come from the launches of the case alone."""

import itertools
import math
from collections import defaultdict

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from answers_helpers import of_launches
from benchmarks.simulator import numbers
from parabench.analysis.stats.contrasts import ROUNDING, fit
from parabench.plan.case import Case

# A case in a repetition: not launched, in a separate launch, or in the first or second shared launch.
ABSENT, OWN, FIRST, SECOND = range(4)
CASES = [Case(device="cpu", world_size=2, bucket_mib=float(size)) for size in range(1, 7)]
logs = st.floats(-2, 2, allow_nan=False)


@st.composite
def sessions(draw: st.DrawFn) -> pd.DataFrame:
    """Launch tables without noise: log(step time) = case + repetition + launch, the last 0 in some of them."""
    cases, repetitions = draw(st.integers(2, 6)), draw(st.integers(1, 5))
    layout = st.lists(st.integers(ABSENT, SECOND), min_size=cases, max_size=cases)
    roles = draw(st.lists(layout, min_size=repetitions, max_size=repetitions).filter(lambda some: np.any(some)))
    truth, drift = (draw(st.lists(logs, min_size=n, max_size=n)) for n in (cases, repetitions))
    apart = draw(st.sampled_from([0.0, 1.0]))
    rows, shared, launch_logs = [], [], defaultdict(lambda: apart * draw(logs))
    for repetition, of_case in enumerate(roles):
        for at, role in enumerate(of_case):
            if role != ABSENT:
                launch = (repetition, role, at if role == OWN else -1)
                rows.append((CASES[at], repetition, math.exp(truth[at] + drift[repetition] + launch_logs[launch])))
                shared.append(launch)
    ids = {launch: number for number, launch in enumerate(dict.fromkeys(shared))}
    table = numbers(rows).assign(shared_launch=[ids[launch] for launch in shared], turns=1.0)
    table.attrs |= {"truth": {CASES[at].id: log for at, log in enumerate(truth)}, "apart": apart}
    return table.assign(in_turns=[role != OWN for _, role, _ in shared])


def joined(table: pd.DataFrame, by: str) -> dict[str, int]:
    """Return a number for each case, the same for cases that rows with equal values of `by` connect."""
    of = {case: at for at, case in enumerate(table["case"].unique())}
    for _ in of:
        for _, group in table.groupby(by):
            least = min(of[case] for case in group["case"])
            of |= dict.fromkeys(group["case"], least)
    return of


@settings(max_examples=150, deadline=None)
@given(sessions())
def test_fit_returns_exact_ratios_of_connected_cases_only(table):
    effects, truth = fit(table), table.attrs["truth"]
    by_launch, by_repetition = (joined(table, by) for by in ("shared_launch", "repetition"))
    for one, other in itertools.permutations(effects.cases, 2):
        ratio = effects.behind(one)[other]
        if by_repetition[one] != by_repetition[other]:
            assert math.isnan(ratio)
            assert effects.half_widths(one)[other] == effects.best_half_widths(one)[other] == math.inf
            assert other not in effects.indistinguishable(one)
        elif by_launch[one] == by_launch[other] or not table.attrs["apart"]:
            assert ratio == pytest.approx(truth[other] - truth[one], abs=ROUNDING)
        else:
            assert math.isfinite(ratio)


@settings(max_examples=100, deadline=None)
@given(sessions())
def test_answer_shows_own_means_and_ranks_connected_cases(table):
    (answer,) = of_launches(table)
    shown = {each.case_id: each for each in (*answer.candidates, *answer.not_compared)}
    assert shown.keys() == set(table["case"])
    for case, own in table.groupby("case"):
        level = math.exp(np.log(own["step_s"]).mean())
        assert shown[case].value == shown[case].step_time_s == pytest.approx(level, rel=1e-9)
    component, truth = joined(table, "repetition"), table.attrs["truth"]
    compared = [each.case_id for each in answer.candidates]
    assert len({component[case] for case in compared}) <= 1
    assert not {component[case] for case in compared} & {component[each.case_id] for each in answer.not_compared}
    assert answer.best is not None or len(set(component.values())) == len(component) > 1
    if answer.not_compared:
        assert answer.winner is None
        assert "annot be compared" in answer.sentence or "Not compared" in answer.sentence
    if not table.attrs["apart"]:
        for each in answer.candidates:
            assert math.log1p(each.slower) == pytest.approx(truth[each.case_id] - truth[compared[0]], abs=1e-6)


def test_cases_without_a_common_repetition_have_no_ratio():
    (answer,) = of_launches(numbers([(CASES[0], 1, 0.0008), (CASES[1], 0, 0.0020), (CASES[1], 2, 0.0019)]))
    assert (answer.best, answer.winner, answer.decided) == (None, None, False)
    assert [each.slower for each in answer.not_compared] == [None, None]
    assert answer.sentence == (
        "No launch or repetition that counts is common to two configurations, so they cannot be compared. "
        f"Measured: {CASES[0].label}: 0.800 ms per step (ok); {CASES[1].label}: 1.95 ms per step (ok)."
    )
