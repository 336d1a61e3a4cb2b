"""Predictions and refusals from a given base."""

from typing import Any

import numpy as np
import pytest

from fake_base import DDP, FAR, NEAR, base, computed, of_ranks
from parabench.analysis.collectives.rounds import BETWEEN
from parabench.analysis.prediction import question
from parabench.analysis.prediction.links import given_link
from parabench.analysis.prediction.predict import SPREAD, Z90, Predictor, Refused, layout_of
from parabench.analysis.prediction.program import Call
from parabench.errors import UsageError
from parabench.plan.case import Case
from parabench.session.request import fewest_nodes
from parabench.store.record import MIB


def test_step_is_work_and_exposed_communication() -> None:
    """One bucket, ready when backward ends: 2 messages of 4 MiB."""
    found = Predictor(base(), {}).predict(of_ranks(2, bucket_mib=25.0))
    exposed = 2 * (NEAR[0] + 4 * MIB * NEAR[1])
    assert found.step_s == pytest.approx(0.35 + exposed)
    assert found.compute_s == pytest.approx(0.35)
    assert (found.exposed_within_s, found.exposed_between_s) == (pytest.approx(exposed), 0.0)
    assert found.high_s / found.step_s == pytest.approx(np.exp(Z90 * SPREAD))
    # Two buckets: the first is reduced during backward.
    two = Predictor(base(), {}).predict(of_ranks(2, bucket_mib=4.0))
    assert two.step_s == pytest.approx(0.35 + 2 * (NEAR[0] + 2 * MIB * NEAR[1]))


def test_step_of_more_ranks_has_the_rounds_of_the_ring() -> None:
    found = Predictor(base(), {}).predict(of_ranks(8, bucket_mib=25.0))
    assert found.step_s == pytest.approx(0.35 + 14 * (NEAR[0] + MIB * NEAR[1]))
    across = Predictor(base(), {}).predict(of_ranks(8, nodes=8, bucket_mib=25.0))
    assert across.step_s == pytest.approx(0.35 + 14 * (FAR[0] + MIB * FAR[1]))
    assert across.exposed_within_s == 0
    assert across.exposed_between_s == pytest.approx(14 * (FAR[0] + MIB * FAR[1]))
    given = Predictor(base(), {BETWEEN: given_link("10MB/s,5ms")}).predict(of_ranks(2, nodes=2, bucket_mib=25.0))
    assert given.step_s == pytest.approx(0.35 + 2 * (5e-3 + 4 * MIB / 10e6))


@pytest.mark.parametrize(
    ("changes", "case", "message"),
    [
        ({}, of_ranks(4).replace(strategy="fsdp"), "parabench run calibration --out FOLDER --set strategy=fsdp"),
        ({}, of_ranks(4).replace(global_batch=32), "with 8 samples, was not measured"),
        ({}, of_ranks(4).replace(strategy="pp"), "its ranks do different things"),
        ({"computed": (computed(DDP.replace(device="cuda")),), "device_bytes": 0.5e9},
         of_ranks(4).replace(device="cuda"), "holds 1.0 GB, and a device has 0.5 GB"),
        ({}, of_ranks(8, nodes=4, bucket_mib=1024.0), None),
    ],
)  # fmt: skip
def test_predict_refuses_what_was_not_measured(changes: dict[str, Any], case: Case, message: str | None) -> None:
    found = Predictor(base(**changes), {}).predict(case)
    assert isinstance(found, Refused) == (message is not None)
    assert message is None or message in found.refused


def test_step_waits_for_the_slowest_rank() -> None:
    steps = tuple(1.0 + 0.01 * n for n in range(101))
    assert computed(jitter=steps).slowest(2) == 1.0
    more = computed(jitter=steps).slowest(64)
    assert more == pytest.approx(np.quantile(steps, 0.1 ** (1 / 64)) / np.quantile(steps, 0.1**0.5))
    found = Predictor(base(computed=(computed(jitter=steps),)), {}).predict(of_ranks(64, bucket_mib=25.0))
    assert found.compute_s == pytest.approx(0.35)
    assert found.slowest_s == pytest.approx(0.35 * (more - 1))
    # Intervals widen with the ranks.
    assert found.high_s / found.step_s > np.exp(Z90 * SPREAD)


def test_training_runs_correct_compute_time() -> None:
    plain = Predictor(base(), {}).predict(of_ranks(2, bucket_mib=25.0)).step_s
    predictor = Predictor(base(measured={of_ranks(2, bucket_mib=25.0): plain + 0.035}), {})
    again = predictor.predict(of_ranks(2, bucket_mib=25.0))
    assert (again.step_s, again.measured_s) == (pytest.approx(plain + 0.035), plain + 0.035)
    assert predictor.predict(of_ranks(8, bucket_mib=25.0)).compute_s == pytest.approx(0.385)
    assert not again.notes
    assert "no training run of ddp was measured to correct this" in Predictor(base(), {}).predict(of_ranks(2)).notes


@pytest.mark.parametrize(
    ("group", "ranks", "nodes", "place"),
    [
        (range(8), 8, 1, (1, 8, 1)),
        (range(8), 8, 4, (4, 2, 1)),
        (range(2), 8, 4, (1, 2, 1)),
        # One rank of each pair of neighbors: both ranks of a node send, for two groups.
        (range(0, 8, 2), 8, 4, (4, 1, 2)),
        (range(0, 8, 2), 8, 2, (2, 2, 2)),
        # Ranks 4 to 7 are on both nodes of six.
        (range(4), 12, 2, (2, 2, 1)),
    ],
)
def test_layout_of_a_group(group: range, ranks: int, nodes: int, place: tuple[int, int, int]) -> None:
    assert layout_of(Call("all_reduce", 8, group), of_ranks(ranks, nodes=nodes)) == place


def test_questions_are_cases_of_the_base() -> None:
    asked = question.cases(base(), [2, 8], {"bucket_mib": (None, 1.0), "algorithm": ("native", "two_level")})
    assert [each.label for each in asked][-1] == "ddp two_level 1 MiB, 8 ranks on 4 nodes"
    assert {each.global_batch // each.world_size for each in asked} == {4}
    assert {each.ranks_per_node for each in asked} == {None, 2}
    # A machine with room for 8 ranks is a node of 8.
    [case] = question.cases(base(room=8), [8], {})
    assert case.nodes == 1


def test_questions_without_a_case_are_rejected() -> None:
    with pytest.raises(UsageError, match="global_batch 7 does not divide among the 4 ranks of ddp"):
        question.cases(base(), [4], {"global_batch": (7,)})


def test_nodes_are_as_few_as_share_ranks_evenly() -> None:
    assert [fewest_nodes(*each) for each in ((16, 2), (6, 4), (7, 4), (1, 8), (1_000_000_007, 2))] == [
        8, 2, 7, 1, 1_000_000_007,
    ]  # fmt: skip
