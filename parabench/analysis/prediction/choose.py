"""What to choose for ranks that nobody has: the layout, algorithm and buckets that are predicted to be the fastest, and
the list of buckets that none can beat."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from parabench.analysis.prediction.base import Measured
from parabench.analysis.prediction.buckets import Buckets, Gradient, SecondsOf, best, reduced
from parabench.analysis.prediction.predict import Prediction, Predictor
from parabench.analysis.prediction.program import DEFAULT_CAPS, Call, Group
from parabench.analysis.prediction.question import candidates
from parabench.analysis.stats.quantiles import Numbers
from parabench.errors import UsageError
from parabench.plan.case import Case
from parabench.store.record import MIB
from parabench.strategies import entry_of

# The single caps that are predicted, in MiB: a twelfth of a doubling apart, of two digits, from 1/32 to 64.
SINGLE_CAPS = tuple(float(f"{2 ** (step / 12):.2g}") for step in range(-5 * 12, 6 * 12 + 1))

# How much longer than by the best list, a fraction, it may take until the last gradient is reduced, for fewer buckets.
SLACK = 0.002

# What a list has to gain over the best single cap to be told of at all, and to be advised: by how much predictions of a
# list's gain have been off (docs/explanation/foresight.md). Single caps that differ by less than the former are as
# good, and that of the fewest buckets is preferred: what a bucket costs its rank is the least certain of a prediction.
NOTHING, ADVISED = 0.01, 0.05


@dataclass(frozen=True, slots=True)
class Choice:
    """What is predicted to take the least time for a sample among so many ranks, of all that could be predicted; `rest`
    are the others, the fastest first, `refused` what could not."""

    world_size: int
    best: Prediction
    rest: tuple[Prediction, ...]
    refused: tuple[Prediction, ...]

    @property
    def default(self) -> Prediction | None:
        """DDP as PyTorch has it, where that was predicted."""
        every = (self.best, *self.rest)
        return next((each for each in every if is_default(each.case)), None)

    @property
    def level(self) -> list[Prediction]:
        """Those of the rest whose interval reaches down to the best's prediction."""
        return [each for each in self.rest if each.low_s / each.case.global_batch <= self.best.sample_s]


def is_default(case: Case) -> bool:
    """Whether it is DDP with the backend's own algorithm and PyTorch's buckets."""
    return case.strategy == "ddp" and case.algorithm == "native" and case.bucket_mib is None


def choice(
    predictor: Predictor,
    world_size: int,
    ranks_per_node: int | None = None,
    chosen: Mapping[str, tuple[Any, ...]] | None = None,
) -> Choice:
    """The choice for a world size, of cases with what is `chosen`. Raises UsageError where nothing can be predicted."""
    found = [predictor.predict(case) for case in candidates(predictor.base, world_size, ranks_per_node, chosen)]
    told = sorted((each for each in found if each.refused is None), key=lambda each: each.sample_s)
    refused = tuple(each for each in found if each.refused is not None)
    if not told:
        raise UsageError(f"nothing can be predicted for {world_size} ranks: {refused[0].refused}")
    return Choice(world_size, told[0], tuple(told[1:]), refused)


@dataclass(frozen=True, slots=True)
class BucketList:
    """The list of buckets with which DDP's gradients are reduced soonest, what it is predicted to take, and the
    best single cap, None for PyTorch's own. `bound` is how many times as long the latter takes as any list can at the
    least."""

    buckets: Buckets
    listed: Prediction
    single: Prediction

    @property
    def bound(self) -> float:
        return self.single.step_s / self.listed.step_s

    @property
    def gains(self) -> bool:
        return self.bound - 1 >= NOTHING

    @property
    def advised(self) -> bool:
        return self.bound - 1 >= ADVISED


def bucket_list(predictor: Predictor, case: Case) -> BucketList:
    """The best list for a case of DDP. Raises UsageError for a case that has no buckets, or of which something is not
    known."""
    if not entry_of(case.strategy).takes_caps:
        raise UsageError(f"{case.strategy} has no buckets of DDP's; use --set strategy=ddp")
    computed = predictor.computed(case)
    gradients = computed.program.scaled(predictor.work(case, computed)).gradients
    if not gradients:
        raise UsageError(f"when gradients of {case.label} are ready was not measured; instrument some steps")

    def seconds(sizes: Numbers) -> Numbers:
        group = Group(case.world_size)
        return np.array([predictor.travels(Call("all_reduce", int(size), group), case) for size in sizes])

    single, by_cap = _single(predictor, case, gradients, seconds)
    # Where buckets slow computing down, what is reduced first is not what makes the shortest step: a cap may do better.
    lists = [
        (each, predictor.predict(replace(case, bucket_mib=each.caps_mib)))
        for each in (best(gradients, seconds, SLACK), by_cap)
    ]
    found, listed = min(lists, key=lambda each: each[1].step_s)
    if listed.refused is not None:
        raise UsageError(listed.refused)
    return BucketList(found, listed, single)


def _single(
    predictor: Predictor, case: Case, gradients: Sequence[Gradient], seconds: SecondsOf
) -> tuple[Prediction, Buckets]:
    """The best single cap and its buckets: of caps that are predicted to be less than NOTHING slower than the fastest
    the one of the fewest buckets. Raises UsageError where none can be predicted."""
    # Caps that make the same buckets are one.
    alike: dict[tuple[int, ...], tuple[float | None, Buckets]] = {}
    for cap in (None, *SINGLE_CAPS):
        buckets = reduced(gradients, DEFAULT_CAPS if cap is None else [round(cap * MIB)], seconds)
        alike.setdefault(buckets.bytes, (cap, buckets))
    found = [(predictor.predict(replace(case, bucket_mib=cap)), buckets) for cap, buckets in alike.values()]
    told = [each for each in found if each[0].refused is None]
    if not told:
        raise UsageError(found[0][0].refused or "nothing can be predicted")
    least_s = min(each.step_s for each, _ in told)
    close = (each for each in told if each[0].step_s < least_s * (1 + NOTHING))
    return min(close, key=lambda each: (len(each[1].bytes), each[0].step_s))


@dataclass(frozen=True, slots=True)
class Check:
    """Predictions of cases that were `measured` elsewhere: how far off they are, and how many intervals hold what was
    measured."""

    predictions: tuple[Prediction, ...]
    measured: tuple[float, ...]

    @property
    def told(self) -> list[tuple[Prediction, float]]:
        """Those that were not refused, each with what was measured."""
        pairs = zip(self.predictions, self.measured, strict=True)
        return [(each, step_s) for each, step_s in pairs if each.refused is None]

    @property
    def median_error(self) -> float:
        """Of how far predicted and measured are apart, as a logarithm; NaN of none."""
        errors = [abs(math.log(each.step_s / step_s)) for each, step_s in self.told]
        return float(np.median(errors)) if errors else math.nan

    @property
    def inside(self) -> int:
        """How many intervals hold what was measured."""
        return sum(each.low_s <= step_s <= each.high_s for each, step_s in self.told)


def check(predictor: Predictor, trainings: Sequence[Measured]) -> Check:
    """How well trainings of several ranks would have been predicted."""
    several = [each for each in trainings if each.case.world_size > 1]
    return Check(tuple(predictor.predict(each.case) for each in several), tuple(each.step_s for each in several))
