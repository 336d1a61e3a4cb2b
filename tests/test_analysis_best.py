from __future__ import annotations

import json
import math

import fake_results as fake
import numpy as np
import pandas as pd
import pytest
from scipy import stats

from parabench.analysis.best import sweet_spots
from parabench.analysis.effects import fit
from parabench.record import Status

BUCKETS = (1.0, 4.0, 16.0, 25.0, None)


def spots(tmp_path, launches):
    answers = sweet_spots(fake.write(tmp_path / "r.db", launches))
    for answer in answers:
        json.dumps(answer.to_dict(), allow_nan=False)
    return answers


def test_a_clear_winner_is_alone(tmp_path):
    cases = [fake.case(bucket_mib=b) for b in BUCKETS]
    launches = fake.sweep(cases, lambda c: 0.030 if c.bucket_mib == 4 else 0.040, noise=0.005, drift=0.2)
    (answer,) = spots(tmp_path, launches)
    assert answer.best.label == "ddp native 4 MiB, 2 ranks"
    assert answer.equals == ()
    assert len(answer.slower) == 4
    assert answer.default.slower == pytest.approx(1 / 3, rel=0.05)
    said = answer.sentence()
    assert said.startswith("Fastest: ddp native 4 MiB, 2 ranks: ")
    slower = f"{answer.default.slower:.0%}".replace("%", " %")
    assert f"PyTorch's default (ddp native, default bucket, same world size) is {slower} slower." in said
    assert "Cannot be told apart" not in said


def test_a_flat_curve_keeps_all_and_says_how_many_blocks_would_tell(tmp_path):
    cases = [fake.case(bucket_mib=b) for b in BUCKETS]
    (answer,) = spots(tmp_path, fake.sweep(cases, lambda _: 0.040, noise=0.03, seed=3))
    assert len(answer.equals) == 4
    assert answer.half_width > 0.02
    assert answer.more_blocks > 3
    assert "The bucket size makes no difference that 3 blocks could show (5 configurations)" in answer.sentence()
    assert f"About {answer.more_blocks} more blocks would tell a difference of 2 %." in answer.sentence()


def test_two_that_are_close_are_told_together_and_the_default_among_them(tmp_path):
    cases = [fake.case(bucket_mib=b) for b in BUCKETS]
    near = {4.0: 0.0300, None: 0.0301}
    (answer,) = spots(tmp_path, fake.sweep(cases, lambda c: near.get(c.bucket_mib, 0.05), noise=0.01))
    assert {answer.best.case_id, *(c.case_id for c in answer.equals)} == {cases[1].id, cases[4].id}
    assert "PyTorch's default" in answer.sentence()


def test_false_exclusions_of_equal_cases_stay_near_five_percent():
    """The family-wise promise, on launch effects and block effects: the best must rarely exclude an equal."""
    random = np.random.default_rng(0)
    excluded = 0
    for _ in range(200):
        blocks = random.normal(0, 0.2, 4)
        frame = pd.DataFrame(
            [(str(c), b, math.exp(blocks[b] + random.normal(0, 0.03))) for b in range(4) for c in range(5)],
            columns=["case_id", "block", "number_s"],
        )
        effects = fit(frame)
        first = min(effects.means, key=effects.means.__getitem__)
        excluded += len(effects.indistinguishable(first)) < 5
    assert excluded <= 0.09 * 200  # 5 % expected; 18 of 200 has p < 0.01


def test_complete_blocks_give_the_textbook_interval():
    random = np.random.default_rng(1)
    logs = random.normal(0, 0.02, (3, 4))
    frame = pd.DataFrame(
        [(str(c), b, math.exp(logs[b, c])) for b in range(3) for c in range(4)],
        columns=["case_id", "block", "number_s"],
    )
    effects = fit(frame)
    centred = logs - logs.mean(axis=1, keepdims=True)
    residual = math.sqrt(((centred - centred.mean(axis=0)) ** 2).sum() / (3 * 2))
    q = stats.studentized_range.ppf(0.95, 4, 6)
    assert effects.df == 6
    assert effects.half_width("0", "3") == pytest.approx(q * residual / math.sqrt(3))
    assert [effects.means[str(c)] for c in range(4)] == pytest.approx(logs.mean(axis=0).tolist())
    blocks = effects.blocks_for(0.02)
    widths = [stats.studentized_range.ppf(0.95, 4, 3 * (b - 1)) * residual / math.sqrt(b) for b in (blocks, blocks - 1)]
    assert widths[0] <= 0.02 < widths[1]


