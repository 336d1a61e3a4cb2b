from dataclasses import replace

import numpy as np
import pytest

import fake_results as fake
from fake_results import OOM
from parabench.analysis import format
from parabench.analysis.compare import gate
from parabench.analysis.compare.comparison import Outcome
from parabench.analysis.compare.gate import Verdict, lines, the_verdict
from parabench.analysis.compare.sides import read_sides, side_of
from parabench.analysis.stats.contrasts import holm, judge
from parabench.errors import UsageError
from parabench.store.record import Failure, Status
from parabench.store.results import load

CASES = [fake.case(bucket_mib=b) for b in (1.0, 4.0, 25.0)]


def compare(base, candidate, **more):
    """Return the answer of a gate without variation between sessions."""
    return gate.compare(base, candidate, **({"allowance": 0.0} | more))


def truth(case):
    return 0.03 + 0.001 * case.bucket_mib


def side(tmp_path, name, launches, **more):
    return side_of(fake.write(tmp_path / f"{name}.db", launches, label=name, **more))


def pair(tmp_path, base, candidate, **more):
    """Two sides of one run, in one store."""
    for name, launches in (("a", base), ("b", candidate)):
        fake.write(tmp_path / "ab.db", launches, label=name, interleaved={"run": "r1", "side": name}, **more)
    return read_sides(*(f"{tmp_path / 'ab.db'}@{name}" for name in "ab"))


def rows(found):
    return [*found.tables["cases"].itertuples(index=False)]


def verdict(found):
    """The verdict and its exit code."""
    row = the_verdict(found)
    assert row["verdict"].exit_code == row["exit_code"]
    return row["verdict"]


def sentence(found):
    return " ".join(found.sentences)


def outcomes(found):
    found.to_json("compare")
    return {row.case_id: row.outcome for row in rows(found)}


def test_an_injected_slowdown_is_flagged_alone(tmp_path):
    base = side(tmp_path, "base", fake.sweep(CASES, truth, noise=0.005, repetitions=6, seed=1))
    launches = fake.sweep(CASES, lambda c: truth(c) * (1.1 if c == CASES[1] else 1), noise=0.005, repetitions=6, seed=2)
    slow = side(tmp_path, "new", launches)
    found = compare(base, slow)
    assert verdict(found) is Verdict.REGRESSION
    assert outcomes(found) == {CASES[1].id: Outcome.SLOWER, CASES[0].id: Outcome.SAME, CASES[2].id: Outcome.SAME}
    row = rows(found)[0]
    assert row.ratio == pytest.approx(1.1, abs=0.01)
    assert row.low < row.ratio < row.high
    assert sentence(found).startswith(
        f"Regression: 1 configuration slower (ddp native 4 MiB, 2 ranks {format.signed(row.ratio - 1)}), 2 same. "
        "Slowdowns above 2% are ruled out in 2 of 3 configurations judged (95%; the largest upper bound is "
    )
    assert "6 launches per variant, not interleaved." in sentence(found)
    assert outcomes(compare(slow, base))[CASES[1].id] == Outcome.FASTER
    assert verdict(compare(slow, base)) is Verdict.NO_REGRESSION


def test_outcome_depends_on_tolerance_and_noise(tmp_path):
    base = side(tmp_path, "base", fake.sweep(CASES, truth))
    within = side(tmp_path, "a", fake.sweep(CASES, lambda c: truth(c) * 1.019))
    assert verdict(compare(base, within)) is Verdict.NO_REGRESSION
    beyond = side(tmp_path, "b", fake.sweep(CASES, lambda c: truth(c) * 1.021))
    assert verdict(compare(base, beyond)) is Verdict.REGRESSION
    noisy = [fake.launch(CASES[0], s, repetition=b) for b, s in enumerate((0.031, 0.034, 0.050))]
    (row, *_) = rows(compare(base, side(tmp_path, "c", noisy)))
    assert (row.case_id, row.outcome) == (CASES[0].id, Outcome.UNCLEAR)
    assert row.note == "beyond the tolerance, but not beyond the noise"


