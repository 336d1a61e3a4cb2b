"""The levels of verification, what a weaker one says of itself, and the causes that a wrong launch names."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from parabench.errors import UsageError
from parabench.models import BUFFER, SUSPECTS
from parabench.plan.case import Case
from parabench.plan.validate import check
from parabench.store.record import Launch, Phase, Sample, Status
from parabench.workloads.verify import WEAKER, Reference, reference_of, verify

LOSSES = [4.0, 3.0, 2.0]
REFERENCE = Reference(loss=dict(enumerate(LOSSES)), grad_norm={0: 2.0})


def launched(losses: list[float] = LOSSES, norm: float = 2.0, facts: Any = None, **fields: Any) -> Launch:
    case = Case(**{"strategy": "ddp", "world_size": 2, **fields})
    samples = [Sample(rank, step, Phase.MEASURE, "loss", loss) for rank in range(2) for step, loss in enumerate(losses)]
    samples += [Sample(rank, 0, Phase.WARMUP, "grad_norm", norm) for rank in range(2)]
    return Launch(case=case, status=Status.OK, started_utc="", wall_s=1.0, samples=samples, facts=facts or {})


def verified(launch: Launch, reference: Reference | None = REFERENCE) -> str:
    """What breaks the launch's rule; empty if nothing does."""
    verify(launch, reference)
    return str(launch.failure) if launch.failure else ""


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
    assert verified(launched([4.0, 1.0, 9.0], 7.0, verification="first_loss")) == ""
    assert "loss at step 0 is 4.1, on one device 4" in verified(launched([4.1, 3.0, 2.0], verification="first_loss"))
    assert "grad_norm" in verified(launched([4.0, 1.0, 9.0], 7.0))


@pytest.mark.parametrize(
    ("level", "message"),
    [
        ("same_split", "Compared with one device that takes the ranks' parts of each batch in turn"),
        ("first_loss", "Only the first loss was compared with one device's"),
    ],
)
def test_a_weaker_level_is_a_warning_and_in_the_label(level: str, message: str) -> None:
    launch = launched(verification=level)
    assert verified(launch) == ""
    (finding,) = launch.findings
    assert (finding.code, finding.case_id) == (WEAKER, launch.case.id)
    assert finding.message.startswith(message)
    assert f"(verification {level})" in finding.message
    assert f"verification {level}" in launch.case.label


@pytest.mark.parametrize(("level", "count"), [("exact", 3), ("same_split", 3), ("first_loss", 1)])
def test_verified_steps_counts_what_was_compared(level: str, count: int) -> None:
    launch = launched(facts={"counts": {"warmup": 1, "measured": 2}}, verification=level)
    assert verified(launch) == ""
    assert launch.facts["verified_steps"] == count


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
def test_a_norm_off_by_the_number_of_ranks_is_named(norm: float, fields: dict[str, Any], cause: str) -> None:
    assert f". {cause}" in verified(launched(norm=norm, **fields))


@pytest.mark.parametrize("suspect", SUSPECTS)
def test_a_wrong_launch_names_what_its_model_or_data_has(suspect: str) -> None:
    facts = {
        "verification": {"weights": ["float32"], "suspects": [f"{suspect}:mean" if suspect == BUFFER else suspect]}
    }
    seen = verified(launched(norm=2.1, facts=facts))
    assert seen.endswith(f". Perhaps because {SUSPECTS[suspect].format(names='mean')}")
    # One device sees the whole batch; a rank may not have the label that is ignored.
    whole = replace(REFERENCE, suspects=reference_of(launched(facts=facts)).suspects)
    assert verified(launched(norm=2.1), whole) == seen
    assert verified(launched(norm=2.1, facts=facts), whole) == seen


@pytest.mark.parametrize(("dtype", "right"), [("float32", False), ("bfloat16", True), ("float16", True)])
def test_weights_that_are_narrow_widen_the_tolerance(dtype: str, right: bool) -> None:
    """2e-4 apart, under precision ieee."""
    facts = {"verification": {"weights": ["float32", dtype], "suspects": []}}
    assert (verified(launched(norm=2.0004, facts=facts)) == "") == right
