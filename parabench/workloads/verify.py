"""Verification: every launch must compute the training that its strategy promises.

Nearly all strategies promise the training of one device. `strategies.Rule` has the exceptions.
docs/explanation/verification.md has the measurements behind the numbers here.
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import fmean, median

from parabench.models import FIRST_LOSS, PRECISIONS, SAME_SPLIT, remedies
from parabench.plan.case import Case
from parabench.store.record import Failure, Finding, Launch, Status
from parabench.strategies import Rule, entry_of


@dataclass(frozen=True, slots=True)
class Tolerance:
    """The largest relative differences that rounding can explain.

    `loss` is for the first EARLY losses, `later_loss` for the others, and `grad_norm` for the norm of the first
    gradient.
    """

    loss: float
    later_loss: float
    grad_norm: float

    def of_loss(self, step: int) -> float:
        return self.loss if step < EARLY else self.later_loss


EARLY = 5

# Summation order differs between strategies, and AdamW amplifies the noise of small gradients, so differences grow.
# These are at least ten times the measured ones (docs/explanation/verification.md). A lost contribution changes the
# norm by 5%.
_MEASURED = {
    "ieee": Tolerance(loss=2e-5, later_loss=2e-5, grad_norm=1e-5),
    "bf16-mixed": Tolerance(loss=1e-2, later_loss=1.5e-1, grad_norm=2.5e-2),
}


def _derived(precision: str) -> Tolerance:
    """Return the tolerance of bf16-mixed, scaled in proportion to the unit roundoff of `precision`."""
    known = _MEASURED["bf16-mixed"]
    share = PRECISIONS[precision].roundoff / PRECISIONS["bf16-mixed"].roundoff
    return Tolerance(known.loss * share, known.later_loss * share, known.grad_norm * share)


TOLERANCES = {precision: _MEASURED.get(precision) or _derived(precision) for precision in PRECISIONS}

# A ratio of norms within this relative distance of an integer counts as that integer.
SAME_FACTOR = 1e-3

# {dtype of the weights: the precision whose tolerance is used}
_OF_WEIGHTS = {"bfloat16": "bf16-true", "float16": "fp16-mixed"}

# With fewer steps, the fall of a loss is not checked, because batches differ by more than it.
LEAST_STEPS_TO_FALL = 16

# Codes of warnings about results that are correct, but easy to misread.
LOSS_COST = "loss_cost"
NO_EXCHANGE = "no_exchange"
WEAKER = "weaker_verification"

# The message and the advice for launches that were verified at a level below `exact`.
_WEAKER = {
    SAME_SPLIT: (
        "Compared with one device that takes the ranks' parts of each batch in turn, not each batch as a whole "
        "(verification same_split).",
        "Expect other losses at another number of ranks or parts: the model depends on how a batch is split.",
    ),
    FIRST_LOSS: (
        "Only the first loss was compared with one device's (verification first_loss).",
        "Check gradients and later losses yourself: a lost or doubled contribution would not be noticed.",
    ),
}

Values = Mapping[int, float | None]


@dataclass(frozen=True, slots=True)
class Reference:
    """The results of one device: {step: value} of the loss and of the first gradient's norm.

    `suspects` are the keys of `models.SUSPECTS` that it found in the whole batch.
    """

    loss: Values
    grad_norm: Values
    suspects: tuple[str, ...] = ()


def reference_of(launch: Launch) -> Reference:
    """Return the reference from a launch of strategy `single`."""
    return Reference(_mean_over_ranks(launch, "loss"), _mean_over_ranks(launch, "grad_norm"), tuple(_suspects(launch)))


def verify(launch: Launch, reference: Reference | None) -> None:
    """Set the status of an ok launch to `wrong`, with a message, if it breaks its strategy's rule.

    Add a warning if its results differ from one device by design, or were verified at a weaker level. Without a
    reference, only the rules that need none are checked.
    """
    if launch.status is not Status.OK:
        return
    rule = entry_of(launch.case.strategy).rule
    if reference is not None and "counts" in launch.facts:
        # A launch by time takes more or fewer steps than the reference, so the losses of common steps are compared. The
        # other rules compare the first loss with one device's.
        least = sum(launch.facts["counts"].values())
        taken = max([least, *(sample.step + 1 for sample in launch.samples if sample.step is not None)])
        reference = replace(reference, loss={step: loss for step, loss in reference.loss.items() if step < taken})
        every = rule is Rule.REFERENCE and _case(launch).verification != FIRST_LOSS
        launch.facts["verified_steps"] = len(reference.loss) if every else 1
    message = _RULES[rule](launch, reference)
    if message is not None:
        launch.status = Status.WRONG
        launch.failure = Failure(message)
    elif rule is Rule.APPLIED_ONCE:
        launch.findings.append(_loss_cost(launch, reference))
    elif rule is Rule.FIRST_LOSS:
        launch.findings.append(
            Finding(
                NO_EXCHANGE,
                "Gradients were not exchanged: a no-communication baseline, the bound of what communication costs.",
                "Read it as a bound for ddp; it is not a way to train.",
                launch.case.id,
            )
        )
    elif reference is not None and (level := _case(launch).verification) in _WEAKER:
        launch.findings.append(Finding(WEAKER, *_WEAKER[level], launch.case.id))


# -- the rules: each returns a message if it is broken ---------------------------------------------------------------


def _same_training(launch: Launch, reference: Reference | None) -> str | None:
    """Require the losses and the first gradient's norm of one device, and equal data-parallel replicas.

    With verification `first_loss`, only the first loss and the replicas are compared.
    """
    if _case(launch).verification == FIRST_LOSS:
        return _same_start(launch, reference) or _replicas(launch)
    if reference is None:
        return _replicas(launch)
    tolerance = _tolerance(launch)
    norms, losses = _mean_over_ranks(launch, "grad_norm"), _mean_over_ranks(launch, "loss")
    compared = _compared(launch, losses, reference)
    message = (
        _difference("grad_norm", norms, reference.grad_norm, lambda _: tolerance.grad_norm)
        or _difference("loss", compared, reference.loss, tolerance.of_loss)
        or _unknown({step: loss for step, loss in losses.items() if step not in compared})
    )  # fmt: skip
    return _replicas(launch) if message is None else message + _cause(launch, reference)


def _cause(launch: Launch, reference: Reference) -> str:
    """Return the likely cause of a difference and its remedy, as the end of a message; "" if none is known."""
    norm, expected = _mean_over_ranks(launch, "grad_norm").get(0), reference.grad_norm.get(0)
    ranks, parts = _case(launch).data_ranks, _case(launch).batch_parts
    if norm and expected and parts > 1:
        if math.isclose(expected / norm, parts, rel_tol=SAME_FACTOR):
            of_parts = "the number of ranks" if parts == ranks else "the number of parts of a batch"
            return (
                f". It is {parts} times too small, {of_parts}: the loss must be the mean over the samples, not the sum"
            )
        if ranks > 1 and math.isclose(norm / expected, ranks, rel_tol=SAME_FACTOR):
            return (
                f". It is {ranks} times too large, the number of ranks: gradients are summed over ranks, not averaged"
            )
    suspects = dict.fromkeys((*_suspects(launch), *reference.suspects))
    return "".join(f". Perhaps because {each}" for each in remedies(suspects, _case(launch).verification).values())


def _suspects(launch: Launch) -> Sequence[str]:
    found: Sequence[str] = launch.facts.get("verification", {}).get("suspects", ())
    return found


def _compared(launch: Launch, losses: dict[int, float | None], reference: Reference) -> dict[int, float | None]:
    """Return the losses to compare. A launch by time may have steps that the reference does not have."""
    return {step: loss for step, loss in losses.items() if step in reference.loss or "counts" not in launch.facts}


def _case(launch: Launch) -> Case:
    assert isinstance(launch.case, Case)  # only training runs are verified against one device
    return launch.case


def _tolerance(launch: Launch) -> Tolerance:
    """Return the tolerance of the case's precision, or of the dtype of its weights if this is wider."""
    weights = launch.facts.get("verification", {}).get("weights", [])
    precisions = [_case(launch).precision, *(_OF_WEIGHTS[each] for each in weights if each in _OF_WEIGHTS)]
    return max((TOLERANCES[each] for each in precisions), key=lambda tolerance: tolerance.later_loss)