@pytest.mark.parametrize(("slower", "expected"), [(1.015, Verdict.NO_REGRESSION), (1.0198, Verdict.INCONCLUSIVE)])
def test_pass_needs_an_upper_bound_below_the_tolerance(tmp_path, slower, expected):
    """+1.5% measured so well that 0.6% would have been found: it passes a tolerance of 2%, and says what is ruled
    out. +1.98% measured as well does not pass it."""
    base = fake.sweep(CASES[:1], truth, noise=0.002, repetitions=20, seed=1)
    new = fake.sweep(CASES[:1], lambda c: slower * truth(c), noise=0.002, repetitions=20, seed=2)
    found = compare(*pair(tmp_path, base, new))
    (row,) = rows(found)
    assert verdict(found) is expected
    assert row.ratio < row.upper < row.high
    assert (row.upper < 1.02) == (expected is Verdict.NO_REGRESSION)
    assert f"upper bound is {format.signed(row.upper - 1)}, ddp native 1 MiB, 2 ranks" in sentence(found)


def test_bound_equals_the_bound_of_a_one_sided_t_test():
    """By hand: log-ratios 0, 0.01 and 0.02; the 95% quantile of t with 2 degrees of freedom is 2.920."""
    (test,) = judge({"a": (np.zeros(3), np.array([0.0, 0.01, 0.02]))}, paired=True).values()
    assert test.upper == pytest.approx(0.01 + 2.91999 * 0.01 / np.sqrt(3), abs=1e-6)
    assert test.p_slower == pytest.approx(0.1127, abs=1e-4)  # t = sqrt(3)


def test_gate_is_inconclusive_when_the_bound_is_wide(tmp_path):
    base, same = (side(tmp_path, f"n{seed}", fake.sweep(CASES, truth, noise=0.02, seed=seed)) for seed in (1, 2))
    found = compare(base, same)
    assert verdict(found) is Verdict.INCONCLUSIVE
    widest = max(rows(found), key=lambda row: row.upper)
    assert the_verdict(found)["upper"] == widest.upper > 1.02
    assert sentence(found).startswith(
        f"Inconclusive: 3 configurations unclear ({'; '.join(row.label for row in rows(found))}). "
        "Slowdowns above 2% are ruled out in 0 of 3 configurations judged (95%; the largest upper bound is "
        f"{format.signed(widest.upper - 1)}, {widest.label})."
    )
    needed = max(row.launches_needed for row in rows(found))
    assert f"Equal variants would pass with about {needed} launches per variant (90%)." in sentence(found)
    assert verdict(compare(base, same, tolerance=0.4)) is Verdict.NO_REGRESSION


def test_sides_that_took_turns_are_compared_block_by_block(tmp_path):
    """Drift that affects both variants cancels. Without pairing, the same numbers show nothing."""
    base = fake.sweep(CASES, truth, noise=0.002, drift=0.1, seed=1)
    slow = fake.sweep(CASES, lambda c: 1.05 * truth(c), noise=0.002, drift=0.1, seed=2)
    paired = compare(*pair(tmp_path, base, slow))
    assert the_verdict(paired)["paired"]
    assert paired.warnings == ()
    assert {row.outcome for row in rows(paired)} == {Outcome.SLOWER}
    apart = compare(side(tmp_path, "base", base), side(tmp_path, "slow", slow))
    assert {row.outcome for row in rows(apart)} == {Outcome.UNCLEAR}
    (finding,) = apart.warnings
    assert finding.code == "unpaired"
    assert the_verdict(apart)["upper"] / 1.05 - 1 > 10 * (the_verdict(paired)["upper"] / 1.05 - 1)


