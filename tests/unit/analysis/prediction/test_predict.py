"""Predictions from a base that is written down: what they must say, and what they must refuse."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from fake_base import DDP, FAR, NEAR, SIZES, TABLES, base, computed, of_ranks
from parabench.analysis.prediction import choose, question
from parabench.analysis.prediction.base import Base, Measured, slowest, work_of
from parabench.analysis.prediction.collective_seconds import Place
from parabench.analysis.prediction.naive import forecasts
from parabench.analysis.prediction.network import given_link
from parabench.analysis.prediction.predict import Predictor
from parabench.analysis.prediction.program import Call, Group, Segment
from parabench.analysis.prediction.schedule import BETWEEN, WITHIN
from parabench.errors import UsageError
from parabench.plan.case import Case
from parabench.store.record import MIB


def test_a_step_is_work_and_what_nothing_hides() -> None:
    """One bucket, ready when backward ends: 2 messages of 4 MiB."""
    found = Predictor(base(), {}).predict(of_ranks(2, bucket_mib=25.0))
    exposed = 2 * (NEAR[0] + 4 * MIB * NEAR[1])
    assert found.step_s == pytest.approx(0.35 + exposed)
    assert found.compute_s == pytest.approx(0.35)
    assert found.exposed_s == {WITHIN: pytest.approx(exposed)}
    assert found.low_s < found.step_s < found.high_s
    # Two buckets: the first is reduced beside backward.
    two = Predictor(base(), {}).predict(of_ranks(2, bucket_mib=4.0))
    assert two.step_s == pytest.approx(0.35 + 2 * (NEAR[0] + 2 * MIB * NEAR[1]))


def test_more_ranks_send_as_many_messages_as_the_ring_has_rounds() -> None:
    found = Predictor(base(), {}).predict(of_ranks(8, bucket_mib=25.0))
    assert found.step_s == pytest.approx(0.35 + 14 * (NEAR[0] + MIB * NEAR[1]))
    across = Predictor(base(), {}).predict(of_ranks(8, nodes=8, bucket_mib=25.0))
    assert across.step_s == pytest.approx(0.35 + 14 * (FAR[0] + MIB * FAR[1]))
    assert across.exposed_s == {BETWEEN: pytest.approx(14 * (FAR[0] + MIB * FAR[1]))}


def test_a_tier_that_was_given_takes_the_place_of_one_that_was_measured() -> None:
    given = {BETWEEN: given_link("10MB/s,5ms")}
    found = Predictor(base(), given).predict(of_ranks(2, nodes=2, bucket_mib=25.0))
    assert found.step_s == pytest.approx(0.35 + 2 * (5e-3 + 4 * MIB / 10e6))
    # It is never quicker than what sends within a node.
    quick = Predictor(base(), {BETWEEN: given_link("1TB/s,1ns")}).predict(of_ranks(2, nodes=2, bucket_mib=25.0))
    assert quick.step_s == pytest.approx(0.35 + 2 * (NEAR[0] + 4 * MIB * NEAR[1]))


@pytest.mark.parametrize(
    ("changes", "case", "said"),
    [
        ({"collectives": {key: each for key, each in TABLES.items() if key.nodes == 1}}, of_ranks(4, nodes=2),
         "links between nodes were not measured"),
        ({}, of_ranks(4, algorithm="tree"), "links within a node were not measured for all_reduce tree"),
        ({}, of_ranks(4, model="mlp"), "samples, was not measured"),
        ({}, replace(of_ranks(4), strategy="fsdp"), "parabench run foresight --out FOLDER --set strategy=fsdp"),
        ({}, replace(of_ranks(4), global_batch=32), "with 8 samples, was not measured"),
        ({"computed": (computed(),), "device_bytes": 0.5e9}, replace(of_ranks(4), device="cuda"), "was not measured"),
    ],
)  # fmt: skip
def test_what_was_never_measured_is_refused_with_what_to_measure(
    changes: dict[str, Any], case: Case, said: str
) -> None:
    found = Predictor(base(**changes), {}).predict(case)
    assert found.refused is not None
    assert said in found.refused
    assert "parabench" in found.refused


def test_a_message_far_beyond_what_was_measured_is_refused() -> None:
    short = {key: replace(each, sizes=SIZES[:6], seconds=each.seconds[:6]) for key, each in TABLES.items()}
    found = Predictor(base(collectives=short), {}).predict(of_ranks(4, bucket_mib=25.0))
    assert found.refused is not None
    assert "more than 8 times what was measured" in found.refused
    assert "--max" in found.refused


def test_memory_that_does_not_fit_is_refused() -> None:
    on_gpu = replace(DDP, device="cuda", backend="nccl")
    small = base(computed=(computed(on_gpu),), device_bytes=0.5e9)
    found = Predictor(small, {}).predict(replace(on_gpu, bucket_mib=25.0))
    assert found.refused is not None
    assert "holds 1.0 GB, and a device has 0.5 GB" in found.refused


def test_the_slowest_of_many_ranks_is_waited_for() -> None:
    steps = tuple(1.0 + 0.01 * n for n in range(101))
    assert slowest(computed(jitter=steps), 2) == 1.0
    more = slowest(computed(jitter=steps), 64)
    assert more == pytest.approx(np.quantile(steps, 0.1 ** (1 / 64)) / np.quantile(steps, 0.1**0.5))
    found = Predictor(base(computed=(computed(jitter=steps),)), {}).predict(of_ranks(64, bucket_mib=25.0))
    assert found.compute_s == pytest.approx(0.35)
    assert found.slowest_s == pytest.approx(0.35 * (more - 1))


def test_trainings_of_few_ranks_correct_how_long_a_rank_computes() -> None:
    """What was measured takes 10 % more work than ranks alone, of which a little may be what the one call costs."""
    plain = Predictor(base(), {}).predict(of_ranks(2, bucket_mib=25.0)).step_s
    trained = Measured(of_ranks(2, bucket_mib=25.0), plain + 0.035)
    predictor = Predictor(base(measured=(trained,)), {})
    assert predictor.correction["ddp"].work == pytest.approx(1.1, abs=0.02)
    again = predictor.predict(of_ranks(2, bucket_mib=25.0))
    assert (again.step_s, again.measured_s) == (pytest.approx(plain + 0.035, rel=5e-3), plain + 0.035)
    assert predictor.predict(of_ranks(8, bucket_mib=25.0)).compute_s == pytest.approx(0.385, rel=5e-3)


def test_intervals_widen_with_the_noise_of_launches_and_with_the_ranks() -> None:
    def width(of: Base, ranks: int) -> float:
        found = Predictor(of, {}).predict(of_ranks(ranks, bucket_mib=25.0))
        return found.high_s / found.low_s

    noisy = base(computed=(replace(computed(), step_s=(0.3, 0.4)),))
    assert width(noisy, 2) > width(base(), 2)
    assert width(base(), 64) > width(base(), 4)


@pytest.mark.parametrize(
    ("group", "case", "place"),
    [
        (Group(8), of_ranks(8), Place(1, 8)),
        (Group(8), of_ranks(8, nodes=4), Place(4, 2)),
        (Group(2), of_ranks(8, nodes=4), Place(1, 2)),
        # One rank of each pair of neighbours: both ranks of a node send, for two groups.
        (Group(4, 2), of_ranks(8, nodes=4), Place(4, 1, 2)),
        (Group(4, 2), of_ranks(8, nodes=2), Place(2, 2, 2)),
        (Group(1), of_ranks(8, nodes=4), Place(1, 1)),
    ],
)  # fmt: skip
def test_where_the_ranks_of_a_group_are(group: Group, case: Case, place: Place) -> None:
    assert Place.of(Call("all_reduce", 8, group), case) == place


def test_cases_that_compute_the_same_differ_in_how_it_travels_alone() -> None:
    assert work_of(of_ranks(2)) == work_of(of_ranks(16, nodes=8, algorithm="ring", bucket_mib=1.0))
    assert work_of(of_ranks(2)) != work_of(replace(of_ranks(2), global_batch=16))
    tensor = replace(DDP, strategy="tp")
    assert work_of(tensor) != work_of(replace(tensor, world_size=4))


def test_naive_forecasts_go_by_the_rate_of_a_rank() -> None:
    trained = [Measured(replace(of_ranks(1), strategy="single", world_size=1), 0.3), Measured(of_ranks(2), 0.4)]
    found = forecasts(of_ranks(8), trained)
    assert found.constant_s == pytest.approx(0.4)
    # 4 / 0.3 samples a second of one rank, 4 / 0.4 of each of two; two doublings further 3.33 and so 1.2 s.
    assert found.line_s == pytest.approx(4 / (4 / 0.4 - 2 * (4 / 0.3 - 4 / 0.4)))
    assert forecasts(of_ranks(8), []) == (None, None)


def test_questions_are_cases_of_the_base() -> None:
    asked = question.cases(base(), [2, 8], {"bucket_mib": (None, 1.0), "algorithm": ("native", "two_level")})
    assert [each.label for each in asked][-1] == "ddp two_level 1 MiB, 8 ranks on 4 nodes"
    assert {each.global_batch // each.world_size for each in asked} == {4}
    assert {each.ranks_per_node for each in asked} == {None, 2}


@pytest.mark.parametrize(
    ("sizes", "axes", "said"),
    [
        ([3], {}, "world size 3 does not fill nodes of 2 ranks"),
        ([4], {"strategy": ("pp",)}, "what ranks of 'pp' compute was not measured"),
        ([4], {"nodes": (2,)}, "ranks are given by --world-size and --ranks-per-node"),
        ([4], {"global_batch": (7,)}, "global_batch 7 does not divide among the 4 ranks of ddp"),
    ],
)
def test_a_question_that_makes_no_case_is_told_so(sizes: list[int], axes: dict[str, Any], said: str) -> None:
    with pytest.raises(UsageError, match=said):
        question.cases(base(), sizes, axes)


def test_the_choice_is_the_fastest_of_all_and_names_what_may_be_as_fast() -> None:
    found = choose.choice(Predictor(base(), {}), 8)
    every = [found.best, *found.rest]
    assert found.best.step_s == min(each.step_s for each in every)
    assert found.default is not None
    assert choose.is_default(found.default.case)
    assert all(each.low_s <= found.best.step_s for each in found.level)
    with pytest.raises(UsageError, match="nothing can be predicted for 8 ranks"):
        choose.choice(Predictor(base(collectives={}), {}), 8)


def test_the_best_list_of_buckets_is_never_slower_than_a_single_cap() -> None:
    predictor = Predictor(base(collectives=TABLES), {})
    found = choose.bucket_list(predictor, of_ranks(2, nodes=2))
    assert found.listed.step_s <= found.single.step_s * 1.001
    assert found.bound >= 0.999
    assert sum(found.buckets.bytes) == 8 * MIB
    with pytest.raises(UsageError, match="has no buckets of DDP's"):
        choose.bucket_list(predictor, replace(of_ranks(2), strategy="fsdp"))


def test_a_check_counts_errors_and_intervals() -> None:
    predictor = Predictor(base(), {})
    right = predictor.predict(of_ranks(4)).step_s
    trained = [Measured(of_ranks(4), right), Measured(of_ranks(8), 100.0), Measured(of_ranks(1), 0.1)]
    found = choose.check(predictor, trained)
    assert (len(found.told), found.inside) == (2, 1)


def test_ranks_that_wait_for_one_another_often_wait_for_the_slowest_each_time() -> None:
    steps = np.random.default_rng(0).normal(1.0, 0.02, 2000)
    once = replace(computed(jitter=steps), own_jitter=steps)
    plain = slowest(once, 4)
    # One segment is the whole step.
    assert slowest(once, 4, [Segment(0.3, 4)]) == plain
    # Of 16 equal ones each varies by a quarter of the step's 2 %: the mean of the slowest of 4 normal ones is 1.03 of
    # their deviation above the mean, and 16 of them come to 4 times as much as one.
    often = slowest(once, 4, [Segment(0.02, 4)] * 16)
    assert often - plain == pytest.approx(3 * 1.03 * 0.02, rel=0.1)
