"""What calls cost beside their bytes: told by trainings of few and of many, by the backend's algorithms and by ours."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest

from fake_base import DDP, NEAR, TABLES, base, computed, of_ranks
from parabench.analysis.prediction.base import Measured
from parabench.analysis.prediction.collective_seconds import CollectiveSeconds
from parabench.analysis.prediction.correction import (
    ALONE,
    EXPECTED,
    MORE_CALLS,
    OTHER_CALLS,
    Costs,
    calls_spread,
    expected_costs,
    likeliest,
    squares,
)
from parabench.analysis.prediction.predict import Predictor
from parabench.analysis.prediction.program import Call, Group
from parabench.plan.case import Case

RING = replace(DDP, algorithm="ring", bucket_mib=25.0)
COSTS = Costs(backend=0.4, own=2.5)


def trained(*cases: Case, costs: Costs = COSTS) -> Predictor:
    """A base with trainings of these cases, whose calls cost so much."""
    plain = Predictor(base(), {})
    steps = [plain._alone(each, computed(), ALONE, costs).step_s for each in cases]
    return Predictor(base(measured=tuple(Measured(*each) for each in zip(cases, steps, strict=True))), {})


def test_trainings_with_few_and_with_many_calls_tell_what_a_call_costs() -> None:
    cases = [of_ranks(2, algorithm=name, bucket_mib=cap) for name in ("native", "ring") for cap in (25.0, 4.0)]
    predictor = trained(*cases)
    for case in cases:
        found = predictor.predict(case)
        assert found.measured_s is not None
        assert found.step_s == pytest.approx(found.measured_s, rel=1e-2)
    # What the two calls of a training cost is a few percent of its step: what is expected beforehand still counts.
    assert predictor.costs.own > predictor.costs.backend + 0.5
    assert predictor.costs.own > expected_costs("cpu").own


def test_a_call_by_another_of_our_algorithms_costs_what_was_told_by_ring() -> None:
    tables = TABLES | {
        replace(of, algorithm="tree"): replace(times, collective=replace(of, algorithm="tree"))
        for of, times in TABLES.items()
        if of.algorithm == "ring"
    }
    asked = of_ranks(2, algorithm="tree", bucket_mib=25.0)
    steps = []
    for own in (0.0, 6.0):
        told = trained(RING, replace(RING, bucket_mib=4.0), costs=Costs(own=own))
        found = Predictor(replace(told.base, collectives=tables), {}).predict(asked)
        assert "what calls by tree cost was measured by ring" in found.notes
        steps.append(found.step_s)
    assert steps[1] > steps[0] + 2 * (NEAR[0] + 2**11 * NEAR[1])


def test_where_none_of_our_algorithms_was_trained_the_interval_is_wider_and_a_note_says_so() -> None:
    native = trained(of_ranks(2, bucket_mib=25.0), costs=Costs())
    both = trained(of_ranks(2, bucket_mib=25.0), RING, costs=Costs())
    found, told = native.predict(RING), both.predict(RING)
    assert any("no training by ring or another of parabench's own algorithms" in each for each in found.notes)
    assert told.notes == ()
    assert found.high_s / found.low_s > told.high_s / told.low_s


@pytest.mark.parametrize(
    ("case", "calls", "known", "spread"),
    [
        (RING, 2, {RING: 2, DDP: 2}, 0.0),
        (RING, 2, {DDP: 2}, EXPECTED.calls),
        (DDP, 2, {}, 0.0),
        (replace(RING, algorithm="tree"), 2, {RING: 2}, OTHER_CALLS * COSTS.own),
        (replace(RING, strategy="fsdp"), 9, {RING: 2}, OTHER_CALLS * COSTS.own),
        (RING, 3, {RING: 2}, MORE_CALLS * COSTS.own),
        (DDP, 3, {DDP: 2, RING: 9}, MORE_CALLS * COSTS.backend),
    ],
)  # fmt: skip
def test_what_a_call_costs_is_the_less_known_the_less_alike_the_trainings_are(
    case: Case, calls: int, known: dict[Case, int], spread: float
) -> None:
    assert calls_spread(case, calls, known, COSTS) == pytest.approx(spread)


def test_beside_a_gpu_python_sends_while_the_rank_computes() -> None:
    assert expected_costs("cpu") == Costs(0.0, 1.0)
    assert expected_costs("cuda") == Costs(0.0, 0.0)


def test_ranks_are_busy_with_every_message_of_ours_and_with_one_call_of_the_backends() -> None:
    """2 messages of 2 ranks, 14 of 8, each of the least bytes; however slow links between nodes are."""
    seconds = CollectiveSeconds(base().collectives, {})
    message = NEAR[0] + 2**11 * NEAR[1]
    for case, messages in (
        (of_ranks(2, algorithm="ring"), 2),
        (of_ranks(8, algorithm="ring"), 14),
        (of_ranks(8, nodes=8, algorithm="ring"), 14),
        (of_ranks(8, algorithm="two_level"), 14),
        (of_ranks(8), 2),
        (of_ranks(2, algorithm="tree"), 0),
    ):
        call = Call("all_reduce", 2**20, Group(case.world_size))
        assert seconds.handling(call, case) == pytest.approx(messages * message)
    assert seconds.handling(Call("all_reduce", 8, Group(1)), of_ranks(2)) == 0.0


def test_the_likeliest_correction_lies_between_what_is_expected_and_what_was_measured() -> None:
    found = likeliest(lambda by: squares([by.work / 1.2]))
    # Minimum of (w / 0.1)^2 + ((w - m) / 0.02)^2.
    assert math.log(found.work) == pytest.approx(math.log(1.2) / (1 + (EXPECTED.step / EXPECTED.work) ** 2), abs=2e-3)
    assert found.travel == pytest.approx(1.0, abs=0.05)