def _replicas(launch: Launch) -> str | None:
    """Require equal bits. This detects errors that bfloat16's rounding hides in a loss (`probes.replicas`)."""
    apart = launch.facts.get("replicas_apart")
    if apart is None:
        return None
    ranks = " and ".join(map(str, apart["ranks"]))
    return (
        f"after the last step parameter {apart['parameter']} of rank {ranks} differs from its first replica, one of "
        f"{apart['parameters']} that differ; data-parallel ranks must stay equal"
    )


def _same_start(launch: Launch, reference: Reference | None) -> str | None:
    """Require the first loss of one device, because all ranks start with its parameters, and finite losses."""
    losses = _mean_over_ranks(launch, "loss")
    message = None
    if reference is not None:
        first = {step: value for step, value in losses.items() if step == 0}
        message = _difference("loss", first, {0: reference.loss.get(0)}, _tolerance(launch).of_loss)
    return message or _unknown(losses)


def _unknown(losses: Values) -> str | None:
    """Require a known value at every step."""
    unknown = [step for step, value in losses.items() if value is None]
    return f"loss at step {min(unknown)} is not finite, or not every rank recorded it" if unknown else None


def _applied_once(launch: Launch, reference: Reference | None) -> str | None:
    """Require the first loss of one device, a complete ledger of applied gradients, and a loss that fell."""
    return _same_start(launch, reference) or _ledger(launch) or (_not_falling(launch, reference) if reference else None)


_RULES: dict[Rule, Callable[[Launch, Reference | None], str | None]] = {
    Rule.REFERENCE: _same_training,
    Rule.FIRST_LOSS: _same_start,
    Rule.APPLIED_ONCE: _applied_once,
}


