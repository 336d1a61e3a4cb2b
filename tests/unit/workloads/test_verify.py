"""Verification of launches with given numbers: the rule of each strategy, weaker levels, and named causes."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest

from parabench.errors import UsageError
from parabench.models import BUFFER, SUSPECTS
from parabench.plan.case import Case
from parabench.plan.validate import check
from parabench.store.record import Launch, Phase, Sample, Status
from parabench.workloads import verify as rules
from parabench.workloads.verify import EARLY, TOLERANCES, Reference, Tolerance, reference_of, verify

STEPS = 20
FALLING = [round(4.0 - 0.1 * step, 1) for step in range(STEPS)]
REFERENCE = Reference(loss=dict(enumerate(FALLING)), grad_norm={0: 2.0})

Losses = dict[int, Sequence[float | None]]


def launched(strategy: str, losses: Losses, *, norms: dict[int, float] | None = None, **facts: Any) -> Launch:
    """Return a launch of 2 ranks with {rank: losses} and {rank: norm of the first gradient}."""
    samples = [
        Sample(rank, step, Phase.MEASURE, "loss", loss) for rank in losses for step, loss in enumerate(losses[rank])
    ]
    samples += [Sample(rank, 0, Phase.WARMUP, "grad_norm", norm) for rank, norm in (norms or {}).items()]
    case = Case(strategy=strategy, world_size=2)
    return Launch(case=case, status=Status.OK, started_utc="", wall_s=1.0, samples=samples, facts=facts)


def wrong(launch: Launch, reference: Reference | None = REFERENCE) -> str | None:
    """Verify a launch, and return the message if it breaks its rule."""
    verify(launch, reference)
    assert (launch.status is Status.WRONG) == (launch.failure is not None)
    assert not (launch.failure and launch.findings)
    return str(launch.failure) if launch.failure else None


# -- one device's training ------------------------------------------------------------------------------------------


def test_verify_uses_the_ranks_with_a_loss_or_norm() -> None:
    assert wrong(launched("pp", {1: FALLING}, norms={0: 2.0})) is None
    assert wrong(launched("ddp", {0: FALLING, 1: FALLING}, norms={0: 2.0, 1: 2.0})) is None
    assert wrong(launched("pp", {}, norms={0: 2.0})) == "no loss was recorded, so nothing can be verified"
    assert wrong(launched("pp", {1: FALLING})) == "no grad_norm was recorded, so nothing can be verified"
    assert wrong(launched("ddp", {0: [1.0]}), reference=None) is None


@pytest.mark.parametrize("precision", sorted(TOLERANCES))
def test_mean_over_ranks_is_compared_within_the_tolerance(precision: str) -> None:
    def passes(last_loss: float, norm: float = 2.0) -> bool:
        launch = launched("ddp", {0: [2.0, 1.0], 1: [4.0, last_loss]}, norms={0: norm, 1: norm})
        launch.case = Case(strategy="ddp", world_size=2, precision=precision)
        return wrong(launch, Reference(loss={0: 3.0, 1: 2.0}, grad_norm={0: 2.0})) is None

    tolerance = TOLERANCES[precision]
    assert passes(3.0)
    assert passes(3.0 + 3.8 * tolerance.loss)
    assert not passes(3.0 + 4.4 * tolerance.loss)
    assert not any(passes(3.0, 2.0 * factor) for factor in (1 - 1.1 * tolerance.grad_norm, 0.5, 2.0))


def test_later_losses_have_a_wider_tolerance(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(TOLERANCES, "ieee", Tolerance(loss=1e-3, later_loss=0.5, grad_norm=1e-5))
    late = [value * (1.3 if step >= EARLY else 1.0) for step, value in enumerate(FALLING)]
    assert wrong(launched("ddp", {0: late}, norms={0: 2.0})) is None
    early = [value * (1.3 if step == EARLY - 1 else 1.0) for step, value in enumerate(FALLING)]
    assert f"loss at step {EARLY - 1}" in str(wrong(launched("ddp", {0: early}, norms={0: 2.0})))


# -- no exchange: the first loss ------------------------------------------------------------------------------------


def test_local_only_compares_the_first_loss() -> None:
    apart = launched("local_only", {0: [3.0, 3.9, 5.0], 1: [5.0, 3.9, 5.0]})
    assert wrong(apart) is None
    assert [(finding.code, finding.case_id) for finding in apart.findings] == [(rules.NO_EXCHANGE, apart.case.id)]
    # "relative to the larger" 4.1
    message = wrong(launched("local_only", {0: [4.1, 3.9], 1: [4.1, 3.9]}))
    assert message == "loss at step 0 is 4.1, on one device 4: relative to the larger 2.4e-02 apart, more than 2.0e-05"


@pytest.mark.parametrize("strategy", ["local_only", "parameter_server_async"])
def test_missing_loss_is_wrong_without_a_reference_too(strategy: str) -> None:
    for reference in (REFERENCE, None):
        for losses in ({0: [4.0, None], 1: [4.0, 3.0]}, {0: [4.0], 1: [4.0, 3.0]}):
            seen = wrong(launched(strategy, losses, applied=[[0, 0, 0], [1, 0, 1]]), reference)
            assert seen is not None
            assert "step 1 is not finite, or not every rank recorded it" in seen
    assert wrong(launched("local_only", {})) == "no loss was recorded, so nothing can be verified"


# -- asynchronous: each gradient once, in order, and the loss falls ---------------------------------------------------


def ledger(steps: int = STEPS) -> list[list[int]]:
    return [[rank, step, int(bool(step or rank))] for step in range(steps) for rank in (0, 1)]


def asynchronous(applied: list[list[int]] | None, losses: Sequence[float | None] = FALLING) -> Launch:
    facts = {} if applied is None else {"applied": applied}
    return launched("parameter_server_async", {0: losses, 1: losses}, **facts)


def test_complete_ledger_passes_with_its_cost() -> None:
    seen = asynchronous(ledger(), [4.0, *(loss + 0.25 for loss in FALLING[1:])])
    assert wrong(seen) is None
    assert [(finding.code, finding.case_id) for finding in seen.findings] == [(rules.LOSS_COST, seen.case.id)]
    assert seen.findings[0].message == (
        "Gradients were applied 0.97 updates late on average, 1 at most; over the last 5 of 20 steps the loss is 0.25 "
        "above one device's."
    )
    better = asynchronous(ledger(), [4.0, *(loss - 0.5 for loss in FALLING[1:])])
    assert wrong(better) is None
    assert "the loss is 0.5 below one device's" in better.findings[0].message


def swapped(rows: list[list[int]], a: int, b: int) -> list[list[int]]:
    rows[a], rows[b] = rows[b], rows[a]
    return rows


@pytest.mark.parametrize(
    ("applied", "message"),
    [
        (None, "no ledger of applied gradients was recorded, so nothing can be verified"),
        ([row for row in ledger() if row[:2] != [1, 7]], "rank 1's step 7 was applied 0 times, not once"),
        ([*ledger(), [0, 3, 1]], "rank 0's step 3 was applied 2 times, not once"),
        (swapped(ledger(), 4, 6), "the gradients of rank 0 were applied in another order than they were computed"),
        ([*ledger(), [2, 0, 1]], "41 gradients were applied, 40 computed"),
    ],
)
def test_incomplete_ledger_is_wrong(applied: list[list[int]] | None, message: str) -> None:
    for reference in (REFERENCE, None):
        seen = wrong(asynchronous(applied), reference)
        assert seen is not None
        assert message in seen


RISING = [round(4.0 + 0.1 * step, 1) for step in range(STEPS)]


def test_loss_that_does_not_fall_is_wrong() -> None:
    assert wrong(asynchronous(ledger(), RISING)) == (
        "the loss did not fall: 4 at the first step, 5.7 over the last 5, on one device 2.3"
    )
    assert wrong(asynchronous(ledger(), [4.0] * STEPS)) is not None
    assert wrong(asynchronous(ledger(), [4.0, *[3.99] * 19])) is None


@pytest.mark.parametrize(
    ("last", "clear"),
    [([3.5] * 5, True), ([3.5, 3.7, 3.3, 3.5, 3.5], True), ([4.0] * 5, False), ([3.5, 3.8, 3.2, 3.5, 3.5], False)],
)
def test_rising_loss_is_accepted_when_the_reference_is_flat(last: list[float], clear: bool) -> None:
    reference = Reference(loss=dict(enumerate([4.0] * 15 + last)), grad_norm={0: 2.0})
    assert (wrong(asynchronous(ledger(), RISING), reference) is not None) == clear


SHORT = Reference(loss={0: 4.0, 1: 3.0, 2: 2.0}, grad_norm={0: 2.0})


def of_ddp(losses: Sequence[float] = (4.0, 3.0, 2.0), norm: float = 2.0, facts: Any = None, **fields: Any) -> Launch:
    launch = launched("ddp", {0: losses, 1: losses}, norms={0: norm, 1: norm}, **(facts or {}))
    return replace(launch, case=Case(strategy="ddp", world_size=2, **fields))


# -- levels ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("fields", "parts"),
    [
        ({}, 1),
        ({"verification": "first_loss", "grad_accumulation": 4}, 1),
        ({"verification": "same_split"}, 2),
        ({"verification": "same_split", "grad_accumulation": 2}, 4),
        ({"verification": "same_split", "strategy": "tp_ddp", "world_size": 4, "tp_size": 2}, 2),
        ({"verification": "same_split", "strategy": "pp", "microbatches": 4}, 4),
    ],
)
def test_reference_splits_the_batch_by_level(fields: dict[str, Any], parts: int) -> None:
    case = Case(**{"strategy": "ddp", "world_size": 2, **fields})
    assert (case.reference().strategy, case.reference().batch_parts) == ("single", parts)
    assert case.reference().verification == case.verification
    assert case.reference().reference() == case.reference()


def test_first_loss_compares_no_later_loss_and_no_norm() -> None:
    assert wrong(of_ddp([4.0, 1.0, 9.0], 7.0, verification="first_loss"), SHORT) is None
    early = wrong(of_ddp([4.1, 3.0, 2.0], verification="first_loss"), SHORT)
    assert "loss at step 0 is 4.1, on one device 4" in str(early)
    assert "grad_norm" in str(wrong(of_ddp([4.0, 1.0, 9.0], 7.0), SHORT))


@pytest.mark.parametrize(
    ("level", "steps", "message"),
    [
        ("same_split", 3, "Compared with one device that takes the ranks' parts of each batch in turn"),
        ("first_loss", 1, "Only the first loss was compared with one device's"),
    ],
)
def test_weaker_level_is_a_warning_and_in_the_label(level: str, steps: int, message: str) -> None:
    launch = of_ddp(facts={"counts": {"warmup": 1, "measured": 2}}, verification=level)
    assert wrong(launch, SHORT) is None
    assert launch.facts["verified_steps"] == steps
    (finding,) = launch.findings
    assert (finding.code, finding.case_id) == (rules.WEAKER, launch.case.id)
    assert finding.message.startswith(message)
    assert f"(verification {level})" in finding.message
    assert f"verification {level}" in launch.case.label


def test_same_split_needs_rows_of_a_batch() -> None:
    case = Case(strategy="ddp", world_size=2, device="cpu", verification="same_split", split="sample")
    with pytest.raises(UsageError, match="verification same_split compares rows of each batch; use split batch"):
        check(case)


# -- causes ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("norm", "fields", "cause"),
    [
        (1.0, {}, "It is 2 times too small, the number of ranks: the loss must be the mean over the samples"),
        (0.5, {"grad_accumulation": 2}, "It is 4 times too small, the number of parts of a batch: the loss must be"),
        (4.0, {}, "It is 2 times too large, the number of ranks: gradients are summed over ranks, not averaged"),
    ],
)
def test_message_names_a_norm_off_by_the_number_of_ranks(norm: float, fields: dict[str, Any], cause: str) -> None:
    assert f". {cause}" in str(wrong(of_ddp(norm=norm, **fields), SHORT))


@pytest.mark.parametrize("suspect", SUSPECTS)
def test_message_names_suspects_of_model_and_data(suspect: str) -> None:
    named = f"{suspect}:mean" if suspect == BUFFER else suspect
    facts = {"verification": {"weights": ["float32"], "suspects": [named]}}
    seen = wrong(of_ddp(norm=2.1, facts=facts), SHORT)
    assert seen is not None
    assert seen.endswith(f". Perhaps because {SUSPECTS[suspect].format(names='mean')}")
    # One device has the whole batch; a rank may not have the ignored label.
    whole = replace(SHORT, suspects=reference_of(of_ddp(facts=facts)).suspects)
    assert wrong(of_ddp(norm=2.1), whole) == seen
    assert wrong(of_ddp(norm=2.1, facts=facts), whole) == seen


@pytest.mark.parametrize(("dtype", "right"), [("float32", False), ("bfloat16", True), ("float16", True)])
def test_narrow_weights_have_a_wider_tolerance(dtype: str, right: bool) -> None:
    """2e-4 apart, under precision ieee."""
    facts = {"verification": {"weights": ["float32", dtype], "suspects": []}}
    assert (wrong(of_ddp(norm=2.0004, facts=facts), SHORT) is None) == right
