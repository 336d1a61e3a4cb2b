from __future__ import annotations

import json

import fake_results as fake
import pytest

from parabench.analysis.compare import Outcome, compare
from parabench.analysis.welch import holm
from parabench.record import Failure, Status

CASES = [fake.case(bucket_mib=b) for b in (1.0, 4.0, 25.0)]


def truth(case):
    return 0.03 + 0.001 * case.bucket_mib


def side(tmp_path, name, launches, **more):
    return fake.write(tmp_path / f"{name}.db", launches, label=name, **more)


def outcomes(comparison):
    json.dumps(comparison.to_dict(), allow_nan=False)
    return {row.case_id: row.outcome for row in comparison.rows}


def test_an_injected_slowdown_is_flagged_alone(tmp_path):
    base = side(tmp_path, "base", fake.sweep(CASES, truth, noise=0.005, blocks=5, seed=1))
    slow = side(
        tmp_path,
        "new",
        fake.sweep(CASES, lambda c: truth(c) * (1.1 if c == CASES[1] else 1), noise=0.005, blocks=5, seed=2),
    )
    found = compare(base, slow)
    assert found.regressed
    assert outcomes(found) == {CASES[1].id: Outcome.SLOWER, CASES[0].id: Outcome.SAME, CASES[2].id: Outcome.SAME}
    row = found.rows[0]
    assert row.ratio == pytest.approx(1.1, abs=0.01)
    assert row.low < row.ratio < row.high
    assert found.sentence() == "Regression: 1 case of 3 judged got slower, the most by 10 %."
    assert outcomes(compare(slow, base))[CASES[1].id] == Outcome.FASTER
    assert not compare(slow, base).regressed


def test_the_same_machine_twice_is_no_regression(tmp_path):
    alarms = 0
    base = side(tmp_path, "base", fake.sweep(CASES, truth, noise=0.03, seed=0))
    for seed in range(1, 13):
        new = side(tmp_path, f"new{seed}", fake.sweep(CASES, truth, noise=0.03, seed=seed))
        alarms += compare(base, new).regressed
    assert alarms == 0


def test_slower_within_the_tolerance_is_the_same_and_beyond_it_but_noisy_is_unclear(tmp_path):
    base = side(tmp_path, "base", fake.sweep(CASES, truth))
    assert not compare(base, side(tmp_path, "a", fake.sweep(CASES, lambda c: truth(c) * 1.019))).regressed
    assert compare(base, side(tmp_path, "b", fake.sweep(CASES, lambda c: truth(c) * 1.021))).regressed
    noisy = [fake.launch(CASES[0], s, block=b) for b, s in enumerate((0.031, 0.034, 0.050))]
    assert outcomes(compare(base, side(tmp_path, "c", noisy)))[CASES[0].id] == Outcome.UNCLEAR


def test_nothing_is_dropped(tmp_path):
    broke, fixed, missing, added, few, bad = (fake.case(bucket_mib=float(b)) for b in range(1, 7))
    oom = {"status": Status.OOM, "failure": Failure("out of memory", rank=1)}
    good = [fake.launch(broke, block=b) for b in range(3)]
    base = side(
        tmp_path,
        "base",
        [*good, fake.launch(fixed, **oom), fake.launch(missing), fake.launch(few), fake.launch(bad, **oom)],
    )
    new = side(
        tmp_path,
        "new",
        [
            *good[:2],
            fake.launch(broke, block=2, **oom),
            fake.launch(fixed),
            fake.launch(added),
            fake.launch(few, 0.9),
            fake.launch(bad, **oom),
        ],
        skipped=[(missing, "no such <device>")],
        environment=fake.ENVIRONMENT | {"versions": {"torch": "2.14.0"}, "gpus": [{"name": "H200"}], "cores": 4},
    )
    found = compare(base, new)
    assert outcomes(found) == {
        broke.id: Outcome.BROKE,
        fixed.id: Outcome.FIXED,
        missing.id: Outcome.ONLY_BASE,
        added.id: Outcome.ONLY_NEW,
        few.id: Outcome.NOT_JUDGED,
        bad.id: Outcome.NOT_OK,
    }
    assert found.regressed
    assert found.rows[0].note == "was ok, is 2 ok, 1 oom: rank 1: out of memory"
    text = "\n".join(found.lines())
    assert "skipped in new: no such <device>" in text
    assert "1 good launch against 1; 2 a side are needed" in text
    assert "torch differs: 2.13.0 in base, 2.14.0 in new" in text
    assert "cores differs: 8 in base, 4 in new" in text
    assert "GPUs differs: none in base, H200 in new" in text


def test_too_few_launches_alone_are_no_pass_in_words(tmp_path):
    one = side(tmp_path, "one", [fake.launch(CASES[0])])
    found = compare(one, one)
    assert not found.regressed
    assert found.sentence() == "Nothing could be judged. Also: 1 cannot be judged."


def test_holm_steps_down():
    assert holm([0.01, 0.04, 0.03]) == pytest.approx([0.03, 0.06, 0.06])
    assert holm([]) == []
