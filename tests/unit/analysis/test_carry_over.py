"""What a case leaves behind for the next one's turn is found, and nothing where nothing is."""

from __future__ import annotations

import json
import re
from dataclasses import asdict
from itertools import count

import numpy as np
import pytest

import fake_results as fake
import fake_turns
from fake_turns import shared
from parabench.analysis.carry_over import MOST_SETTLE, TESTS, carry_over, judge, settle_for
from parabench.analysis.session import session_data
from parabench.analysis.text import turns as text
from parabench.analysis.warnings.launches import session_warnings
from parabench.plan.turns import LONG_EVERY

NAMES = [f"case {at}" for at in range(6)]


def session(rng, cohorts, left_behind=None, alone=None, **more):
    """The tests of a session whose launches have these cases."""
    launches = [shared(names, rng, seed=int(rng.integers(2**31)), left_behind=left_behind, **more) for names in cohorts]
    return judge(launches, alone or {})


@pytest.mark.slow  # 300 sessions
def test_without_carry_over_few_sessions_have_a_finding():
    """Of 300 sessions with outliers, in half of which cases leave, fewer than 5 % do."""
    leaving = [NAMES, NAMES, NAMES[:4], NAMES[:3], NAMES[:3], NAMES[:2]]
    found = 0
    for number in range(300):
        rng = np.random.default_rng(number)
        alone = dict(zip(NAMES, 0.1 * rng.standard_normal(len(NAMES)), strict=True))
        found += bool(session(rng, leaving if number % 2 else [NAMES] * 5, alone=alone).found)
    assert found < 0.05 * 300


def test_what_a_case_leaves_behind_is_found_with_its_size():
    rng = np.random.default_rng(0)
    seen = session(rng, [NAMES] * 20, {"case 2": (0.08,)}, noise=0.05)
    after = {each.case_id: each for each in seen.tests["after"]}
    assert seen.found["after"].case_id == "case 2"
    # Relative to what cases leave behind in the mean.
    truth = np.expm1(0.08 * (1 - 1 / 6))
    assert after["case 2"].low < truth < after["case 2"].high
    assert after["case 2"].high - after["case 2"].low < 0.03
    assert seen.matters
    assert settle_for(seen) == 4


def test_intervals_hold_the_truth_where_cases_leave():
    held = 0
    for number in range(100):
        rng = np.random.default_rng(number)
        seen = session(rng, [NAMES] * 3 + [NAMES[1:4]] * 6, {"case 2": (0.05,)}, disturbed=0.0)
        effect = next(each for each in seen.tests["after"] if each.case_id == "case 2")
        held += effect.low < np.expm1(0.05 * 5 / 6) < effect.high
    assert held >= 95


def test_what_the_settling_steps_take_up_is_told_and_no_finding():
    rng = np.random.default_rng(1)
    seen = session(rng, [NAMES] * 8, {"case 3": (0.5, 0.2, 0.0)})
    assert not seen.found
    assert min(seen.tests["settling"], key=lambda each: each.p).case_id == "case 3"
    assert seen.positions[0].low > 0.02
    assert settle_for(seen) == 2


def test_a_transient_of_all_cases_is_found_in_the_first_step_that_counts():
    rng = np.random.default_rng(2)
    seen = session(rng, [NAMES] * 8, dict.fromkeys(NAMES, (0.4, 0.3, 0.2, 0.0)))
    assert seen.found["first"].case_id is None
    assert seen.found["first"].size == pytest.approx(np.expm1(0.2), abs=0.05)
    assert [each.step for each in seen.positions] == [1, 2, 3, 4, 5]
    assert seen.positions[2].low > 0 > seen.positions[4].low


def test_a_slow_transient_of_one_case_is_found_in_its_long_turns():
    """In rounds of its own lengths: whichever case was before, its first steps are slow."""
    rng, found = np.random.default_rng(3), None
    launches = [shared(NAMES, rng, seed=number, noise=0.05, rounds=LONG_EVERY) for number in range(12)]
    for of in launches:
        for steps in of.timed[4]:
            steps[:8] += 0.1
    found = judge(launches, {}).found["long"]
    assert found.case_id == "case 4"
    assert found.high < 0


