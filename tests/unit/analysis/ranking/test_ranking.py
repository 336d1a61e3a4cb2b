import math

import numpy as np
import pandas as pd
import pytest

import fake_results as fake
from answers_helpers import sweet_spots
from answers_helpers import written_spots as spots
from parabench.analysis.ranking.best import best, lines
from parabench.analysis.session import session_data
from parabench.analysis.stats import contrasts as effects_module
from parabench.analysis.stats.contrasts import fit
from parabench.analysis.stats.quantiles import dunnett
from parabench.report.build import render
from parabench.report.cases import page_cases
from parabench.store.record import Status

BUCKETS = (1.0, 4.0, 16.0, 25.0, None)


def test_a_clear_winner_is_alone(tmp_path):
    cases = [fake.case(bucket_mib=b) for b in BUCKETS]
    launches = fake.sweep(cases, lambda c: 0.030 if c.bucket_mib == 4 else 0.040, noise=0.005, drift=0.2)
    (answer,) = spots(tmp_path, launches)
    assert answer.best.label == "ddp native 4 MiB, 2 ranks"
    assert answer.tied == []
    assert len(answer.slower) == 4
    assert answer.default.slower == pytest.approx(1 / 3, rel=0.05)
    said = answer.sentence
    assert said.startswith("Fastest: ddp native 4 MiB, 2 ranks: ")
    slower = f"{answer.default.slower:.0%}"
    assert f"PyTorch's default (ddp native, default bucket, same world size) is {slower} slower." in said
    assert "not statistically distinguishable" not in said


def test_flat_curve_has_no_winner_and_names_more_blocks(tmp_path):
    cases = [fake.case(bucket_mib=b) for b in BUCKETS]
    (answer,) = spots(tmp_path, fake.sweep(cases, lambda _: 0.040, noise=0.03, seed=3))
    assert len(answer.tied) == 4
    assert answer.half_width > 0.02
    assert answer.more_repetitions > 3
    within = f"±{100 * answer.half_width:.0f}%"
    assert answer.sentence.startswith(f"No clear winner among 5 configurations (95%, 3 repetitions, {within})")
    assert f"Resolving 2% needs about {answer.more_repetitions} more repetitions." in answer.sentence


def test_blocks_for_is_the_fewest_that_resolve_a_difference():
    """A cell of complete repetitions has an equal share of the residual's degrees of freedom."""
    random, weight = np.random.default_rng(1), effects_module.COMMON_WEIGHT
    rows = [(str(c), b, math.exp(random.normal(0, 0.02))) for b in range(3) for c in range(4)]
    effects = fit(pd.DataFrame(rows, columns=["case", "repetition", "step_s"]))
    quiet, *_, loud, loudest = ranked = sorted(effects.cases, key=effects.variances.__getitem__)
    noise = math.sqrt(effects.variances[[loud, loudest]].mean())
    repetitions = effects.blocks_for(0.02, among=ranked)
    widths = []
    for n in (repetitions, repetitions - 1):
        own, df = 3 * (n - 1) / 4, 3 * (n - 1)
        freedom = (weight + own) ** 2 / (own / 2 + weight * (weight + 2 * own) / df)
        widths.append(dunnett(3, freedom, 0.95) * noise * math.sqrt(2 / n))
    assert widths[0] <= 0.02 < widths[1]
    assert effects.blocks_for(0.01, among=[quiet]) < effects.blocks_for(0.01, among=[loudest])


def test_tied_cases_are_those_whose_interval_reaches_0(tmp_path):
    cases = [fake.case(bucket_mib=float(size)) for size in range(1, 7)]
    launches = fake.sweep(cases, lambda case: 0.04 * (1 + 0.01 * case.bucket_mib), noise=0.01, repetitions=4)
    (answer,) = spots(tmp_path, launches)
    assert answer.tied
    assert answer.slower
    assert (answer.best.slower_low, answer.best.slower_high) == (None, None)
    for each in answer.candidates[1:]:
        assert each.slower_low < each.slower < each.slower_high
        assert (each.slower_low <= 0) == (each in answer.tied)
        # The interval is symmetric on the log scale.
        ends = (1 + each.slower_low) * (1 + each.slower_high)
        assert ends == pytest.approx((1 + each.slower) ** 2)


def test_one_repetition_cannot_decide(tmp_path):
    cases = [fake.case(bucket_mib=b) for b in (1.0, 4.0)]
    launches = fake.sweep(cases, lambda c: 0.01 * c.bucket_mib, repetitions=1)
    (answer,) = spots(tmp_path, launches)
    assert not answer.decided
    assert len(answer.tied) == 1
    assert answer.half_width is None
    assert answer.sentence.startswith("One repetition cannot be tested against noise")
    assert "Best estimate: ddp native 1 MiB" in answer.sentence


