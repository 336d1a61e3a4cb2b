"""Lists of bucket caps against single caps: what is measured, and what is said of it."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch

from benchmarks.foresight import unlike_models
from benchmarks.foresight.bucket_lists import (
    COMPARED,
    Comparison,
    Measurement,
    base,
    in_turns,
    judged_by,
    markdown,
    ratio_of,
    verdict,
)
from parabench.analysis.prediction.choose import SINGLE_CAPS
from parabench.store.record import MIB


@pytest.fixture
def comparison() -> Comparison:
    """A list that is predicted to be 10 % faster than the best single cap, and is 8 %."""
    listed = Measurement((0.5, 2.0), 0.1, (0.1, 0.102))
    return Comparison(
        model="some",
        algorithm="ring",
        listed=listed,
        singles=(Measurement(0.5, 0.11, (0.12, 0.12)), Measurement(1.0, 0.115, (0.108, 0.11016))),
        default=Measurement(None, 0.15, (0.16, 0.16)),
        advised=listed,
        bound=1.1,
    )


def test_a_list_is_held_against_the_single_cap_that_was_the_fastest(comparison: Comparison) -> None:
    assert comparison.best_single.cap == 1.0
    ratio, low, high = comparison.ratio
    assert ratio == pytest.approx(1 / 1.08)
    assert low == pytest.approx(ratio)
    assert high == pytest.approx(ratio)
    assert comparison.verdict == "advised; at least 5% faster"


def test_a_single_cap_that_is_advised_is_held_against_the_fastest(comparison: Comparison) -> None:
    slow, fast = comparison.singles
    said = replace(comparison, advised=slow).verdict
    assert said == "advised instead: 0.5 MiB, which takes 1.100 times as long, wrong: more than 1% slower"
    said = replace(comparison, advised=fast).verdict
    assert said == "advised instead: 1 MiB, which takes 1.000 times as long, at most 1% slower"


def test_where_cores_were_the_limit_nothing_is_said(comparison: Comparison) -> None:
    busy = replace(comparison, listed=replace(comparison.listed, counts=False))
    assert busy.verdict == "does not count: cores were the limit"
    assert "| the list, lacked cores |" in markdown([busy])


def test_the_table_has_the_list_all_single_caps_and_the_default(comparison: Comparison) -> None:
    lines = markdown([comparison]).splitlines()
    assert lines[2] == "| some | ring | 0.5+2 | 100.0 | 101.0 | the list, advised |"
    assert lines[3] == "| some | ring | 0.5 | 110.0 | 120.0 |  |"
    assert lines[4] == "| some | ring | 1 | 115.0 | 109.1 | best single cap |"
    assert lines[5] == "| some | ring | default | 150.0 | 160.0 |  |"
    assert "0.926 times as long" in lines[-1]
    assert "predicted 0.909" in lines[-1]


def test_a_ratio_is_of_pairs_and_of_one_pair_has_no_interval() -> None:
    # What changes both of a launch alike is nothing of the ratio's.
    ratio, low, high = ratio_of([1.0, 2.0, 4.0], [2.0, 4.0, 8.0])
    assert (ratio, low, high) == pytest.approx((0.5, 0.5, 0.5))
    ratio, low, high = ratio_of([1.0, 1.1], [1.0, 1.0])
    assert ratio == pytest.approx(math.sqrt(1.1))
    assert low < ratio < high
    assert ratio_of([1.0], [2.0]) == (0.5, 0.0, math.inf)


@pytest.mark.parametrize(
    ("ratio", "bound", "said"),
    [
        (0.94, 1.08, "at least 5% faster"),
        (0.97, 1.08, "less than 5% faster"),
        (1.004, 1.004, "no list gains 1%"),
        (1.02, 1.004, "wrong: more than 1% slower"),
        (1.02, 1.08, "wrong: more than 1% slower"),
    ],
)
def test_the_verdict_says_what_became_of_the_prediction(ratio: float, bound: float, said: str) -> None:
    assert verdict(ratio, bound) == said


def test_single_caps_that_make_the_same_buckets_are_measured_once() -> None:
    sizes = [MIB // 2] * 16
    predicted = {cap: abs(math.log(cap / 1.4)) for cap in SINGLE_CAPS}
    caps = judged_by(sizes, predicted)
    buckets = [max(1, math.ceil(cap / 0.5)) for cap in caps]
    assert len(caps) >= 5
    assert len(set(buckets)) == len(buckets)
    assert 3 in buckets
    assert caps == sorted(caps)


def test_every_suite_can_be_read() -> None:
    for model, algorithm in COMPARED:
        for session in (*base(model), in_turns(model, algorithm, [None, 1.0, (0.5, 2.0)])):
            assert session.suite is not None
            assert compile(session.suite, session.name, "exec")


@pytest.mark.parametrize("name", sorted({model for model, _ in COMPARED}))
def test_an_unlike_model_has_8_to_17_mib_and_every_weight_a_gradient(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    slept: list[float] = []
    monkeypatch.setattr("time.sleep", slept.append)
    model = getattr(unlike_models, name)()
    inputs, targets = model.batch(2, torch.Generator().manual_seed(0))
    model.loss(model.module(inputs), targets).backward()
    parameters = list(model.module.parameters())
    assert 7 * MIB <= sum(each.nbytes for each in parameters) <= 17 * MIB
    assert all(each.grad is not None and bool(each.grad.any()) for each in parameters)
    assert len(slept) == 2 * len(model.blocks)