def test_nothing_is_dropped(tmp_path):
    broke, fixed, missing, added, few, bad, wrong = (fake.case(bucket_mib=float(b)) for b in range(1, 8))
    off = {"status": Status.WRONG, "failure": Failure("loss differs")}
    good = [fake.launch(broke, repetition=b) for b in range(3)]
    base = [*good, fake.launch(fixed, **OOM), *map(fake.launch, (missing, few, wrong)), fake.launch(bad, **OOM)]
    new = [*good[:2], fake.launch(broke, repetition=2, **OOM), *map(fake.launch, (fixed, added)), fake.launch(few, 0.9)]
    new += [fake.launch(bad, **OOM), fake.launch(wrong, **off)]
    skipped = [(missing, "no such <device>")]
    found = compare(side(tmp_path, "base", base), side(tmp_path, "new", new, skipped=skipped))
    assert outcomes(found) == {
        broke.id: Outcome.BROKE,
        wrong.id: Outcome.BROKE,
        fixed.id: Outcome.FIXED,
        missing.id: Outcome.ONLY_BASE,
        added.id: Outcome.ONLY_CANDIDATE,
        few.id: Outcome.NOT_JUDGED,
        bad.id: Outcome.NOT_OK,
    }
    assert verdict(found) is Verdict.REGRESSION
    assert {row.note for row in rows(found)[:2]} == {
        "base 3 ok; candidate 2 ok, 1 oom: rank 1: out of memory",
        "base 1 ok; candidate 1 wrong: loss differs",
    }
    text = "\n".join(lines(found))
    assert "skipped in new: no such <device>" in text
    assert "an interval needs 2 launches per variant; there are 1 and 1" in text
    assert (
        "Regression: 2 configurations broke (ddp native 1 MiB, 2 ranks; ddp native 7 MiB, 2 ranks), 1 cannot be judged"
        in text
    )


def test_gate_refuses_other_hardware_unless_changed(tmp_path):
    base = side(tmp_path, "base", fake.sweep(CASES, truth, seed=1))
    other = fake.ENVIRONMENT | {"versions": {"torch": "2.14.0", "numpy": "2.4.7"}, "cores": 4, "host": "elsewhere"}
    new = side(tmp_path, "new", fake.sweep(CASES, truth, seed=2), environment=other)
    with pytest.raises(UsageError, match=r"torch \(2.13.0 in base, 2.14.0 in candidate\)") as refused:
        compare(base, new)
    assert "cores (8 in base, 4 in candidate)" in str(refused.value)
    assert "--changed cores --changed torch" in str(refused.value)
    found = compare(base, new, changed=("torch", "cores"))
    assert [each.name for each in found.tables["differences"].itertuples() if not each.matters] == ["numpy", "host"]
    with pytest.raises(UsageError, match="--changed driver: it is the same on both variants; what differs is cores, "):
        compare(base, new, changed=("driver",))
    gpus = fake.ENVIRONMENT | {"gpus": [{"name": "H200"}] * 2}
    cuda = [fake.case(device="cuda")]
    few, many = (
        side(tmp_path, f"gpu{n}", list(map(fake.launch, cuda)), environment=gpus | {"gpus": gpus["gpus"] * n})
        for n in (1, 2)
    )
    with pytest.raises(UsageError, match=r"devices \(2 x H200 in base, 4 x H200 in candidate\)"):
        compare(few, many)


def sessions_of(tmp_path, name, levels, noise=0.001, first=0, environment=None, **more):
    """A store with a session of each level, the last one its newest."""
    for i, level in enumerate(levels):
        launches = fake.sweep(CASES, lambda c, at=level: at * truth(c), noise=noise, repetitions=4, seed=first + i)
        last = fake.write(tmp_path / f"{name}.db", launches, label=f"{name}{i}", environment=environment, **more)
    return side_of(last)


# Sessions that differ by 1.1% (standard deviation), and no more than 3% from each other.
DAYS = (1.0, 1.02, 0.99, 1.01, 1.0, 1.01)