def test_sentence_names_failures_when_no_launch_succeeded(tmp_path):
    bad = [
        fake.launch(fake.case(), repetition=b, status=s) for b, s in enumerate((Status.OOM, Status.OOM, Status.HUNG))
    ]
    (answer,) = spots(tmp_path, bad)
    assert answer.best is None
    assert answer.sentence.endswith("so the fastest configuration is unknown (2 oom, 1 hung).")
    assert sweet_spots(fake.write(tmp_path / "empty.db", []))[0].sentence.startswith("No launch was recorded")


def test_adjacent_sizes_are_named_as_a_range(tmp_path):
    cases = [fake.case(algorithm=a, bucket_mib=b) for a in ("ring", "tree") for b in (1.0, 4.0, 10.0, 25.0)]
    near = {("ring", 10.0): 0.0400, ("ring", 25.0): 0.0401, ("tree", 25.0): 0.0402}
    launches = fake.sweep(cases, lambda c: near.get((c.algorithm, c.bucket_mib), 0.06), noise=0.025, repetitions=5)
    (answer,) = spots(tmp_path, launches)
    assert [each.name for each in answer.members] == ["ddp ring, 10 to 25 MiB, 2 ranks", "ddp tree 25 MiB, 2 ranks"]
    assert set(answer.members[0].case_ids) == {cases[2].id, cases[3].id}
    said = answer.sentence
    number = f"{answer.best.step_time_s * 1e3:.1f} ms per step (±{answer.best.plus_minus_s * 1e3:.1f} ms)"
    assert said.startswith(f"Fastest: ddp ring, 10 to 25 MiB, 2 ranks: {number}, ")
    within = f"±{100 * answer.half_width:.1f}%"
    more = f"Resolving 2% needs about {answer.more_repetitions} more repetition"
    assert f"from it (95%, 5 repetitions, {within}): ddp tree 25 MiB, 2 ranks. {more}" in said


@pytest.mark.parametrize(("noise", "named"), [(0.002, True), (0.05, False)])
def test_winner_is_named_when_its_set_is_narrow(tmp_path, noise, named):
    """In every output that names one: the sentence, the table of cases, the JSON, the report, the table by axis."""
    cases = [fake.case(strategy=s) for s in ("ddp", "zero1")]
    slow = fake.case(strategy="fsdp")
    results = fake.write(
        tmp_path / "r.db",
        fake.sweep([*cases, slow], lambda c: 4.0 if c == slow else 0.04, noise=noise),
    )
    seen = session_data(results)
    (answer,) = sweet_spots(results, by=["strategy"])
    assert len(answer.tied) == 1
    assert (answer.half_width < 0.05) == named
    assert (answer.winner is not None) == named
    assert answer.sentence.startswith(
        f"Fastest: {answer.best.label}: " if named else "Fastest: one of 2 out of 3 configurations (95%, 3 "
    )
    assert answer.winner == (answer.best if named else None)
    assert ("fastest" in set(page_cases(seen)["ranking"])) == named
    table = lines(best(seen, by=["strategy"]))
    assert any("  best  " in line for line in table) == named
    assert ("best estimate: step time" in render(results)) != named


def test_a_flat_curve_is_an_answer_with_what_could_hide_in_it(tmp_path):
    cases, other = [fake.case(bucket_mib=b) for b in (0.25, 4.0, 25.0, None)], fake.case(strategy="fsdp")
    launches = fake.sweep([*cases, other], lambda c: 0.08 if c == other else 0.04, noise=0.003)
    (answer,) = spots(tmp_path, launches)
    (curve,) = answer.curves
    assert (curve.name, curve.sizes) == ("ddp native, 2 ranks", (0.25, 4.0, 25.0, None))
    assert curve.case_ids == tuple(case.id for case in cases)
    assert curve.shape == "flat"
    assert curve.half_width <= 0.02
    spread = max(each.slower for each in answer.candidates if each.case_id in curve.case_ids)
    assert spread < curve.at_most <= (1 + spread) * (1 + curve.half_width) - 1
    assert (
        "ddp native, 2 ranks: the bucket size makes no significant difference (3 repetitions, "
        f"±{100 * curve.half_width:.1f}%; no size is more than {100 * curve.at_most:.1f}% behind)."
    ) in answer.sentence