def test_a_launch_of_its_own_that_differs_is_found():
    rng = np.random.default_rng(4)
    alone = dict(zip(NAMES, 0.005 * rng.standard_normal(6), strict=True)) | {"case 5": -0.3}
    seen = session(rng, [NAMES] * 4, alone=alone)
    assert seen.found["alone"].case_id == "case 5"
    assert seen.found["alone"].size == pytest.approx(np.expm1(-0.3), abs=0.02)
    few = session(rng, [NAMES] * 4, alone={"case 1": 0.1, "case 2": 0.3})
    assert few.tests["alone"] == ()


def test_with_as_many_settling_steps_as_are_ever_taken_shared_launches_have_no_answer():
    left = dict.fromkeys(NAMES[:1], (0.2,))
    for settle, further in ((2, 4), (4, 8), (MOST_SETTLE, None)):
        seen = session(np.random.default_rng(5), [NAMES] * 10, left, settle=settle)
        assert seen.matters
        assert settle_for(seen) == further


@pytest.mark.parametrize("rounds", [1, 2, 4, LONG_EVERY])
def test_few_rounds_tell_what_they_can_and_what_they_cannot_is_unknown(rounds):
    numbers = count()
    rng = np.random.default_rng(6)
    seen = judge([shared(NAMES[:2], rng, seed=next(numbers), rounds=rounds, settle=0) for _ in range(2)], {})
    assert not seen.found
    assert set(seen.tests) == set(TESTS)
    told = json.loads(json.dumps(asdict(seen), allow_nan=False))
    assert told["tests"]["first"][0]["size"] is not None
    if rounds == 1:
        assert {each["p"] for each in told["tests"]["after"]} == {None}


def test_a_session_of_a_store_is_tested_and_said_in_a_sentence(tmp_path):
    cases, rng = [fake.case(bucket_mib=size) for size in (1.0, 4.0, 25.0)], np.random.default_rng(7)
    ids = [each.id for each in cases]
    written = [fake.launch(each, 0.01) for each in cases]
    known = [shared(ids, rng, seed=block, left_behind={ids[1]: (0.3,)}, noise=0.05) for block in range(1, 7)]
    for block, of in enumerate(known, 1):
        written += fake_turns.launches(of, cases, block)
    seen = session_data(fake.write(tmp_path / "results.db", written))
    found = seen.once(carry_over)
    again = judge(known, {}).found
    assert {test: each.case_id for test, each in found.found.items()} == {"after": ids[1]}
    assert found.found["after"].size == pytest.approx(again["after"].size)
    assert found.launches == 6
    labels = dict(zip(seen.cases["case_id"], seen.cases["label"], strict=True))
    (said,) = [text for case, text in text.found(found, labels) if case == ids[1]]
    assert said.startswith("Carry-over between turns: the turn after one of ddp native 4 MiB, 2 ranks is 2")
    assert text.sentence(found, labels) == said
    assert [each.code for each in session_warnings(seen)].count("carry_over") == len(found.found)


def test_a_session_without_shared_launches_has_nothing_to_test(tmp_path):
    assert (
        carry_over(session_data(fake.write(tmp_path / "results.db", fake.sweep([fake.case()], lambda one: 1.0))))
        is None
    )


def test_where_nothing_is_found_it_is_said_how_much_is_ruled_out():
    seen = session(np.random.default_rng(8), [NAMES] * 8)
    said = text.sentence(seen, {})
    assert re.fullmatch(
        r"No carry-over between turns was found in 8 shared launches: a turn depends on the case before it by less "
        r"than [\d.]+ % \(95 %\)\.",
        said,
    )
    # What left a race early was in few launches, and tells little.
    raced = session(np.random.default_rng(9), [NAMES] * 2 + [NAMES[:3]] * 6)
    assert "shared launches: among the cases of the last, a turn depends on" in text.sentence(raced, {})


def test_one_launch_of_its_own_that_was_disturbed_asks_for_nothing():
    """It is told; but no settling step changes it, and no later launch makes another of it."""
    alone = dict(zip(NAMES, 0.005 * np.random.default_rng(4).standard_normal(6), strict=True)) | {"case 5": -0.3}
    seen = session(np.random.default_rng(4), [NAMES] * 4, alone=alone, settle=MOST_SETTLE)
    assert set(seen.found) == {"alone"}
    assert settle_for(seen) == MOST_SETTLE