def _ledger(launch: Launch) -> str | None:
    """Require that the server applied each gradient of each rank exactly once, and in order."""
    applied: Sequence[Sequence[int]] | None = launch.facts.get("applied")
    if applied is None:
        return "no ledger of applied gradients was recorded, so nothing can be verified"
    taken = Counter(sample.rank for sample in launch.samples if sample.metric == "loss")
    for rank in range(launch.case.world_size):
        order = [step for of_rank, step, _ in applied if of_rank == rank]
        times = Counter(order)
        for step in sorted(times.keys() | range(taken[rank])):
            if times[step] != (step < taken[rank]):
                due = "not once" if step < taken[rank] else "and this rank took no such step"
                return f"the gradient of rank {rank}'s step {step} was applied {times[step]} times, {due}"
        if order != sorted(order):
            return f"the gradients of rank {rank} were applied in another order than they were computed"
        if not order:
            return f"rank {rank} took no step"
    if len(applied) != sum(taken.values()):
        return f"{len(applied)} gradients were applied, {sum(taken.values())} computed"
    return None


def _not_falling(launch: Launch, reference: Reference) -> str | None:
    """Require that the loss fell, if it clearly fell on one device from the first step to the last quarter.

    A fall is clear if it is larger than the range of losses in that quarter. Medians are compared, because stale
    gradients cause short spikes.
    """
    losses = _compared(launch, _mean_over_ranks(launch, "loss"), reference)
    steps = sorted(losses)
    last = steps[-(len(steps) // 4) :]
    theirs = [value for step in (0, *last) if (value := reference.loss.get(step)) is not None]
    if len(steps) < LEAST_STEPS_TO_FALL or len(theirs) <= len(last):
        return None
    start, *after = theirs
    end, mine = median(after), _over(median, losses, last)
    if start - end <= max(after) - min(after) or mine < start:
        return None
    return (
        f"the loss did not fall: {start:.6g} at the first step, {mine:.6g} over the last {len(last)}, on one device "
        f"{end:.6g}"
    )


# -- labels ------------------------------------------------------------------------------------------------------------


def _loss_cost(launch: Launch, reference: Reference | None) -> Finding:
    """Return the warning about stale gradients, with their cost in loss."""
    staleness = [late for _, _, late in launch.facts["applied"]]
    losses = _mean_over_ranks(launch, "loss")
    if reference is not None:
        losses = _compared(launch, losses, reference)
    last = sorted(losses)[-max(1, len(losses) // 4) :]
    # Spikes are part of the cost, so this is the mean.
    cost = _over(fmean, losses, last) - (math.nan if reference is None else _over(fmean, reference.loss, last))
    costs = (
        "the loss that it costs is unknown, because one device's is not known"
        if math.isnan(cost)
        else f"over the last {len(last)} of {len(losses)} steps the loss is {abs(cost):.3g} "
        f"{'above' if cost > 0 else 'below'} one device's"
    )
    return Finding(
        LOSS_COST,
        f"Gradients were applied {fmean(staleness):.2g} updates late on average, {max(staleness)} at most; {costs}.",
        "Not equivalent to single-device training: each rank's gradient is an optimizer step of its own, computed on "
        "older parameters. Weigh its step time against its loss.",
        launch.case.id,
    )


# -- numbers -----------------------------------------------------------------------------------------------------------


def _over(average: Callable[[list[float]], float], values: Values, steps: Sequence[int]) -> float:
    """Return the average over these steps; NaN if a value is unknown."""
    known = [value for step in steps if (value := values.get(step)) is not None]
    return average(known) if len(known) == len(steps) else math.nan


def _mean_over_ranks(launch: Launch, metric: str) -> dict[int, float | None]:
    """Return {step: mean over ranks} of a metric; None if a rank's value is unknown.

    Ranks with a loss have equal parts of the batch, or the same part, so the mean is the batch's.
    """
    values: dict[int, list[float | None]] = defaultdict(list)
    for sample in launch.samples:
        if sample.metric == metric and sample.step is not None:
            values[sample.step].append(sample.value)
    ranks = max(map(len, values.values()), default=0)
    # One unknown (not finite, or missing where other steps have it) value makes the mean unknown.
    return {
        step: sum(v for v in each if v is not None) / ranks if None not in each and len(each) == ranks else None
        for step, each in values.items()
    }


def _difference(metric: str, values: Values, expected: Values, tolerance: Callable[[int], float]) -> str | None:
    """Require values within the tolerance of the expected ones, at the same steps."""
    if not values:
        return f"no {metric} was recorded, so nothing can be verified"
    for step in sorted(values.keys() | expected.keys()):
        mine, theirs = values.get(step), expected.get(step)
        if step in values and step in expected and mine is None and theirs is None:
            return f"{metric} at step {step} is not finite, on one device too; make the training stable first"
        if mine is None or theirs is None:
            return f"{metric} at step {step} is {mine}, on one device {theirs}"
        if not math.isclose(mine, theirs, rel_tol=tolerance(step)):
            return (
                f"{metric} at step {step} is {mine:.6g}, on one device {theirs:.6g}: "
                f"relative to the larger {abs(mine - theirs) / max(abs(mine), abs(theirs)):.1e} apart, "
                f"more than {tolerance(step):.1e}"
            )
    return None
