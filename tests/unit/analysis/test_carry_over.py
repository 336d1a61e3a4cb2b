"""Shared launches: the noise floor of an A/A test, and interference, which is found without false alarms."""

import re

import numpy as np
import pytest

import fake_results as fake
import fake_turns
from fake_turns import shared
from parabench.analysis.carry_over import carry_over, judge, noise_floor, sentence
from parabench.analysis.session import session_data
from parabench.analysis.warnings.launches import session_warnings
from parabench.store.record import TWIN_REPETITION

NAMES = [f"case {at}" for at in range(6)]


def session(rng, cohorts, left_behind=None, **more):
    """Test a session whose launches have these cases."""
    return judge(
        [shared(names, rng, seed=int(rng.integers(2**31)), left_behind=left_behind, **more) for names in cohorts]
    )


@pytest.mark.slow  # 300 sessions
def test_few_sessions_have_a_warning_without_interference():
    """Fewer than 5% of 300 sessions with outliers raise a false alarm. In half of them, cases are eliminated."""
    leaving = [NAMES, NAMES, NAMES[:4], NAMES[:3], NAMES[:3], NAMES[:2]]
    found = 0
    for number in range(300):
        rng = np.random.default_rng(number)
        found += session(rng, leaving if number % 2 else [NAMES] * 5).found is not None
    assert found < 0.05 * 300


def test_interference_is_found_with_its_size():
    rng = np.random.default_rng(0)
    seen = session(rng, [NAMES] * 20, {"case 2": 0.08}, noise=0.05)
    assert seen.found["case_id"] == "case 2"
    # Relative to the mean effect of all cases.
    truth = np.expm1(0.08 * (1 - 1 / 6))
    assert seen.found["low"] < truth < seen.found["high"]
    assert seen.found["high"] - seen.found["low"] < 0.03
    assert seen.matters


def test_intervals_contain_the_truth_when_cases_leave():
    held = 0
    for number in range(100):
        rng = np.random.default_rng(number)
        seen = session(rng, [NAMES] * 3 + [NAMES[1:4]] * 6, {"case 2": 0.05}, disturbed=0.0)
        effect = seen.effects.set_index("case_id").loc["case 2"]
        held += effect["low"] < np.expm1(0.05 * 5 / 6) < effect["high"]
    assert held >= 95


@pytest.mark.parametrize("rounds", [1, 2])
def test_effects_are_unknown_when_rounds_are_too_few(rounds):
    rng = np.random.default_rng(6)
    seen = judge([shared(NAMES[:2], rng, seed=seed, rounds=rounds, settle=0) for seed in range(2)])
    assert seen.found is None
    if rounds == 1:
        assert seen.effects["p"].isna().all()


def test_stored_session_is_tested_and_described(tmp_path):
    cases, rng = [fake.case(bucket_mib=size) for size in (1.0, 4.0, 25.0)], np.random.default_rng(7)
    ids = [each.id for each in cases]
    written = [fake.launch(each, 0.01) for each in cases]
    known = [shared(ids, rng, seed=repetition, left_behind={ids[1]: 0.3}, noise=0.05) for repetition in range(1, 7)]
    for repetition, of in enumerate(known, 1):
        written += fake_turns.launches(of, cases, repetition)
    seen = session_data(fake.write(tmp_path / "results.db", written))
    tested = seen.once(carry_over)
    assert tested.found["case_id"] == ids[1]
    assert tested.found["size"] == pytest.approx(judge(known).found["size"])
    assert tested.launches == 6
    line = sentence(tested, dict(zip(seen.cases["case_id"], seen.cases["label"], strict=True)))
    assert line.startswith(
        "Interference between interleaved configurations: steps after ddp native 4 MiB, 2 ranks are 2"
    )
    assert [each.message for each in session_warnings(seen) if each.code == "carry_over"] == [line]


def test_sentence_bounds_interference_when_none_is_found():
    seen = session(np.random.default_rng(8), [NAMES] * 8)
    assert re.fullmatch(
        r"No interference between interleaved configurations was found in 8 shared launches: a step time depends on "
        r"the previous configuration by less than [\d.]+% \(95%\)\.",
        sentence(seen, {}),
    )
    # A case that was eliminated early is in few launches.
    raced = session(np.random.default_rng(9), [NAMES] * 2 + [NAMES[:3]] * 6)
    assert "shared launches: among the configurations of the last, a step time depends on" in sentence(raced, {})


@pytest.mark.parametrize(("slower", "shown"), [(0.0, r"0\.\d+"), (0.03, r"[23]\.\d")])
def test_noise_floor_has_the_difference_of_copies(tmp_path, slower, shown):
    """Twenty launches, whose twin of the first case is slower."""
    cases, rng, written = [fake.case(bucket_mib=size) for size in (1.0, 25.0)], np.random.default_rng(0), []
    copies = [*cases, cases[0]]
    for repetition in range(20):
        quiet = {"noise": 0.02, "of_launch": 0.01, "disturbed": 0.0}
        of = shared([each.id for each in copies], rng, seed=repetition, **quiet)
        of.turns[2] += slower - 0.1  # the fixture's last case is 10% slower than its first
        arms = fake_turns.launches(of, copies, repetition)
        arms[2].repetition = TWIN_REPETITION
        written += arms
    seen = session_data(fake.write(tmp_path / "results.db", written))
    assert set(seen.cases["n_launches"]) == {20}
    (line,) = noise_floor(seen)
    words = "Two copies of ddp native 1 MiB, 2 ranks differed by "
    pattern = rf"{words}({shown})% \(95%: ±(0\.\d+)%\) in 20 shared launches\."
    difference, half_width = map(float, re.fullmatch(pattern, line).groups())
    assert abs(difference - 100 * np.expm1(slower)) < 2 * half_width < 2