def test_variance_between_sessions_prevents_false_alarms(tmp_path):
    """Launches that agree within 0.1%, another session 3% slower: Welch's test alone calls that a regression."""
    new = sessions_of(tmp_path, "new", [1.03], first=50)
    for name, days, alarm in (("few", DAYS[-3:], False), ("six", DAYS, False), ("steady", [1.0] * 6, True)):
        base = sessions_of(tmp_path, name, days)
        assert name != "few" or verdict(compare(base, new)) is Verdict.REGRESSION
        found = gate.compare(base, new)
        assert verdict(found) is (Verdict.REGRESSION if alarm else Verdict.INCONCLUSIVE), name
        row = the_verdict(found)
        expected = (0, 3) if name == "few" else (3, 0)
        assert (row["measured"], row["allowed"], row["sessions"]) == (*expected, len(days))
        text = sentence(found)
        if name == "few":
            assert "Sessions are assumed to differ by 5% or more (standard deviation, --between-sessions): the" in text
            assert {row.session_sd for row in rows(found)} == {0.05}
        else:
            assert "The bounds contain the variation between 6 sessions: " in text
    (row, *_) = rows(gate.compare(sessions_of(tmp_path, "again", DAYS), new))
    assert row.session_sd == pytest.approx(np.std(np.log(DAYS), ddof=1), rel=0.1)


def test_between_sessions_counts_comparable_sessions(tmp_path):
    new = sessions_of(tmp_path, "new", [1.0], first=50)
    base = sessions_of(tmp_path, "base", DAYS)
    assert the_verdict(gate.compare(base, new))["sessions"] == 6
    # These do not count: another torch, an unfinished session, variants of an ab, the candidate.
    other = fake.ENVIRONMENT | {"versions": {"torch": "2.14.0"}}
    sessions_of(tmp_path, "base", [3.0], environment=other)
    sessions_of(tmp_path, "base", [3.0], finished=False)
    for at in "ab":
        sessions_of(tmp_path, "base", [3.0], interleaved={"run": "r", "side": at})
    sixth = side_of(load(tmp_path / "base.db"), 6)
    assert the_verdict(gate.compare(sixth, new))["sessions"] == 6
    candidate = sessions_of(tmp_path, "base", [1.0])
    assert the_verdict(gate.compare(side_of(load(tmp_path / "base.db"), 6), candidate))["sessions"] == 6


def test_nothing_in_common_is_refused(tmp_path):
    sides = [side(tmp_path, f"s{i}", [fake.launch(each)]) for i, each in enumerate(CASES[:2])]
    with pytest.raises(UsageError, match=r"no configuration is in both s0 of .* and s1 of .*; measure the same suite"):
        compare(*sides)


def steady(cases=CASES, repetitions=4, seed=1):
    return fake.sweep(cases, truth, noise=0.001, repetitions=repetitions, seed=seed)


@pytest.mark.parametrize(
    ("rest", "finished", "outcome"),
    [
        (None, True, Outcome.ONLY_BASE),
        ({"status": Status.INTERRUPTED}, False, Outcome.NOT_OK),
        ({"samples": []}, True, Outcome.NOT_OK),
        ({}, True, Outcome.NOT_JUDGED),
    ],
)
def test_a_gate_that_judged_a_part_does_not_pass(tmp_path, rest, finished, outcome):
    base = side(tmp_path, "base", steady())
    launches = steady(CASES[:1], seed=2)
    if rest is not None:
        launches += [replace(fake.launch(case), **rest) for case in CASES[1:]]
    found = compare(base, side(tmp_path, "new", launches, finished=finished))
    assert {outcomes(found)[case.id] for case in CASES[1:]} == {outcome}
    assert verdict(found) is Verdict.INCONCLUSIVE
    assert sentence(found).startswith(
        f"Inconclusive: 2 configurations {outcome} (ddp native 4 MiB, 2 ranks; ddp native 25 MiB, 2 ranks), 1 same. "
    )
    assert "Slowdowns above 2% are ruled out in 1 of 1 configuration judged (95%; the largest upper" in sentence(found)
    assert "Measure the configurations that were not judged, or take a base without them." in sentence(found)
    assert [each.code for each in found.warnings] == [*(["unfinished"] if not finished else []), "unpaired"]
    if outcome is Outcome.NOT_OK:
        how = "interrupted" if "status" in rest else "ok without a step time"
        assert rows(found)[-1].note == f"base 4 ok; candidate 1 {how}"


def test_holm_steps_down():
    assert holm([0.01, 0.04, 0.03]) == pytest.approx([0.03, 0.06, 0.06])
    assert holm([]) == []