def test_a_missing_launch_in_a_slow_block_does_not_make_its_case_look_fast(tmp_path):
    cases = [fake.case(bucket_mib=b) for b in (1.0, 4.0, 16.0)]
    truth = {cases[0]: 0.030, cases[1]: 0.036, cases[2]: 0.040}
    launches = [
        one
        for one in fake.sweep(cases, truth.__getitem__, blocks=4, noise=0.002, drift=0.3)
        if not (one.case == cases[1] and one.block >= 2)
    ]
    (answer,) = spots(tmp_path, launches)
    assert answer.best.case_id == cases[0].id
    assert answer.slower[0].case_id == cases[1].id
    assert answer.slower[0].slower == pytest.approx(0.2, abs=0.02)


def test_steps_are_never_pooled(tmp_path):
    """Each launch of a case has its own level, shared by its hundred steps. Pooled, 300 steps a side would tell the
    cases apart with certainty; three launches a side cannot."""
    cases = [fake.case(bucket_mib=b) for b in (1.0, 4.0)]
    levels = {cases[0]: (0.040, 0.042, 0.044), cases[1]: (0.0415, 0.0405, 0.0455)}
    random = np.random.default_rng(0)
    steps, launches = {one: [] for one in cases}, []
    for block in range(3):
        for one in cases:
            own = (levels[one][block] * (1 + 0.001 * random.standard_normal(100))).tolist()
            steps[one] += own
            launches.append(fake.launch(one, own, block=block))
    assert stats.ttest_ind(steps[cases[0]], steps[cases[1]]).pvalue < 0.01  # what pooling would have claimed
    (answer,) = spots(tmp_path, launches)
    assert len(answer.equals) == 1


def test_one_block_cannot_decide(tmp_path):
    cases = [fake.case(bucket_mib=b) for b in (1.0, 4.0)]
    (answer,) = spots(tmp_path, fake.sweep(cases, lambda c: 0.01 * c.bucket_mib, blocks=1))
    assert not answer.decided
    assert len(answer.equals) == 1
    assert answer.half_width is None
    assert answer.sentence().startswith("One block cannot tell a difference from noise")
    assert "Fastest so far: ddp native 1 MiB" in answer.sentence()


def test_one_case_has_nothing_to_rank(tmp_path):
    (answer,) = spots(tmp_path, fake.sweep([fake.case()], lambda _: 0.0412))
    assert answer.sentence() == (
        "Only one configuration has a result, so there is nothing to rank. "
        "Measured: ddp native, 2 ranks: 41.2 ms a step, 12,400 tokens/s."
    )


def test_no_good_launch_is_said_in_words(tmp_path):
    bad = [fake.launch(fake.case(), block=b, status=s) for b, s in enumerate((Status.OOM, Status.OOM, Status.HUNG))]
    (answer,) = spots(tmp_path, bad)
    assert answer.best is None
    assert answer.sentence().endswith("so there is no fastest configuration (2 oom, 1 hung).")
    assert sweet_spots(fake.write(tmp_path / "empty.db", []))[0].sentence().startswith("No launch was recorded")


def test_the_reference_launch_never_takes_part(tmp_path):
    cases = [fake.case(bucket_mib=b) for b in (1.0, 4.0)]
    reference = fake.launch(fake.case(strategy="single", world_size=1), 0.001, block=-1)
    (answer,) = spots(tmp_path, [reference, *fake.sweep(cases, lambda c: 0.01 * c.bucket_mib, noise=0.001)])
    assert answer.best.case_id == cases[0].id
    assert answer.launches == 6


def test_different_work_gets_its_own_answer(tmp_path):
    cases = [fake.case(bucket_mib=b, global_batch=g) for g in (8, 16) for b in (1.0, 4.0)]
    answers = spots(tmp_path, fake.sweep(cases, lambda c: 0.001 * c.global_batch * c.bucket_mib, noise=0.001))
    assert [answer.heading for answer in answers] == ["global batch 8", "global batch 16"]
    assert answers[1].sentence().startswith("global batch 16: Fastest: ddp native 1 MiB, 2 ranks (")
    assert "global batch 16" in answers[1].best.label


def test_exact_agreement_leaves_no_half_width(tmp_path):
    cases = [fake.case(bucket_mib=b) for b in (1.0, 4.0, 16.0)]
    (answer,) = spots(tmp_path, fake.sweep(cases, lambda _: 0.04))
    assert len(answer.equals) == 2
    assert answer.half_width == pytest.approx(0, abs=1e-9)
    assert answer.more_blocks is None
