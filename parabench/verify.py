"""Verification: every launch must compute the training that one device computes."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass

from parabench.record import Failure, Launch, Status


@dataclass(frozen=True, slots=True)
class Tolerance:
    """Largest relative difference that rounding alone explains."""

    loss: float
    grad_norm: float


# Summation order differs between strategies, and AdamW makes small gradients' noise as large as any step, so the
# difference grows with the steps. These are at least ten times what was measured (docs/verification.md); a lost or
# doubled contribution moves the norm by 5 % or more, at the first step.
TOLERANCES = {
    "float32": Tolerance(loss=2e-5, grad_norm=1e-5),
    "bfloat16": Tolerance(loss=5e-3, grad_norm=1e-3),
}


@dataclass(frozen=True, slots=True)
class Reference:
    """What one device computed: {step: value} of the loss and of the first gradient's norm."""

    loss: Mapping[int, float | None]
    grad_norm: Mapping[int, float | None]


def reference_of(launch: Launch) -> Reference:
    """The reference that a launch of strategy `single` gives."""
    return Reference(_mean_over_ranks(launch, "loss"), _mean_over_ranks(launch, "grad_norm"))


def verify(launch: Launch, reference: Reference) -> None:
    """Turn an ok launch whose numbers are not the reference's into a `wrong` one, saying where they part."""
    if launch.status is not Status.OK:
        return
    tolerance = TOLERANCES[launch.case.dtype]
    message = _difference(
        "grad_norm", _mean_over_ranks(launch, "grad_norm"), reference.grad_norm, tolerance.grad_norm
    ) or _difference("loss", _mean_over_ranks(launch, "loss"), reference.loss, tolerance.loss)
    if message is not None:
        launch.status = Status.WRONG
        launch.failure = Failure(message)


def _mean_over_ranks(launch: Launch, metric: str) -> dict[int, float | None]:
    """Ranks hold equal parts of the batch, so the mean of their losses is the batch's loss."""
    values: dict[int, list[float | None]] = defaultdict(list)
    for sample in launch.samples:
        if sample.metric == metric and sample.step is not None:
            values[sample.step].append(sample.value)
    # One unknown (not finite) value makes the mean unknown.
    return {
        step: sum(v for v in each if v is not None) / len(each) if None not in each else None
        for step, each in values.items()
    }


def _difference(
    metric: str, seen: Mapping[int, float | None], expected: Mapping[int, float | None], tolerance: float
) -> str | None:
    if not seen:
        return f"no {metric} was recorded, so nothing can be verified"
    for step in sorted(seen):
        mine, theirs = seen[step], expected.get(step)
        if mine is None or theirs is None:
            return f"{metric} at step {step} is {mine}, on one device {theirs}"
        if not math.isclose(mine, theirs, rel_tol=tolerance):
            return (
                f"{metric} at step {step} is {mine:.6g}, on one device {theirs:.6g}: "
                f"relative to the larger {abs(mine - theirs) / max(abs(mine), abs(theirs)):.1e} apart, "
                f"more than {tolerance:.0e}"
            )
    return None
